"""Choosing the time step during burn-in."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._random import mix
from .target import Target, squares

SHARE_OF_FREQUENCY = 1.0  # h·√λ of the stiffest direction; a step is stable below 2
HEATING = 0.05  # of the temperature, by minibatch noise: what lr=None allows, and above which an lr is warned about
THERMOSTAT_LOAD = 0.2  # h²σ²/(2τ) that lr=None allows an adaptive thermostat, whose positions are then 1 % too warm
POWER_ITERATIONS = 6
NOISE_BATCHES = 8
_TUNE_AT = (0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)  # of the burn-in
_REMEMBERED = 4  # measurements, whose largest curvature counts
_LONG = 64  # a burn-in in which lr has the time to grow
_FIRST, _GROWTH = 0.1, 2.0  # the start may be flatter than where the chains go: lr starts small and at most doubles
_SHAPING, _SLOWNESS, _DECAY = 0.05, 10.0, 0.75  # of dual averaging, as published by Hoffman and Gelman


def tuning_steps(burn_in: int) -> set[int]:
    """The steps before which lr is chosen. The last eighth of the burn-in runs at the lr that is kept."""
    return {int(share * burn_in) for share in _TUNE_AT}


@torch.no_grad()
def largest_curvature(target: Target, step: int) -> float:
    """The largest eigenvalue of the Hessian of L over all chains, by power iteration.

    Products with the Hessian are differences of gradients over a tenth of the posterior's width in that direction,
    0.1·√(τ/λ): that curvature is what a step meets, also where the second derivative does not exist.
    """
    parameters = target.chains.parameters
    batch = target.batch(step, measuring=True)
    generator = torch.Generator().manual_seed(mix(int(target.chains.seeds[0]), step, 1) >> 1)
    start = {name: p.detach().clone() for name, p in parameters.items()}
    direction = {n: torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p) for n, p in start.items()}
    curvature = torch.ones(len(target.chains.seeds), dtype=torch.float64, device=target.chains.seeds.device)
    for _ in range(POWER_ITERATIONS):
        size = squares(list(direction.values())).sqrt().clamp_min(1e-300)
        reach = 0.1 * (target.temperature / curvature).sqrt()
        ends = []
        for sign in (1, -1):
            for name, p in parameters.items():
                shift = (sign * reach / size).to(p).reshape(-1, *[1] * (p.ndim - 1))
                p.copy_(start[name] + shift * direction[name])
            ends.append(target.gradients(batch)[0])
        direction = {name: ends[0][name] - ends[1][name] for name in direction}
        curvature = (squares(list(direction.values())).sqrt() / (2 * reach)).clamp_min(1e-12)
    for name, p in parameters.items():
        p.copy_(start[name])
    largest = float(curvature.max())
    narrow = [p.dtype for p in parameters.values() if p.dtype.itemsize < 4]
    if not math.isfinite(largest) and narrow:
        raise ValueError(
            f"differences of gradients are lost in {narrow[0]} weights, so that no lr can be chosen; sample in "
            f"float32, or give an lr"
        )
    if not math.isfinite(largest):
        raise ValueError(
            "the gradient is not finite at the start of the chains, or near it, so that no lr can be chosen; start "
            "elsewhere (init='model'), or give a narrower prior"
        )
    return largest


@torch.no_grad()
def gradient_noise(target: Target, step: int) -> tuple[float, float]:
    """The variance of a minibatch's gradient, per number: of the noisiest parameter, and over all of them."""
    if target.batch_size is None:
        return 0.0, 0.0
    total: dict[str, Tensor] = {}
    square: dict[str, Tensor] = {}
    for i in range(NOISE_BATCHES):
        for name, g in target.gradients(target.batch(step + i, measuring=True), prior=False)[0].items():
            g = g.double()
            total[name] = total.get(name, torch.zeros_like(g)) + g
            square[name] = square.get(name, torch.zeros_like(g)) + g.square()
    n = NOISE_BATCHES
    spread = torch.stack([((square[k] - total[k].square() / n) / (n - 1)).mean() for k in total])
    sizes = spread.new_tensor([x.numel() for x in total.values()])
    return float(spread.max()), float((spread * sizes).sum() / sizes.sum())


class CurvatureRule:
    """lr for kernels without a Metropolis test: 1/√λ with momenta, 1/(2λ) without, the same method at γ → ∞.

    λ is the largest of the last four measurements, and lr grows slowly. With minibatches lr is also small enough for
    their noise to raise the temperature by no more than 5 %, from the middle of the burn-in on: before it the chains
    come from far away, where noise is stronger and does no harm.
    """

    def __init__(self, overdamped: bool, thermostatted: bool, burn_in: int) -> None:
        self.overdamped, self.thermostatted = overdamped, thermostatted
        self.first = _FIRST if burn_in >= _LONG else 1.0
        self.curvatures: list[float] = []
        self.steps: list[float] = []  # the time steps that followed, as kernels with momenta have them
        self.noise = self.mean_noise = 0.0

    def measure(self, target: Target, step: int, curvature: bool = True) -> None:
        if curvature:
            self.curvatures.append(largest_curvature(target, step))
        self.noise, self.mean_noise = gradient_noise(target, step)

    def lr(self, temperature: float, limited: bool) -> float:
        """``limited`` by the noise of minibatches."""
        h = SHARE_OF_FREQUENCY / math.sqrt(max(self.curvatures[-_REMEMBERED:]))
        h = min(h, self.steps[-1] * _GROWTH if self.steps else h * self.first)
        if limited and self.noise:
            most = HEATING * temperature / self.noise
            if self.thermostatted:
                h = min(h, math.sqrt(2 * THERMOSTAT_LOAD * temperature / self.mean_noise))
            else:
                h = min(h, 2 * math.sqrt(most) if self.overdamped else math.sqrt(most * (1 - math.exp(-2))))
        self.steps.append(h)
        return h * h / 2 if self.overdamped else h

    def heating(self, lr: float, friction: float, temperature: float) -> float:
        """By which share minibatch noise raises the temperature of the noisiest parameter.

        A thermostat damps as the mean noise needs, by h²σ²/τ a step: what is above the mean is left. So is a part
        that grows with the damping.
        """
        if not self.noise:
            return 0.0
        if self.overdamped:
            return lr * self.noise / (2 * temperature)
        damping, noise = -math.expm1(-2 * friction * lr), self.noise
        if self.thermostatted:
            damping += lr * lr * self.mean_noise / temperature
            noise -= self.mean_noise
        load = lr * lr * self.mean_noise / (2 * temperature) if self.thermostatted else 0.0
        return lr * lr * noise / (temperature * damping) + load**2 / 4  # the latter as measured, see docs/gotchas.md

    def state(self) -> dict[str, Any]:
        return {"curvatures": list(self.curvatures), "steps": list(self.steps), "noise": [self.noise, self.mean_noise]}

    def restore(self, state: dict[str, Any]) -> None:
        self.curvatures, self.steps = list(state["curvatures"]), list(state["steps"])
        self.noise, self.mean_noise = state["noise"]


class DualAveraging:
    """lr for kernels with a Metropolis test: log lr follows the acceptance until its mean is the target's."""

    def __init__(self, lr: float, target: float) -> None:
        self.target = target
        self.centre = math.log(lr)  # 1/√λ is within a factor of two of what will be
        self.now = self.mean = math.log(lr)
        self.error, self.count = 0.0, 0

    def update(self, acceptance: float) -> None:
        self.count += 1
        share = 1 / (self.count + _SLOWNESS)
        self.error += share * (self.target - (acceptance if math.isfinite(acceptance) else 0.0) - self.error)
        self.now = self.centre - math.sqrt(self.count) / _SHAPING * self.error
        weight = self.count**-_DECAY
        self.mean = weight * self.now + (1 - weight) * self.mean

    def state(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in ("centre", "now", "mean", "error", "count")}

    def restore(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
