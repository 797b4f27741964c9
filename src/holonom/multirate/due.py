"""Optimizers that say, step by step, how the next gradient is to be taken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class RateError(RuntimeError):
    """A step whose gradients are not those its time scales are due."""


class DueOptimizer(Optimizer, ABC):
    """A ``torch.optim.Optimizer`` whose gradients are taken inside ``with opt.due():``.

    The first block after a step clears the gradients; further blocks before the next step add to them
    (gradient accumulation). ``step(closure)`` opens the block itself, around the closure.

    Subclasses say what a block does to the model (:meth:`_prepare`) and what a step does with the
    gradients (:meth:`_advance`).
    """

    _ready = False  # gradients of a due() block are waiting for a step
    _open = False  # inside a due() block

    # A GradScaler then always calls step() and says whether a gradient overflowed, instead of leaving the
    # step out in silence, after which the next block would add to gradients full of infinities.
    _step_supports_amp_scaling = True

    @abstractmethod
    def _prepare(self) -> AbstractContextManager[None]:
        """A context in which the model is as this step's gradient wants it."""

    @abstractmethod
    def _advance(self, closure: Callable[[], Any] | None) -> None:
        """One step from the gradients at hand; ``closure`` can take others where they are wanted."""

    def upcoming(self) -> Hashable | None:
        """What kind of step comes next, with all that it reads in place: steps of a kind run the same operations on
        the same tensors, so that one can be recorded and replayed. None: no two steps are known to be alike.
        """
        return None

    def count_replays(self, steps: int) -> None:
        """Tell the host about steps that ran as replays of a recording, which runs no Python."""
        for group in self.param_groups:
            group["clock"] += steps

    @contextmanager
    def due(self) -> Iterator[None]:
        """Take the gradient this step is due: forward and backward belong inside."""
        if self._open:  # a closure may open it again
            yield
            return
        if not self._ready:
            self.zero_grad()
        with self._block(self._prepare()):
            yield
        self._ready = True

    @contextmanager
    def _block(self, preparation: AbstractContextManager[None]) -> Iterator[None]:
        self._open = True
        try:
            with preparation:
                yield
        finally:
            self._open = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._ready = False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step from the gradients of the ``due()`` blocks since the last one, or from a closure's."""
        if self._open:
            raise RateError("step() was called inside due(): end the block first, so that parameters are as they were")
        loss = None
        if closure is not None:
            self.zero_grad()
            with self.due(), torch.enable_grad():
                loss = closure()
        if not self._ready:
            raise RateError(
                "step() has no gradients to go by: since the last step (or zero_grad()) no due() block has ended. "
                "Write `with opt.due():` around the forward pass and backward()"
            )
        self._ready = False
        if all(p.grad is None for group in self.param_groups for p in group["params"]):
            raise RateError("the due() block left no gradient on any parameter: call backward() inside it")
        if not self._overflowed():
            self._advance(closure)
        return loss

    def _overflowed(self) -> bool:
        """What a GradScaler found; gradients it has not unscaled yet are unscaled here, as it would."""
        found: Tensor | None = getattr(self, "found_inf", None)
        if found is not None and bool(found):
            return True
        scale: Tensor | None = getattr(self, "grad_scale", None)
        if scale is not None:
            for group in self.param_groups:
                gradients = [p.grad for p in group["params"] if p.grad is not None]
                for gradient in gradients:
                    gradient.div_(scale.to(gradient.device))
        return False
