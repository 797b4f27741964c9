"""Which parameters of a model the rules claim, and the space that each is held on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._partition.methods import unique
from .._partition.places import Blocks, Roles
from .._partition.selectors import as_selector
from .._step.buckets import state_dtype
from .._step.integrate import Phase
from .._step.state import check_params
from ..constraints import Constraint, Free, Sphere
from ..constraints.base import Landing, widened
from ..errors import ConstraintError, PartitionError
from ..optimizer import Langevin
from ..partitions import partition

UPDATES = ("plain", "tangent", "angular")
Rules = Mapping[Any, Constraint] | list[tuple[Any, Constraint]]


@dataclass
class Claim:
    """One parameter, the rule that claims it, and the space it is held on, with sizes of its own where it has them.

    ``text`` is the space as the rule gives it, without sizes; ``master`` is a half-precision weight in float32.
    """

    rule: int
    name: str
    parameter: nn.Parameter
    text: str
    space: Constraint
    sizes: Tensor | None = None
    master: Tensor | None = None

    @property
    def is_narrow(self) -> bool:
        return self.parameter.dtype.itemsize < 4

    def phase(self) -> Phase:
        """The weights as they are, as blocks."""
        q = widened(self.parameter.detach())
        return Phase(self.space.view(q), radius=self.space.radius_of(q))


def labels_of(rules: Rules) -> list[str]:
    """What messages and diagnostics call the rules: their keys."""
    labels = [key if key == "rest" else repr(as_selector(key)) for key, _ in pairs_of(rules)]
    return unique([f"rule {n}" if "<lambda>" in label else label for n, label in enumerate(labels)])


def pairs_of(rules: Any) -> list[tuple[Any, Constraint]]:
    pairs = list(rules.items() if isinstance(rules, Mapping) else rules or ())
    if not pairs:
        raise PartitionError("no rules: give at least one, such as {holonom.partitions.weights: Sphere('initial')}")
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise PartitionError(f"a rule is a selector and a space, such as weights: Sphere('initial'); got {pair!r}")
        if not isinstance(pair[1], Constraint):
            raise TypeError(
                f"the rule {pair[0]!r} holds {pair[1]!r}; it must be a space of holonom.constraints, such as "
                f"Sphere('initial')"
            )
    return pairs


def part_of(optimizer: Optimizer, group: dict[str, Any]) -> Optimizer:
    """The optimizer that moves a group: itself, or one of several that work together."""
    parts = getattr(optimizer, "optimizers", ())
    return next((part for part in parts if any(own is group for own in part.param_groups)), optimizer)


def _refuse_langevin(optimizer: Any) -> None:
    if isinstance(optimizer, Langevin):
        raise TypeError(
            f"{type(optimizer).__name__} has constraints of its own, with their momenta: give them to its groups, "
            f"holonom.Langevin(holonom.partition(model, {{selector: {{'constraint': space}}, 'rest': {{}}}}), lr)"
        )


def check_optimizer(optimizer: Any) -> None:
    _refuse_langevin(optimizer)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"constrain takes a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if not hasattr(optimizer, "defaults") or not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        inner = getattr(optimizer, "optimizer", None)
        advice = "constrain the one inside, before it is wrapped" if isinstance(inner, Optimizer) else "call its base's"
        raise TypeError(f"{type(optimizer).__name__} takes no step hooks: {advice} torch.optim.Optimizer.__init__")


def claims_of(
    optimizer: Optimizer, model: nn.Module, rules: Rules, update: str, roles: Roles | None, blocks: Blocks | None
) -> list[Claim]:
    """Every parameter that a rule claims, checked; nothing is written."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"constrain needs the model whose parameters its rules name, got {type(model).__name__}")
    pairs, labels = pairs_of(rules), labels_of(rules)
    routed: list[tuple[Any, dict[str, Any]]] = [
        (key, {"constraint": space, "rule": number}) for number, (key, space) in enumerate(pairs)
    ]
    if not any(isinstance(key, str) and key == "rest" for key, _ in pairs):
        routed.append(("rest", {}))
    groups = partition(model, routed, roles=roles, blocks=blocks, verbose=False)
    owned = {id(p): part_of(optimizer, group) for group in optimizer.param_groups for p in group["params"]}
    claims: list[Claim] = []
    for group in groups:
        space = group.get("constraint")
        if space is None or isinstance(space, Free):
            continue
        trained = [(name, p) for name, p in group["params"] if p.requires_grad]
        check_params([p for _, p in trained], set())
        missing = [name for name, p in trained if id(p) not in owned]
        if missing:
            raise PartitionError(
                f"the rule {labels[group['rule']]} claims {_listing(missing)}, which the optimizer does not own: give "
                f"it these parameters, leave them out of the rule, or freeze them (requires_grad=False)"
            )
        for _, p in trained:
            _refuse_langevin(owned[id(p)])
        here = space.over_replicas(getattr(model, "batch_dims", 0))
        for name, p in trained:
            _check(here, p, name, update)
            claims.append(_measured(here, p, name, group["rule"]))
    for number, label in enumerate(labels):
        space = pairs[number][1]
        if not isinstance(space, Free) and all(claim.rule != number for claim in claims):
            raise PartitionError(f"the rule {label} claims frozen parameters only (requires_grad=False)")
    return claims


def _check(space: Constraint, p: nn.Parameter, name: str, update: str) -> None:
    q = p.detach()
    if space.traits.joint:
        raise ConstraintError(
            f"{space!r} on '{name}': tensors that are constrained together work in holonom.Langevin only"
        )
    if update == "angular" and (space.is_bound or not isinstance(space, Sphere)):
        raise ConstraintError(
            f"update='angular' turns blocks of a fixed norm, and '{name}' is on {space!r}: use Sphere('initial') or "
            f"Sphere(r, slack=False), or update='plain'"
        )
    if update == "tangent" and type(space).project_step_ is Constraint.project_step_:
        raise ConstraintError(f"{space!r} on '{name}' has no tangent projection of a step: use update='plain'")
    space.check(q, f"'{name}'")
    if not bool(q.isfinite().all()):
        raise ConstraintError(f"{space!r} on '{name}': the weights hold NaN or infinity; initialise them first")


def _measured(space: Constraint, p: nn.Parameter, name: str, rule: int) -> Claim:
    q = p.detach()
    sizes = space.sizes(q, f"'{name}'") if q.numel() else None
    held = space.held_at(sizes)
    return Claim(rule, name, p, repr(space), held.in_half_precision() if q.dtype.itemsize < 4 else held, sizes)


def land_(claims: Sequence[Claim]) -> list[tuple[Constraint, Landing, str]]:
    """Move all weights to their spaces, or none if one cannot be; returns what that did."""
    landings, there = [], []
    for claim in claims:
        q = claim.parameter.detach()
        if q.numel():
            landing, found = _landed(claim, q)
            landings.append((claim.space, landing, f"'{claim.name}'"))
            there.append((claim, q, found))
    for claim, q, found in there:
        if not torch.equal(q, found.to(q.dtype)):  # equal values are no edit
            q.copy_(found)
        claim.master = found if claim.is_narrow else None
    return landings


def _landed(claim: Claim, q: Tensor) -> tuple[Landing, Tensor]:
    """What moving the weights to their space does, and where they are then; float32 for half precision."""
    there = q.to(state_dtype(q), memory_format=torch.preserve_format, copy=True)
    if not claim.space.is_bound or not has_nearest(claim.space):
        return claim.space.land_(there, f"'{claim.name}'"), there
    block = claim.space.view(there).clone()  # a bound's land_ keeps the margin that slack variables need
    claim.space.nearest_(Phase(block, radius=claim.space.radius_of(there)))
    shift = (block - claim.space.view(there)).abs()
    claim.space.write_(there, block)
    return Landing(int((shift > 0).sum()), shift.numel(), float(shift.max())), there


def is_equality(space: Constraint) -> bool:
    """Whether weight decay would pull weights off the space: not if it only bounds them."""
    return not space.is_bound and getattr(space, "equalities", True) is not None


def has_nearest(space: Constraint) -> bool:
    """Whether the nearest point is arithmetic on the device; if not, it is landed on by a search."""
    return type(space).nearest_ is not Constraint.nearest_


def _listing(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
