"""Hamiltonian Monte Carlo, on manifolds by RATTLE: every chain accepts or rejects its own proposal, on the device."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from .._random import mix
from .._random.philox import Layout, uniforms
from .._step.integrate import Phase
from .._torch import full_precision
from ..constraints import Constraint, LevelSet
from ..errors import ProjectionError
from .kernels import HMC
from .spaces import Spaces
from .target import Target, per_chain, squares
from .tuning import DualAveraging, largest_curvature

JITTER = 0.2  # of lr, to both sides
_ACCEPT, _JITTER = 0xACCE, 0x717  # streams of uniforms
_RETURNS = 1e3  # roundings by which a drift that is run backwards may miss its start


class Adjusted:
    """Draws from exp(−L/τ) without a bias of the time step: needs the loss of all data.

    A transition draws momenta N(0, τ), projected to the tangent space, takes ``leapfrogs`` steps of half a kick, a
    drift and half a kick, and is accepted with probability min(1, exp(−ΔH/τ)), H = L + ½|p|². A drift that is not exact
    (:class:`~holonom.constraints.LevelSet`, :class:`~holonom.constraints.Orthogonal`) is run backwards from its end:
    where it does not return, or finds no root, the chain rejects, without which detailed balance would not hold.
    """

    losses: Tensor
    heating = 0.0

    def __init__(self, kernel: HMC, target: Target, spaces: Spaces, lr: float | None, burn_in: int) -> None:
        if target.batch_size is not None:
            raise ValueError(
                "a Metropolis test needs the loss of all data: leave batch_size=None with kernel='mala' and 'hmc', or "
                "use kernel='baoab', 'sgld' or 'adl' with minibatches"
            )
        for name, space in spaces.items():
            if getattr(space, "iterations", None) is not None:
                raise ValueError(
                    f"{space!r} on '{name}' stops after a fixed number of iterations, so that a drift cannot be "
                    f"reversed and no Metropolis test is exact; leave iterations=None"
                )
        self.kernel, self.target, self.burn_in = kernel, target, burn_in
        self.spaces = [_without_errors(spaces[name]) for name in target.chains.parameters]
        for name, p in target.chains.parameters.items():
            p.data = spaces[name].readable(p.data)  # the phases are views of its memory
        self.positions = [p.detach() for p in target.chains.parameters.values()]
        self.seeds = target.chains.seeds
        self.slacks = [space.lift(q)[:1] for space, q in zip(self.spaces, self.positions, strict=True)]
        slots = [(i, slack) for i, found in enumerate(self.slacks) for slack in found if len(self.spaces[i].slots) > 1]
        shapes = [q.shape[1:] for q in self.positions] + [per_chain(slack).shape[1:] for _, slack in slots]
        streams = [2 * i for i in range(len(self.positions))] + [2 * i + 1 for i, _ in slots]
        self.layout = Layout(shapes, streams, self.seeds.device)
        self.with_slack = [i for i, _ in slots]
        self.lr = lr or 0.0
        self.tuner: DualAveraging | None = None
        self.choosing = lr is None
        self.accepted = torch.zeros((), dtype=torch.float64, device=self.seeds.device)  # after the burn-in
        self.counted = 0
        self.first_seed = int(self.seeds[0])  # read once: it lies on the device

    @property
    def acceptance(self) -> float:
        """The mean acceptance probability after the burn-in."""
        return float(self.accepted) / max(1, self.counted)

    def begin(self, step: int) -> None:
        if self.choosing and self.tuner is None:
            self.lr = 1 / math.sqrt(largest_curvature(self.target, step))
            self.tuner = DualAveraging(self.lr, self.kernel.acceptance)
            self.lr = math.exp(self.tuner.now)
        self._evaluate()

    def _evaluate(self) -> None:
        self.gradients, self.losses = self.target.gradients(self.target.data)
        self.potential = self.target.potential(self.losses)

    def keeps(self, step: int) -> bool:
        return True

    def check(self) -> None:
        if not bool(self.potential.isfinite().all()):
            raise ValueError("the loss of a chain is not finite at its start; start elsewhere (init='model')")

    def too_hot(self) -> str | None:
        return None

    # ── a transition ─────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    @full_precision()
    def step(self, step: int) -> None:
        h = self._jittered(step)
        phases = self._refreshed(step)
        before = [x.clone() for x in self._state()], self.gradients, self.losses, self.potential
        start = self.potential + self._kinetic(phases)
        lost = torch.zeros_like(start, dtype=torch.bool)
        for i in range(self.kernel.leapfrogs):
            self._kick_(phases, h / 2 if i == 0 else h)
            for space, x in zip(self.spaces, phases, strict=True):
                drift_(space, x, h, lost)
            self._evaluate()
        self._kick_(phases, h / 2)
        change = (self.potential + self._kinetic(phases) - start) / self.target.temperature
        probability = torch.where(lost | change.isnan(), 0.0, torch.exp(-change.clamp_min(0)))
        draw = uniforms(1, self.seeds, torch.full((), step, device=self.seeds.device), _ACCEPT)[:, 0]
        accepts = draw < probability
        for now, old in zip(self._state(), before[0], strict=True):
            now.copy_(_where(accepts, now, old))
        self.gradients = {name: _where(accepts, g, before[1][name]) for name, g in self.gradients.items()}
        self.losses = _where(accepts, self.losses, before[2])
        self.potential = _where(accepts, self.potential, before[3])
        if step >= self.burn_in:
            self.accepted += probability.mean()
            self.counted += 1
        elif self.tuner is not None:
            self.tuner.update(float(probability.mean()))
            self.lr = math.exp(self.tuner.mean if step + 1 == self.burn_in else self.tuner.now)

    def _jittered(self, step: int) -> float:
        fraction = mix(self.first_seed, step, _JITTER) / 2.0**64
        return self.lr * (1 + JITTER * (2 * fraction - 1))

    def _state(self) -> list[Tensor]:
        return [*self.positions, *(slack for found in self.slacks for slack in found)]

    def _refreshed(self, step: int) -> list[Phase]:
        """Phases with fresh tangent momenta of temperature τ."""
        width = math.sqrt(self.target.temperature)
        drawn = self.layout.draw(self.seeds, torch.full((), step, device=self.seeds.device), 0)
        slack_normals = dict(zip(self.with_slack, drawn[len(self.positions) :], strict=True))
        phases = []
        for i, (space, q, found) in enumerate(zip(self.spaces, self.positions, self.slacks, strict=True)):
            slack = found[0] if found else None
            p = space.view(drawn[i].to(q) * width)
            slack_p = None
            if slack is not None and i in slack_normals:
                slack_p = slack_normals[i].reshape(slack.shape).to(q) * width
            x = Phase(space.view(q), p, slack, slack_p, space.radius_of(q))
            space.project_(x, p, *([] if slack_p is None else [slack_p]))
            phases.append(_tangent(space, x))
        return phases

    def _kick_(self, phases: list[Phase], h: float) -> None:
        for space, x, g in zip(self.spaces, phases, self.gradients.values(), strict=True):
            space.kick_(x, space.view(g.to(x.q)), h)

    def _kinetic(self, phases: list[Phase]) -> Tensor:
        """(R,) values of ½|p|²."""
        momenta = [m for space, x in zip(self.spaces, phases, strict=True) for m in space.tangent(x)]
        chains = len(self.seeds)
        return squares([m.reshape(chains, -1) for m in momenta]) / 2

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        return {
            "lr": self.lr, "accepted": self.accepted.clone(), "counted": self.counted,
            "tuner": self.tuner.state() if self.tuner else None,
            "slacks": [x.clone() for found in self.slacks for x in found],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lr, self.counted = state["lr"], state["counted"]
        self.accepted.copy_(state["accepted"])
        for x, saved in zip((x for found in self.slacks for x in found), state["slacks"], strict=True):
            x.copy_(saved)
        if state["tuner"] is not None:
            self.tuner = DualAveraging(1.0, self.kernel.acceptance)
            self.tuner.restore(state["tuner"])


def _without_errors(space: Constraint) -> Constraint:
    """On a CPU a missing root is an error of all chains, and takes long to find."""
    if isinstance(space, LevelSet):
        space = copy.copy(space)
        space.raises = False
    return space


def drift_(space: Constraint, x: Phase, h: float, lost: Tensor) -> None:
    """A drift of all chains. Marks in ``lost``, (R,), those whose drift has no root or does not return."""
    if space.traits.geodesic:
        space.finish_(x, space.drift_(x, h), False)
        return
    for m in x.momenta():  # a lost chain stays where it is, whatever kicks it
        m.masked_fill_(_over(lost, m), 0.0)
    old = x.map(torch.clone)
    try:
        space.finish_(x, space.drift_(x, h), False)
        back = _reversed(space, x)
        space.drift_(back, h)
    except ProjectionError:  # of some chain's matrix, on a CPU
        _copy_(x, old)
        if len(lost) == 1:
            lost.fill_(True)
            return
        half = len(lost) // 2
        for part in (slice(0, half), slice(half, None)):
            drift_(space, _some_of(x, part, len(lost)), h, lost[part])
        return
    # Where no root was found, a drift may return all the same: its end has to lie on the manifold.
    lost |= ~(_largest(space.residuals(x), lost) <= _RETURNS * torch.finfo(old.q.dtype).eps)
    for end, start in ((back.q, old.q), (back.slack, old.slack)):
        if end is not None and start is not None:
            allowed = _RETURNS * torch.finfo(start.dtype).eps * (1 + _largest(start, lost))
            lost |= ~(_largest(end - start, lost) <= allowed)


def _some_of(x: Phase, chains: slice, count: int) -> Phase:
    """The phases of some chains, sharing memory; a chain may have several rows."""

    def rows(f: Tensor) -> Tensor:
        each = len(f) // count
        return f[chains.start * each : None if chains.stop is None else chains.stop * each]

    return x.map(rows)


def _largest(x: Tensor, lost: Tensor) -> Tensor:
    return x.reshape(len(lost), -1).abs().amax(1)


def _over(chosen: Tensor, x: Tensor) -> Tensor:
    """(R,) so that it broadcasts against x, whose first dimension holds one or more rows a chain."""
    return chosen.repeat_interleave(len(x) // len(chosen)).reshape(-1, *[1] * (x.ndim - 1))


def _tangent(space: Constraint, x: Phase) -> Phase:
    """With momenta that have no normal part."""
    p, slack_p = [*space.tangent(x), None][:2]
    return x._replace(p=p.clone(), slack_p=None if slack_p is None else slack_p.clone())  # type: ignore[union-attr]


def _reversed(space: Constraint, x: Phase) -> Phase:
    back = _tangent(space, x).map(torch.clone)
    for m in back.momenta():
        m.neg_()
    return back


def _copy_(x: Phase, source: Phase) -> None:
    for to, there in zip(x[:4], source[:4], strict=True):
        if to is not None:
            to.copy_(there)


def _where(chosen: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(_over(chosen, new), new, old)
