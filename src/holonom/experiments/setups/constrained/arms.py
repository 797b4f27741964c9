"""Optimizers with and without constraints: each arm by its rate and one more setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from .... import presets
from ...._constrain.constrain import constrain
from ...._constrain.presets import split
from ...._constrain.together import together
from ...._partition.methods import ORTHOGONAL
from ...._torch import muon
from ....constraints import Orthogonal, Sphere
from ....partitions import role
from ..shared.optimizers import initial_projection

BETAS = (0.9, 0.95)
OTHERS = 1e-3  # AdamW's rate for what Muon does not take
MOMENTUM = 0.9  # of SGD
Setting = tuple[float, float]  # the rate and one more number


@dataclass(frozen=True)
class Arm:
    """``second`` names the setting beside the rate; ``grid`` has six pairs, tried with the same effort in every arm."""

    name: str
    second: str
    grid: tuple[Setting, ...]
    make: Callable[[nn.Module, float, float, bool], Optimizer]

    def title(self, setting: Setting) -> str:
        return f"{self.name}: lr {setting[0]:g}, {self.second} {setting[1]:g}"

    def optimizer(self, setting: Setting) -> Callable[[nn.Module], Optimizer]:
        return lambda model: self.make(model, *setting, next(model.parameters()).is_cuda)


def adamw(model: nn.Module, lr: float, decay: float, fused: bool) -> Optimizer:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return AdamW(groups, lr, betas=BETAS, fused=fused)


def rows(model: nn.Module, lr: float, factor: float, fused: bool) -> Optimizer:
    return presets.normalised(model, lr, factor=factor, betas=BETAS, fused=fused)


def adamh(model: nn.Module, lr: float, free_lr: float, fused: bool) -> Optimizer:
    return presets.adamh(model, lr, free_lr=free_lr, betas=BETAS, fused=fused)


def plain_muon(model: nn.Module, lr: float, decay: float, fused: bool) -> Optimizer:
    held, free = split(model, "hidden", ORTHOGONAL, None, None)
    others = AdamW(free, OTHERS, betas=BETAS, weight_decay=0.0, fused=fused)
    return together(muon()(held, lr=lr, weight_decay=decay), others)


def muonh(model: nn.Module, lr: float, free_lr: float, fused: bool) -> Optimizer:
    return presets.muonh(model, lr, free_lr=free_lr, adamw={"betas": BETAS, "fused": fused})


def orthogonal(model: nn.Module, lr: float, decay: float, fused: bool) -> Optimizer:
    """Attention and feed-forward maps orthogonal at their initial Frobenius norm; ``decay`` is that of embeddings."""
    held, free = split(model, "hidden", ORTHOGONAL, None, None)
    groups = [{"params": held, "weight_decay": 0.0}, {"params": free, "weight_decay": decay}]
    opt = AdamW(groups, lr, betas=BETAS, fused=fused)
    with initial_projection():
        constrain(opt, model, {role("attention") | role("feed-forward"): Orthogonal(scale="initial")}, "tangent")
    return opt


def sgd(model: nn.Module, lr: float, decay: float, fused: bool) -> Optimizer:
    return SGD(model.parameters(), lr, MOMENTUM, weight_decay=decay, fused=fused)


def sgd_filters(model: nn.Module, lr: float, factor: float, fused: bool) -> Optimizer:
    opt = SGD(model.parameters(), lr, MOMENTUM, fused=fused)
    constrain(opt, model, {ORTHOGONAL["hidden"]: Sphere("initial", per="row", factor=factor)}, "tangent")
    return opt


def adamw_filters(model: nn.Module, lr: float, factor: float, fused: bool) -> Optimizer:
    return presets.normalised(model, lr, factor=factor, layers=ORTHOGONAL["hidden"], fused=fused)


def grid(rates: tuple[float, ...], seconds: tuple[float, ...]) -> tuple[Setting, ...]:
    return tuple((lr, second) for second in seconds for lr in rates)


ADAMW = Arm("AdamW", "decay", grid((5e-4, 1e-3, 2e-3), (0.1, 0.3)), adamw)
ROWS = Arm("AdamW, rows on spheres", "factor", grid((1e-3, 2e-3, 4e-3), (1.0, 2.0)), rows)
ADAMH = Arm("AdamH", "free lr", grid((5e-3, 1e-2, 2e-2), (1e-3, 3e-3)), adamh)
MUON = Arm("Muon", "decay", grid((0.01, 0.02, 0.04), (0.0, 0.1)), plain_muon)
MUONH = Arm("MuonH", "free lr", grid((5e-3, 1e-2, 2e-2), (1e-3, 3e-3)), muonh)
HARD = Arm("AdamW, orthogonal", "decay", grid((5e-4, 1e-3, 2e-3), (0.0, 0.1)), orthogonal)
ARMS = (ADAMW, ROWS, ADAMH, MUON, MUONH, HARD)

# Of networks for images: every filter of the convolutions behind the first keeps its norm.
IMAGE_SGD = Arm("SGD", "decay", grid((0.05, 0.1, 0.2), (5e-4, 2e-3)), sgd)
IMAGE_SGD_HELD = Arm("SGD, filters on spheres", "factor", grid((0.05, 0.1, 0.2), (1.0, 2.0)), sgd_filters)
IMAGE_ADAMW = Arm("AdamW", "decay", grid((5e-4, 1e-3, 2e-3), (0.05, 0.5)), adamw)
IMAGE_ADAMW_HELD = Arm("AdamW, filters on spheres", "factor", grid((1e-3, 2e-3, 4e-3), (1.0, 2.0)), adamw_filters)
IMAGE_ARMS = (IMAGE_SGD, IMAGE_SGD_HELD, IMAGE_ADAMW, IMAGE_ADAMW_HELD)
