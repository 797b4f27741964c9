"""Training steps of an ensemble: compiled where that pays, captured as graphs on a GPU."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._backends.inductor import OPTIONS, warn_uncompiled, with_own_code
from .._step.configurational import SUMS
from .._step.letters import plain
from .._torch import compile_errors, graph_pass, guards_where, has_step_hooks, known_options
from ..batches import Batches
from ..ensemble import Ensemble, Loss
from ..multirate.due import DueOptimizer
from ..optimizer import Langevin
from .beside import Beside
from .graphs import LARGEST, GraphedStep
from .products import products_as_sums
from .whole import WholeStep

Compiled = bool | Literal["gradients"]


class Stepper:
    """Runs steps of one ensemble, optimizer and data set.

    Compiled on a CPU, looking up the batch, differentiating and (where the optimizer can be traced) moving the weights
    are one program, the same from the first step on. On a GPU the gradients are a program, the optimizer moves the
    weights by its own kernels, and both are captured in graphs of many steps. An optimizer with several kinds of steps
    (fast and slow ones, say) has graphs for each. An optimizer with step hooks, or whose ``step`` is neither torch's
    nor holonom's, is called step by step: a graph runs no Python.
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
        self._places: Tensor
        self._compiled = compiled
        self._parameters = dict(ensemble.named_parameters())
        self._programs: dict[Hashable, Callable[..., None]] = {}
        self._memory: dict[str, Tensor] = {}  # of gradients
        self._bound_to: list[Any] = []  # what graphs depend on beyond numbers; looked at when a run starts
        device = ensemble.seeds.device
        whole = compiled is True and device.type == "cpu" and is_plain_langevin(optimizer)
        self._whole = WholeStep(self) if whole else None
        self._beside = Beside(optimizer) if is_plain_langevin(optimizer) else None  # type: ignore[arg-type]
        self._steps = GraphedStep(self._step, self._constants, device, count=self._count, many=self._capture)

    @torch.no_grad()
    def run(self, order: Tensor) -> None:
        """One step for every row of the order."""
        self._keep(order)
        left = len(order)
        if isinstance(self.optimizer, Langevin):  # a program or a graph would not see what was edited
            self.optimizer._check_and_take_up(adopt=self._whole is not None)
        self._bound_to = [model_signature(self.ensemble), self._addresses()]
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
            for _ in range(steps):
                self._whole()
                self._count(1)
        except compile_errors() as error:  # raised before anything was written
            warn_uncompiled(error)
            self._whole = None
            return 0
        finally:
            if self._whole is not None:
                self._whole.finish()
        return steps

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
        (row,) = self._rows(1)
        if isinstance(self.optimizer, DueOptimizer):
            self.optimizer.step(partial(self._take, row))  # called a second time where a slow part moves first
        else:
            self._take(row)
            self.optimizer.step()

    def _capture(self, steps: int) -> None:
        """Steps in a capture: what Python checks has been checked."""
        if self._beside is None or not self._beside.fits():
            for _ in range(steps):
                self._step()
            return
        for row in self._rows(steps):
            self._take(row)
            self._beside.step()
        self._beside.join()

    def _rows(self, steps: int) -> tuple[Tensor, ...]:
        """The rows of the order for the next steps."""
        assert self.order is not None
        rows = self.order.index_select(0, self.cursor + self._places[:steps])
        self.cursor.add_(steps)
        return rows.unbind()

    def _take(self, row: Tensor) -> None:
        """Put the gradients of a batch where the optimizer finds them."""
        if self._compiled and self._take_compiled(row):
            return
        for name, gradient in self.differentiate(self.loss, row).items():
            self._parameters[name].grad = gradient

    def _take_compiled(self, row: Tensor) -> bool:
        """False where the gradients did not compile."""
        trained = {name: p for name, p in self._parameters.items() if p.requires_grad}
        # Written to the same memory at every step, so that captured kernels find them; a slow part keeps its own.
        lasting = not isinstance(self.optimizer, DueOptimizer)
        memory = self._memory if lasting else {}
        memory.update({name: torch.empty_like(p) for name, p in trained.items() if name not in memory})
        key = model_signature(self.ensemble)
        if key not in self._programs:
            self._programs[key] = compile_step(_differentiate, {})
        try:
            self._programs[key](self.loss, self, row, {name: memory[name] for name in trained})
        except compile_errors() as error:
            warn_uncompiled(error)
            self._compiled = False
            return False
        for name, p in trained.items():
            p.grad = memory[name]
        return True

    def differentiate(self, loss: Loss, row: Tensor) -> dict[str, Tensor]:
        """Gradients of the batch at a row of the order. Looking it up is part of a program: its kernels are small."""
        batch = self.batches.take(row)
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
            self._places = torch.arange(LARGEST, device=order.device)
        self.order[: len(order)].copy_(order)
        self.cursor.zero_()

    def _constants(self) -> list[Any]:
        """What a graph holds as constants of the groups: numbers and words by value, tensors by identity."""
        changing = {"params", "param_names", "owed", "step", "clock", "resting"}
        groups = self.optimizer.param_groups
        values = [v for group in groups for name, v in group.items() if name not in changing]
        recorded = [self.optimizer.state.get(p, {}).get(SUMS) for g in groups for p in g["params"]]
        return [_constant(v) for v in values] + recorded + self._bound_to

    def _addresses(self) -> list[Any]:
        """Where parameters and the optimizer's state are."""
        if isinstance(self.optimizer, Langevin):
            return [bucket.memory for buckets in self.optimizer._buckets() for bucket in buckets]
        state = [x for own in self.optimizer.state.values() for x in own.values() if isinstance(x, Tensor)]
        return [x.data_ptr() for x in (*self._parameters.values(), *state)]

    def _count(self, steps: int) -> None:
        if isinstance(self.optimizer, (Langevin, DueOptimizer)):
            self.optimizer.count_replays(steps)


def _constant(value: Any) -> Any:
    """One number that the host has as a float; any other tensor itself."""
    if not isinstance(value, Tensor):
        return value
    found = plain(value)
    return value if isinstance(found, Tensor) and not found.ndim else found  # plain() gives a new view every time


def _differentiate(loss: Loss, stepper: Stepper, row: Tensor, memory: dict[str, Tensor]) -> None:
    for name, gradient in stepper.differentiate(loss, row).items():
        memory[name].copy_(gradient)


def compile_step(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Compile a function whose first argument is the user's ``loss``.

    Guards stay on what user code reads: a loss may depend on Python values that change from call to call. The rest is
    checked once a run (:func:`model_signature`), because guards would take longer than a small model's step.
    """
    # Deterministic: kernels chosen by a clock would sum in another order when a run is resumed.
    options = {"deterministic": True, **OPTIONS, **options, **guards_where(_is_of_the_user)}
    options |= graph_pass(products_as_sums, version=1)
    return torch.compile(with_own_code(function), fullgraph=True, dynamic=False, options=known_options(options))


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
