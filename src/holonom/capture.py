"""One training step as something that can be repeated cheaply: compiled, and on a GPU captured as a graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch.optim import Optimizer

from .batches import Batches
from .compiling import attempted, own, say_uncompiled
from .counter import OPTIONS
from .ensemble import Ensemble, Loss
from .flows import LETTERS, is_noisy
from .fuse import compiler_options
from .hyper import physics
from .multirate.due import DueOptimizer
from .optimizer import Langevin

_WARM_UP = 3  # steps before a capture: kernels compile, workspaces are allocated, a rotated word starts to owe

Step = Callable[[Tensor, Tensor], Any]
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
        self._programs: dict[Hashable, Callable[..., dict[str, Tensor]]] = {}
        self._whole: Step | None = None
        whole_possible = isinstance(optimizer, Langevin) and not isinstance(optimizer, DueOptimizer)
        self._try_whole = compiled is True and whole_possible
        self._numbers_then: Any = None
        if compiled:
            batches.compile()
        if isinstance(optimizer, Langevin):
            optimizer.guard_gradients = False  # a replica that diverges is its own affair
        if compiled is True and not self._try_whole:
            self._compile_parts()
        self._graphs: dict[Hashable, Any] = {}
        self._recorded: Any = None
        self._warm: dict[Hashable, int] = {}
        self._order: Tensor | None = None

    def _compile_parts(self) -> None:
        """Gradients and letters by themselves: where a step is not, or no longer, compiled as a whole."""
        self._try_whole, self._gradients_compiled = False, True
        if isinstance(self.optimizer, Langevin):
            for group in self.optimizer.param_groups:
                group["fuse"] = True if group["fuse"] is None else group["fuse"]

    def run(self, order: Tensor) -> None:
        """One step for every row of the order."""
        if not order.is_cuda:
            for place in torch.arange(len(order), device=order.device)[:, None]:
                self._step(order, place)
            return
        kept, cursor = self._keep(order)
        done = 0
        while done < len(order):
            done += self._go_on(kept, cursor, len(order) - done)

    def _go_on(self, order: Tensor, cursor: Tensor, most: int) -> int:
        """Take steps of one kind, warming up or replaying; returns how many."""
        one_kind = not isinstance(self.optimizer, DueOptimizer)
        kind = self.optimizer.upcoming() if isinstance(self.optimizer, DueOptimizer) else "any"
        if kind is None or self._warm.get(kind, 0) < _WARM_UP:
            self._step(order, cursor)
            cursor.add_(1)
            self._warm[kind] = self._warm.get(kind, 0) + 1
            return 1
        if self._recorded != self._numbers():
            self._graphs.clear()
        if kind not in self._graphs:
            self._graphs[kind] = self._record(order, cursor)
        replays = most if one_kind else 1
        for _ in range(replays):
            self._graphs[kind].replay()
        self._count(replays)
        return replays

    def _count(self, steps: int) -> None:
        if isinstance(self.optimizer, (Langevin, DueOptimizer)):
            self.optimizer.count_replays(steps)

    def _step(self, order: Tensor, place: Tensor) -> None:
        whole = self._whole_step()
        if whole is not None:
            try:
                whole(order, place)
                self._count(1)
                return
            except BackendCompilerFailed as error:  # it fails before anything is written
                say_uncompiled(error)
                self._compile_parts()
        if isinstance(self.optimizer, DueOptimizer):
            self.optimizer.step(lambda: self._take(order, place))  # a second time where a slow part has leapt
        else:
            self._take(order, place)
            self.optimizer.step()

    def _take(self, order: Tensor, place: Tensor) -> None:
        """Put the gradients of a batch where the optimizer finds them."""
        for name, gradient in self._gradients()(order, place).items():
            p = self._parameters[name]
            p.grad = gradient.view_as(p)  # compiled, a single replica's dimension can get lost (torch 2.11)

    def _gradients(self) -> Callable[..., dict[str, Tensor]]:
        """Compiled apart for every choice of what is differentiated: one program never serves another choice."""
        if not self._gradients_compiled:
            return self._differentiate
        trained = tuple(p.requires_grad for p in self._parameters.values())
        if trained not in self._programs:
            program = torch.compile(MethodType(own(Stepper._differentiate), self), dynamic=False)
            self._programs[trained] = attempted(program, self._differentiate)
        return self._programs[trained]

    def _differentiate(self, order: Tensor, place: Tensor) -> dict[str, Tensor]:
        """Looking up the batch is part of the compiled pass: its kernels are as small as the model's."""
        batch = self.batches.take(order.index_select(0, place)[0])
        return self.ensemble.gradients(self.loss, *batch, shared=self.batches.shared)[0]

    def _whole_step(self) -> Step | None:
        """The step as a single compiled pass, or None: not possible, not yet, or no longer since numbers change."""
        if not self._try_whole:
            return None
        if self._whole is not None:
            if self._numbers_then == self._numbers():
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

        def whole(order: Tensor, place: Tensor) -> None:
            gradients = self._differentiate(order, place)
            for cells, advance in named:
                advance([[gradients[name] for name in cell] for cell in cells])

        noisy = any(map(_draws, self.optimizer.param_groups))
        options = compiler_options() | (OPTIONS if noisy else {})
        self._whole = torch.compile(torch.no_grad()(whole), dynamic=False, options=options)
        self._numbers_then = self._numbers()
        return self._whole

    def _numbers(self) -> list[tuple[Any, ...]]:
        """The hyperparameters a recording holds as constants; tensors are read anew by every replay."""
        return [
            tuple(v for k, v in group.items() if isinstance(v, float) and k != "owed")
            for group in self.optimizer.param_groups
        ]

    def _keep(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Copy an order to where the recording reads it, and set the cursor to its start."""
        if self._order is None:
            shape = (self.batches.per_epoch, *order.shape[1:])
            self._order = torch.zeros(shape, dtype=order.dtype, device=order.device)
            self._cursor = torch.zeros(1, dtype=torch.int64, device=order.device)
        self._order[: len(order)].copy_(order)
        self._cursor.zero_()
        return self._order, self._cursor

    def _record(self, order: Tensor, cursor: Tensor) -> Any:
        def step() -> None:
            self._step(order, cursor)
            cursor.add_(1)

        graph = record(step)
        self._recorded = self._numbers()
        self._count(-1)
        return graph


def _draws(group: dict[str, Any]) -> bool:
    """Whether the group's letters draw noise."""
    numbers = physics(group)
    return any(is_noisy(letter, numbers) for letter in group["scheme"] if letter in LETTERS)


def record(step: Callable[[], None]) -> Any:
    """What a step does on the GPU, as a graph to replay; nothing of it runs now."""
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    gc.disable()  # another run's graph, collected during this recording, would void it
    try:
        with torch.cuda.graph(graph):
            step()
    finally:
        gc.enable()
    return graph
