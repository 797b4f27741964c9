"""Diagnostics of an optimizer: residuals, cotangencies and temperatures per group, and skipped steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._lines import users_line
from .._torch import full_precision
from ..constraints.base import Constraint
from ..errors import NonFiniteGradientError, ProjectionError
from ..scheme import compile_word
from . import configurational, edits
from .accuracy import position_temperature
from .buckets import Bucket
from .integrate import Phase, over
from .letters import plain
from .watch import Watch, thermostats

if TYPE_CHECKING:
    from .._sharding.backend import Spread
    from .._sharding.ranks import Ranks


class Diagnosed(Optimizer):
    """Diagnostic methods of an optimizer."""

    _spaces: dict[Tensor, Constraint]
    _skipped: dict[torch.device, Tensor]
    _buckets: Callable[[], list[list[Bucket]]]
    _note: Callable[[Iterable[Tensor]], None]
    _watch: Watch
    _ranks: Ranks | None

    def check(self) -> None:
        """Raise if a step was skipped on the device, a thermostat has run away or a constraint is lost.

        A thermostat has run away if ξ is not finite or, where ``coupling`` is given, h·|ξ| > 20. Reads the device.
        """
        self._buckets()  # complete groups that a library put into param_groups
        self._watch.look(thermostats(self.param_groups, self.state), fatal=True)
        if skipped := self._read_skipped():
            raise NonFiniteGradientError(
                f"{skipped} step(s) since the last check() met a NaN or infinite gradient or a projection without a "
                f"root and were left out; the weights are those of the last good step. Lower lr, clip gradients, or "
                f"use a GradScaler."
            )
        for number, (residual, group) in enumerate(zip(self.residuals(), self.param_groups, strict=True)):
            if group["params"] and not residual <= self._spaces[group["params"][0]].lost:
                raise ProjectionError(
                    f"group {number} has left its manifold: {group['constraint']} is violated by "
                    f"{residual:.2g}. Its steps were too large to project; lower lr and call project_()"
                )

    def _read_skipped(self) -> int:
        skipped = sum(int(count) for count in self._skipped.values())
        for count in self._skipped.values():
            count.zero_()  # in place: a captured graph goes on counting here
        return skipped

    def _warn_skipped(self) -> None:
        """Of skipped steps and of thermostats that do not hold their temperature."""
        self._watch.look(thermostats(self.param_groups, self.state))
        if skipped := self._read_skipped():
            warnings.warn(
                f"{skipped} step(s) were skipped for non-finite numbers; call check() for details",
                stacklevel=users_line(),
            )

    @torch.no_grad()
    def residuals(self) -> list[float]:
        """Per group: the largest constraint violation of the parameters as they are now.

        Relative (θ²+ξ²)/r² − 1 for circle and sphere, max|QᵀQ − I| for orthogonal, max|g| for level
        sets, 0 without a constraint.
        """
        found = self._buckets()
        self._warn_skipped()
        return [self._worst(g, buckets, False) for g, buckets in zip(self.param_groups, found, strict=True)]

    @torch.no_grad()
    def cotangencies(self) -> list[float]:
        """Per group: the largest |∇g·p|, how far a momentum points off its manifold."""
        return [self._worst(g, buckets, True) for g, buckets in zip(self.param_groups, self._buckets(), strict=True)]

    def _spread(self, group: dict[str, Any]) -> Spread | None:
        """What moves of a group where ranks hold parts of it."""
        return None if self._ranks is None else self._ranks.spread(group, [p for p in group["params"] if p.numel()])

    def _worst(self, group: dict[str, Any], buckets: list[Bucket], of_momenta: bool) -> float:
        """The largest violation of a constraint, or of what momenta satisfy."""
        if of_momenta:
            found = worst(buckets, lambda space, x: space.cotangency(x), moving=True)
        else:
            found = worst(buckets, lambda space, x: space.residual(x))
        spread = self._spread(group)
        return found if spread is None else spread.largest(found)

    @torch.no_grad()
    def temperatures(self, kind: str = "kinetic") -> list[float]:
        """Per group, the temperature of the momenta now, or of the positions since :meth:`record_temperatures`.

        ``"kinetic"``: pᵀp / degrees of freedom, constraints subtracted; NaN for words without momentum. A rotated word
        still owes part of a kick; :meth:`synchronize` first for the textbook's momenta. In SGD's terms
        (:meth:`holonom.Langevin.like_sgd`) noise is drawn for the positions. OBA's momenta are at 2τ/(1+μ); they are
        divided by 2/(1+μ), so that τ is the target there, too.

        ``"configurational"``: the mean over steps, from the positions and gradients they were given (weight decay and
        the sign of ``maximize`` included). Without a constraint ⟨(q − q₀)·∇U⟩/N; on circles, θ = r sin φ,
        ⟨(θ − θ₀) cos²φ ∂U/∂θ⟩/⟨cos 2φ + sin φ₀ sin φ⟩; NaN on other spaces. q₀ are the weights when recording began. In
        equilibrium both temperatures are τ; a word whose positions are off shows it here alone.
        """
        all_buckets = self._buckets()
        if kind == "configurational":
            groups = enumerate(self.param_groups)
            return [configurational.temperature(g, n, self._has_virial(g), self.state) for n, g in groups]
        if kind != "kinetic":
            raise ValueError(f'kind of temperature must be "kinetic" or "configurational", got {kind!r}')
        pairs = zip(self.param_groups, all_buckets, strict=True)
        return [kinetic_temperature(group, buckets, self._spread(group)) for group, buckets in pairs]

    @torch.no_grad()
    def record_temperatures(self, on: bool = True) -> None:
        """Begin to record the configurational temperature, or begin anew, or with ``on=False`` end it.

        Every step then also reads weights and gradients once, and a copy of the weights is kept; nothing is read back
        before :meth:`temperatures`. Skipped steps do not count. A checkpoint keeps what was recorded, and loading one
        restores it: one made without leaves nothing recorded.
        """
        self._buckets()
        for group in self.param_groups:
            if self._has_virial(group):
                (configurational.begin if on else configurational.end)(group["params"], self.state)

    def _has_virial(self, group: dict[str, Any]) -> bool:
        return bool(group["params"]) and self._spaces[group["params"][0]].has_virial

    @torch.no_grad()
    def project_(self) -> None:
        """Move every parameter to the nearest point of its manifold: after averaging weights, say."""
        found = list(chain(*self._buckets()))
        if self._ranks is not None:
            self._ranks.project_(found, self._note)
            return
        for bucket in found:
            bucket.refresh()
            edits.project_(bucket)
            self._note(bucket.given)

    @torch.no_grad()
    def scale_momenta_(self, factor: float) -> None:
        """Multiply all momenta: √(τ'/τ) when the temperature jumps, −1 to run backwards, 0 to stand still."""
        if not isinstance(factor, Tensor) and not math.isfinite(factor):
            raise ValueError(f"the factor of the momenta must be finite, got {factor}")
        for group, buckets in zip(self.param_groups, self._buckets(), strict=True):
            if not compile_word(group["scheme"]).overdamped:  # M keeps its last noise where others keep momenta
                for bucket in buckets:
                    phases = bucket.phases()
                    for momentum in [m for x in phases for m in x.momenta()]:
                        momentum.mul_(factor)
                    bucket.keep_momenta(phases)


@full_precision()
def worst(buckets: Iterable[Bucket], measure: Callable[[Constraint, Phase], Tensor], moving: bool = False) -> float:
    """The largest value of a diagnostic over all phases, or over those with a momentum."""
    phases = [(b.space, x) for b in buckets for x in b.phases() if (not moving or x.p is not None) and b.elements]
    found = [float(measure(space, x)) for space, x in phases]
    return max(found, key=lambda value: math.inf if math.isnan(value) else value, default=0.0)


@full_precision()
def kinetic_temperature(group: dict[str, Any], buckets: list[Bucket], spread: Spread | None = None) -> float:
    """pᵀp / degrees of freedom; NaN where there are no momenta or nothing is free to move."""
    freedom = sum(b.degrees_of_freedom for b in buckets) if spread is None else spread.degrees_of_freedom
    if compile_word(group["scheme"]).overdamped or not freedom:
        return math.nan
    momentum = group.get("momentum")
    ratio = 1.0 if momentum is None else position_temperature(group["scheme"], plain(momentum))
    if spread is not None:
        return spread.kinetic_energy(buckets) * float(ratio) / freedom
    momenta = [m for b in buckets for x in b.phases() for m in b.space.tangent(x)]
    return sum(float((over(ratio, m) * m.square()).sum()) for m in momenta) / freedom
