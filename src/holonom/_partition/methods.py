"""How presets make groups: which weights the papers' methods constrain, and their parts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from .._lines import users_line
from ..constraints import Constraint, Free, Orthogonal
from ..constraints.views import Viewed
from ..ensemble.known import refuse_replicas
from ..errors import PartitionError
from .places import Blocks, Place, Roles, locate, view_of
from .selectors import Selector, as_selector, embeddings, hidden, positions, role, warn_unmatched, weights

Groups = list[dict[str, Any]]
Trainable = nn.Module | Iterable[Any]

MATRICES = weights & ~embeddings & ~positions & ~role("other")
"""What c-CoLA and s-CoLA constrain."""

_MAPS = (
    role("attention") | role("feed-forward") | role("convolution") | role("transposed convolution") | role("recurrent")
)
trained = Selector(lambda place: place.parameter.requires_grad, "trained")
"""No preset moves frozen weights onto a manifold."""

ORTHOGONAL = {"hidden": weights & hidden & _MAPS, "all": weights & (_MAPS | role("head"))}
"""What o-CoLA constrains."""


def all_parameters(model: Trainable) -> Any:
    return model.named_parameters() if isinstance(model, nn.Module) else model


def parts(model: Trainable, count: int) -> Groups:
    """A model's layers as ``count`` groups, the last being the output layer; or the groups as given."""
    if not isinstance(model, nn.Module):
        given = list(model) if isinstance(model, Iterable) else []
        if len(given) != count or any(isinstance(group, Tensor) for group in given):
            raise PartitionError(
                f"this method has {count} parts: give a model, or {count} parameter groups in order, not {len(given)}"
            )
        return [dict(group) if isinstance(group, dict) else {"params": list(group)} for group in given]
    places = locate(model)
    layers = places[0].layers if places else 0
    if layers < count:
        raise PartitionError(f"this method has {count} parts, but the model has {layers} layer(s) with weights")
    groups: Groups = [{"params": []} for _ in range(count)]
    for place in places:
        groups[max(0, place.layer - (layers - count))]["params"].append((place.name, place.parameter))
    return groups


def constrain_matrices(
    model: Trainable,
    make: Callable[[Any], Constraint],
    radius: float | str | Sequence[float],
    layers: Any = "all",
    roles: Roles | None = None,
    blocks: Blocks | None = None,
) -> Groups:
    """``make(radius)`` for the weights, with one radius for all or one per layer; one group for everything else."""
    by_layer = isinstance(radius, Sequence) and not isinstance(radius, str)  # not "initial"
    if not isinstance(model, nn.Module):
        _refuse_without_model(layers != "all", roles, blocks)
        if by_layer:
            raise PartitionError("a radius per layer needs a model; with parameter groups set 'constraint' per group")
        return _constrain_given(model, make(radius))
    chosen = _chosen(layers, {"all": MATRICES}) & trained
    places = locate(model, roles, blocks)
    numbers = list(dict.fromkeys(place.layer for place in places if chosen(place)))
    radii = list(radius) if by_layer else [radius] * len(numbers)  # type: ignore[arg-type]
    if len(radii) != len(numbers):
        raise PartitionError(
            f"{len(radii)} radii for {len(numbers)} layers with constrained weights; give one per layer, or a float"
        )
    if not numbers:
        raise PartitionError(f"the model has no weights to constrain: {chosen!r} claims none of its parameters")
    warn_unmatched(chosen, places, model)
    spaces = {number: make(r) for number, r in zip(numbers, radii, strict=True)}
    return gather(places, lambda place: spaces[place.layer] if chosen(place) else None)


def constrain_orthogonal(
    model: Trainable, layers: Any = "hidden", roles: Roles | None = None, blocks: Blocks | None = None
) -> Groups:
    """Orthogonal matrices and kernels in the layers chosen; one group for everything else."""
    chosen = _chosen(layers, ORTHOGONAL) & trained
    if not isinstance(model, nn.Module):
        _refuse_without_model(not isinstance(layers, str), roles, blocks)
        return _constrain_given(model, Orthogonal())
    places = locate(model, roles, blocks)
    if not any(chosen(place) for place in places):
        if layers == "hidden" and not any(ORTHOGONAL["hidden"](place) for place in places):
            raise PartitionError(
                "the model has no hidden weights between its first and last layer to constrain; pass layers='all'"
            )
        raise PartitionError(f"the model has no weights to constrain: {chosen!r} claims none of its parameters")
    warn_unmatched(chosen, places, model)
    return gather(places, lambda place: Orthogonal() if chosen(place) else None)


def orthogonal_places(model: nn.Module, layers: str) -> list[Place]:
    """The weights that o-CoLA constrains."""
    return [place for place in locate(model) if _chosen(layers, ORTHOGONAL)(place)]


def _chosen(layers: Any, named: Mapping[str, Selector]) -> Selector:
    if isinstance(layers, str) and layers not in named:
        known = " or ".join(map(repr, named))
        raise ValueError(f"layers must be {known}, or a selector such as weights & ~first, got {layers!r}")
    return named[layers] if isinstance(layers, str) else as_selector(layers) & weights


def _refuse_without_model(chosen: bool, roles: Roles | None, blocks: Blocks | None) -> None:
    if chosen or roles or blocks:
        raise PartitionError("layers, roles and blocks are about a model's parameters: give the model itself")


def in_place(space: Any, place: Place) -> Any:
    """The space with the view of a parameter, if its view is "auto"."""
    if not place.direct and space is not None and not isinstance(space, Free):
        raise PartitionError(
            f"{place.name!r}: {space!r} would hold for this tensor, not for what a parametrization makes of it, which "
            f"is what {type(place.module).__name__} uses. Remove the parametrization, for instance by "
            f"torch.nn.utils.parametrize.remove_parametrizations, or leave the tensor free: "
            f"roles={{{place.name!r}: 'other'}} in a preset, a rule without a constraint in holonom.partition"
        )
    if isinstance(space, Viewed) and space.block_view == "auto" and place.ndim >= 2:
        if space.per == "block" and not place.blocks:
            raise PartitionError(
                f"{place.name!r} packs queries, keys and values in a way that its shape {tuple(place.parameter.shape)} "
                f"does not say, and {type(space).__name__} would couple them. Write blocks={{{place.name!r}: n}} for n "
                f"matrices of one size; in holonom.partition {type(space).__name__}(per='head') for every head by "
                f"itself, or per='matrix' for all as one; or leave it free: roles={{{place.name!r}: 'other'}} in a "
                f"preset, a rule without a constraint in holonom.partition"
            )
        return space.with_view(view_of(place, space), place.parameter.ndim)
    return space


def gather(places: Iterable[Place], space_of: Callable[[Place], Constraint | None]) -> Groups:
    """Parameters with equal constraints share a group, which is named by their roles."""
    groups: dict[str, dict[str, Any]] = {}
    roles: dict[str, dict[str, None]] = {}
    for place in places:
        space = in_place(space_of(place), place)
        key = repr(space)
        group = groups.setdefault(key, {"params": [], "constraint": space})
        group["params"].append((place.name, place.parameter))
        roles.setdefault(key, {})[place.role] = None
    names = ["rest" if group["constraint"] is None else ", ".join(roles[key]) for key, group in groups.items()]
    return [{"params": group["params"], "constraint": group["constraint"], "name": name}
            for group, name in zip(groups.values(), unique(names), strict=True)]  # fmt: skip


def unique(names: Sequence[str]) -> list[str]:
    """The names, numbered where one occurs again."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _constrain_given(given: Iterable[Any], space: Constraint) -> Groups:
    """Plain parameters or groups: constrain matrices, leave the rest. Groups stay apart."""
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    of_a_model = isinstance(given, Iterator)  # as model.parameters() is; biases say so, too
    for number, item in enumerate(refuse_replicas(given)):
        group = item if isinstance(item, dict) else {"params": [item]}
        options = {k: v for k, v in group.items() if k != "params"}
        for entry in group["params"]:
            p = entry[1] if isinstance(entry, tuple) else entry
            chosen = p.ndim >= 2 and p.requires_grad
            of_a_model |= p.ndim < 2 and not isinstance(item, dict)
            key = (number if isinstance(item, dict) else -1, chosen)
            own = groups.setdefault(key, {"params": [], "constraint": space if chosen else None, **options})
            own["params"].append(entry)
    count = sum(len(group["params"]) for (number, chosen), group in groups.items() if chosen and number < 0)
    if of_a_model and count:
        warnings.warn(
            f"all {count} matrices are on {space!r}: without the model nothing says which are embeddings, heads or "
            f"several packed in one. Give the model itself, or parameter groups",
            stacklevel=users_line(),
        )
    return list(groups.values())
