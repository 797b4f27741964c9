"""Some points of a family, one batch: evaluated together by vmap, or one by one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from .calls import Deviation, tensors
from .family import Family
from .overwriting import overwriting
from .prefix import Point, Prefix
from .shared import Mixed, convolves, sharing_names
from .states import Subject

Values = dict[str, Tensor]
Measure = Callable[[Any, Any], Values]


class Points:
    """Families of states that can be measured on a batch.

    Attributes:
        obstacle: why points had to be evaluated one by one, if they had to.
        statistics: by family, recomputed batch-norm statistics, (P, [R,] …).
        remember: False where more is looked at than what the model returns.
    """

    def __init__(
        self, subject: Subject, families: list[Family], autocast: torch.dtype | None, batched: bool | None
    ) -> None:
        self.subject = subject
        self.families = families
        self.autocast = autocast
        self.batched = batched
        self.obstacle: str | None = None
        self.statistics: dict[int, Values] = {}
        self._sharing = sharing_names(subject.model)
        self._together_pays = [not convolves(subject.model, {**f.anchors, **f.curves}) for f in families]
        self._keep = sum(len(f) * f.bytes_per_point for f in families) <= 4 * memory_budget(subject.device)
        self._made: dict[tuple[int, int, int], Values] = {}
        laid: dict[int, Tensor] = {}  # families share their fixed tensors
        # Buffers are copied: a model may write to them, and these are the caller's.
        own = {id(x): x.clone() for f in families for n, x in f.fixed.items() if n in subject.buffers}
        self._fixed = [
            {n: laid.setdefault(id(x), _laid_out(own.get(id(x), x))) for n, x in f.fixed.items()} for f in families
        ]
        self.remember = True

    def one_at_a_time(self, number: int) -> bool:
        """Whether a family's points are evaluated alone: by choice, or because convolutions are its moving part."""
        return self.batched is False or (self.batched is None and not self._together_pays[number])

    def measure(self, measure: Measure, number: int, rows: Tensor, batch: Any, shared: bool) -> Values:
        """``measure(model, batch)`` at some rows of a family; every result is ([R,] rows, …)."""
        if self.one_at_a_time(number):
            return self.one_by_one(measure, number, rows, batch, shared)
        try:
            return self._together(measure, number, rows, batch, shared)
        except RuntimeError as error:
            if self.batched or not ("vmap" in str(error) or "atching rule" in str(error)):
                raise
            self.obstacle = str(error).splitlines()[0]
            self.batched = False
            return self.one_by_one(measure, number, rows, batch, shared)

    def _together(self, measure: Measure, number: int, rows: Tensor, batch: Any, shared: bool) -> Values:
        family = self.families[number]
        weights = family.weights[rows].to(self.subject.device)
        key = (number, int(rows[0]), len(rows))
        on_a_line = family.on_a_line

        def one(
            weights: Tensor, anchors: Values, fixed: Values, curves: Values, made: Values, batch: Any
        ) -> tuple[Values, Values]:
            mixed = Mixed(weights, anchors, self._sharing, made, on_a_line)
            values = measure(self._bound({**fixed, **mixed.parameters, **curves}, mixed), batch)
            return values, mixed.made if self._keep else {}

        mapped = vmap(one, (0, None, None, 0, 0, None))
        if self.subject.replicas is not None:
            mapped = vmap(mapped, (None, 1, 0, 1, 0, None if shared else 0))
        with _batchable_attention(self.subject.device), overwriting(self.subject.model):
            values, self._made[key] = mapped(
                weights, family.anchors, self._fixed[number], self._curves(number, rows), self._made.get(key, {}), batch
            )
        return values

    def one_by_one(self, measure: Measure, number: int, rows: Tensor, batch: Any, shared: bool) -> Values:
        replicas = self.subject.replicas
        fixed = self._fixed[number]
        prefixes = [Prefix() for _ in range(replicas or 1)]
        found: list[Values] = []
        for row in rows.tolist():
            moving = self._moving(number, row)
            for i, prefix in enumerate(prefixes):
                own = moving if replicas is None else {name: x[i] for name, x in moving.items()}
                rest = fixed if replicas is None else {name: x[i] for name, x in fixed.items()}
                mine = batch if shared else [x[i] for x in batch]
                mode = prefix.at(own.values()) if self.remember else Prefix().at(own.values())
                found.append(measure(self._bound({**rest, **own}, mode), mine))
        stacked = {name: torch.stack([values[name] for values in found]) for name in found[0]}
        if replicas is None:
            return stacked
        return {name: x.reshape(len(rows), replicas, *x.shape[1:]).transpose(0, 1) for name, x in stacked.items()}

    def _moving(self, number: int, row: int) -> Values:
        """What is a point's own, kept for the next batch if there is room."""
        key = (number, row, 0)
        made = self._made.get(key)
        if made is None:
            family = self.families[number]
            made = {name: _laid_out(x) for name, x in family.mixed(family.weights[row]).items()}
            if self._keep:
                self._made[key] = made
        return made | {name: x[0] for name, x in self._curves(number, torch.tensor([row])).items()}

    def _bound(self, state: Values, mode: Mixed | Point) -> Callable[..., Any]:
        """The model with another state, to be called like the model."""
        device = self.subject.device.type
        state = state | {name: state[first] for name, first in self.subject.tied.items() if first in state}

        def forward(*inputs: Any, **named: Any) -> Any:
            with mode, torch.autocast(device, self.autocast) if self.autocast else nullcontext():
                outputs = functional_call(self.subject.model, state, inputs, named, tie_weights=False)
            mode.finish(outputs)
            return outputs

        def call(*inputs: Any, **named: Any) -> Any:
            try:
                return forward(*inputs, **named)
            except Deviation:
                assert isinstance(mode, Point)
                mode.deviated()
            return call(*inputs, **named)

        return call

    def _curves(self, number: int, rows: Tensor) -> Values:
        family = self.families[number]
        curves = {name: curve(family.weights[rows]) for name, curve in family.curves.items()}
        return curves | {name: x[rows.to(x.device)] for name, x in self.statistics.get(number, {}).items()}

    def largest_activation(self, measure: Measure, batch: Any, shared: bool) -> int:
        """Bytes of the largest output of a layer for one point and this batch, all replicas together."""
        sizes = [0]

        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            sizes.append(sum(x.numel() * x.element_size() for x in tensors(output)))

        hooks = [m.register_forward_hook(note) for m in self.subject.model.modules() if not list(m.children())]
        try:
            self.one_by_one(measure, 0, torch.tensor([0]), batch, shared)
        finally:
            for hook in hooks:
                hook.remove()
        return max(sizes) * (self.subject.replicas or 1)


def memory_budget(device: torch.device) -> int:
    """Bytes that points evaluated at once may take."""
    return int(torch.cuda.mem_get_info(device)[0]) // 4 if device.type == "cuda" else 1 << 28


def _laid_out(x: Tensor) -> Tensor:
    """Kernels in the layout a GPU's convolutions want; what they read and write follows."""
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.ndim == 4 else x


def _batchable_attention(device: torch.device) -> Any:
    """On a CPU only the plain form of attention can be mapped over points; the fused one would be looped over."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()
