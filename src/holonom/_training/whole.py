"""A whole training step as one program: the batch, its gradients and a step of every Langevin group."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._backends.inductor import DRAW_OPTIONS
from .._step.buckets import Bucket, State
from .._step.integrate import Scalar
from .._step.letters import Numbers, is_noisy, plain
from .._step.run import Group, Work, owed_at_start, run
from ..scheme import Scheme, compile_word

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
    scheme: Scheme
    numbers: Numbers
    owed: Tensor  # of shape (1,) or (R,): what a program writes to a float64 of no dimension is lost (torch 2.13, CPU)
    anchor: State


class WholeStep:
    """The program and the tensors it reads. Hyperparameters are written to them before every run.

    The first step is the same program as all others, so that a resumed run is bit-equal.
    """

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._plan: list[GroupStep] = []
        self._signature: Hashable = None
        self._program: Callable[..., None] | None = None

    def prepare(self) -> bool:
        """Make the program if there is none, or if anything it depends on has changed; write the hyperparameters.

        False: this step cannot be traced.
        """
        from .stepper import compile_step, model_signature

        optimizer = self._stepper.optimizer
        everyone = optimizer._buckets()  # type: ignore[attr-defined]
        if not all(map(_is_traceable, optimizer.param_groups, everyone)):
            return False
        now = [_numbers(group) for group in optimizer.param_groups]
        moved = [bucket.refresh() for buckets in everyone for bucket in buckets]
        ids = [id(bucket) for buckets in everyone for bucket in buckets]
        signature = (model_signature(self._stepper.ensemble), tuple(ids), tuple(map(_kinds, now)))
        if self._program is None or any(moved) or signature != self._signature:
            for group, buckets in zip(optimizer.param_groups, everyone, strict=True):
                optimizer._take_up_edits([Work(group, buckets, None)])  # type: ignore[attr-defined]
            self._plan = [self._group_step(*one) for one in zip(optimizer.param_groups, everyone, now, strict=True)]
            noisy = any(is_noisy(op.letter, g.numbers) for g in self._plan for op in g.scheme.program)
            self._program = compile_step(_whole_step, DRAW_OPTIONS if noisy else _OPTIONS)
            self._signature = signature
        for step, numbers in zip(self._plan, now, strict=True):
            for target, value in zip((*step.numbers, step.owed), (*numbers, numbers.owed), strict=True):
                if isinstance(target, Tensor) and target is not value:
                    target.copy_(torch.as_tensor(value))
        return True

    def _group_step(self, group: Group, buckets: list[Bucket], numbers: Numbers) -> GroupStep:
        names = {id(p): name for name, p in self._stepper.ensemble.named_parameters()}
        frozen = {**group, "step": 0, "fuse": False}
        device = buckets[0].device
        rest = numbers._replace(owed=0.0)
        tensors = Numbers(*(_as_tensor(name, x, device) for name, x in rest._asdict().items()))
        owed = torch.zeros_like(numbers.h if isinstance(numbers.h, Tensor) and numbers.h.ndim else torch.zeros(1), dtype=torch.float64, device=device)
        anchor = self._stepper.optimizer.state[group["params"][0]]
        by_bucket = [[names[id(p)] for p in b.params] for b in buckets]
        return GroupStep(frozen, buckets, by_bucket, compile_word(group["scheme"]), tensors, owed, anchor)

    def __call__(self) -> None:
        assert self._program is not None
        self._program(self._stepper.loss, self._stepper, self._plan)

    def finish(self) -> None:
        """Tell the groups what they owe."""
        for group, step in zip(self._stepper.optimizer.param_groups, self._plan, strict=True):
            per_replica = isinstance(step.numbers.h, Tensor) and step.numbers.h.ndim
            group["owed"] = step.owed.clone() if per_replica else float(step.owed)


def _whole_step(loss: Loss, stepper: Stepper, plan: list[GroupStep]) -> None:
    gradients = stepper.differentiate(loss)
    for group, buckets, names, scheme, numbers, owed, anchor in plan:
        own = [[gradients[name] for name in bucket] for bucket in names]
        numbers = numbers._replace(owed=owed.reshape(()) if owed.numel() == 1 else owed)
        run(Work(group, buckets, own), anchor, scheme.program, numbers, None)
        if scheme.tail:
            owed.copy_(numbers.h)  # type: ignore[arg-type]
        anchor["clock"].add_(1)
    stepper.cursor.add_(1)


def _is_traceable(group: Group, buckets: list[Bucket]) -> bool:
    """Element- or row-wise, in one precision, all parameters trained, and not at lr = 0, which changes nothing."""
    suitable = all(b.space.traits.rowwise and not b.narrow and all(p.requires_grad for p in b.params) for b in buckets)
    lr = group["lr"]
    return bool(buckets) and suitable and (isinstance(lr, Tensor) or lr != 0)


def _numbers(group: Group) -> Numbers:
    h = plain(group["lr"])
    return Numbers.of(group, h, owed_at_start(group, h) if group["owed"] is None else group["owed"])


def _as_tensor(name: str, x: Scalar, device: torch.device) -> Scalar:
    """Zero stays a number, so that no noise is drawn for it; h is always a tensor."""
    if isinstance(x, Tensor):
        return x
    return torch.full((), x, dtype=torch.float64, device=device) if x or name == "h" else x


def _kinds(numbers: Numbers) -> tuple[Any, ...]:
    """What the program depends on of the hyperparameters: which are zero, and which tensors there are."""
    lr = id(numbers.h) if isinstance(numbers.h, Tensor) else None
    return lr, *(id(x) if isinstance(x, Tensor) else x == 0.0 for x in numbers[2:])
