"""Optimizers whose matrices stay on spheres: AdamW and Muon with :func:`holonom.constrain`, as one object each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from .._partition.methods import ORTHOGONAL, trained
from .._partition.places import Blocks, Place, Roles, locate
from .._partition.selectors import Selector, as_selector, positions, role, warn_unmatched, weights
from .._torch import muon
from ..constraints import Sphere
from ..errors import PartitionError
from .constrain import constrain
from .together import Together, together

SPREAD = weights & ~positions & ~role("other")
"""All matrices, kernels and embeddings."""


def adamh(
    model: nn.Module,
    lr: float = 0.01,
    *,
    free_lr: float = 1e-3,
    layers: Any = "hidden",
    roles: Roles | None = None,
    blocks: Blocks | None = None,
    weight_decay: float = 0.0,
    **options: Any,
) -> AdamW:
    """AdamW whose hidden matrices keep their norms and turn by the angle ``lr`` in a step ("Hyperball").

    Each matrix, of packed ones each, is on the sphere of its initial Frobenius norm, with ``update="angular"``. Free,
    at ``free_lr``, are embeddings, positions, norms, biases and heads. ``opt.held`` is the handle of
    :func:`holonom.constrain`.

    Args:
        model: the network.
        lr: about the angle, in radians, by which a matrix turns in a step.
        free_lr: AdamW's rate for the others.
        layers: "hidden", "all" (first layer and heads as well), or a selector.
        roles, blocks: as in :func:`holonom.partition`.
        weight_decay: of the free parameters.
        options: AdamW's.
    """
    _check_rates(lr=lr, free_lr=free_lr, weight_decay=weight_decay)
    held, free = split(model, layers, ORTHOGONAL, roles, blocks)
    groups = [{"params": held, "lr": lr, "weight_decay": 0.0}]
    groups += [{"params": free, "lr": free_lr, "weight_decay": weight_decay}] if free else []
    opt = AdamW(groups, **options)
    _hold(opt, model, held, Sphere("initial", per="block"), "angular", roles, blocks)
    return opt


def muonh(
    model: nn.Module,
    lr: float = 0.01,
    *,
    free_lr: float = 1e-3,
    layers: Any = "hidden",
    roles: Roles | None = None,
    blocks: Blocks | None = None,
    weight_decay: float = 0.0,
    adamw: Mapping[str, Any] | None = None,
    **options: Any,
) -> Together:
    """The same with torch's Muon for the hidden matrices, which turn along its direction by the angle ``lr``.

    Kernels, which Muon does not take, are AdamW's, on their spheres as well. ``adamw`` are options of AdamW, all
    others are Muon's. The result is :func:`holonom.together` of both.
    """
    _check_rates(lr=lr, free_lr=free_lr, weight_decay=weight_decay)
    held, free = split(model, layers, ORTHOGONAL, roles, blocks)
    matrices = [(name, p) for name, p in held if p.ndim == 2]
    kernels = [(name, p) for name, p in held if p.ndim != 2]
    if not matrices or not (kernels or free):
        raise PartitionError("muonh needs matrices for Muon and other parameters for AdamW; use Muon or adamh alone")
    groups = [{"params": kernels, "lr": lr, "weight_decay": 0.0}] if kernels else []
    groups += [{"params": free, "lr": free_lr, "weight_decay": weight_decay}] if free else []
    opt = together(muon()(matrices, lr=lr, weight_decay=0.0, **options), AdamW(groups, **(adamw or {})))
    _hold(opt, model, held, Sphere("initial", per="block"), "angular", roles, blocks)
    return opt


def normalised(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    factor: float = 1.0,
    update: str = "tangent",
    layers: Any = "all",
    roles: Roles | None = None,
    blocks: Blocks | None = None,
    weight_decay: float = 0.0,
    **options: Any,
) -> AdamW:
    """AdamW with every row of every matrix and embedding on a sphere, at ``factor`` times its initial norm.

    ``weight_decay`` is that of norms, biases and positions, which are free. ``layers``, a selector, restricts it: a row
    that is zero, as that of a ``padding_idx``, has no norm to keep. ``opt.held`` is the handle.
    """
    _check_rates(lr=lr, weight_decay=weight_decay)
    held, free = split(model, layers, {"all": SPREAD}, roles, blocks)
    groups = [{"params": held, "weight_decay": 0.0}]
    groups += [{"params": free, "weight_decay": weight_decay}] if free else []
    opt = AdamW(groups, lr, **options)
    _hold(opt, model, held, Sphere("initial", per="row", factor=factor), update, roles, blocks)
    return opt


def _check_rates(**rates: Any) -> None:
    """torch's optimizers check their defaults only, not what groups have."""
    for name, rate in rates.items():
        if isinstance(rate, bool) or not isinstance(rate, (int, float, Tensor)):
            raise TypeError(f"{name} must be a number, got {rate!r}")
        if not isinstance(rate, Tensor) and not 0 <= rate < math.inf:
            raise ValueError(f"{name} must be finite and at least 0, got {rate}")


Named = list[tuple[str, nn.Parameter]]


def split(
    model: nn.Module, layers: Any, known: Mapping[str, Selector], roles: Roles | None, blocks: Blocks | None
) -> tuple[Named, Named]:
    """The trained parameters that are held, and the others."""
    if isinstance(layers, str) and layers not in known:
        raise ValueError(f"layers must be {' or '.join(map(repr, known))}, or a selector, got {layers!r}")
    chosen = (known[layers] if isinstance(layers, str) else as_selector(layers) & weights) & trained
    places = [place for place in locate(model, roles, blocks) if trained(place)]
    held = [place for place in places if chosen(place)]
    if not held:
        raise PartitionError(f"the model has no weights to hold: {chosen!r} claims none of its parameters")
    warn_unmatched(chosen, places, model)
    return _named(held), _named([place for place in places if not chosen(place)])


def _named(places: list[Place]) -> Named:
    return [(place.name, place.parameter) for place in places]


def _hold(
    opt: Optimizer,
    model: nn.Module,
    held: Named,
    space: Sphere,
    update: str,
    roles: Roles | None,
    blocks: Blocks | None,
) -> None:
    names = {name for name, _ in held}
    rule = Selector(lambda place: place.name in names, "matrices")
    handle = constrain(opt, model, {rule: space}, update, roles=roles, blocks=blocks)
    opt.held = handle  # type: ignore[attr-defined]
