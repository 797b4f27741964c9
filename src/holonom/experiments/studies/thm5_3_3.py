"""Thesis Theorem 5.3.3: the convergence bound of multirate SGD on a problem whose constants are known."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...multirate import Multirate, convergence_bound
from ..base import experiment
from ..claims import Claim, best, greater
from ..run import Array, Run

SIZE, SAMPLES, PARTS = 10, 200, 2


class Problem(NamedTuple):
    """f = mean of f_x(θ) = log cosh(a_x·θ − b_x) with ‖a_x‖ = 1.

    ∇f_x = tanh(·)a_x, so M = 1; ∇²f ≼ mean a_x a_xᵀ, so L is its largest eigenvalue.
    """

    a: Tensor
    b: Tensor

    @classmethod
    def draw(cls, seed: int) -> Problem:
        generator = torch.Generator().manual_seed(seed)
        a = torch.randn(SAMPLES, SIZE, generator=generator, dtype=torch.float64)
        b = torch.randn(SAMPLES, generator=generator, dtype=torch.float64)
        return cls(a / a.norm(dim=1, keepdim=True), b)

    @property
    def smoothness(self) -> float:
        return float(torch.linalg.eigvalsh(self.a.T @ self.a / SAMPLES).max())

    def values(self, theta: Tensor) -> Tensor:
        """(…, samples) of f_x."""
        x = theta @ self.a.T - self.b
        return torch.logaddexp(x, -x) - math.log(2)

    def squared_gradients(self, theta: Tensor) -> Tensor:
        """(…,) of ‖∇f‖²."""
        gradient = torch.tanh(theta @ self.a.T - self.b) @ self.a / SAMPLES
        return gradient.square().sum(-1)

    def gap(self) -> float:
        """f(0) − f*, by Newton's method; f is convex."""
        theta = torch.zeros(SIZE, dtype=torch.float64)
        for _ in range(50):
            t = torch.tanh(theta @ self.a.T - self.b)
            hessian = (self.a * (1 - t * t)[:, None]).T @ self.a
            theta = theta - 0.5 * torch.linalg.solve(hessian, t @ self.a)
        return float(self.values(0 * theta).mean() - self.values(theta).mean())


@experiment(
    "thm5.3.3",
    title="The convergence bound of multirate SGD",
    source="thesis Theorem 5.3.3",
    says="For L-smooth f and ‖∇f_x‖² ≤ M the mean of E‖∇f‖² along T steps of layer-wise multirate SGD (no momentum) is "
    "at most 2(f(θ⁰) − f*)/(hT) + hLMℓ(hLk²/3 + 1); smaller h and k bring it closer to a critical point.",
    smoke={"replicas": 8, "steps": 100, "rates": (0.1, 1.0), "periods": (1, 5)},
    ci={"replicas": 50, "steps": 2000, "rates": (0.03, 0.3, 3.0), "periods": (1, 5, 20)},
    paper={"replicas": 200, "steps": 20_000, "rates": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), "periods": (1, 5, 10, 50)},
)
def thm5_3_3(run: Run, settings: SimpleNamespace) -> list[Claim]:
    problem = Problem.draw(run.seed)
    gap, smoothness = problem.gap(), problem.smoothness
    measured: dict[tuple[float, int], Array] = {}
    bound = {}
    for h in settings.rates:
        for k in settings.periods:
            make = partial(descend, run, problem, h, k, settings.steps)
            measured[h, k] = run.once(f"h {h:g} k {k}", make, (run.replicas,))
            bound[h, k] = convergence_bound(gap, h, settings.steps, smoothness, 1.0, k, PARTS)
    rows = [
        [f"{h:g}", k, f"{values.mean():.3e}", f"{bound[h, k]:.3e}", f"{values.mean() / bound[h, k]:.3f}"]
        for (h, k), values in measured.items()
    ]
    run.table("Mean squared gradient and its bound", ["h", "k", "measured", "bound (5.5)", "ratio"], rows)
    picture(run, settings, measured, bound)
    run.note(
        f"f_x = log cosh(a_x·θ − b_x), ‖a_x‖ = 1, {SAMPLES} samples, {SIZE} parameters, half of them slow: M = 1, "
        f"L = {smoothness:.4f}, f(θ⁰) − f* = {gap:.4f}, ℓ = {PARTS}. E is a mean over {run.replicas} runs."
    )
    fastest, largest = settings.periods[0], settings.rates[-1]
    ratios = {f"h = {h:g}, k = {k}": values / bound[h, k] for (h, k), values in measured.items()}
    far, close = measured[largest, settings.periods[-1]], measured[largest, fastest]
    return [
        best(
            "the bound holds at every h and k", "ratio ≤ 1", {"the bound": np.ones(run.replicas), **ratios},
            "the bound",
        ),
        greater(
            "at the largest step a longer period is further from a critical point", "k² in the bound", far, close,
            diverged=math.inf, note=f"k = {settings.periods[-1]} and k = {fastest}, h = {largest:g}",
        ),
    ]  # fmt: skip


def descend(run: Run, problem: Problem, h: float, every: int, steps: int) -> Array:
    """(runs,) means of ‖∇f(θᵗ)‖² over t < T, from θ⁰ = 0 and one sample a step."""
    fast, slow = (torch.zeros(run.replicas, SIZE // PARTS, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = Multirate([{"params": [fast]}, {"params": [slow], "every": every}], h, momentum=0.0)
    generator = torch.Generator().manual_seed(run.seed + 1)
    total = torch.zeros(run.replicas, dtype=torch.float64)
    count = steps - steps % every
    with run.progress(f"h = {h:g}, k = {every}", count) as progress:
        for done in range(1, count + 1):
            x = torch.randint(SAMPLES, (run.replicas, 1), generator=generator)
            with torch.no_grad():
                total += problem.squared_gradients(torch.cat([fast, slow], 1))
            with optimizer.due():
                torch.autograd.backward(problem.values(torch.cat([fast, slow], 1)).gather(1, x).sum())
            optimizer.step()
            if done % 100 == 0 or done == count:
                progress(done, count, None)
    mean: Array = (total / count).numpy()
    return mean


def picture(
    run: Run, settings: SimpleNamespace, measured: dict[tuple[float, int], Array], bound: dict[tuple[float, int], float]
) -> None:
    with run.figure("bound", "Measured mean squared gradient (dots) and the bound (lines).", figsize=(7, 4.2)) as axes:
        panel = axes[0, 0]
        for k in settings.periods:
            (line,) = panel.plot(settings.rates, [bound[h, k] for h in settings.rates], label=f"k = {k}")
            panel.plot(settings.rates, [measured[h, k].mean() for h in settings.rates], "o", color=line.get_color())
        panel.set(xlabel="step h", ylabel="mean of ‖∇f‖²", xscale="log", yscale="log")
        panel.legend(frameon=False)
