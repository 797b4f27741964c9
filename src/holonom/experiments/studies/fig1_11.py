"""Thesis Fig. 1.11: a slow particle and a fast one on a stiff spring, the system of Example 1.2.4."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ...multirate.averaging import HarmonicPair, State, reversible_averaging
from ..base import experiment
from ..claims import Claim, fact
from ..run import Array, Run
from ..setups.mts.resonances import OMEGA_SQUARED

# d(Q, q, P, p)/dt of H = ½P² + ½Ω²p² + ½Q² + ½Ω²(Q − q)²
FIELD = np.array([
    [0, 0, 1, 0],
    [0, 0, 0, OMEGA_SQUARED],
    [-1 - OMEGA_SQUARED, OMEGA_SQUARED, 0, 0],
    [OMEGA_SQUARED, -OMEGA_SQUARED, 0, 0],
])  # fmt: skip
START = np.array([1.0, 1.3, 0.0, 0.0])


@experiment(
    "fig1.11",
    title="A slow particle and a fast one on a stiff spring",
    source="thesis Fig. 1.11, Example 1.2.4",
    says="H = ½P² + ½Ω²p² + ½Q² + ½Ω²(Q − q)² separates into a slow (Q, P) and a fast (q, p) motion; with Q fixed the "
    "fast one is the rotation (1.43) with frequency Ω². RA-0 and RA-1 approximate the whole (Ω² = 10).",
    smoke={"replicas": 1, "time": 4.0},
    ci={"replicas": 1, "time": 12.0},
    paper={"replicas": 1, "time": 50.0},
)
def fig1_11(run: Run, settings: SimpleNamespace) -> list[Claim]:
    picture(run, settings.time)
    frequencies = np.sort(np.abs(np.linalg.eigvals(FIELD).imag))[[0, 2]]
    miss = fixed_position_error()
    orders = {name: order(drift) for name, drift in (("RA-0", False), ("RA-1", True))}
    run.table("Frequencies of the normal modes", ["slow", "fast", "Ω²"], [[*map("{:.4f}".format, frequencies), 10]])
    return [
        fact(
            "two time scales", "clearly separated for Ω ≫ 1", float(frequencies[1] / frequencies[0]),
            frequencies[1] > 5 * frequencies[0], detail="fast over slow frequency",
        ),
        fact("the fast motion with Q fixed is (1.43)", "exact solution", miss, miss < 1e-12, detail="against expm"),
        *(
            fact(f"{name} is of second order", "symmetric schemes", found, abs(found - 2) < 0.1, detail="by halving h")
            for name, found in orders.items()
        ),
    ]  # fmt: skip


def flow(t: float, field: Array = FIELD) -> Array:
    from scipy.linalg import expm

    matrix: Array = expm(t * field)
    return matrix


def fixed_position_error() -> float:
    """Of the rotation (1.43) against the matrix exponential of the field without slow motion."""
    still = FIELD.copy()
    still[[0, 2]] = 0
    worst = 0.0
    for t in (0.1, 0.7, 2.0):
        q, p = HarmonicPair(OMEGA_SQUARED).flow(START[0], 0.0, START[1], START[3], t)
        worst = max(worst, float(np.abs(np.array([q, p]) - (flow(t, still) @ START)[[1, 3]]).max()))
    return worst


def simulate(h: float, steps: int, drift: bool) -> Array:
    """(steps + 1, 4) states (Q, q, P, p)."""
    state: State = (START[0], START[2], START[1], START[3])
    states = [state]
    for _ in range(steps):
        state = reversible_averaging(state, HarmonicPair(OMEGA_SQUARED), h, drift)
        states.append(state)
    path: Array = np.array(states)[:, [0, 2, 1, 3]]
    return path


def order(drift: bool) -> float:
    """From the error of the slow position at t = 1 with h = 1/200 and half of it."""
    errors = [abs(simulate(1 / n, n, drift)[-1, 0] - (flow(1.0) @ START)[0]) for n in (200, 400)]
    return float(np.log2(errors[0] / errors[1]))


def picture(run: Run, time: float) -> None:
    h = 0.1
    fine, coarse = np.linspace(0, time, 2000), np.arange(round(time / h) + 1) * h
    exact = np.array([flow(t) @ START for t in fine])
    with run.figure("motion", "The exact motion, and RA-1 with h = 0.1 (dots).", nrows=2, figsize=(8, 5)) as axes:
        for panel, column, name in ((axes[0, 0], 0, "slow position Q"), (axes[1, 0], 1, "fast position q")):
            panel.plot(fine, exact[:, column], linewidth=0.9, label="exact")
            panel.plot(coarse, simulate(h, len(coarse) - 1, True)[:, column], ".", markersize=3.5, label="RA-1")
            panel.set(xlabel="time", ylabel=name)
        axes[0, 0].legend(frameon=False)
