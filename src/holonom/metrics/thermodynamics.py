"""Kinetic and configurational temperature of the simulated network, layer by layer (3.38)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._step.buckets import Bucket, State
from .._step.integrate import Phase, over
from ..constraints import Free
from ..constraints.base import MOMENTA, Constraint
from ..optimizer import Langevin


@dataclass(frozen=True)
class Reading:
    """One parameter tensor's temperatures, averaged over the readings taken.

    Attributes:
        name: of the parameter, or its number.
        target: τ, the mean over readings.
        kinetic: ⟨p²⟩ per degree of freedom; NaN without momenta.
        configurational: ⟨(q − ⟨q⟩)·∇U⟩ per parameter; on circles as :meth:`holonom.Langevin.temperatures` says, with
            q₀ the weights of the first reading; NaN on other spaces and without gradients.
        freedom: degrees of freedom.
    """

    name: str
    target: float
    kinetic: float
    configurational: float
    freedom: int


class Thermometer:
    """Reads every parameter's temperatures during a run.

    In equilibrium each degree of freedom carries τ: equipartition, ⟨pᵢ²⟩ = τ (3.38), holds for momenta, and
    the virial theorem, ⟨(qᵢ − ⟨qᵢ⟩) ∂U/∂qᵢ⟩ = τ, for positions. They fail differently: a step that is too
    large or a thermostat that is too weak shows in one of them first, and a layer that is not yet in
    equilibrium shows a configurational temperature below τ.

    >>> thermometer = Thermometer(optimizer)
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     loss_fn(model(x), y).backward()
    ...     optimizer.synchronize()      # momenta at the same time as positions
    ...     thermometer.read()
    ...     optimizer.step()
    >>> print(thermometer)
    """

    def __init__(self, optimizer: Langevin) -> None:
        self.optimizer = optimizer
        self.readings = 0
        self._sums: dict[Tensor, dict[str, Any]] = {}

    @torch.no_grad()
    def read(self) -> None:
        """Take one reading, with the gradients of the present positions in ``.grad``."""
        self.readings += 1
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                self._read_one(p, group, self.optimizer._spaces[p])

    def _read_one(self, p: Tensor, group: dict[str, Any], space: Constraint) -> None:
        sums = self._sums.setdefault(p, {"target": 0.0, "kinetic": 0.0, "q": 0.0, "force": 0.0, "virial": 0.0})
        tau = group["temperature"]
        sums["target"] += float(tau.double().mean()) if isinstance(tau, Tensor) else tau
        sums["kinetic"] += _squared_momenta(p, space, self.optimizer.state)
        if p.grad is None or not space.has_virial:
            sums["virial"] = torch.nan
            return
        q, decay = p.double(), group["weight_decay"]
        force = p.grad.double() * (-1 if group["maximize"] else 1)
        force = force + over(decay, q) * q
        if isinstance(space, Free):
            sums["q"] = sums["q"] + q
            sums["force"] = sums["force"] + force
            sums["virial"] = sums["virial"] + q * force
        else:
            reference = sums.setdefault("reference", q.clone())
            virial, divergence = space.virial(Phase(q, radius=space.radius_of(q)), force, reference)
            sums["virial"] = sums["virial"] + virial
            sums["divergence"] = sums.get("divergence", 0.0) + divergence

    def table(self) -> list[Reading]:
        """One row per parameter tensor."""
        if not self.readings:
            raise ValueError("no reading was taken; call read() after backward()")
        rows = []
        spaces = self.optimizer._spaces
        for group in self.optimizer.param_groups:
            names = group.get("param_names") or [str(i) for i in range(len(group["params"]))]
            rows += [self._row(name, p, spaces[p]) for name, p in zip(names, group["params"], strict=True)]
        return rows

    def _row(self, name: str, p: Tensor, space: Constraint) -> Reading:
        sums, n = self._sums[p], self.readings
        freedom = 0 if space.traits.joint else space.degrees_of_freedom(p.detach())  # which tensor's, is undefined
        if "divergence" in sums:
            configurational = float(sums["virial"] / sums["divergence"])
        else:
            moment = sums["virial"] / n - (sums["q"] / n) * (sums["force"] / n)
            configurational = float(moment.mean()) if isinstance(moment, Tensor) and n > 1 else torch.nan
        kinetic = sums["kinetic"] / n / freedom if freedom else torch.nan
        return Reading(name, sums["target"] / n, kinetic, configurational, freedom)

    def __str__(self) -> str:
        lines = [f"{'parameter':<32} {'τ':>10} {'kinetic':>10} {'configurational':>16} {'freedom':>9}"]
        for row in self.table():
            numbers = f"{row.target:>10.3g} {row.kinetic:>10.3g} {row.configurational:>16.3g} {row.freedom:>9}"
            lines.append(f"{row.name:<32} {numbers}")
        return "\n".join(lines)


def equipartition(optimizer: Langevin) -> dict[str, float]:
    """⟨p²⟩/τ of every parameter tensor at this moment: 1 up to √(2/freedom) in equilibrium (3.38)."""
    thermometer = Thermometer(optimizer)
    thermometer.read()
    return {row.name: row.kinetic / row.target if row.target else torch.nan for row in thermometer.table()}


def _squared_momenta(p: Tensor, space: Constraint, state: dict[Tensor, State]) -> float:
    if space.traits.joint or not any(name in state[p] for name in MOMENTA):
        return torch.nan
    phase = Bucket(space, [p], [state[p]], ["a parameter"]).phases()[0]
    return sum(float(x.double().square().sum()) for x in space.tangent(phase))
