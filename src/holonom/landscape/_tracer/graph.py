"""A captured forward: layers that all points share are run once, and chains of layers are joined."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.node import map_arg
from torch.nn import functional

from ..._torch import version
from .capture import Root, capture
from .layers import Layer, Mix, Norm, linear_inside_vmap

_PRODUCTS: set[Any] = {functional.linear, torch.conv1d, torch.conv2d, torch.conv3d}
_SUMS: set[Any] = {operator.add, operator.iadd, torch.add, "add", "add_"}
_RELUS: set[Any] = {functional.relu, torch.relu, torch.relu_, "relu", "relu_"}
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

State = dict[str, Any]  # tensors, or mixes of anchors inside vmap


@dataclass
class Step:
    """One node; or a linear layer or convolution together with the norm, the sum and the ReLU that follow it.

    Attributes:
        last: the node whose value is the result.
        constant: no moving tensor enters, so the result is the same at all points.
        same_input: no moving tensor enters the first argument.
        norm, added, relu: what follows the layer.
        kept: a constant result that steps read which are not constant.
        last_reads: nodes whose values are not needed after this step.
    """

    node: fx.Node
    last: fx.Node
    constant: bool
    same_input: bool
    norm: fx.Node | None = None
    added: Any = None
    relu: bool = False
    kept: bool = False
    last_reads: list[fx.Node] = field(default_factory=list)


class Prefix:
    """The results of constant steps for one batch: used again for the same inputs, unless something was overwritten."""

    def __init__(self) -> None:
        self.values: dict[fx.Node, Any] = {}
        self._versions: list[tuple[Tensor, int]] = []
        self._inputs: list[Tensor] | None = None

    def fits(self, inputs: list[Tensor]) -> bool:
        same = self._inputs is not None and all(a is b for a, b in zip(self._inputs, inputs, strict=True))
        return same and all(_writes(x) == before for x, before in self._versions)

    def begin(self, inputs: list[Tensor], state: list[Tensor]) -> None:
        self.values, self._inputs = {}, inputs
        self._versions = [(x, _writes(x)) for x in (*inputs, *state)]

    def keep(self, node: fx.Node, value: Any) -> None:
        self.values[node] = value
        if isinstance(value, Tensor):
            self._versions.append((value, _writes(value)))


class Graph:
    """Runs a captured forward with any state of the model."""

    def __init__(self, graph: fx.Graph, root: Root, model: nn.Module) -> None:
        names = {id(x): name for name, x in (*model.named_parameters(), *model.named_buffers())}
        self._nodes = [node for node in graph.nodes if node.op.startswith("call")]
        self._input, self._output = (next(n for n in graph.nodes if n.op == op) for op in ("placeholder", "output"))
        found = {n: reduce(getattr, n.target.split("."), root) for n in graph.nodes if n.op == "get_attr"}
        # Parameters and buffers by name; other tensors are constants.
        self._tensors: dict[Any, tuple[str, Any]] = {node: (names.get(id(x), ""), x) for node, x in found.items()}
        calls = {n: model.get_submodule(n.target.partition(".")[2]) for n in self._nodes if n.op == "call_module"}
        self._modules: dict[Any, Any] = calls
        self._names = {
            node: {local: names[id(x)] for part in (module.named_parameters, module.named_buffers)
                   for local, x in part(remove_duplicate=False)}
            for node, module in calls.items()
        }  # fmt: skip
        self._steps: dict[frozenset[str], list[Step]] = {}

    def run(self, state: State, moving: frozenset[str], inputs: list[Tensor], prefix: Prefix | None) -> Any:
        """The model's outputs.

        Args:
            moving: the names of the tensors that differ between points.
            prefix: where constant results are kept; None inside vmap, which computes them once by itself.
        """
        values: dict[Any, Any] = {self._input: inputs}

        def look(node: Any) -> Any:
            if node not in self._tensors:
                return values[node]
            name, x = self._tensors[node]
            return state.get(name, x)

        known = prefix is not None and prefix.fits(inputs)
        if prefix is not None and known:
            values |= prefix.values
        elif prefix is not None:
            prefix.begin(inputs, [x for name, x in state.items() if name not in moving and isinstance(x, Tensor)])
        if moving not in self._steps:
            self._steps[moving] = self._plan(moving)
        for step in self._steps[moving]:
            if known and step.constant:
                continue
            values[step.last] = self._execute(step, state, look)
            if prefix is not None and step.kept:
                prefix.keep(step.last, values[step.last])
            for node in step.last_reads:
                values.pop(node, None)
        return map_arg(self._output.args[0], lambda node: _tensor(look(node)))

    # ── planning ─────────────────────────────────────────────────────────────────────────────────

    def _plan(self, moving: frozenset[str]) -> list[Step]:
        changing = {node for node, (name, _) in self._tensors.items() if name in moving}
        steps: list[Step] = []
        for node in self._nodes:
            if changing.intersection(node.all_input_nodes) or moving.intersection(self._names.get(node, {}).values()):
                changing.add(node)
            if not (steps and self._join(steps[-1], node, node not in changing)):
                steps.append(Step(node, node, node not in changing, changing.isdisjoint(node.all_input_nodes[:1])))
        needed = set(self._output.all_input_nodes)
        for step in reversed(steps):
            step.kept = step.constant and any(user in changing or user is self._output for user in step.last.users)
            reads = {*step.node.all_input_nodes, *([step.added] if isinstance(step.added, fx.Node) else [])}
            step.last_reads = [x for x in reads if x not in needed]
            needed |= reads
        return steps

    def _join(self, step: Step, node: fx.Node, constant: bool) -> bool:
        """Make a node part of the step before it, if it is the only one that reads that step's result.

        A constant layer stays one although its norm may move.
        """
        last = step.last
        if not self._is_layer(step.node) or step.relu or list(last.users) != [node] or constant != step.constant:
            return False
        first, *others = node.args
        if node in self._modules:
            if step.last is not step.node or not _is_frozen_norm(self._modules[node]):
                return False
            step.norm = node
        elif node.target in _RELUS and first is last:
            step.relu = True
        elif node.target in _SUMS and step.added is None and len(others) == 1 and not node.kwargs:
            writes_to_other = node.target in (operator.iadd, "add_") and first is not last
            if writes_to_other or first is others[0]:
                return False
            step.added = others[0] if first is last else first
        else:
            return False
        step.last = node
        return True

    def _is_layer(self, node: fx.Node) -> bool:
        return node.target in _PRODUCTS and not node.kwargs and isinstance(node.args[1], fx.Node)

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def _execute(self, step: Step, state: State, look: Callable[[Any], Any]) -> Any:
        def read(node: fx.Node) -> Any:
            return _tensor(look(node))

        node, target = step.node, cast(Any, step.node.target)
        if self._is_layer(node):
            norm = None if step.norm is None else self._norm(step.norm, state)
            layer = Layer(target, node.args[3:], norm, map_arg(step.added, read), step.relu)
            x, weight, bias = cast(Any, map_arg((*node.args[:3], None)[:3], look))
            if step.same_input and isinstance(weight, Mix) and (bias is None or isinstance(bias, Mix)):
                return layer.mixed(x, weight, bias)
            matrices = isinstance(weight, Mix) and weight.anchors.ndim == 3 and x.ndim == 2
            if matrices and target is functional.linear and not x.is_cuda:
                layer = replace(layer, function=linear_inside_vmap)
            return layer(x, _tensor(weight), _tensor(bias))
        args, kwargs = map_arg(node.args, read), map_arg(node.kwargs, read)
        if node.op == "call_function":
            return target(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return functional_call(self._modules[node], self._module_state(node, state), args, kwargs, tie_weights=False)

    def _module_state(self, node: fx.Node, state: State) -> dict[str, Tensor]:
        """The parameters and buffers of a module, by its names for them."""
        return {local: _tensor(state[name]) for local, name in self._names[node].items() if name in state}

    def _norm(self, node: fx.Node, state: State) -> Norm:
        tensors = self._module_state(node, state)
        eps = self._modules[node].eps
        return Norm(tensors["running_mean"], tensors["running_var"], tensors.get("weight"), tensors.get("bias"), eps)


def trace(model: nn.Module, arguments: Any) -> Graph | None:
    captured = capture(model, arguments)
    return None if captured is None else Graph(*captured, model)


def _is_frozen_norm(module: Any) -> bool:
    """Whether it is a batch norm that uses its running statistics."""
    if type(module) not in _NORMS or "forward" in vars(module):
        return False
    return module.track_running_stats and not module.training


def _tensor(x: Any) -> Any:
    return x.tensor if isinstance(x, Mix) else x


def _writes(x: Tensor) -> int:
    """How often a tensor was written to; not counted in inference mode."""
    return 0 if x.is_inference() else version(x)
