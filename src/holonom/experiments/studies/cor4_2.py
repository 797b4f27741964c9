"""Paper Corollary 4.2: exponential convergence and a central limit theorem for constrained overdamped Langevin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from ...constraints import Circle, Constraint, Sphere
from ...optimizer import Langevin
from .. import ranks
from ..base import experiment
from ..claims import Claim, greater, near
from ..run import Array, Run
from ..setups.shared.langevin_spectrum import Spectrum, circle, sphere
from ..setups.shared.optimizers import initial_projection

RADIUS, TEMPERATURE = 1.0, 1.0


@dataclass(frozen=True)
class Case:
    """A manifold in ``dimension`` coordinates, the first of which is the observable, pulled along it by ``tilt``."""

    name: str
    space: Constraint
    dimension: int
    spectrum: Spectrum
    tilt: float = 0.0


@dataclass(frozen=True)
class Measured:
    """Per group of chains: the mean squared deviation over time, and every chain's scaled average."""

    times: Array
    deviation: Array  # (times, groups)
    averages: Array  # (chains, groups)
    length: float


@experiment(
    "cor4.2",
    title="Exponential convergence and the central limit theorem on a circle and a sphere",
    source="paper Corollary 4.2, thesis Corollary 4.4.2",
    says="If the curvature condition (9) holds, the deviation of E(φ(q_t)|q₀) from the mean, squared and averaged over "
    "q₀, falls at least as e^{−2Lt/β}, and √T times the error of a time average is asymptotically normal with a "
    "variance of at most (β/L) Var φ; L is the constant of a Poincaré inequality.",
    smoke={"replicas": 2, "pairs": 500, "chains": 100, "step": 0.02, "length": 5.0},
    ci={"replicas": 8, "pairs": 20_000, "chains": 2000, "step": 0.005, "length": 60.0},
    paper={"replicas": 20, "pairs": 100_000, "chains": 10_000, "step": 0.002, "length": 100.0},
)
def cor4_2(run: Run, settings: SimpleNamespace) -> list[Claim]:
    flat, round_ = circle(RADIUS, TEMPERATURE), sphere(RADIUS, TEMPERATURE)
    cases = [
        Case("circle", Circle(RADIUS), 1, flat),
        Case("sphere", Sphere(RADIUS, slack=False, view="batch"), 3, round_),
        Case("circle, U = −sin", Circle(RADIUS), 1, circle(RADIUS, TEMPERATURE, 1.0), 1.0),
    ]
    found = {case.name: simulate(run, case, settings) for case in cases}
    picture(run, cases, found)
    rows = [
        [case.name, f"{s.gap:.4f}", f"{s.asymptotic_variance:.4f}", f"{s.bound:.4f}",
         f"{found[case.name].averages.var(0).mean():.4f}"]
        for case in cases for s in [case.spectrum]
    ]  # fmt: skip
    columns = ["case", "spectral gap 2L/β", "σ² exact", "its bound", "T·Var of the time average"]
    run.table("What the spectrum says, and the variance found", columns, rows)
    run.note(
        "The gap is τ/r² on the circle and 2τ/r² on the sphere, and comes from the spectrum of the generator where "
        "there is a potential. From (10) follows e^{−4Lt/β}, twice the rate the corollary states, and the first "
        "harmonic attains that and the bound on σ². On a circle the Ricci curvature is 0 and no periodic potential is "
        "convex, so (9) fails there; the Poincaré inequality holds all the same. Chains come in pairs that share q₀: "
        "the mean product of a pair is the squared deviation, without bias. The scheme's own error is of first order: "
        "on the circle the first harmonic decays by a share 2hλ₁ too fast."
    )
    return [claim for case in cases for claim in verdicts(case, found[case.name])]


def simulate(run: Run, case: Case, settings: SimpleNamespace) -> Measured:
    """Euler–Maruyama and projection, started in equilibrium; ``step`` and ``length`` are in units of 1/λ₁."""
    h = settings.step / case.spectrum.gap
    times = h * np.arange(round(1.0 / settings.step) + 1)
    count = round(settings.length / settings.step)

    def decay() -> Array:
        deviation = []
        with chains(run, case, settings.pairs, 2, h) as (q, step):
            for _ in progress(run, f"{case.name}, decay", len(times)):
                value = q[..., 0] / RADIUS - case.spectrum.mean
                deviation.append((value[0] * value[1]).mean(-1))
                step()
        return ranks.gather(torch.stack(deviation).cpu().numpy())

    def scaled_averages() -> Array:
        sums = torch.zeros(())
        with chains(run, case, settings.chains, 1, h) as (q, step):
            for _ in progress(run, f"{case.name}, averages", count):
                sums = sums + (q[0, ..., 0] / RADIUS - case.spectrum.mean)
                step()
        return ranks.gather((sums.T * h / np.sqrt(count * h)).cpu().numpy())

    deviation = run.once(f"{case.name}, decay", decay, (len(times), run.replicas))
    averages = run.once(f"{case.name}, averages", scaled_averages, (settings.chains, run.replicas))
    return Measured(times, deviation, averages, count * h)


@contextmanager
def chains(run: Run, case: Case, count: int, copies: int, h: float) -> Iterator[tuple[Tensor, Callable[[], None]]]:
    """(copies, groups, count, dimension) positions that share their start, and the function that moves them."""
    first, groups = ranks.share(run.replicas)
    seed = run.seed * 1_000_003 + first
    q = (
        start(case, groups, count, torch.Generator().manual_seed(seed))
        .expand(copies, -1, -1, -1)
        .clone()
        .to(run.device)
    )
    q.grad = torch.zeros_like(q)
    q.grad[..., 0] = -case.tilt / RADIUS
    with initial_projection():
        optimizer = Langevin([q], h, scheme="L", temperature=TEMPERATURE, constraint=case.space, seed=seed)
    optimizer.guard_gradients = False
    with torch.no_grad():
        yield q, lambda: optimizer.step()


def progress(run: Run, title: str, count: int) -> Iterator[int]:
    with run.progress(title, count) as show:
        for step in range(count):
            yield step
            show(step + 1, count, None)


def start(case: Case, groups: int, count: int, generator: torch.Generator) -> Tensor:
    """(groups, count, dimension) draws from ν. Of a circle only x/r = sin α is kept: reflection changes nothing."""
    shape = (groups, count)
    if case.dimension > 1:
        draws = torch.randn(*shape, case.dimension, generator=generator, dtype=torch.float64)
        length: Tensor = torch.linalg.vector_norm(draws, dim=-1, keepdim=True)
        return RADIUS * draws / length
    angle = torch.full(shape, math.nan, dtype=torch.float64)
    while bool((missing := angle.isnan()).any()):  # von Mises, by rejection from the uniform law
        proposal, level = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
        accepted = level < torch.exp(case.tilt / TEMPERATURE * ((2 * math.pi * proposal).sin() - 1))
        angle = torch.where(missing & accepted, 2 * math.pi * proposal, angle)
    return RADIUS * angle.sin()[..., None]


def verdicts(case: Case, found: Measured) -> list[Claim]:
    s = case.spectrum
    rates = np.array([decay_rate(found.times, one, s) for one in found.deviation.T])
    exact = decay_rate(found.times, s.deviation(found.times), s)
    variances = found.averages.var(0)
    target = s.variance_of_average(found.length)
    scaled = (found.averages - found.averages.mean(0)) / found.averages.std(0)
    kurtosis = (scaled**4).mean(0) - 3
    name, stated, share = case.name, np.full_like(rates, s.gap), 0.05
    bound = np.full_like(variances, s.bound)
    return [
        greater(f"{name}: the deviation falls as fast as stated", f"rate ≥ 2L/β = {s.gap:.4g}", rates, stated),
        near(f"{name}: and as the spectrum says", f"rate {exact:.4g}", rates, exact, share * exact),
        near(f"{name}: T·Var of a time average", f"{target:.4g} by the spectrum", variances, target, share * target),
        greater(f"{name}: σ² is within its bound, to 5 %", f"≤ {s.bound:.4g}", bound, variances, -share * s.bound),
        near(f"{name}: time averages are normal (excess kurtosis)", "0", kurtosis, 0.0, 0.2),
    ]


def decay_rate(times: Array, deviation: Array, spectrum: Spectrum) -> float:
    """Minus the slope of log(deviation), by least squares, while 2λ₁t is between ½ and 2."""
    inside = (2 * spectrum.gap * times >= 0.5) & (2 * spectrum.gap * times <= 2) & (deviation > 0)
    if inside.sum() < 2:
        return float("nan")
    return float(-np.polyfit(times[inside], np.log(deviation[inside]), 1)[0])


def picture(run: Run, cases: list[Case], found: dict[str, Measured]) -> None:
    caption = (
        "Top: the squared deviation of E(φ(q_t)|q₀), averaged over q₀ in equilibrium, relative to its start (dots and "
        "two standard errors), what the spectrum gives (line) and the corollary's bound (dashed). Bottom: √T times the "
        "error of the time averages of all chains, against the normal law of variance σ²."
    )
    with run.figure("cor4.2", caption, nrows=2, ncols=len(cases), figsize=(4.4 * len(cases), 7)) as axes:
        for column, case in zip(axes.T, cases, strict=True):
            s, measured = case.spectrum, found[case.name]
            time, start = s.gap * measured.times, s.variance
            some = np.linspace(0, len(time) - 1, 13).astype(int)
            groups = measured.deviation.shape[1]
            error = measured.deviation.std(1, ddof=1) / np.sqrt(groups) if groups > 1 else np.zeros(len(time))
            column[0].errorbar(time[some], measured.deviation.mean(1)[some] / start, 2 * error[some] / start, fmt="o",
                               markersize=4, label="measured")  # fmt: skip
            column[0].plot(time, s.deviation(measured.times) / start, label="spectrum")
            column[0].plot(time, np.exp(-time), "--", color="grey", label="bound $e^{-2Lt/\\beta}$")
            column[0].set(title=case.name, xlabel="time, in 1/λ₁", ylabel="squared deviation", yscale="log")
            column[0].legend(frameon=False, fontsize=8)
            width = np.sqrt(s.asymptotic_variance)
            column[1].hist(measured.averages.ravel(), 60, density=True, color="#4c72b0", alpha=0.6, label="chains")
            x = np.linspace(-4 * width, 4 * width, 200)
            column[1].plot(x, np.exp(-0.5 * (x / width) ** 2) / width / np.sqrt(2 * np.pi), "k", label="N(0, σ²)")
            column[1].set(xlabel="√T (⟨φ⟩_T − ⟨φ⟩)", ylabel="density")
            column[1].legend(frameon=False, fontsize=8)
