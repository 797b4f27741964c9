"""Training steps of an ensemble: compiled where that pays, captured as a graph on a GPU."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._backends.inductor import OPTIONS, warn_uncompiled, with_own_code
from .._step.configurational import SUMS
from .._step.letters import plain
from .._torch import compile_errors, guards_where, has_step_hooks, known_options
from ..batches import Batches
from ..ensemble import Ensemble, Loss
from ..multirate.due import DueOptimizer
from ..optimizer import Langevin
from .graphs import GraphedStep
from .whole import WholeStep

Compiled = bool | Literal["gradients"]


class Stepper:
    """Runs steps of one ensemble, optimizer and data set.

    Compiled, looking up the batch, differentiating and (where the optimizer can be traced) moving the weights are one
    program, the same from the first step on. On a GPU steps are captured once and replayed; an optimizer with several
    kinds of steps (fast and slow ones, say) has a graph for each. An optimizer with step hooks, or whose ``step`` is
    neither torch's nor holonom's, is called step by step: a graph runs no Python.
    With ``compiled="gradients"`` only the gradients are compiled.
    """

    def __init__(
        self, ensemble: Ensemble, optimizer: Optimizer, loss: Loss, batches: Batches, compiled: Compiled
    ) -> None:
        if compiled not in (True, False, "gradients"):
            raise ValueError(f'compiled must be True, False or "gradients", got {compiled!r}')
        self.ensemble, self.optimizer, self.loss, self.batches = ensemble, optimizer, loss, batches
        self.order: Tensor | None = None
        self.cursor: Tensor
        self._compiled = compiled
        self._parameters = dict(ensemble.named_parameters())
        self._gradients: dict[Hashable, Callable[..., dict[str, Tensor]]] = {}
        self._whole = WholeStep(self) if compiled is True and is_plain_langevin(optimizer) else None
        device = ensemble.seeds.device
        self._steps = GraphedStep(self._step, self._constants, device, count=self._count)
        self._whole_steps = GraphedStep(self._take_whole, self._programs, device, count=self._count)

    @torch.no_grad()
    def run(self, order: Tensor) -> None:
        """One step for every row of the order."""
        self._keep(order)
        left = len(order)
        if isinstance(self.optimizer, Langevin):
            self.optimizer._check_and_take_up()  # a program or a graph would not see what was edited
        with self._settings():
            if self._whole is not None:
                left -= self._run_whole(left)
            while left:
                left -= self._run_parts(left)

    def _run_whole(self, steps: int) -> int:
        """Take all steps by the whole program; returns how many, 0 where there is none."""
        assert self._whole is not None
        if not self._whole.prepare():
            return 0
        try:
            self._whole_steps("whole", steps)
        except compile_errors() as error:  # raised before anything was written
            warn_uncompiled(error)
            self._whole = None
            return 0
        finally:
            if self._whole is not None:
                self._whole.finish()
        return steps

    def _programs(self) -> list[Any]:
        """How many programs there were: a graph holds the kernels and tensors of one."""
        return [self._whole.made if self._whole is not None else None]

    def _take_whole(self) -> None:
        assert self._whole is not None
        self._whole()
        if not (self.cursor.is_cuda and torch.cuda.is_current_stream_capturing()):
            self._count(1)

    def _run_parts(self, most: int) -> int:
        """Take steps of one kind; returns how many."""
        kinds = isinstance(self.optimizer, (Langevin, DueOptimizer))
        kind = self.optimizer.upcoming() if kinds else "step"  # type: ignore[attr-defined]
        if not can_capture(self.optimizer):
            kind = None
        steps = most if not kinds or kind == () else 1
        self._steps(kind, steps)
        return steps

    def _step(self) -> None:
        if isinstance(self.optimizer, DueOptimizer):
            self.optimizer.step(self._take)  # called a second time where a slow part moves first
        else:
            self._take()
            self.optimizer.step()
        self.cursor.add_(1)

    def _take(self) -> None:
        """Put the gradients of a batch where the optimizer finds them."""
        for name, gradient in self._differentiated().items():
            p = self._parameters[name]
            p.grad = gradient.view_as(p)  # compiled, a single replica's dimension can get lost (torch 2.11)

    def _differentiated(self) -> dict[str, Tensor]:
        if not self._compiled:
            return self.differentiate(self.loss)
        key = model_signature(self.ensemble)
        if key not in self._gradients:
            self._gradients[key] = compile_step(_gradients, {})
        try:
            return self._gradients[key](self.loss, self)
        except compile_errors() as error:
            warn_uncompiled(error)
            self._compiled = False
            return self.differentiate(self.loss)

    def differentiate(self, loss: Loss) -> dict[str, Tensor]:
        """Gradients of the cursor's batch. Looking it up is part of the program, because its kernels are small, too."""
        assert self.order is not None
        batch = self.batches.take(self.order.index_select(0, self.cursor)[0])
        return self.ensemble.gradients(loss, *batch, shared=self.batches.shared)[0]

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """The optimizer's settings during a run; afterwards it has the user's again."""
        if not isinstance(self.optimizer, Langevin):
            yield
            return
        guard, fuse = self.optimizer.guard_gradients, [group["fuse"] for group in self.optimizer.param_groups]
        self.optimizer.guard_gradients = False  # one diverged replica must not stop the others
        for group in self.optimizer.param_groups if self._compiled is True else ():
            group["fuse"] = True if group["fuse"] is None else group["fuse"]
        try:
            yield
        finally:
            self.optimizer.guard_gradients = guard
            for group, setting in zip(self.optimizer.param_groups, fuse, strict=True):
                group["fuse"] = setting

    def _keep(self, order: Tensor) -> None:
        """Copy an order to where programs and graphs read it, and set the cursor to its start."""
        if self.order is None:
            shape = (self.batches.per_epoch, *order.shape[1:])
            self.order = torch.zeros(shape, dtype=order.dtype, device=order.device)
            self.cursor = torch.zeros(1, dtype=torch.int64, device=order.device)
        self.order[: len(order)].copy_(order)
        self.cursor.zero_()

    def _constants(self) -> list[Any]:
        """What a graph holds as constants of the groups: numbers and words by value, tensors by identity."""
        changing = {"params", "param_names", "owed", "step", "clock", "resting"}
        values = [v for group in self.optimizer.param_groups for name, v in group.items() if name not in changing]
        recorded = [self.optimizer.state.get(p, {}).get(SUMS) for g in self.optimizer.param_groups for p in g["params"]]
        return [plain(v) if isinstance(v, Tensor) else v for v in values] + recorded

    def _count(self, steps: int) -> None:
        if isinstance(self.optimizer, (Langevin, DueOptimizer)):
            self.optimizer.count_replays(steps)


def _gradients(loss: Loss, stepper: Stepper) -> dict[str, Tensor]:
    return stepper.differentiate(loss)


def compile_step(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Compile a function whose first argument is the user's ``loss``.

    Guards stay on what user code reads: a loss may depend on Python values that change from call to call. The rest is
    checked once a run (:func:`model_signature`), because guards would take longer than a small model's step.
    """
    options = known_options({**OPTIONS, **options, **guards_where(_is_of_the_user)})
    return torch.compile(with_own_code(function), fullgraph=True, dynamic=False, options=options)


_LOSS = re.compile(r"(?<![\w.])loss\b|L\['loss'\]")  # the argument, written with or without its scope


def _is_of_the_user(source: str) -> bool:
    imported = "__import_" in source and "__import_torch" not in source and "__import_holonom" not in source
    return imported or _LOSS.search(source) is not None


def model_signature(ensemble: Ensemble) -> Hashable:
    """What a program depends on of a model beyond its tensors' contents: modes, numbers and what is trained."""
    modules = [
        (id(module), *((k, v) for k, v in vars(module).items() if isinstance(v, (bool, int, float, str))))
        for module in ensemble.template.modules()
    ]
    return tuple(modules), tuple((id(p), p.requires_grad) for p in ensemble.parameters())


def is_plain_langevin(optimizer: Optimizer) -> bool:
    """Whether ``step`` is Langevin's, with nothing around it that tracing would leave out."""
    same = isinstance(optimizer, Langevin) and inspect.unwrap(type(optimizer).step) is inspect.unwrap(Langevin.step)
    return same and not isinstance(optimizer, DueOptimizer) and not has_step_hooks(optimizer)


def can_capture(optimizer: Optimizer) -> bool:
    """Whether a graph does all that ``step`` does: a step of a user's class, or a hook, would run once only."""
    package = inspect.unwrap(type(optimizer).step).__module__.partition(".")[0]
    return package in ("torch", "holonom") and not has_step_hooks(optimizer)
