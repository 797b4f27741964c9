"""The papers' methods under the papers' names: compositions of a word, a partition and a constraint.

Each takes a model or parameter groups. Two-part methods split a model into its last layer and the
rest, thesis (3.24); given groups, they want exactly two. Rules of thumb (thesis section 3.6): temperatures
1e-6 … 1e-4, coupling ε 0.05 … 0.1, driving noise σ_A 1e-4 … 1e-2, friction γ of the output layer
0.05 … 5; steps h as large as for SGD or larger, kept fixed throughout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from .constraints import Circle, Constraint, Orthogonal, Sphere
from .ensemble import Ensemble
from .errors import PartitionError
from .heun import HeunLangevin
from .optimizer import Langevin
from .partitions import Groups, Place, hidden, locate, weights

Trainable = nn.Module | Iterable[Any]
Number = float | Tensor  # a tensor holds one value per replica of an ensemble
INFINITE = math.inf


# ── one dynamics for all parameters ──────────────────────────────────────────────────────────────


def sgld(model: Trainable, lr: Number = 0.05, temperature: Number = 5e-5, **options: Any) -> Langevin:
    """Stochastic gradient Langevin dynamics: θ ← θ − h∇L + √(2τh) R (2.51). Defaults: paper Fig. 1."""
    return _build(model, _groups(model), lr, scheme="L", temperature=temperature, **options)


def baoab_limit(model: Trainable, lr: Number = 0.05, temperature: Number = 5e-5, **options: Any) -> Langevin:
    """SGLD with the noise of two steps averaged (2.56): exact for Gaussians, at no extra cost."""
    return _build(model, _groups(model), lr, scheme="M", temperature=temperature, **options)


def langevin(
    model: Trainable, lr: Number = 0.4, friction: Number = 10.0, temperature: Number = 1e-5, **options: Any
) -> Langevin:
    """Underdamped Langevin by BAOAB (3.20). Defaults: thesis Fig. 3.1; pass scheme="OBA" or "ABO" for those."""
    return _build(model, _groups(model), lr, friction=friction, temperature=temperature, **options)


def adaptive_langevin(
    model: Trainable,
    lr: Number = 0.15,
    temperature: Number = 1e-4,
    coupling: Number = 0.1,
    driving_noise: Number = 0.01,
    merged: bool = False,
    **options: Any,
) -> Langevin:
    """AdL (2.58): the friction ξ adapts until the kinetic temperature is τ, whatever the gradient noise.

    ``merged`` solves friction and diffusion as one Ornstein–Uhlenbeck letter F (2.61).
    """
    word = "BAFEFAB" if merged else "BACDEDCAB"
    return _build(model,
        _groups(model), lr, scheme=word, temperature=temperature, coupling=coupling, driving_noise=driving_noise,
        **options,
    )  # fmt: skip


# ── partitioned dynamics ─────────────────────────────────────────────────────────────────────────


def langevin_in_layers(
    model: Trainable,
    lr: Number = 0.1,
    frictions: Sequence[float] = (0.1, 1.0),
    temperatures: Sequence[float] = (1e-4, 1e-6),
    **options: Any,
) -> Langevin:
    """BAOAB with its own (γ_i, τ_i) in every part, one h for all (3.25).

    As many parts as frictions: the last is the output layer, the others split the layers before it in
    order, the first taking what is left over.
    """
    if len(frictions) != len(temperatures):
        raise ValueError(f"{len(frictions)} frictions but {len(temperatures)} temperatures; give one of each per part")
    parts = _parts(model, len(frictions))
    settings = zip(parts, frictions, temperatures, strict=True)
    return _build(model, [{**part, "friction": g, "temperature": t} for part, g, t in settings], lr, **options)


def lol(
    model: Trainable,
    lr: Number = 0.25,
    friction: Number = 0.01,
    temperature: Number = 1e-3,
    output_temperature: Number = 0.0,
    **options: Any,
) -> Langevin:
    """Langevin–Overdamped Langevin (3.26): BAOAB, with γ → ∞ on the output layer.

    Rule of thumb for a single hidden layer: γ₁ = 0.01, τ₁ = 1e-3, τ₂ = 0.
    """
    body, head = _parts(model, 2)
    body = {**body, "friction": friction, "temperature": temperature}
    head = {**head, "friction": INFINITE, "temperature": output_temperature}
    return _build(model, [body, head], lr, **options)


def dhsgd(model: Trainable, lr: Number = 0.1, **options: Any) -> Langevin:
    """Dissipated Hamiltonian SGD (3.27–3.30): Verlet on the body, θ₂ ← θ₂ − (h²/2)∇₂L on the output layer.

    It is LOL with γ₁ = 0 and τ = 0, whose output layer starts with the half kick that every later
    step begins with.
    """
    opt = lol(model, lr, friction=0.0, temperature=0.0, **options)
    opt.param_groups[1]["starts_owing"] = True
    return opt


def dhsgdc(model: Trainable, lr: Number = 0.1, heun: bool = False, **options: Any) -> Langevin:
    """The contractive variant (3.3.2.1): the output layer takes a full gradient step, θ₂ ← θ₂ − h∇₂L.

    ``heun`` makes that step second order, for a second gradient: ``step`` then needs a closure.
    """
    body, head = _parts(model, 2)
    kind: type[Langevin] = HeunLangevin if heun else Langevin
    return kind([{**body, "friction": 0.0}, {**head, "scheme": "L"}], lr, **options)


def adlala(
    model: Trainable,
    lr: Number = 0.15,
    temperature: Number = 1e-4,
    output_temperature: Number = 1e-4,
    friction: Number = 0.1,
    coupling: Number = 0.1,
    driving_noise: Number = 0.01,
    **options: Any,
) -> Langevin:
    """AdLaLa (3.31): adaptive Langevin on the body, Langevin on the output layer.

    The defaults work for all spirals (thesis 3.6). ``friction`` is the output layer's; larger values
    (5 … 1000) slow training and curb overfitting.
    """
    body, head = _parts(model, 2)
    thermostat = {"coupling": coupling, "driving_noise": driving_noise, "temperature": temperature}
    body = {**body, "scheme": "BACDEDCAB", **thermostat}
    head = {**head, "scheme": "BAOAB", "friction": friction, "temperature": output_temperature}
    return _build(model, [body, head], lr, **options)


# ── constrained dynamics ─────────────────────────────────────────────────────────────────────────


def c_cola_od(
    model: Trainable,
    lr: Number = 0.05,
    radius: float | Sequence[float] = 1.0,
    temperature: Number = 0.0,
    **options: Any,
) -> Langevin:
    """Circle-constrained overdamped Langevin (4.47); C-SGD at τ = 0, C-SGLD above.

    ``radius`` bounds every weight, biases stay free; a sequence gives one radius per layer, as the
    papers' r₀ = 1, r₁ = 5 for the spiral.
    """
    groups = _constrain_weights(model, lambda place, r: Circle(r), radius)
    return _build(model, groups, lr, scheme="L", temperature=temperature, **options)


def c_cola_ud(
    model: Trainable,
    lr: Number = 0.3,
    radius: float | Sequence[float] = 0.1,
    friction: Number = 1.0,
    temperature: Number = 0.0,
    scheme: str = "ABO",
    **options: Any,
) -> Langevin:
    """Circle-constrained underdamped Langevin (4.7.2.4). Defaults: lr and friction of paper Fig. 7,
    whose radii are ``radius=(0.05, 0.1)``."""
    groups = _constrain_weights(model, lambda place, r: Circle(r), radius)
    return _build(model, groups, lr, scheme=scheme, friction=friction, temperature=temperature, **options)


def s_cola_od(
    model: Trainable,
    lr: Number = 0.05,
    radius: float | Sequence[float] = 1.0,
    temperature: Number = 0.0,
    slack: bool = True,
    **options: Any,
) -> Langevin:
    """Sphere-constrained overdamped Langevin (paper eq. 3): every row keeps ‖row‖ ≤ r, or = r without slack."""
    groups = _constrain_weights(model, lambda place, r: Sphere(r, slack, view=place.view), radius)
    return _build(model, groups, lr, scheme="L", temperature=temperature, **options)


def s_cola_ud(
    model: Trainable,
    lr: Number = 0.3,
    radius: float | Sequence[float] = 1.0,
    friction: Number = 1.0,
    temperature: Number = 0.0,
    slack: bool = True,
    scheme: str = "ABO",
    **options: Any,
) -> Langevin:
    """Sphere-constrained underdamped Langevin, drifting along exact great circles."""
    groups = _constrain_weights(model, lambda place, r: Sphere(r, slack, view=place.view), radius)
    return _build(model, groups, lr, scheme=scheme, friction=friction, temperature=temperature, **options)


def o_cola_od(
    model: Trainable, lr: Number = 0.1, temperature: Number = 0.0, layers: str = "hidden", **options: Any
) -> Langevin:
    """Orthogonality-constrained overdamped Langevin (Algorithm 1). Defaults: paper Fig. 4.

    ``layers="hidden"`` constrains all weights but the first and the last layer's, as the papers do for
    MLPs; ``"all"`` constrains every matrix and kernel. Parameters given without their model, which have no first
    and last layer, are all constrained.
    """
    return _build(model, _orthogonal_groups(model, layers), lr, scheme="L", temperature=temperature, **options)


def o_cola_ud(
    model: Trainable,
    lr: Number = 0.1,
    friction: Number = 0.5,
    temperature: Number = 0.0,
    layers: str = "hidden",
    scheme: str = "ABO",
    **options: Any,
) -> Langevin:
    """Orthogonality-constrained underdamped Langevin (Algorithm 2)."""
    groups = _orthogonal_groups(model, layers)
    return _build(model, groups, lr, scheme=scheme, friction=friction, temperature=temperature, **options)


def _build(model: Trainable, groups: Any, lr: Number, **options: Any) -> Langevin:
    """An ensemble's replicas draw their own noise and have thermostats of their own."""
    if not isinstance(model, Ensemble) or options.get("seed") is not None:
        return Langevin(groups, lr, **options)
    optimizer = Langevin(groups, lr, **{**options, "seed": model.seeds})
    if not model.seed_given:  # a checkpoint has those of the run that it continues
        for group in (*optimizer.param_groups, optimizer.defaults):
            group["seed_given"] = False
    return optimizer


# ── how models become groups ─────────────────────────────────────────────────────────────────────


def _groups(model: Trainable) -> Any:
    return model.named_parameters() if isinstance(model, nn.Module) else model


def _parts(model: Trainable, count: int) -> Groups:
    """A model's layers as ``count`` groups, the last being the output layer; or the groups as given."""
    if not isinstance(model, nn.Module):
        given = list(model)
        if len(given) != count or any(isinstance(group, Tensor) for group in given):
            raise PartitionError(
                f"this method has {count} parts: give a model, or {count} parameter groups in order, not {len(given)}"
            )
        return [dict(group) if isinstance(group, dict) else {"params": list(group)} for group in given]
    places = locate(model)
    layers = places[0].layers if places else 0
    if layers < count:
        raise PartitionError(f"this method has {count} parts, but the model has {layers} layer(s) with weights")
    parts: Groups = [{"params": []} for _ in range(count)]
    for place in places:
        part = max(0, place.layer - (layers - count))
        parts[part]["params"].append((place.name, place.parameter))
    return parts


def _constrain_weights(model: Trainable, make: Any, radius: float | Sequence[float]) -> Groups:
    """One group per constraint for the weights, one for everything else."""
    if not isinstance(model, nn.Module):
        if isinstance(radius, Sequence):
            raise PartitionError("a radius per layer needs a model; with parameter groups set 'constraint' per group")
        return _constrain_given(model, lambda p: make(Place("", p, nn.Identity(), 0, 1), radius))
    places = locate(model)
    radii = list(radius) if isinstance(radius, Sequence) else [radius] * (places[0].layers if places else 0)
    if places and len(radii) != places[0].layers:
        raise PartitionError(
            f"{len(radii)} radii for {places[0].layers} layers with weights; give one per layer, or a float"
        )
    return _gather((place, make(place, radii[place.layer]) if weights(place) else None) for place in places)


def _orthogonal_groups(model: Trainable, layers: str) -> Groups:
    if layers not in ("hidden", "all"):
        raise ValueError(f"layers must be 'hidden' (all but the first and last) or 'all', got {layers!r}")
    if not isinstance(model, nn.Module):
        return _constrain_given(model, lambda p: Orthogonal(Place("", p, nn.Identity(), 0, 1).view))
    places = locate(model)
    chosen = [weights(place) and (layers == "all" or hidden(place)) for place in places]
    if not any(chosen):
        raise PartitionError(
            "the model has no hidden weights between its first and last layer to constrain; pass layers='all'"
        )
    pairs = zip(places, chosen, strict=True)
    return _gather((place, Orthogonal(place.view) if yes else None) for place, yes in pairs)


def _gather(pairs: Iterable[tuple[Place, Constraint | None]]) -> Groups:
    """Parameters with equal constraints share a group."""
    groups: dict[str, dict[str, Any]] = {}
    for place, space in pairs:
        group = groups.setdefault(repr(space), {"params": [], "constraint": space})
        group["params"].append((place.name, place.parameter))
    return list(groups.values())


def _constrain_given(given: Iterable[Any], make: Any) -> Groups:
    """Plain parameters or groups: constrain matrices, leave the rest. Groups stay apart."""
    groups: dict[tuple[int, str], dict[str, Any]] = {}
    for number, item in enumerate(given):
        group = item if isinstance(item, dict) else {"params": [item]}
        options = {k: v for k, v in group.items() if k != "params"}
        for entry in group["params"]:
            p = entry[1] if isinstance(entry, tuple) else entry
            space = make(p) if p.ndim >= 2 else None
            key = (number if isinstance(item, dict) else -1, repr(space))
            own = groups.setdefault(key, {"params": [], "constraint": space, **options})
            own["params"].append(entry)
    return list(groups.values())
