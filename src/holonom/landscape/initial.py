"""Initial states: fresh weights, points of a path, and states with blocks of another state (thesis 6.1.4)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .interpolation import Layers
from .path import Path
from .states import Blocks, State, Subject, blocks_of


def fresh(model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Another initial state, by the modules' ``reset_parameters``; the global random state does not change."""
    if Subject(model).replicas is not None:
        raise ValueError("modules cannot initialise replicas; build another Ensemble with another seed")
    other = copy.deepcopy(model)
    without = []
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        for name, module in other.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
            elif any(True for _ in module.parameters(recurse=False)):
                without.append(name or type(module).__name__)
    if without:
        raise ValueError(f"{', '.join(without[:4])} cannot initialise parameters; build a new model instead")
    return {name: x.detach() for name, x in other.state_dict().items()}


def barrier_state(path: Path, shift: float = 0.0, replica: int | None = None) -> dict[str, Tensor]:
    """The state at the top of a path's barrier, or ``shift`` in α away from it (Fig. 6.3; Table 6.3 uses ∓0.1).

    Replicas of an ensemble have different tops. Their states are stacked, or one replica's is returned: not every
    replica need have a barrier (``path.profiles()``).
    """
    profiles = path.profiles()
    chosen = range(len(profiles)) if replica is None else [range(len(profiles))[replica]]
    without = [i for i in chosen if profiles[i] != "barrier"]
    if without:
        which = "" if path.values.ndim == 2 else f" of replica {without[0]}"
        raise ValueError(f"the path{which} has no barrier to start from: {profiles[without[0]]!r}")
    low, high = float(path.alphas[0]), float(path.alphas[-1])
    states = [path.state(min(max(profiles[i].place + shift, low), high)) for i in chosen]
    if path.values.ndim == 2:
        return states[0]
    tops = [{name: x[i] for name, x in state.items()} for i, state in zip(chosen, states, strict=True)]
    return tops[0] if replica is not None else {name: torch.stack([top[name] for top in tops]) for name in tops[0]}


def transplanted(
    model: nn.Module, body: State | nn.Module, donor: State | nn.Module, blocks: Blocks
) -> dict[str, Tensor]:
    """The state ``body`` with some blocks taken from ``donor``.

    - partial pre-training (Fig. 6.4): body = trained, donor = initial;
    - block-wise adversarial initialisation (Fig. 6.5): body = initial, donor = :func:`adversarial`.
    """
    subject = Subject(model)
    kept, given = subject.take(body, "body"), subject.take(donor, "donor")
    replaced = {name for names in blocks_of(subject.model, blocks).values() for name in names}
    return {name: (given if name in replaced else kept)[name].clone() for name in kept}


def barrier_groups(
    model: nn.Module, layers: Layers, barrier: dict[str, Any], smooth: dict[str, Any], **rule: Any
) -> list[dict[str, Any]]:
    """Optimizer groups: the blocks with a barrier get one set of options, all other parameters another (Table 6.2).

    >>> groups = barrier_groups(model, layerwise(...), barrier={"lr": 0.1}, smooth={"lr": 0.01})
    >>> optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    Args:
        rule: what counts as a barrier, as for :func:`classify`, and ``metric``.
    """
    high = {name for block in layers.barriers(**rule) for name in layers.blocks[block]}
    sides: list[list[tuple[str, nn.Parameter]]] = [[], []]
    for name, p in model.named_parameters():
        sides[name not in high].append((name, p))
    options = (barrier, smooth)
    return [{"params": side, **chosen} for side, chosen in zip(sides, options, strict=True) if side]
