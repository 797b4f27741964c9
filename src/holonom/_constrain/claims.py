"""Which parameters of a model the rules claim, and the space that each is held on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._partition.methods import unique
from .._partition.places import Blocks, Roles
from .._partition.selectors import as_selector
from .._sharding.collectives import Groups, reduced, union
from .._sharding.shards import Piece, is_sharded, local, piece_of, refuse_placement
from .._step.buckets import state_dtype
from .._step.integrate import Phase
from .._step.state import Landed, check_params
from .._torch import takes_step_hooks
from ..constraints import Constraint, Free, Sphere
from ..constraints.base import widened
from ..constraints.views import Viewed
from ..errors import ConstraintError, PartitionError
from ..optimizer import Langevin
from ..partitions import partition
from .cuts import Cut

UPDATES = ("plain", "tangent", "angular")
Rules = Mapping[Any, Constraint] | list[tuple[Any, Constraint]]


@dataclass
class Claim:
    """One parameter, the rule that claims it, and the space it is held on, with sizes of its own where it has them.

    ``text`` is the space as the rule gives it, without sizes. Of a DTensor, ``space`` and ``sizes`` are those of the
    whole parameter, the same on all ranks; ``tensor``, ``here`` and ``master``, a half-precision weight in float32, are
    this rank's. ``landed`` are weights that :func:`holonom.constrain` moved to the space, until the first step;
    ``radius`` is a radius of the space that is a tensor, its version, and its copy on the device of the weights.
    """

    rule: int
    name: str
    parameter: nn.Parameter
    text: str
    space: Constraint
    sizes: Tensor | None = None
    master: Tensor | None = None
    landed: Landed | None = None
    radius: tuple[Tensor, int, Tensor] | None = None

    @property
    def is_narrow(self) -> bool:
        return self.parameter.dtype.itemsize < 4

    @property
    def tensor(self) -> Tensor:
        """The weights of this rank, as a plain tensor."""
        return local(self.parameter) if is_sharded(self.parameter) else self.parameter.detach()

    @property
    def piece(self) -> Piece | None:
        """Where they lie in a parameter that is spread over ranks; None if they are all of it."""
        if not is_sharded(self.parameter):
            return None
        piece = piece_of(self.parameter)
        return None if piece.is_whole else piece

    @property
    def cut(self) -> Cut | None:
        """How ranks cut the blocks; None if they do not, or if the space needs the whole parameter."""
        piece, reach = self.piece, self.space.reach(self.parameter.shape)
        return None if piece is None or reach is None else Cut(piece, reach)

    @property
    def kind(self) -> str:
        """What a step needs: what is here ("local"), sums over ranks ("summed"), or the whole tensor ("gathered")."""
        piece, cut = self.piece, self.cut
        if piece is None or (cut is not None and not cut.crossed):
            return "local"
        return "summed" if isinstance(self.space, Sphere) else "gathered"

    @property
    def here(self) -> Constraint:
        """The space of ``tensor``, where that cuts no block."""
        piece = self.piece
        return self.space if piece is None else self.space.on_shard(piece.shape, piece.offset, piece.local_shape)

    @property
    def searches(self) -> bool:
        return not has_nearest(self.space)

    def phase(self) -> Phase:
        """The weights as they are, as blocks, where no other rank is needed for that."""
        q, here = widened(self.tensor), self.here
        return Phase(here.view(q), radius=here.radius_of(q))


def labels_of(rules: Rules) -> list[str]:
    """What messages and diagnostics call the rules: their keys."""
    labels = [key if key == "rest" else repr(as_selector(key)) for key, _ in pairs_of(rules)]
    return unique([f"rule {n}" if "<lambda>" in label else label for n, label in enumerate(labels)])


def pairs_of(rules: Any) -> list[tuple[Any, Constraint]]:
    if isinstance(rules, (str, Constraint)) or not isinstance(rules, (Iterable, type(None))):
        raise TypeError(
            f"rules map selectors to spaces, such as {{holonom.partitions.weights: Sphere('initial')}}; got {rules!r}"
        )
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
    for part in getattr(optimizer, "optimizers", ()):
        if any(own is group for own in part.param_groups):
            return part_of(part, group)
    return optimizer


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
    if not hasattr(optimizer, "defaults") or not takes_step_hooks(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if isinstance(inner, Optimizer):
            advice = "constrain the one inside, before it is wrapped"
        else:
            advice = "its constructor must call that of torch.optim.Optimizer, super().__init__(params, defaults)"
        raise TypeError(f"{type(optimizer).__name__} takes no step hooks: {advice}")


def claims_of(
    optimizer: Optimizer, model: nn.Module, rules: Rules, update: str, roles: Roles | None, blocks: Blocks | None
) -> list[Claim]:
    """Every parameter that a rule claims, checked. Writes nothing, and communicates with no rank."""
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
        check_params([local(p) for _, p in trained], set())
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
            claims.append(Claim(group["rule"], name, p, repr(here), here))
    for number, label in enumerate(labels):
        space = pairs[number][1]
        if not isinstance(space, Free) and all(claim.rule != number for claim in claims):
            raise PartitionError(f"the rule {label} claims frozen parameters only (requires_grad=False)")
    return claims


def _check(space: Constraint, p: nn.Parameter, name: str, update: str) -> None:
    q = p.detach()
    if is_sharded(p):
        refuse_placement(p, f"'{name}'")
        q = _stand_in(space, p)
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
    here = local(p) if is_sharded(p) else q
    if here.is_meta:
        raise ConstraintError(f"{space!r} on '{name}': the weights are on the meta device; initialise them first")
    if not bool(here.isfinite().all()):
        raise ConstraintError(f"{space!r} on '{name}': the weights hold NaN or infinity; initialise them first")


def ranks_of(optimizer: Optimizer) -> Groups:
    """The process groups that reach all ranks which parameters are spread over."""
    spread = [p for group in optimizer.param_groups for p in group["params"] if is_sharded(p)]
    return union(piece_of(p).everyone for p in spread if p.device_mesh.get_coordinate() is not None)


def _stand_in(space: Constraint, p: Tensor) -> Tensor:
    """A plain tensor of the shape of a DTensor, without contents unless the space is a user's function."""
    if space.reach(p.shape) is None:
        return torch.zeros(p.shape, dtype=state_dtype(p), device=local(p).device)
    return torch.empty(p.shape, dtype=p.dtype, device="meta")


def measured(claims: Sequence[Claim]) -> None:
    """Take the sizes of initial weights, where spaces take them. Ranks that share a parameter call this together."""
    taking = [claim for claim in claims if claim.space.takes_sizes and claim.parameter.numel()]
    spread = [(claim, piece) for claim in taking if (piece := claim.piece) is not None]
    cuts = [Cut(piece, claim.space.reach(piece.shape) or piece.shape) for claim, piece in spread]
    grids = [claim.tensor.new_zeros(cut.grid, dtype=torch.float64) for (claim, _), cut in zip(spread, cuts)]
    for (claim, _), cut, grid in zip(spread, cuts, grids, strict=True):
        exact = claim.tensor.double()
        cut.sums(exact, exact, grid)
    sums = reduced([(grid, piece.holders) for grid, (_, piece) in zip(grids, spread, strict=True)])
    norms = {id(claim): grid.sqrt() for (claim, _), grid in zip(spread, sums, strict=True)}
    found: list[Tensor | None] = []
    for claim in taking:
        if id(claim) in norms:
            assert isinstance(claim.space, Viewed)
            own, like = claim.space.by_block(norms[id(claim)]), _stand_in(claim.space, claim.parameter)
            found.append(claim.space.sizes_from(own, like, f"'{claim.name}'"))
        else:
            found.append(claim.space.sizes(claim.tensor, f"'{claim.name}'"))
    for claim, sizes in zip(taking, found, strict=True):
        claim.sizes = sizes
        claim.space = claim.space.held_at(sizes)
    for claim in claims:
        if claim.is_narrow:
            claim.space = claim.space.in_half_precision()


def is_equality(space: Constraint) -> bool:
    """Whether weight decay would pull weights off the space: not if it only bounds them."""
    return not space.is_bound and getattr(space, "equalities", True) is not None


def has_nearest(space: Constraint) -> bool:
    """Whether the nearest point is arithmetic on the device; if not, it is landed on by a search."""
    return type(space).nearest_ is not Constraint.nearest_


def _listing(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
