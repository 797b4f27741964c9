"""The papers' methods under the papers' names: compositions of a word, a partition and a constraint.

Each takes a model or parameter groups. Two-part methods split a model into its last layer and the
rest, thesis (3.24); given groups, they want exactly two. Rules of thumb (thesis section 3.6): temperatures
1e-6 … 1e-4, coupling ε 0.05 … 0.1, driving noise σ_A 1e-4 … 1e-2, friction γ of the output layer
0.05 … 5; steps h as large as for SGD or larger, kept fixed throughout.

``adamh``, ``muonh`` and ``normalised`` are torch's AdamW and Muon with :func:`holonom.constrain`.

Constrained methods choose weights by their roles (:data:`holonom.partitions.ROLES`). ``layers`` may be any selector of
:mod:`holonom.partitions`; ``roles={"mixer.*": "attention"}`` corrects a role and ``blocks={"*.qkv.weight": 3}`` says
how many matrices a tensor packs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ._constrain.presets import adamh as adamh
from ._constrain.presets import muonh as muonh
from ._constrain.presets import normalised as normalised
from ._partition.methods import Trainable, all_parameters, constrain_matrices, constrain_orthogonal, parts
from ._partition.places import Blocks, Place, Roles
from .constraints import Circle, Sphere
from .ensemble import Ensemble
from .ensemble.known import refuse_replicas
from .heun import HeunLangevin
from .optimizer import Langevin

Number = float | Tensor  # a tensor holds one value per replica of an ensemble
Layers = str | Callable[[Place], bool] | type[nn.Module] | tuple[Any, ...]  # "all", "hidden", or what claims weights
INFINITE = math.inf


# ── one dynamics for all parameters ──────────────────────────────────────────────────────────────


def sgld(model: Trainable, lr: Number = 0.05, temperature: Number = 5e-5, **options: Any) -> Langevin:
    """Stochastic gradient Langevin dynamics: θ ← θ − h∇L + √(2τh) R (2.51). Defaults: paper Fig. 1."""
    return _build(model, all_parameters(model), lr, scheme="L", temperature=temperature, **options)


def baoab_limit(model: Trainable, lr: Number = 0.05, temperature: Number = 5e-5, **options: Any) -> Langevin:
    """SGLD with the noise of two steps averaged (2.56): exact for Gaussians, at no extra cost."""
    return _build(model, all_parameters(model), lr, scheme="M", temperature=temperature, **options)


def langevin(
    model: Trainable, lr: Number = 0.4, friction: Number = 10.0, temperature: Number = 1e-5, **options: Any
) -> Langevin:
    """Underdamped Langevin by BAOAB (3.20). Defaults: thesis Fig. 3.1; pass scheme="OBA" or "ABO" for those."""
    return _build(model, all_parameters(model), lr, friction=friction, temperature=temperature, **options)


def adaptive_langevin(
    model: Trainable,
    lr: Number = 0.15,
    temperature: Number = 1e-4,
    coupling: Number | None = None,
    driving_noise: Number | None = None,
    merged: bool = False,
    **options: Any,
) -> Langevin:
    """AdL (2.58): the friction ξ adapts until the kinetic temperature is τ, whatever the gradient noise.

    How fast follows from ``thermostat_time`` and ``thermostat_friction`` (see :class:`holonom.Langevin`), unless ε and
    σ_A are given as ``coupling`` and ``driving_noise``; the papers have 0.1 and 0.01. ``merged`` solves friction
    and diffusion as one Ornstein–Uhlenbeck letter F (2.61).
    """
    word = "BAFEFAB" if merged else "BACDEDCAB"
    return _build(model,
        all_parameters(model), lr, scheme=word, temperature=temperature, coupling=coupling, driving_noise=driving_noise,
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
    split = parts(model, len(frictions))
    settings = zip(split, frictions, temperatures, strict=True)
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
    body, head = parts(model, 2)
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
    body, head = parts(model, 2)
    groups = [{**body, "friction": 0.0, "temperature": 0.0}, {**head, "scheme": "L"}]
    return _build(model, groups, lr, kind=HeunLangevin if heun else Langevin, **options)


def adlala(
    model: Trainable,
    lr: Number = 0.15,
    temperature: Number = 1e-4,
    output_temperature: Number = 1e-4,
    friction: Number = 0.1,
    coupling: Number | None = None,
    driving_noise: Number | None = None,
    **options: Any,
) -> Langevin:
    """AdLaLa (3.31): adaptive Langevin on the body, Langevin on the output layer.

    The thesis takes ``coupling=0.1, driving_noise=0.01`` for all spirals (3.6); without them they are derived, as in
    :func:`adaptive_langevin`. ``friction`` is the output layer's; larger values (5 … 1000) slow training and curb
    overfitting.
    """
    body, head = parts(model, 2)
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
    layers: Layers = "all",
    roles: Roles | None = None,
    blocks: Blocks | None = None,
    **options: Any,
) -> Langevin:
    """Circle-constrained overdamped Langevin (4.47); C-SGD at τ = 0, C-SGLD above.

    ``radius`` bounds every entry of every matrix and kernel but embeddings and positions (``layers=weights`` takes
    those, too); biases stay free. A sequence gives one radius per layer, as the papers' r₀ = 1, r₁ = 5 for the spiral.
    """
    groups = constrain_matrices(model, Circle, radius, layers, roles, blocks)
    return _build(model, groups, lr, scheme="L", temperature=temperature, **options)


def c_cola_ud(
    model: Trainable,
    lr: Number = 0.3,
    radius: float | Sequence[float] = 0.1,
    friction: Number = 1.0,
    temperature: Number = 0.0,
    scheme: str = "BAOAB",
    layers: Layers = "all",
    roles: Roles | None = None,
    blocks: Blocks | None = None,
    **options: Any,
) -> Langevin:
    """Circle-constrained underdamped Langevin (4.7.2.4). Defaults: lr and friction of paper Fig. 7,
    whose radii are ``radius=(0.05, 0.1)``. The papers' word is ``scheme="ABO"``, whose positions are off by first order
    in γh when τ > 0; BAOAB's are not."""
    groups = constrain_matrices(model, Circle, radius, layers, roles, blocks)
    return _build(model, groups, lr, scheme=scheme, friction=friction, temperature=temperature, **options)


def s_cola_od(
    model: Trainable,
    lr: Number = 0.05,
    radius: float | str | Sequence[float] = 1.0,
    temperature: Number = 0.0,
    slack: bool = True,
    layers: Layers = "all",
    roles: Roles | None = None,
    blocks: Blocks | None = None,
    **options: Any,
) -> Langevin:
    """Sphere-constrained overdamped Langevin (paper eq. 3): every row keeps ‖row‖ ≤ r, or = r without slack.

    ``radius`` is r, one for every constrained layer, or "initial": each row's own norm.
    """
    groups = constrain_matrices(model, lambda r: Sphere(r, slack), radius, layers, roles, blocks)
    return _build(model, groups, lr, scheme="L", temperature=temperature, **options)


def s_cola_ud(
    model: Trainable,
    lr: Number = 0.3,
    radius: float | str | Sequence[float] = 1.0,
    friction: Number = 1.0,
    temperature: Number = 0.0,
    slack: bool = True,
    scheme: str = "BAOAB",
    layers: Layers = "all",
    roles: Roles | None = None,
    blocks: Blocks | None = None,
    **options: Any,
) -> Langevin:
    """Sphere-constrained underdamped Langevin, drifting along exact great circles. The papers' word is ``"ABO"``."""
    groups = constrain_matrices(model, lambda r: Sphere(r, slack), radius, layers, roles, blocks)
    return _build(model, groups, lr, scheme=scheme, friction=friction, temperature=temperature, **options)


def o_cola_od(
    model: Trainable,
    lr: Number = 0.1,
    temperature: Number = 0.0,
    layers: Layers = "hidden",
    roles: Roles | None = None,
    blocks: Blocks | None = None,
    **options: Any,
) -> Langevin:
    """Orthogonality-constrained overdamped Langevin (Algorithm 1). Defaults: paper Fig. 4.

    ``layers="hidden"`` constrains attention, feed-forward layers, convolutions and recurrent gates, each matrix by
    itself where several are packed into one tensor. Free are embeddings, positions, norms, biases, depthwise kernels,
    heads, and the first layer unless it is attention or recurrent: the papers leave the first and last layer of a
    perceptron free. ``"all"`` constrains first layer and heads as well. Parameters given without their model, which
    have no first and last layer, are all constrained.
    """
    groups = constrain_orthogonal(model, layers, roles, blocks)
    return _build(model, groups, lr, scheme="L", temperature=temperature, **options)


def o_cola_ud(
    model: Trainable,
    lr: Number = 0.1,
    friction: Number = 0.5,
    temperature: Number = 0.0,
    layers: Layers = "hidden",
    scheme: str = "BAOAB",
    roles: Roles | None = None,
    blocks: Blocks | None = None,
    **options: Any,
) -> Langevin:
    """Orthogonality-constrained underdamped Langevin of the weights that :func:`o_cola_od` constrains. Algorithm 2 to
    the letter is ``scheme="ABO"``."""
    groups = constrain_orthogonal(model, layers, roles, blocks)
    return _build(model, groups, lr, scheme=scheme, friction=friction, temperature=temperature, **options)


def _build(model: Trainable, groups: Any, lr: Number, kind: type[Langevin] = Langevin, **options: Any) -> Langevin:
    """An ensemble's replicas draw their own noise and have thermostats of their own."""
    chosen = [isinstance(group, dict) and "constraint" in group for group in groups] if isinstance(groups, list) else []
    if "constraint" in options and chosen and all(chosen):
        raise TypeError(
            "constraint= would have no effect: every group of this method has its own; for other constraints give "
            "holonom.partition's groups to Langevin, presets.sgld or presets.langevin"
        )
    if not isinstance(model, Ensemble) or options.get("seed") is not None:
        given = groups if isinstance(model, nn.Module) else refuse_replicas(groups, options.get("seed"))
        return kind(given, lr, **options)
    optimizer = kind(groups, lr, **{**options, "seed": model.seeds})
    if not model.seed_given:  # a checkpoint has those of the run that it continues
        for group in (*optimizer.param_groups, optimizer.defaults):
            group["seed_given"] = False
    return optimizer
