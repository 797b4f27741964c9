"""``constrain``: rules and an optimizer become a handle."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .._lines import users_line
from .._partition.places import Blocks, Roles
from .._sharding.collectives import agree
from .._sharding.shards import described
from .._step.state import warn_landed
from .._torch import full_precision, step_hooks
from ..errors import ConstraintError, PartitionError
from .claims import UPDATES, Claim, Rules, check_optimizer, claims_of, labels_of, measured, ranks_of
from .decay import refuse_decay
from .held import Held
from .landing import land_
from .momenta import check_momenta
from .together import with_parts

RULES_DIFFER = (
    "ranks were given different rules or options",
    "Call constrain with the same model, rules and options on every rank",
)


@torch.no_grad()
def constrain(
    optimizer: Optimizer,
    model: nn.Module,
    rules: Rules,
    update: str = "plain",
    momentum: str = "keep",
    decay: str | None = None,
    track: bool = False,
    *,
    roles: Roles | None = None,
    blocks: Blocks | None = None,
) -> Held:
    r"""Hold weights on spaces while *any* torch optimizer trains them, by hooks around its step.

    >>> opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    >>> held = holonom.constrain(opt, model, {weights & hidden: Sphere("initial", per="matrix")}, update="tangent")

    The optimizer stays what it is, and so do its schedulers, its checkpoints and the loop. A step moves a weight q by
    Δ, and q is then set to

    - ``"plain"``: the nearest point to q + Δ. Keeps no copy of the weights.
    - ``"tangent"``: the retraction of ΠΔ, Δ without its part off the manifold at q. Of a bound only an outward part is
      removed, where the bound is active.
    - ``"angular"``, on spheres of fixed norm R: R·n/‖n‖ with n = q + lr·R·Δ/‖Δ‖, block by block. Where Δ is orthogonal
      to q, it turns by atan(lr).

    Where Δ = 0, as after a step that a ``GradScaler`` skipped, q stays as it is, bit for bit. Half-precision weights
    are rounded from float32 ones that the handle keeps. Weights that start off their space are moved to it, with a
    warning; parameters that no rule claims are free. Copies of the optimizer lose the hooks: :meth:`Held.check`.

    Parameters may be DTensors, as FSDP2 and tensor parallelism make them, beside plain ones: weights move as in a
    single process, and all ranks call this, and the handle's methods, together (``docs/scaling.md``).

    ``LBFGS`` leaves the space in the inner iterations of a step and returns to it at their end.

    Args:
        optimizer: of torch, or a class of your own; for :class:`holonom.Langevin` give its groups constraints.
        model: the network whose parameters the rules name.
        rules: a mapping, or pairs, from selectors of :mod:`holonom.partitions` to spaces.
        update: "plain", "tangent" or "angular".
        momentum: "keep" leaves the optimizer's ``exp_avg`` or ``momentum_buffer``; "project" removes its part off the
            manifold after every step.
        decay: None refuses weight decay of weights on equality spaces; "drop" leaves lr·weight_decay·q out of Δ.
        track: keep the weights from before every step with "plain", too, for :meth:`Held.angles`.
        roles: name patterns and the roles of what they match, as in :func:`holonom.partition`.
        blocks: name patterns and how many matrices, or heads, are packed in what they match.
    """
    check_optimizer(optimizer)
    groups = ranks_of(optimizer)
    options = {"update": update, "momentum": momentum, "decay": decay, "track": track}
    claims: list[Claim] = []
    labels: list[str] = []
    problem: Exception | None = None
    try:
        _check_options(options)
        labels = labels_of(rules)
        claims = claims_of(optimizer, model, rules, update, roles, blocks)
        _refuse_twice(optimizer, {id(claim.parameter): claim.name for claim in claims})
        refuse_decay(optimizer, claims, labels, decay)
        if momentum == "project":
            check_momenta(claims)
        if update == "angular" and any("lr" not in group for group in optimizer.param_groups):
            raise ValueError(f"update='angular' turns by the groups' lr, and {type(optimizer).__name__} has none")
    except Exception as error:
        problem = error
    signature = [f"{name}={value!r}" for name, value in options.items()]
    signature += [f"'{c.name}' {described(c.parameter)} on {c.text}" for c in claims]
    agree(problem, signature, groups, ConstraintError, RULES_DIFFER)
    with full_precision():
        try:
            measured(claims)
        except ConstraintError as error:
            problem = error
        agree(problem, (), groups, ConstraintError)
        landings = land_(claims, groups)
    held = Held(optimizer, claims, labels, options)
    held.attach()
    _warn_gathered(claims)
    warn_landed(landings)
    return held


def _check_options(options: dict[str, Any]) -> None:
    for name, known in (("update", UPDATES), ("momentum", ("keep", "project")), ("decay", (None, "drop"))):
        if options[name] not in known:
            raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, got {options[name]!r}")
    if not isinstance(options["track"], bool):
        raise TypeError(f"track must be True or False, got {options['track']!r}")


def _warn_gathered(claims: list[Claim]) -> None:
    """Say once what is sent of level sets, whose functions take whole tensors."""
    found = [claim for claim in claims if claim.searches and claim.kind == "gathered"]
    if found:
        warnings.warn(
            f"{found[0].text} needs whole tensors, and {len(found)} of them, such as '{found[0].name}', are spread "
            f"over ranks: every step sends each to one rank and back",
            stacklevel=users_line(),
        )


def _refuse_twice(optimizer: Optimizer, names: dict[int, str]) -> None:
    """One parameter, one space, also over several calls."""
    for hook in (hook for one in with_parts(optimizer) for hook in step_hooks(one)):
        other = getattr(hook, "__self__", None)
        for claim in other._claims if isinstance(other, Held) else ():
            if id(claim.parameter) in names:
                raise PartitionError(
                    f"'{names[id(claim.parameter)]}' is held on {claim.space!r} already, by another call of constrain "
                    f"on this optimizer: remove() that handle, or leave the parameter out"
                )
