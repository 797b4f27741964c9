"""One training step as something that can be repeated cheaply: compiled, and on a GPU captured as a graph."""

from __future__ import annotations

from collections.abc import Hashable
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch.optim import Optimizer

from ._training.graphs import record
from .batches import Batches
from .compiling import own, say_uncompiled
from .counter import OPTIONS
from .ensemble import Ensemble, Loss
from .flows import LETTERS, is_noisy
from .fuse import compiler_options
from .hyper import physics, plain
from .multirate.due import DueOptimizer
from .optimizer import Langevin
from .repeated import Repeated

_WARM_UP = 3  # steps before a capture: kernels compile, workspaces are allocated, a rotated word starts to owe
# With torch's own limit, 50 on a CPU, compiling takes three times as long for programs no faster (see counter.OPTIONS).
_OPTIONS: dict[str, Any] = {"realize_opcount_threshold": 15}

Compiled = bool | Literal["gradients"]


class Stepper:
    """Runs steps of one ensemble, optimizer and data set.

    Compiled, looking up the batch, differentiating and (where the optimizer can be traced) moving the
    weights are one pass. On a GPU the step is recorded once and replayed: the host only counts. It is
    recorded again when a hyperparameter changes, since numbers are part of the recording. Of an optimizer
    with several kinds of steps (fast and slow ones, say) each kind is recorded. With ``compiled="gradients"``
    the weights are moved as they are: one program serves every hyperparameter.
    """

    def __init__(
        self, ensemble: Ensemble, optimizer: Optimizer, loss: Loss, batches: Batches, compiled: Compiled
    ) -> None:
        if compiled not in (True, False, "gradients"):
            raise ValueError(f'compiled must be True, False or "gradients", got {compiled!r}')
        self.ensemble, self.optimizer, self.loss, self.batches = ensemble, optimizer, loss, batches
        self._parameters = dict(ensemble.named_parameters())
        # Where the whole step is to be compiled its first one, which cannot be yet, is not worth a compiler's time.
        self._gradients_compiled = compiled == "gradients"
        self._gradients: dict[Hashable, Repeated] = {}
        self._whole: Repeated | None = None
        whole_possible = isinstance(optimizer, Langevin) and not isinstance(optimizer, DueOptimizer)
        self._try_whole = compiled is True and whole_possible
        self._numbers_then: list[Any] = []
        if isinstance(optimizer, Langevin):
            optimizer.guard_gradients = False  # a replica that diverges is its own affair
        if compiled is True and not self._try_whole:
            self._compile_parts()
        self._graphs: dict[Hashable, Any] = {}
        self._recorded: list[Any] = []
        self._warm: dict[Hashable, int] = {}
        self._order: Tensor | None = None

    def _compile_parts(self) -> None:
        """Gradients and letters by themselves: where a step is not, or no longer, compiled as a whole."""
        self._try_whole, self._whole, self._gradients_compiled = False, None, True
        if isinstance(self.optimizer, Langevin):
            for group in self.optimizer.param_groups:
                group["fuse"] = True if group["fuse"] is None else group["fuse"]

    @torch.no_grad()
    def run(self, order: Tensor) -> None:
        """One step for every row of the order."""
        self._keep(order)
        for program in (self._whole, *self._gradients.values()):
            if program is not None:
                program.ask_again()  # anything may have happened since
        left = len(order)
        while left:
            left -= self._replay(left) if order.is_cuda else self._steps(left)

    def _replay(self, most: int) -> int:
        """Take steps of one kind, warming up or replaying; returns how many."""
        one_kind = not isinstance(self.optimizer, DueOptimizer)
        kind = self.optimizer.upcoming() if isinstance(self.optimizer, DueOptimizer) else "any"
        if self._graphs and not _same(self._recorded, self._numbers()):
            self._graphs.clear()
            # The next step still owes at the old rate, which must not become a constant. And a whole program holds
            # numbers as well: what takes its place compiles before it is recorded.
            again = 0 if self._whole is not None else _WARM_UP - 1
            self._warm = {kind: min(steps, again) for kind, steps in self._warm.items()}
        if kind is None or self._warm.get(kind, 0) < _WARM_UP:
            done = self._steps(1)
            self._warm[kind] = self._warm.get(kind, 0) + done
            return done
        if kind not in self._graphs:
            self._graphs[kind] = self._record()
        replays = most if one_kind else 1
        for _ in range(replays):
            self._graphs[kind].replay()
        self._count(replays)
        return replays

    def _count(self, steps: int) -> None:
        if isinstance(self.optimizer, (Langevin, DueOptimizer)):
            self.optimizer.count_replays(steps)

    def _steps(self, most: int) -> int:
        """Take steps, several where a program takes them whole; returns how many."""
        whole = self._whole_step()
        if whole is None:
            self._step()
            return 1
        done = 0
        try:
            while done < most:
                whole()
                done += 1
        except BackendCompilerFailed as error:  # it fails before anything is written
            say_uncompiled(error)
            self._compile_parts()
        finally:
            self._count(done)
        return done

    def _step(self) -> None:
        if isinstance(self.optimizer, DueOptimizer):
            self.optimizer.step(self._take)  # a second time where a slow part has leapt
        else:
            self._take()
            self.optimizer.step()
        self._cursor.add_(1)

    def _take(self) -> None:
        """Put the gradients of a batch where the optimizer finds them."""
        for name, gradient in self._differentiated().items():
            p = self._parameters[name]
            p.grad = gradient.view_as(p)  # compiled, a single replica's dimension can get lost (torch 2.11)

    def _differentiated(self) -> dict[str, Tensor]:
        """Compiled apart for every choice of what is differentiated: one program never serves another choice."""
        if not self._gradients_compiled:
            return self._differentiate()
        trained = tuple(p.requires_grad for p in self._parameters.values())
        if trained not in self._gradients:
            self._gradients[trained] = Repeated(MethodType(own(Stepper._differentiate), self))
        program = self._gradients[trained]
        if isinstance(self.optimizer, DueOptimizer):
            program.ask_again()  # it may have prepared the model in ways of its own
        try:
            return program()
        except BackendCompilerFailed as error:
            say_uncompiled(error)
            self._gradients_compiled = False
            return self._differentiate()

    def _differentiate(self) -> dict[str, Tensor]:
        """Looking up the batch is part of the compiled pass: its kernels are as small as the model's."""
        assert self._order is not None
        batch = self.batches.take(self._order.index_select(0, self._cursor)[0])
        return self.ensemble.gradients(self.loss, *batch, shared=self.batches.shared)[0]

    def _whole_step(self) -> Repeated | None:
        """The step as a single compiled pass, or None: not possible, not yet, or no longer since numbers change."""
        if not self._try_whole:
            return None
        if self._whole is not None:
            if _same(self._numbers_then, self._numbers()):
                return self._whole
            self._compile_parts()  # a schedule; compiling for every value would cost more than it saves
            return None
        assert isinstance(self.optimizer, Langevin)
        plan = self.optimizer.steady_steps()
        if plan is None:
            if all(group["step"] for group in self.optimizer.param_groups):
                self._compile_parts()
            return None
        names = {id(p): name for name, p in self._parameters.items()}
        named = [([[names[id(p)] for p in cell] for cell in cells], advance) for cells, advance in plan]

        def whole() -> dict[str, Tensor]:
            gradients = self._differentiate()
            for cells, advance in named:
                advance([[gradients[name] for name in cell] for cell in cells])
            self._cursor.add_(1)
            return {}

        noisy = any(map(_draws, self.optimizer.param_groups))
        self._whole = Repeated(own(whole), compiler_options() | (OPTIONS if noisy else _OPTIONS))
        self._numbers_then = self._numbers()
        return self._whole

    def _numbers(self) -> list[Any]:
        """Of hyperparameters, what programs and recordings hold: numbers, and which tensors. Those are read anew."""
        return [
            plain(value)
            for group in self.optimizer.param_groups
            for name, value in group.items()
            if isinstance(value, (float, Tensor)) and name != "owed"
        ]

    def _keep(self, order: Tensor) -> None:
        """Copy an order to where programs and recordings read it, and set the cursor to its start."""
        if self._order is None:
            shape = (self.batches.per_epoch, *order.shape[1:])
            self._order = torch.zeros(shape, dtype=order.dtype, device=order.device)
            self._cursor = torch.zeros(1, dtype=torch.int64, device=order.device)
        self._order[: len(order)].copy_(order)
        self._cursor.zero_()

    def _record(self) -> Any:
        done = []
        graph = record(lambda: done.append(self._steps(1)))
        if not done[0]:  # the compiler failed, and nothing was recorded but that
            graph = record(lambda: self._steps(1))
        self._recorded = self._numbers()
        self._count(-1)
        return graph


def _same(before: list[Any], now: list[Any]) -> bool:
    """Equal numbers and the very same tensors."""
    if len(before) != len(now):
        return False
    return all(a is b or (type(a) is type(b) is float and a == b) for a, b in zip(before, now, strict=True))


def _draws(group: dict[str, Any]) -> bool:
    """Whether the group's letters draw noise."""
    numbers = physics(group)
    return any(is_noisy(letter, numbers) for letter in group["scheme"] if letter in LETTERS)
