"""Small products of an ensemble's layers, written as sums that a compiler fuses with what is around them.

A product of matrices with two short sides reads and writes more than it computes. As a call of its own it takes several
microseconds on a GPU; as a sum it becomes part of the kernels before and behind it.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

SHORT = 32  # sides of a matrix below this are short


def products_as_sums(graph: Graph) -> None:
    """Replace batched products on a GPU with at least two short sides of m, k, n."""
    bmm = torch.ops.aten.bmm.default
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is bmm and _is_small(node):
            with graph.inserting_before(node):
                node.replace_all_uses_with(_sum(graph, node))
            graph.erase_node(node)


def _is_small(node: Node) -> bool:
    left, right = (argument.meta.get("val") for argument in node.args[:2])  # type: ignore[union-attr]
    if left is None or right is None or not left.is_cuda:
        return False
    sides = (left.shape[1], left.shape[2], right.shape[2])
    return all(isinstance(side, int) for side in sides) and sum(side < SHORT for side in sides) >= 2


def _sum(graph: Graph, node: Node) -> Node:
    """Σ_k a[b, m, k] c[b, k, n]."""
    aten = torch.ops.aten
    left, right = node.args[:2]

    def call(target: object, *arguments: object) -> Node:
        made = graph.call_function(target, arguments)  # type: ignore[arg-type]
        values = [x.meta["val"] if isinstance(x, Node) else x for x in arguments]
        made.meta["val"] = target(*values)  # type: ignore[operator]
        return made

    pairs = call(aten.mul.Tensor, call(aten.unsqueeze.default, left, 3), call(aten.unsqueeze.default, right, 1))
    return call(aten.sum.dim_IntList, pairs, [2])
