"""Running the kernels without a Metropolis test: one optimizer step is one transition."""

from __future__ import annotations

import math
import warnings
from typing import Any

from torch import Tensor

from .._lines import users_line
from .._step.thermostat import STEPS
from ..constraints import Free
from ..errors import NonFiniteGradientError
from ..optimizer import Langevin
from ..scheme import compile_word
from .kernels import BAOAB, SGLD, AdL, Cyclical
from .spaces import Spaces
from .target import Target
from .tuning import HEATING, THERMOSTAT_DAMPING, CurvatureRule, tuning_steps

CORRELATION_TIMES = 10  # that a run should at least have
BURN_IN_DAMPING = 0.1  # γ·h of the first half of the burn-in, which has to lose the start's energy


class Unadjusted:
    """All chains under one :class:`holonom.Langevin`, which draws every chain its own noise.

    ``losses`` are the mean negative log-likelihoods at the present positions: of all data, or of the next minibatch.
    """

    losses: Tensor
    acceptance: float | None = None

    def __init__(
        self,
        kernel: BAOAB | SGLD | AdL | Cyclical,
        target: Target,
        spaces: Spaces,
        lr: float | None,
        steps: int,
        burn_in: int,
    ) -> None:
        self.kernel, self.target = kernel, target
        self.steps, self.burn_in = steps, burn_in
        scheme = compile_word(kernel.word)
        self.rule = CurvatureRule(scheme.overdamped, scheme.thermostatted, burn_in)
        self.tune_at = tuning_steps(burn_in) if lr is None else set()
        self.lr = lr or 1e-3
        self.heating = 0.0
        groups: dict[int, dict[str, Any]] = {}
        for name, p in target.chains.parameters.items():
            space = spaces[name]
            groups.setdefault(id(space), {"params": [], "constraint": space})["params"].append((name, p))
            if scheme.word == "M" and not isinstance(space, Free):
                raise ValueError(
                    f"kernel='sgld' and 'cyclical' average the noise of two steps, which on {space!r} lies in two "
                    f"tangent spaces; use kernel=BAOAB(friction=math.inf), the same method with projected momenta"
                )
        bent = [space for space in spaces.values() if not isinstance(space, Free)]
        if lr is None and bent:
            warnings.warn(
                f"lr=None looks at the curvature of the loss, and not at that of {bent[0]!r}, where draws of a long "
                f"step may be biased by several percent. Give an lr, halve it and compare; or use kernel='hmc', which "
                f"has no such bias",
                stacklevel=users_line(),
            )
        self.optimizer = Langevin(
            groups.values(), self.lr, scheme=kernel.word, temperature=target.temperature, seed=target.chains.seeds,
            **self._thermostat(burn_in),
        )  # fmt: skip

    def begin(self, step: int) -> None:
        """Evaluate the present positions: at the start, or after :meth:`load_state_dict`."""
        self.gradients, self.losses = self.target.gradients(self.target.batch(step))

    def step(self, step: int) -> None:
        measures = step in self.tune_at
        if measures or (step == self.burn_in and self.target.batch_size is not None):
            self.rule.measure(self.target, step, curvature=measures)
        if measures:
            self.lr = self.rule.lr(self.target.temperature, limited=step >= self.burn_in // 2)
        if step == self.burn_in:
            self.heating = self.rule.heating(self.lr, self._damping(step), self.target.temperature)
        settings = {"lr": self.lr, **self._thermostat(step), **self._cycle(step)}
        for group in self.optimizer.param_groups:
            group.update(settings)
        for name, p in self.target.chains.parameters.items():
            p.grad = self.gradients[name]
        try:
            self.optimizer.step()
        except NonFiniteGradientError as error:
            raise NonFiniteGradientError(
                f"a chain diverged before step {step} with lr={self.lr:g} ({error}). Give a smaller lr, start "
                f"elsewhere (init='model'), or give a narrower prior"
            ) from None
        if isinstance(self.kernel, AdL) and step < self.burn_in // 2:
            self._rest()
        self.begin(step + 1)

    def keeps(self, step: int) -> bool:
        """Whether the positions after this many steps belong to the target's law."""
        return not isinstance(self.kernel, Cyclical) or self._phase(step - 1) >= self.kernel.exploration

    def check(self) -> None:
        """Raise if a chain diverged; on a device nothing else notices. What a thermostat cannot hold is in heating."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*the thermostat damps momenta")
            self.optimizer.check()

    def too_hot(self) -> str | None:
        """What to say of minibatch noise that heats noticeably."""
        if self.heating <= 1.5 * HEATING:  # lr=None aims at HEATING, and measures it
            return None
        removed = ", beyond what the thermostat removes from all directions" if isinstance(self.kernel, AdL) else ""
        return (
            f"the noise of the minibatches raises the temperature of the directions in which it is strong by about "
            f"{100 * self.heating:.0f} %{removed}: the draws are too wide. Give a smaller lr, a larger batch_size, or "
            f"batch_size=None"
        )

    # ── settings of a step ───────────────────────────────────────────────────────────────────────

    def _thermostat(self, step: int) -> dict[str, Any]:
        if isinstance(self.kernel, BAOAB):
            return {"friction": self._damping(step)}
        if isinstance(self.kernel, AdL):
            return {"thermostat_time": STEPS * self.lr, "thermostat_friction": self._damping(step)}
        return {}

    def _damping(self, step: int) -> float:
        """γ of a step."""
        if isinstance(self.kernel, (BAOAB, AdL)):
            return self._friction(step, 1.0 if isinstance(self.kernel, BAOAB) else THERMOSTAT_DAMPING)
        return math.inf

    def _rest(self) -> None:
        """Set ξ to its value without noise of gradients: falling from the start would drive it to its bound 1/h."""
        for group in self.optimizer.param_groups:
            self.optimizer.state[group["params"][0]]["thermostat"].fill_(group["thermostat_friction"])

    def _friction(self, step: int, most: float) -> float:
        given = self.kernel.friction if isinstance(self.kernel, (BAOAB, AdL)) else None
        if given is not None:
            return given
        if self.target.batch_size is not None:
            return most / self.lr
        friction = 2 * CORRELATION_TIMES / (self.lr * max(1, self.steps - self.burn_in))
        if self.target.prior.widest is not None:
            friction = max(friction, 2 * math.sqrt(self.target.temperature) / self.target.prior.widest)
        if step < self.burn_in // 2:
            friction = max(friction, BURN_IN_DAMPING / self.lr)
        return min(friction, most / self.lr)

    def _phase(self, step: int) -> float:
        """How much of its cycle has gone by at a step."""
        assert isinstance(self.kernel, Cyclical)
        length = math.ceil(self.steps / self.kernel.cycles)
        return (step % length) / length

    def _cycle(self, step: int) -> dict[str, float]:
        if not isinstance(self.kernel, Cyclical):
            return {}
        return {"lr": self.lr * (1 + math.cos(math.pi * self._phase(step))) / 2}

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(), "rule": self.rule.state(), "lr": self.lr, "heating": self.heating,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.rule.restore(state["rule"])
        self.lr, self.heating = state["lr"], state["heating"]
