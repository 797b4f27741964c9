"""The fast way to evaluate many points. Its one interface is :class:`Tracer`; the plain loop is the specification.

- The model's forward is captured once by torch.fx (``capture``). A model that torch.fx cannot follow, or whose captured
  graph returns something else than the model, is called as it is.
- In a captured graph (``graph``) nodes that depend on no moving tensor are run once for all points. A batch norm is
  folded into the layer in front of it, sums and ReLUs are done in place or by cuDNN's fused kernels (``layers``).
- Where no convolution moves, all points are evaluated at once by vmap. A layer whose input is the same at all points
  then needs one product for each anchor of the path, not one for each point.
- What vmap cannot do is left to the plain loop, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..evaluation import tensors
from ..loop import Loop, Measure, Model, Values
from ..points import Points
from .capture import Untraceable, flatten, has_hooks
from .graph import Graph, Prefix, State, trace
from .layers import Mix

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Tracer:
    """Evaluates points faster than a :class:`Loop`, with the same values to rounding.

    Args:
        loop: what to evaluate, and what to fall back on.
        batched: whether points are evaluated together by vmap; by default unless convolutions move, which are no
            faster together than alone, or vmap fails.

    Attributes:
        obstacle: why vmap was given up, if it was.
    """

    def __init__(self, loop: Loop, batched: bool | None) -> None:
        self.loop = loop
        self.batched = batched
        self.obstacle: str | None = None
        self.graphs: dict[str, Graph | None] = {}
        model = loop.subject.model
        kernels = {f"{name}.weight".lstrip(".") for name, m in model.named_modules() if isinstance(m, _CONVOLUTIONS)}
        self._moves_kernels = [not kernels.isdisjoint((*p.anchors, *p.curves)) for p in loop.points]
        if loop.subject.device.type == "cuda":
            _use_channels_last(loop.points, {name for name, p in loop.subject.parameters.items() if p.ndim == 4})
        self._probed: set[Measure] = set()

    def together(self, number: int) -> bool:
        """Whether one call of ``measure`` evaluates many points at once."""
        return bool(self.batched) or (self.batched is None and not self._moves_kernels[number])

    def measure(self, measure: Measure, number: int, rows: Tensor, batch: Any, shared: bool) -> Values:
        """As :meth:`Loop.measure`."""
        if self.together(number):
            try:
                return self._together(measure, number, rows, batch, shared)
            except RuntimeError as error:
                if self.batched:
                    raise
                values = self._one_by_one(measure, number, rows, batch, shared)
                self.obstacle, self.batched = str(error).splitlines()[0], False
                return values
        return self._one_by_one(measure, number, rows, batch, shared)

    def _one_by_one(self, measure: Measure, number: int, rows: Tensor, batch: Any, shared: bool) -> Values:
        moving, prefixes = self._moving(number), dict[Any, Prefix]()

        def bind(state: Values, replica: int) -> Model:
            return self._bind(state, moving, prefixes, replica)

        return self.loop.measure(measure, number, rows, batch, shared, bind)

    def _together(self, measure: Measure, number: int, rows: Tensor, batch: Any, shared: bool) -> Values:
        if measure not in self._probed:  # graphs are captured and checked outside vmap
            self._one_by_one(measure, number, rows[:1], batch, shared)
            self._probed.add(measure)
        points, subject = self.loop.points[number], self.loop.subject
        moving, on_line = self._moving(number), points.on_line
        coefficients = points.coefficients[rows].to(subject.device)
        curves = {name: curve(points.coefficients[rows]) for name, curve in points.curves.items()}
        curves |= {name: x[rows.to(x.device)] for name, x in self.loop.statistics.get(number, {}).items()}
        fixed = {name: x.clone() if name in subject.buffers else x for name, x in points.fixed.items()}

        def one(coefficients: Tensor, anchors: Values, fixed: Values, curves: Values, batch: Any) -> Values:
            mixed = {name: Mix(coefficients, x, on_line) for name, x in anchors.items()}
            return measure(self._bind({**fixed, **mixed, **curves}, moving), batch)

        mapped = vmap(one, (0, None, None, 0, None))
        if subject.replicas is not None:
            mapped = vmap(mapped, (None, 1, 0, 1, None if shared else 0))
        with _batchable_attention(subject.device):
            return mapped(coefficients, points.anchors, fixed, curves, batch)

    def _moving(self, number: int) -> frozenset[str]:
        points = self.loop.points[number]
        return frozenset((*points.anchors, *points.curves, *self.loop.statistics.get(number, {})))

    def _bind(
        self, state: State, moving: frozenset[str], prefixes: dict[Any, Prefix] | None = None, replica: int = 0
    ) -> Model:
        """The model with a state, run as its captured graph where there is one. Inside vmap ``prefixes`` is None."""
        loop, model = self.loop, self.loop.subject.model

        def plain(*args: Any, **kwargs: Any) -> Any:
            whole = {name: x.tensor if isinstance(x, Mix) else x for name, x in state.items()}
            return loop.bind(whole)(*args, **kwargs)

        def traced(*args: Any, **kwargs: Any) -> Any:
            if has_hooks(model) or torch.is_grad_enabled():  # intermediate results or derivatives may be wanted
                return plain(*args, **kwargs)
            try:
                inputs, arguments = flatten((args, kwargs))
            except Untraceable:
                return plain(*args, **kwargs)
            key = repr(arguments)
            prefix = None if prefixes is None else prefixes.setdefault((key, replica), Prefix())
            if key not in self.graphs and prefix is not None:
                buffers = {name: x.clone() for name, x in state.items() if name in loop.subject.buffers}
                expected = plain(*args, **kwargs)
                self._capture(key, arguments, expected, lambda graph: run(graph, state | buffers, inputs, prefix))
                return expected
            graph = self.graphs.get(key)
            if graph is None:
                return plain(*args, **kwargs)
            try:
                return run(graph, state, inputs, prefix)
            except Exception:  # if the model fails, too, its error is the one to raise
                self.graphs[key] = None
                return plain(*args, **kwargs)

        def run(graph: Graph, state: State, inputs: list[Tensor], prefix: Prefix | None) -> Any:
            with loop.precision():
                return graph.run(state, moving, inputs, prefix)

        return traced

    def _capture(self, key: str, arguments: Any, expected: Any, run: Callable[[Graph], Any]) -> None:
        """Capture the graph of a call; keep it if it returns what the model returned."""
        with self.loop.precision():
            graph = trace(self.loop.subject.model, arguments)
        try:
            right = graph is not None and _agree(run(graph), expected)
        except Exception:
            right = False
        self.graphs[key] = graph if right else None


def _agree(outputs: Any, expected: Any) -> bool:
    """Whether a graph returns what the model does; wrong graphs differ by far more than rounding."""
    pairs = list(zip_longest(tensors(outputs), tensors(expected)))
    if any(x is None or y is None or x.shape != y.shape or x.dtype != y.dtype for x, y in pairs):
        return False
    return all(_close(x, y) for x, y in pairs)


def _close(x: Tensor, y: Tensor) -> bool:
    tolerance = torch.finfo(y.dtype).eps ** 0.25 if y.is_floating_point() else 0.0
    scale = float(y.abs().nan_to_num().max()) if y.numel() else 0.0
    return torch.allclose(x, y, rtol=0.0, atol=tolerance * scale, equal_nan=True)


def _use_channels_last(points: list[Points], names: set[str]) -> None:
    """Kernels in the layout of a GPU's convolutions, which activations follow. Lines may share fixed tensors."""
    made: dict[int, Tensor] = {}
    for part in (part for one in points for part in (one.anchors, one.fixed)):
        for name in names.intersection(part):
            x = part[name]
            part[name] = made.setdefault(id(x), x.movedim(-3, -1).contiguous().movedim(-1, -3))


@contextmanager
def _batchable_attention(device: torch.device) -> Iterator[None]:
    """The plain form of attention: vmap would loop over the fused ones."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
