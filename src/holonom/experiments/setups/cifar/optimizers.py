"""Optimizers of the networks on CIFAR-10: SGD with momentum (thesis chapter 6), or orthogonal kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...._partition.methods import constrain_orthogonal
from ....optimizer import Langevin
from ....presets import o_cola_od, o_cola_ud
from ..shared.optimizers import initial_projection

STEP, MOMENTUM, WEIGHT_DECAY, BATCH = 0.1, 0.9, 5e-4, 128
FRICTION = 0.5  # of o-CoLA-ud, paper Fig. 6
FREE = ("SGD", "SGD, orthogonal start")
CONSTRAINED = ("o-CoLA-ud", "o-CoLA-ud, momentum held", "o-CoLA-od")
METHODS = FREE + CONSTRAINED


def make_optimizer(
    method: str, model: nn.Module, groups: list[dict[str, Any]], momentum: float, fused: bool
) -> Optimizer:
    """SGD on the groups; or orthogonal weights in all but the first and last layer, with the single group's settings.

    The underdamped method's h is the root of the step, so that h² corresponds to the learning rate of SGD with
    momentum. Its momentum e^{−γh} changes with h; "momentum held" is the same system in SGD's terms, with SGD's
    momentum at every step. Orthogonal weights start at the matrices nearest to SGD's initial weights; "orthogonal
    start" is SGD from there.
    """
    if method in FREE:
        if method != "SGD":
            with initial_projection():
                o_cola_od(model, seed=0)  # moves the weights, and is not used
        return torch.optim.SGD(groups, momentum=momentum, fused=fused)
    if len(groups) > 1:
        raise ValueError(f"{method} has one step and weight decay for all blocks, not {len(groups)}")
    step, decay = groups[0]["lr"], groups[0]["weight_decay"]
    with initial_projection():
        if method == "o-CoLA-ud, momentum held":
            parts = constrain_orthogonal(model)
            return Langevin.like_sgd(parts, step, momentum, weight_decay=decay, seed=0)
        if method == "o-CoLA-ud":
            return o_cola_ud(model, step**0.5, FRICTION, scheme="ABO", weight_decay=decay, seed=0)
        return o_cola_od(model, step, weight_decay=decay, seed=0)


def drop_twice(optimizer: Optimizer, epochs: int, root: bool = False) -> Callable[[int], None]:
    """A schedule that divides the step by ten after one and two thirds of the epochs (6.1.3.1).

    With ``root`` lr is the root of the step.
    """
    first = [group["lr"] for group in optimizer.param_groups]

    def set_rates(epoch: int) -> None:
        drops = sum(3 * epoch >= k * epochs for k in (1, 2))
        for group, lr in zip(optimizer.param_groups, first, strict=True):
            group["lr"] = lr * 0.1 ** (drops / 2 if root else drops)

    return set_rates
