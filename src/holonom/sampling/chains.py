"""Chains: copies of a model stacked along a first dimension, and the loss and gradient of each."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from .._lines import users_line
from .._random import mix
from ..ensemble import Ensemble, Loss
from ..errors import EnsembleError
from .inputs import Inputs, call, rows

Named = dict[str, Tensor]


class Chains(Protocol):
    """``parameters`` are those that are sampled, by name, of shape (R, …); ``seeds`` key every chain's noise."""

    parameters: dict[str, nn.Parameter]
    seeds: Tensor
    mapped: bool

    def gradients(self, loss: Loss, x: Inputs, y: Tensor, shared: bool) -> tuple[Named, Tensor]:
        """Every chain's gradients, and the (R,) losses; with ``shared=False`` a chain has a batch of its own."""


class Mapped:
    """All chains as one program, an :class:`holonom.Ensemble`."""

    mapped = True

    def __init__(self, model: nn.Module, chains: int, seed: int) -> None:
        self.ensemble = Ensemble(lambda: copy.deepcopy(model), chains, seed).to(_device(model))
        self.parameters = {name: p for name, p in self.ensemble.named_parameters() if p.requires_grad}
        self.seeds = self.ensemble.seeds

    def gradients(self, loss: Loss, x: Inputs, y: Tensor, shared: bool) -> tuple[Named, Tensor]:
        gradients, losses = self.ensemble.gradients(loss, x, y, shared=shared)
        return gradients, losses


class OneByOne:
    """Chain after chain, for models that ``torch.func.vmap`` cannot map; the same chains, to rounding."""

    mapped = False

    def __init__(self, model: nn.Module, chains: int, seed: int) -> None:
        self.model = copy.deepcopy(model)
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.parameters = {n: nn.Parameter(torch.stack([p.detach()] * chains)) for n, p in trained.items()}
        self.seeds = torch.tensor([mix(seed, i) >> 1 for i in range(chains)], device=_device(model))

    def gradients(self, loss: Loss, x: Inputs, y: Tensor, shared: bool) -> tuple[Named, Tensor]:
        gradients, losses = [], []
        for i in range(len(self.seeds)):
            own = {name: p.detach()[i].requires_grad_() for name, p in self.parameters.items()}
            with torch.enable_grad():
                here = x if shared else rows(x, i)
                value = loss(call(self.model, here, own), y if shared else y[i])
                found = torch.autograd.grad(value, list(own.values()), allow_unused=True)
            pairs = zip(own.values(), found, strict=True)
            gradients.append([torch.zeros_like(p) if g is None else g for p, g in pairs])
            losses.append(value.detach())
        stacked = [torch.stack(gs) for gs in zip(*gradients, strict=True)]
        return dict(zip(self.parameters, stacked, strict=True)), torch.stack(losses)


def make_chains(model: nn.Module, chains: int, seed: int, loss: Loss, x: Inputs, y: Tensor) -> Mapped | OneByOne:
    """Mapped if torch can map the model, else one by one, with a warning; a small batch is tried."""
    try:
        mapped = Mapped(model, chains, seed)
        _check_losses(mapped.gradients(loss, x, y, True)[1], chains)
        return mapped
    except Exception as error:
        reason = error
    alone = OneByOne(model, chains, seed)
    _check_losses(alone.gradients(loss, x, y, True)[1], chains)  # what fails here fails by itself, and says why
    warnings.warn(
        f"torch cannot run all chains of this model as one program, so they run one after another, about {chains} "
        f"times slower: {str(reason).strip().splitlines()[0]}",
        stacklevel=users_line(),
    )
    return alone


def _check_losses(losses: Tensor, chains: int) -> None:
    if losses.shape != (chains,):
        raise EnsembleError(
            f"loss(output, target) must return one number, got shape {tuple(losses.shape[1:])}: use reduction='mean'"
        )


def set_states(chains: Chains, states: list[Mapping[str, Tensor]]) -> None:
    """Start chain i from ``states[i]``."""
    with torch.no_grad():
        for name, p in chains.parameters.items():
            for i, state in enumerate(states):
                p[i].copy_(state[name])


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
