"""Fewer passes over memory: what follows a convolution, or a linear layer, becomes part of it.

Batch norm with running statistics is linear in its input,

    γ (W∗x + c − μ) / √(σ² + ε) + β  =  (sW)∗x + s (c − μ) + β,    s = γ / √(σ² + ε),

so it is folded into the kernels in front of it, and a sum and a ReLU behind it are done where the convolution's
result is written. Activations are then written once and not read again, which is most of a residual network's time.

The first point of a batch runs as the model says, and its calls are noted, but for looks at shapes and types. Calls
that follow one another form a chain if each one's result is read by the next one alone and is gone when the model is
done, so that nobody kept it. At the other points results inside a chain are stand-ins of NaN, and its last call does
the work. A point that does not make the noted calls with the noted stand-ins, or keeps one of them, raises
:class:`Deviation`, and is run again as the model says.

Convolutions in TF32 round kernels after folding instead of before: as exact as they are, but not equal to the last bit.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .calls import KINDS, Deviation, fits, hollow, tensors
from .layer import Layer, layer_of

_ADD_IN_PLACE: set[Any] = {Tensor.add_, Tensor.__iadd__}


@dataclass
class Call:
    """One noted call: what it is in a chain, whose results it read, and its result."""

    function: Any
    kind: str | None
    reads: list[int | None]
    result: Callable[[], Any]
    stand_in: Tensor | None
    precision: tuple[Any, ...] = ()


class Folding:
    """The calls of one batch's first point, and which of them need not be made.

    Attributes:
        steps: by number, what a call of a chain returns: a stand-in, or None where it is the last and does the work.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.steps: dict[int, Tensor | None] = {}
        self.stand_ins: set[int] = set()
        self.usable = False
        self.held: list[int] = []
        self._made: dict[int, tuple[Callable[[], Any], int]] = {}

    def note(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A call of the first point. Its tensors are not kept alive."""
        number = len(self.calls)
        read = [self._maker(x) for x in tensors((args, kwargs))]
        kind = KINDS.get(function)
        if kind is None or not isinstance(result, Tensor) or not fits(kind, args, kwargs, result):
            self.calls.append(Call(function, None, read, _nobody, None))
        else:
            precision = _precision(result.device.type)
            self.calls.append(Call(function, kind, read, weakref.ref(result), hollow(result), precision))
        if isinstance(result, Tensor):
            self._made[id(result)] = weakref.ref(result), number

    def _maker(self, x: Tensor) -> int | None:
        """The number of the call that returned this tensor last."""
        found, number = self._made.get(id(x), (_nobody, None))
        return number if found() is x else None

    def finish(self) -> None:
        """The model is done: find the chains."""
        readers: dict[int | None, list[int]] = {}
        for number, call in enumerate(self.calls):
            for maker in call.reads:
                readers.setdefault(maker, []).append(number)
        for number, call in enumerate(self.calls):
            if call.kind == "product":
                self._fold(self._chain(number, readers))
        self.stand_ins = {id(x) for x in self.steps.values() if x is not None}
        self.usable = bool(self.steps)
        self.held = self.references()

    def references(self) -> list[int]:
        """How often every stand-in is held."""
        return [sys.getrefcount(x) for x in self.steps.values() if x is not None]

    def _chain(self, number: int, readers: dict[int | None, list[int]]) -> list[int]:
        """A product with weights and those of norm, sum and ReLU that follow it at once, in this order."""
        chain = [number]
        for kind in ("norm", "sum", "relu"):
            last, candidate = chain[-1], chain[-1] + 1
            if readers.get(last) != [candidate] or self.calls[last].result() is not None:
                break
            call = self.calls[candidate]
            if call.precision != self.calls[number].precision:
                break
            overwrites_another = call.function in _ADD_IN_PLACE and call.reads[0] != last
            if call.kind == kind and not overwrites_another:
                chain.append(candidate)
        return chain[:-1] if self.calls[chain[-1]].kind == "sum" else chain

    def _fold(self, chain: list[int]) -> None:
        if len(chain) > 1:
            self.steps |= {number: self.calls[number].stand_in for number in chain[:-1]}
            self.steps[chain[-1]] = None


class Folded:
    """One further point: the same calls, those inside chains left out."""

    def __init__(self, folding: Folding) -> None:
        self.folding = folding
        self._held: tuple[Tensor, Layer] | None = None

    def call(self, number: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls, steps = self.folding.calls, self.folding.steps
        if number >= len(calls) or calls[number].function != function:
            raise Deviation
        held, self._held = self._held, None
        self._check(held, (args, kwargs))
        if number not in steps or (held is None and calls[number].kind != "product"):
            return function(*args, **kwargs)  # also where a chain began among the remembered results
        layer = held[1].then(calls[number].kind, held[0], args, kwargs) if held else layer_of(function, *args, **kwargs)
        stand_in = steps[number]
        if stand_in is None:
            return self._as_noted(layer.run(), calls[number].stand_in)
        self._held = stand_in, layer
        return stand_in

    def finish(self, outputs: Any) -> None:
        self._check(None, outputs)
        if self.folding.references() != self.folding.held:  # somebody kept a stand-in
            raise Deviation

    @staticmethod
    def _as_noted(result: Tensor, noted: Tensor | None) -> Tensor:
        """Where shapes depend on the point, the stand-ins had wrong ones."""
        if noted is None or result.shape != noted.shape or result.dtype != noted.dtype:
            raise Deviation
        return result

    def _check(self, held: tuple[Tensor, Layer] | None, tree: Any) -> None:
        """Of all stand-ins the one that is held must be here, and no other."""
        found = [x for x in tensors(tree) if id(x) in self.folding.stand_ins]
        if [id(x) for x in found] != ([] if held is None else [id(held[0])]):
            raise Deviation


def _precision(device: str) -> tuple[Any, ...]:
    """What decides how a product is computed and is not among its arguments."""
    cudnn = torch.backends.cudnn
    autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return *autocast, cudnn.enabled, cudnn.allow_tf32, cudnn.deterministic


def _nobody() -> None:
    return None
