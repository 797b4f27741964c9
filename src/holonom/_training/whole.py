"""A whole training step as one program: the batch, its gradients and a step of every Langevin group."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._backends.inductor import DRAW_OPTIONS
from .._step import configurational
from .._step.buckets import Bucket, State
from .._step.letters import Numbers, is_noisy, read_settings
from .._step.run import Group, Work, owed_at_start, run
from ..scheme import Op, compile_word

if TYPE_CHECKING:
    from ..ensemble import Loss
    from .stepper import Stepper

# Inductor repeats an expression wherever it is used, up to so many operations. With its default of 50 on a CPU,
# compiling takes three times as long for programs no faster; with noise, see DRAW_OPTIONS.
_OPTIONS = {"realize_opcount_threshold": 15}


class GroupStep(NamedTuple):
    """A group as the program sees it: hyperparameters are tensors, and nothing depends on the count of steps."""

    group: Group
    buckets: list[Bucket]
    names: list[list[str]]
    program: tuple[Op, ...]
    owes: bool  # the next step starts with what this one leaves
    settings: dict[str, Any]  # the word; zeros, for which no noise is drawn; the user's tensors
    live: list[str]  # numbers that are read from ``values`` instead
    values: Tensor
    owed: Tensor  # of shape (1,) or (R,)
    anchor: State

    def numbers(self) -> Numbers:
        # Views of a vector: a program rounds float64 inputs without dimensions to float32 (torch 2.13, CPU).
        settings = {**self.settings, **{name: self.values[i] for i, name in enumerate(self.live)}}
        owed = self.owed.reshape(()) if self.owed.numel() == 1 else self.owed
        return Numbers.made(settings, settings["lr"], owed)


class WholeStep:
    """The program and the tensors it reads. Hyperparameters are written to them before every run.

    The first step is the same program as all others, so that a resumed run is bit-equal.
    """

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._plan: list[GroupStep] = []
        self._signature: Hashable = None
        self._program: Callable[..., None] | None = None
        self.made = 0  # how many programs

    def prepare(self) -> bool:
        """Make the program if there is none, or if anything it depends on has changed; write the hyperparameters.

        False: this step cannot be traced.
        """
        from .stepper import compile_step, model_signature

        optimizer = self._stepper.optimizer
        everyone = optimizer._buckets()  # type: ignore[attr-defined]
        if not all(map(_is_traceable, optimizer.param_groups, everyone)):
            return False
        now = [read_settings(group) for group in optimizer.param_groups]
        moved = [bucket.refresh() for buckets in everyone for bucket in buckets]
        ids = [id(bucket) for buckets in everyone for bucket in buckets]
        groups = [(g["scheme"], g["maximize"], _identity(g["seed"])) for g in optimizer.param_groups]
        recorded = configurational.memory(optimizer.state)
        signature = (model_signature(self._stepper.ensemble), *ids, *groups, *map(_kinds, now), *recorded)
        if self._program is None or any(moved) or signature != self._signature:
            self._plan = [self._group_step(*one) for one in zip(optimizer.param_groups, everyone, now, strict=True)]
            noisy = any(is_noisy(op.letter, g.numbers()) for g in self._plan for op in g.program)
            self._program = compile_step(_whole_step, DRAW_OPTIONS if noisy else _OPTIONS)
            self._signature = signature
            self.made += 1
        for step, settings, group in zip(self._plan, now, optimizer.param_groups, strict=True):
            step.values.copy_(torch.tensor([settings[name] for name in step.live], dtype=torch.float64))
            owed = owed_at_start(group, settings["lr"]) if group["owed"] is None else group["owed"]
            step.owed.copy_(torch.as_tensor(owed, dtype=torch.float64))
        return True

    def _group_step(self, group: Group, buckets: list[Bucket], settings: dict[str, Any]) -> GroupStep:
        names = {id(p): name for name, p in self._stepper.ensemble.named_parameters()}
        scheme = compile_word(group["scheme"])  # a trace cannot enter the locks of its cached properties (Python 3.11)
        for bucket in buckets:  # made in the trace, they would be made again by every call
            bucket.layout(group["seed"].ndim if isinstance(group["seed"], Tensor) else 0, scheme.overdamped)
        live = [name for name, x in settings.items() if isinstance(x, float) and (x or name == "lr")]
        lr = settings["lr"]
        per_replica = lr.shape if isinstance(lr, Tensor) and lr.ndim else (1,)
        double = {"dtype": torch.float64, "device": buckets[0].device}
        return GroupStep(
            {**group, "step": 0, "fuse": False},
            buckets,
            [[names[id(p)] for p in b.params] for b in buckets],
            scheme.program,
            bool(scheme.tail) or settings["momentum"] is not None,
            settings,
            live,
            torch.zeros(len(live), **double),  # type: ignore[call-overload]
            torch.zeros(per_replica, **double),  # type: ignore[call-overload]
            self._stepper.optimizer.state[group["params"][0]],
        )

    def __call__(self) -> None:
        assert self._program is not None
        self._program(self._stepper.loss, self._stepper, self._plan)

    def finish(self) -> None:
        """Tell the groups what they owe."""
        for group, step in zip(self._stepper.optimizer.param_groups, self._plan, strict=True):
            group["owed"] = step.owed.clone() if step.owed.numel() > 1 else float(step.owed)


def _whole_step(loss: Loss, stepper: Stepper, plan: list[GroupStep]) -> None:
    assert stepper.order is not None
    gradients = stepper.differentiate(loss, stepper.order.index_select(0, stepper.cursor)[0])
    for step in plan:
        numbers = step.numbers()
        own: Any = [[gradients[name] for name in bucket] for bucket in step.names]
        work = Work(step.group, step.buckets, own)
        run(work, step.anchor, step.program, numbers, None, adopt=False)  # edits were taken up before
        if step.owes:
            step.owed.copy_(numbers.h)  # type: ignore[arg-type]
        step.anchor["clock"].add_(1)
    stepper.cursor.add_(1)


def _is_traceable(group: Group, buckets: list[Bucket]) -> bool:
    """Element- or row-wise, in one precision, all parameters trained, and not at lr = 0, which changes nothing."""
    suitable = all(b.space.traits.rowwise and not b.narrow and all(p.requires_grad for p in b.params) for b in buckets)
    lr = group["lr"]
    return bool(buckets) and suitable and (isinstance(lr, Tensor) or lr != 0)


def _identity(x: Any) -> Any:
    return id(x) if isinstance(x, Tensor) else x


def _kinds(settings: dict[str, Any]) -> tuple[Any, ...]:
    """What the program depends on of the hyperparameters: which are zero, and which tensors there are."""
    lr = settings["lr"]
    return id(lr) if isinstance(lr, Tensor) else None, *(
        id(x) if isinstance(x, Tensor) else x and True for name, x in settings.items() if name != "lr"
    )
