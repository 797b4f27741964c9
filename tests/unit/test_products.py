"""Small batched products as sums: the graph's result is the same, and large products stay products."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule

from holonom._training.products import products_as_sums

BMM = torch.ops.aten.bmm.default


def product(m: int, k: int, n: int, device: str) -> Graph:
    graph = Graph()
    with FakeTensorMode():
        left, right = graph.placeholder("left"), graph.placeholder("right")
        left.meta["val"] = torch.empty(3, m, k, device=device)
        right.meta["val"] = torch.empty(3, k, n, device=device)
        result = graph.call_function(BMM, (left, right))
        result.meta["val"] = torch.empty(3, m, n, device=device)
    graph.output(result)
    return graph


@pytest.mark.parametrize("sides", [(2, 2, 500), (2, 500, 1), (500, 2, 2), (1, 1, 1)])
def test_small_products_become_sums(sides: tuple[int, int, int]) -> None:
    graph = product(*sides, device="cuda")
    products_as_sums(graph)
    graph.lint()
    assert BMM not in [node.target for node in graph.nodes]
    (result,) = next(node for node in graph.nodes if node.op == "output").args
    assert result.meta["val"].shape == (3, sides[0], sides[2])
    left, right = torch.randn(3, sides[0], sides[1]), torch.randn(3, sides[1], sides[2])
    found = GraphModule(torch.nn.Module(), graph)(left, right)
    torch.testing.assert_close(found, left @ right, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("sides", "device"), [((2, 500, 500), "cuda"), ((64, 64, 8), "cuda"), ((2, 2, 500), "cpu")])
def test_other_products_stay_products(sides: tuple[int, int, int], device: str) -> None:
    graph = product(*sides, device=device)
    products_as_sums(graph)
    assert BMM in [node.target for node in graph.nodes]
