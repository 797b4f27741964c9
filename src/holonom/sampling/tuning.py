"""Choosing the time step during burn-in."""

from __future__ import annotations

import math
from typing import Any

import torch

from .._random import mix
from .target import Target, per_chain, squares

SHARE_OF_FREQUENCY = 1.0  # h·√λ of the stiffest direction; a step is stable below 2
HEATING = 0.05  # of the temperature, by minibatch noise along its directions: what lr=None allows
THERMOSTAT_LOAD = 0.2  # h²σ²/(2τ) that lr=None allows an adaptive thermostat, whose positions are then 1 % too warm
THERMOSTAT_DAMPING = 0.1  # γ·h of an adaptive thermostat with minibatches
POWER_ITERATIONS = 6
NOISE_BATCHES = 8
_TUNE_AT = (0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)  # of the burn-in
_REMEMBERED = 4  # measurements, whose largest curvature and mean noise count
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
    """The variance of a minibatch's gradient along a noisy direction, and its mean over all numbers.

    With Σ the covariance of the noise, the first is tr Σ²/tr Σ: the mean eigenvalue where eigenvalues count by their
    share of the noise. It is the second, tr Σ/d, if the noise has no direction. The noise of likelihoods has the
    directions of the Hessian, and the two differ by orders of magnitude.
    """
    if target.batch_size is None:
        return 0.0, 0.0
    batches = [target.gradients(target.batch(step + i, measuring=True), prior=False)[0] for i in range(NOISE_BATCHES)]
    n, chains = NOISE_BATCHES, len(target.chains.seeds)
    products = torch.zeros(chains, n, n, dtype=torch.float64, device=target.chains.seeds.device)
    largest = products.new_zeros(())
    for name in batches[0]:
        x = torch.stack([per_chain(g[name]).double() for g in batches], 1)  # (chains, batches, numbers)
        x -= x.mean(1, keepdim=True)
        largest = torch.maximum(largest, x.square().mean((0, 2)).sum() / (n - 1))
        products += x @ x.mT
    squares_ = products.diagonal(dim1=1, dim2=2)
    trace = squares_.sum(1) / (n - 1)
    # The unbiased estimate of tr Σ² by Himeno and Yamada, also for noise that is not normal.
    fourth = (n - 1) * (n - 2) * products.square().sum((1, 2)) / (n - 1) ** 2 + trace**2
    fourth -= n * squares_.square().sum(1) / (n - 1)
    along = (n - 1) / (n * (n - 2) * (n - 3)) * fourth.sum() / trace.sum().clamp_min(1e-300)
    mean = float(trace.mean()) / sum(per_chain(g).shape[1] for g in batches[0].values())
    return max(float(along), float(largest)), mean


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
        self.noises: list[tuple[float, float]] = []

    def measure(self, target: Target, step: int, curvature: bool = True) -> None:
        if curvature:
            self.curvatures.append(largest_curvature(target, step))
        self.noises.append(gradient_noise(target, step))

    @property
    def noise(self) -> float:
        """The variance of a minibatch's gradient along a noisy direction; the last measurements' mean."""
        found = self.noises[-_REMEMBERED:]
        return sum(along for along, _ in found) / max(1, len(found))

    @property
    def mean_noise(self) -> float:
        found = self.noises[-_REMEMBERED:]
        return sum(mean for _, mean in found) / max(1, len(found))

    def lr(self, temperature: float, limited: bool) -> float:
        """``limited`` by the noise of minibatches."""
        h = SHARE_OF_FREQUENCY / math.sqrt(max(self.curvatures[-_REMEMBERED:]))
        h = min(h, self.steps[-1] * _GROWTH if self.steps else h * self.first)
        if limited and self.noise:
            most = HEATING * temperature / self.noise
            if self.thermostatted:
                h = min(h, math.sqrt(2 * THERMOSTAT_LOAD * temperature / self.mean_noise))
                if (left := self.noise - (1 + HEATING) * self.mean_noise) > 0:  # what the thermostat leaves
                    h = min(h, math.sqrt(HEATING * temperature * -math.expm1(-2 * THERMOSTAT_DAMPING) / left))
            else:
                h = min(h, 2 * math.sqrt(most) if self.overdamped else math.sqrt(most * (1 - math.exp(-2))))
        self.steps.append(h)
        return h * h / 2 if self.overdamped else h

    def heating(self, lr: float, friction: float, temperature: float) -> float:
        """By which share minibatch noise raises the temperature along noisy directions.

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
        return {"curvatures": list(self.curvatures), "steps": list(self.steps), "noises": list(self.noises)}

    def restore(self, state: dict[str, Any]) -> None:
        self.curvatures, self.steps = list(state["curvatures"]), list(state["steps"])
        self.noises = [tuple(pair) for pair in state["noises"]]


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
