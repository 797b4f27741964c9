"""A program on the buckets of one group: what a step does between its checks and its count."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._lines import users_line
from .._random import philox
from .._sharding.shards import local
from .._torch import full_precision, has_triton, triton_fault
from ..constraints.base import MOMENTA
from ..scheme import OVERDAMPED, Op, compile_word
from . import configurational, thermostat
from .buckets import Bucket, State
from .hyper import draws_noise, settings
from .integrate import Eager, Normals, Scalar, over
from .letters import NUMBERS, Numbers, make_ready, plain

if TYPE_CHECKING:
    from .._sharding.backend import Spread

Group = dict[str, Any]

POLISH_EVERY = 13  # a prime: weights that move at every second or fifth step are polished, too
COMPILE_AFTER = 5_000_000_000  # weights × steps after which the time saved exceeds the compiler's
DRAW_COST = 10  # a draw takes about as long as ten letters, so that compiling it pays ten times sooner
DRAW_CALL = 26_000  # elements that take as long to draw as the call itself
FORCES = frozenset("BLM")
KERNEL_DEVICES = {"cuda"}  # tests add "cpu", where Triton's interpreter runs the kernels


class Gradients(list[Tensor]):
    """Those of one bucket at one step. What a backend notes of them lasts as long, so that it keeps none alive."""

    noted: Any = None


class Work(NamedTuple):
    """A group, its buckets that move at this step, and their gradients; None at steps where it takes no gradient.

    ``spread``: where ranks hold parts of the group's parameters, what moves on all of them together. ``told``: the
    process groups of ranks that share parameters of other groups, and must hear of a step of this one without a root.
    """

    group: Group
    buckets: list[Bucket]
    gradients: Sequence[Gradients] | None
    spread: Spread | None = None
    told: tuple[Any, ...] = ()

    def on_device(self, flag: Tensor | None) -> Tensor | None:
        """A flag where the group's clock is, with its first parameter."""
        params = self.group["params"]
        return flag if flag is None or not params else flag.to(params[0].device)


def advance(work: Work, state: dict[Tensor, State], skip: Tensor | None) -> Tensor | None:
    """One step of the group's word. Returns whether it was skipped, on the device."""
    skip = move(work, state, skip)
    count(work.group, state, skip)
    return skip


def move(work: Work, state: dict[Tensor, State], skip: Tensor | None) -> Tensor | None:
    """A step without its count.

    lr = 0 moves nothing; in SGD's terms it changes the momenta. There ``owed`` keeps the last h for every word.
    """
    group, scheme = work.group, compile_word(work.group["scheme"])
    lr, in_sgd_terms = plain(group["lr"]), group.get("momentum") is not None
    if (work.buckets or work.spread) and (in_sgd_terms or not (isinstance(lr, float) and lr == 0.0)):
        owed = owed_at_start(group, lr) if group["owed"] is None else group["owed"]
        anchor = state[group["params"][0]]
        recorded = configurational.SUMS in anchor
        h = run_again(work, owed, recorded, skip)
        if h is None:
            numbers = Numbers.of(group, lr, owed)
            skip = run(work, anchor, scheme.program, numbers, skip)
            if isinstance(numbers.rescale, Tensor) or numbers.rescale != 1.0:
                rescale_resting_(work, state, numbers.rescale, skip)
            h = keep_launches(work, owed, recorded, numbers)
        group["owed"] = owed_next(owed, h, skip) if scheme.tail or in_sgd_terms else 0.0
    return skip


def run_again(work: Work, owed: Scalar, recorded: bool, skip: Tensor | None) -> Scalar | None:
    """Make the kernel launches of the last step again and return its h, if they would be the same.

    Else None, and they are dropped: this step may be run by another backend.
    """
    kept = work.buckets[0].kept if work.spread is None else {}
    launches = kept.pop("launches", None)
    if launches is None or not launches.key or work.gradients is None:
        return None
    if not launches.fit(work.buckets, launch_key(work.group, owed, recorded), skip):
        return None
    if not launches.repeat(work.buckets, work.gradients):
        return None
    kept["launches"] = launches
    return launches.h  # type: ignore[no-any-return]


def keep_launches(work: Work, owed: Scalar, recorded: bool, numbers: Numbers) -> Scalar:
    """Note what the launches of this step, if there are any, depend on; return its h.

    Numbers that may change in place and those of a thermostat are read at every step.
    """
    launches = work.buckets[0].kept.get("launches") if work.spread is None else None
    if launches is not None and launches.lasting and numbers._replace(owed=0.0).on_host and numbers.rescale == 1.0:
        *others, _ = key = launch_key(work.group, owed, recorded)
        if "E" not in work.group["scheme"] and not any(isinstance(x, Tensor) for x in others):
            launches.key, launches.h = key, numbers.h
    return numbers.h


def launch_key(group: Group, owed: Scalar, recorded: bool) -> tuple[Any, ...]:
    return (*settings(group), group.get("momentum"), group["fuse"], recorded, owed)


def rescale_resting_(work: Work, state: dict[Tensor, State], factor: Scalar, skip: Tensor | None) -> None:
    """Multiply the momenta of parameters without a gradient: a schedule leaves their velocities p/h alone, too."""
    moving = {id(p) for bucket in work.buckets for p in bucket.given}
    for p in work.group["params"]:
        for name in (*MOMENTA, "slack_momentum") if id(p) not in moving else ():
            if name in state[p]:
                momentum = local(state[p][name])
                scaled = momentum * over(factor.to(momentum) if isinstance(factor, Tensor) else factor, momentum)
                momentum.copy_(scaled if skip is None else torch.where(skip.to(p.device), momentum, scaled))


def pay_owed(work: Work, state: dict[Tensor, State], skip: Tensor | None) -> Tensor | None:
    """Run the letters that a rotated word still owes, without ending a step."""
    group, tail = work.group, compile_word(work.group["scheme"]).tail
    owed = group["owed"]
    if tail and (work.buckets or work.spread) and (isinstance(owed, Tensor) or owed):
        skip = run(work, state[group["params"][0]], tail, Numbers.of(group, 0.0, owed), skip, ends_step=False)
        group["owed"] = 0.0 if skip is None else owed_next(owed, 0.0, skip)
    return skip


def owed_at_start(group: Group, lr: Scalar) -> Scalar:
    scheme, in_sgd_terms = compile_word(group["scheme"]), group.get("momentum") is not None
    # Without a tail nothing is owed. In SGD's terms the number is the h of the momenta, and there are none yet.
    if not (scheme.starts_owing or group.get("starts_owing") or (in_sgd_terms and not scheme.tail)):
        return 0.0
    h = lr**0.5 if in_sgd_terms else lr
    return h.clone() if isinstance(h, Tensor) else h  # a schedule may write the group's tensor


def owed_next(before: Scalar, h: Scalar, skip: Tensor | None) -> Scalar:
    """What the next step owes: this step's h or, where the device left the step out, what was owed before.

    A tensor is written where the last one was: a captured step reads it there.
    """
    if type(h) is float and type(before) is float and before == h:
        return before
    if skip is not None and isinstance(before, Tensor) and not isinstance(h, Tensor):
        return before.masked_fill_(~skip, h)
    if skip is not None:
        # new_full() fills on the device; a copy from the host would wait for it.
        old, new = (
            skip.new_full((), x, dtype=torch.float64) if isinstance(x, float) else x.to(skip.device)
            for x in (before, h)
        )
        h = torch.where(skip, old, new)
    if not isinstance(h, Tensor):
        return h
    return before.copy_(h) if isinstance(before, Tensor) and before.shape == h.shape else h.clone()


def count(group: Group, state: dict[Tensor, State], skip: Tensor | None) -> None:
    """The host counts calls; the clock, which keys the noise, counts the steps that were taken."""
    group["step"] += 1
    if group["params"]:
        clock = state[group["params"][0]]["clock"]
        clock.add_(1 if skip is None else ~skip)


def run(
    work: Work,
    anchor: State,
    program: tuple[Op, ...],
    numbers: Numbers,
    skip: Tensor | None,
    ends_step: bool = True,
    adopt: bool = True,
) -> Tensor | None:
    """Letter by letter over all buckets; E sees them together. Returns whether the step was skipped, on the device.

    ``anchor`` is the state of the group's first parameter, where its clock and thermostat are. ``adopt``: take up
    positions that were written from outside since the last step.
    """
    group, buckets, gradients, spread, told = work
    space = buckets[0].space if spread is None else spread.space
    forceless = FORCES.isdisjoint([op.letter for op in program])
    records = ends_step and gradients is not None and not forceless and configurational.SUMS in anchor
    if spread is not None:
        backend: Eager = spread.backend(group, buckets, records)
    elif told:
        from .._sharding.backend import Told

        backend = Told(told)
    else:
        backend = choose_backend(group, buckets, records)
    elements = None if spread is None else spread.elements
    noise = Noise(group, anchor, buckets, program[0].letter in OVERDAMPED, elements)
    xi = anchor["thermostat"].clone() if "thermostat" in anchor else None
    draw = 0 if ends_step else -len(program)  # draws of synchronize() are not those of the step that follows
    sign = -1.0 if group["maximize"] else 1.0
    with nullcontext() if space.traits.rowwise else full_precision():
        backend.begin(buckets, None if forceless else gradients, sign, numbers.weight_decay, skip, adopt)
        if records:
            configurational.record(anchor[configurational.SUMS], buckets, backend, skip)
        for ops, update, last in stages(program):
            polish = group["step"] % POLISH_EVERY == 0 if ends_step and last else None
            backend.run(make_ready(ops, draw, numbers, xi, space.traits.geodesic), noise, polish)
            draw += len(ops)
            if update is not None and xi is not None:
                freedom = sum(b.degrees_of_freedom for b in buckets) if spread is None else spread.degrees_of_freedom
                kinetic = backend.kinetic_energy(xi.ndim).to(xi)
                xi = thermostat.updated(xi, numbers.time(update), numbers, kinetic, freedom / xi.numel())
        if skip is not None and space.traits.can_fail:  # a projection without a root shows only when it is done
            skip = skip | backend.lost(skip)
        backend.end(skip)
    if xi is not None:
        anchor["thermostat"].copy_(xi if skip is None else torch.where(skip, anchor["thermostat"], xi))
    return skip


def choose_backend(group: Group, buckets: list[Bucket], records: bool = False, elements: int | None = None) -> Eager:
    """By sizes and counts alone, never by a clock: a resumed run changes backends at the same step.

    ``records``: positions and forces are looked at between ``begin`` and ``run``, so they must be tensors.
    ``elements``: of the group on all ranks, where they hold parts of it.
    """
    if not buckets[0].space.traits.rowwise:
        return Eager()
    if not records and has_kernels(group, buckets):
        from .._backends.triton import Triton

        return Triton(group["seed"])
    if not pays(group, sum(b.elements for b in buckets) if elements is None else elements):
        return Eager()
    from .._backends.inductor import Inductor

    return Inductor()


def has_kernels(group: Group, buckets: list[Bucket]) -> bool:
    """Whether a GPU's kernels can run this step. ``fuse=False`` keeps to the reference, as traces do."""
    if group["fuse"] is False or any(b.device.type not in KERNEL_DEVICES for b in buckets):
        return False
    if not has_triton():
        _warn_without_triton()
        return False
    if draws_noise(group) and any(start is None for bucket in buckets for start in bucket.starts):
        return False  # kernels number the noise of entries that follow each other
    from .._backends.triton import fits

    seed = group["seed"]
    replicas = len(seed) if isinstance(seed, Tensor) and seed.ndim else 1
    lengths = {x.numel() for x in map(group.get, NUMBERS) if isinstance(x, Tensor)}
    return lengths <= {1, replicas} and fits(buckets, group["scheme"], replicas)


@cache
def _warn_without_triton() -> None:
    """Once in a process."""
    warnings.warn(
        f"steps on a GPU run without holonom's kernels, because {triton_fault()}. The result is the same, but a step "
        f"takes several times as long. Pass fuse=False to silence this.",
        stacklevel=users_line(),
    )


def pays(group: Group, elements: int) -> bool:
    """Whether to compile. ``fuse``: True always, False never, None once the time saved exceeds the compiler's."""
    fuse: bool | None = group["fuse"]
    return elements * group["step"] >= COMPILE_AFTER if fuse is None else fuse


class Noise:
    """Normals by bucket and draw: what a group's seed, its clock and a parameter's stream make of a draw's number."""

    def __init__(
        self, group: Group, anchor: State, buckets: list[Bucket], overdamped: bool, elements: int | None = None
    ) -> None:
        self.group, self.overdamped = group, overdamped
        self.elements = sum(b.elements for b in buckets) if elements is None else elements
        self.seed, self.clock = group["seed"], anchor["clock"]

    def __call__(self, bucket: Bucket, draw: int) -> list[Normals]:
        seeds, clock = philox.as_seed(self.seed, bucket.device), self.clock.to(bucket.device)
        return bucket.normals(seeds, clock, draw, self.overdamped, self.fill())

    def fill(self) -> Callable[..., Tensor]:
        """The function that draws; compiled where that pays."""
        if pays(self.group, DRAW_COST * (DRAW_CALL + self.elements)):
            from .._backends.inductor import compiled_normals

            return compiled_normals
        return philox.normals


def stages(program: tuple[Op, ...]) -> list[tuple[tuple[Op, ...], Op | None, bool]]:
    """The program cut at its E's, whose result later letters need: letters, the E that follows, whether it is last."""
    cut: list[tuple[tuple[Op, ...], Op | None, bool]] = []
    ops: list[Op] = []
    for op in program:
        if op.letter == "E":
            cut.append((tuple(ops), op, False))
            ops = []
        else:
            ops.append(op)
    return [*cut, (tuple(ops), None, True)]
