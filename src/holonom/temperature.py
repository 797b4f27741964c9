"""Temperature: what it means against a mean loss, and how it may change during a run."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise
from typing import Any

from torch import Tensor

from ._lines import users_line
from ._numbers import as_whole
from ._random.seeds import checked, fresh_seed, refuse_ranks
from .optimizer import Langevin


def posterior_temperature(num_data: int, cold: float = 1.0) -> float:
    """The τ at which a *mean* loss over ``num_data`` examples samples the Bayes posterior: τ = cold/num_data.

    The one definition: Langevin's invariant law is exp(−L/τ) for the loss L that was differentiated.
    If L is the mean negative log-likelihood, exp(−num_data·L) is the likelihood, so τ = 1/num_data; a
    prior N(0, s²) enters as ``weight_decay`` = 1/(num_data·s²), see :func:`prior_weight_decay`. The
    papers' "τ = 1" is the same statement for a summed loss. ``cold`` < 1 sharpens the posterior
    (a cold posterior, thesis 1.3.4.3); τ = 0 trains without noise (words with D or F: with
    ``driving_noise=0`` as well, and a ``coupling``).
    """
    if num_data < 1:
        raise ValueError(f"num_data must be at least 1, got {num_data}")
    if cold < 0:
        raise ValueError(f"cold must be at least 0, got {cold}")
    return cold / num_data


def prior_weight_decay(num_data: int, std: float) -> float:
    """The weight decay that stands for a prior N(0, std²) beside a mean loss: 1/(num_data·std²)."""
    if num_data < 1 or not std > 0:
        raise ValueError(f"num_data must be at least 1 and std positive, got {num_data} and {std}")
    return 1.0 / (num_data * std * std)


Factor = Callable[[int], float]


def annealing(steps: int, end: float = 0.0, shape: str = "cosine") -> Factor:
    """From 1 down to ``end`` over ``steps`` steps, then constant; "linear", "cosine" or "exponential"."""
    if steps < 1 or end < 0:
        raise ValueError(f"steps must be at least 1 and end at least 0, got {steps} and {end}")
    if shape == "exponential" and end == 0:
        raise ValueError("an exponential never reaches 0; give a positive end, or shape='linear' or 'cosine'")
    shapes: dict[str, Callable[[float], float]] = {
        "linear": lambda x: 1 + (end - 1) * x,
        "cosine": lambda x: end + (1 - end) * (1 + math.cos(math.pi * x)) / 2,
        "exponential": lambda x: end**x,
    }
    if shape not in shapes:
        raise ValueError(f"shape must be one of {', '.join(shapes)}, got {shape!r}")
    return lambda step: shapes[shape](min(step / steps, 1.0))


def cycling(period: int, low: float = 0.0) -> Factor:
    """1 → ``low`` along half a cosine, again and again: explore hot, settle cold (tempering in cycles)."""
    if period < 1 or low < 0:
        raise ValueError(f"period must be at least 1 and low at least 0, got {period} and {low}")
    return lambda step: low + (1 - low) * (1 + math.cos(math.pi * (step % period) / period)) / 2


class TemperatureSchedule:
    """Sets every group's τ to its initial value times ``factor(step)``; used like an LR scheduler.

    >>> schedule = TemperatureSchedule(opt, annealing(steps=10_000))
    >>> for x, y in loader:
    ...     ...
    ...     opt.step()
    ...     schedule.step()
    """

    def __init__(self, optimizer: Langevin, factor: Factor) -> None:
        if not callable(factor):
            raise TypeError(f"factor is a function of the step, such as annealing(steps=1000), got {factor!r}")
        _refuse_without_temperature("TemperatureSchedule", optimizer)
        if all(type(group["temperature"]) in (int, float) and not group["temperature"]
               for group in optimizer.param_groups):  # fmt: skip
            warnings.warn(
                "TemperatureSchedule multiplies the temperatures of the groups, which are all 0, so that nothing "
                "changes: give the optimizer the temperature at factor 1",
                stacklevel=users_line(),
            )
        self.optimizer = optimizer
        self.factor = factor
        self.base: list[Any] = []
        self._written: dict[int, Tensor] = {}  # by the number of a group
        self.count = -1
        self.step()

    def step(self) -> None:
        """Set the temperatures of the next step; call it after ``optimizer.step()``."""
        self._set(self.count + 1)

    def _set(self, count: int) -> None:
        scale = self.factor(count)
        if not scale >= 0:
            raise ValueError(f"the temperature factor of step {count} is {scale}; it must be at least 0")
        self.count = count
        groups = self.optimizer.param_groups
        self.base += [_copied(group["temperature"]) for group in groups[len(self.base) :]]  # added since
        for number, (group, base) in enumerate(zip(groups, self.base, strict=True)):
            written = self._written.get(number)
            if not isinstance(base, Tensor):
                group["temperature"] = float(base * scale)
            elif written is not None and group["temperature"] is written:  # compiled steps read this tensor
                written.copy_(base * scale)
            else:
                group["temperature"] = self._written[number] = base * scale

    def get_last_temperature(self) -> list[Any]:
        """Every group's τ as it is now."""
        return [_copied(group["temperature"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The initial temperatures and the number of steps; not the factor."""
        return {"base": [_copied(x) for x in self.base], "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a saved schedule was."""
        if len(state["base"]) > len(self.optimizer.param_groups):
            raise ValueError(
                f"the state holds temperatures of {len(state['base'])} groups, and the optimizer has "
                f"{len(self.optimizer.param_groups)}: build it as the saved one was built"
            )
        self.base = [_copied(x) for x in state["base"]]
        self._set(state["count"])


def _refuse_without_temperature(user: str, optimizer: Any, needed: str = "param_groups") -> None:
    """Other optimizers would never read what is written into their groups. Wrappers of a trainer's are let through."""
    groups = getattr(optimizer, "param_groups", [{}])
    if not hasattr(optimizer, needed) or not all("temperature" in group for group in groups):
        raise TypeError(f"{user} sets the temperature of a holonom.Langevin optimizer, got {type(optimizer).__name__}")


def _copied(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


class SimulatedTempering:
    """A random walk of τ on a ladder, so that a chain crosses barriers hot and is used cold (thesis 1.3.2.3).

    Every ``every`` steps a neighbouring rung is proposed and accepted with probability
    min(1, exp(−(1/τ' − 1/τ)L + w' − w)); momenta are rescaled by √(τ'/τ). The weights w, which should
    equal minus the rungs' log partition functions, are learnt on the way by lowering the one being
    visited. Samples of the target law are those for which :attr:`rung` is 0.

    L is the potential of the law exp(−L/τ), at the present weights: the loss that is differentiated, of **all** data
    (a batch's loss adds noise to the odds, and the walk then targets another law), in the same units (mean or sum),
    plus ½λ‖q‖² where the optimizer has a ``weight_decay`` λ.

    Args:
        optimizer: whose groups all take the ladder's temperature.
        ladder: rising temperatures, the first being the target's.
        every: optimizer steps between proposals.
        learning: how much a visit lowers a rung's weight at first; it decays like 1/√visits.
        seed: of the proposals. None draws one from torch's CPU generator, once; a saved state replaces it.
    """

    def __init__(
        self,
        optimizer: Langevin,
        ladder: Sequence[float],
        every: int = 10,
        learning: float = 1.0,
        seed: int | None = None,
    ) -> None:
        temperatures = [float(t) for t in ladder]
        if len(temperatures) < 2 or any(not 0 < a < b for a, b in pairwise(temperatures)):
            raise ValueError(f"the ladder must hold at least two positive, rising temperatures, got {list(ladder)}")
        _refuse_without_temperature("SimulatedTempering", optimizer, "scale_momenta_")
        if as_whole(every) is None or every < 1:
            raise ValueError(f"every must be a whole number of at least 1, got {every!r}")
        if seed is None:
            refuse_ranks("SimulatedTempering")
        self.optimizer = optimizer
        self.ladder = temperatures
        self.every = every
        self.learning = learning
        self.seed_given = seed is not None
        self.seed = fresh_seed() if seed is None else checked(seed)
        self.rung = 0
        self.count = 0
        self.weights = [0.0] * len(temperatures)
        self.visits = [0] * len(temperatures)
        self.accepted = 0
        self._set()

    def step(self, loss: float | Tensor) -> bool:
        """Call after ``optimizer.step()``; returns whether τ changed.

        ``loss`` is the L of exp(−L/τ) at the present weights: of all data, and with ½λ‖q‖² where the optimizer has a
        ``weight_decay``; under torch.distributed the same number on all ranks. It is read every ``every`` calls only.
        """
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise ValueError(
                f"step() wants one number, the loss of all data at the present weights (with ½λ‖q‖² for a weight_decay "
                f"λ); got a tensor of shape {tuple(loss.shape)}. One ladder serves one chain: temper the replicas of "
                f"an ensemble one by one"
            )
        self.count += 1
        if self.count % self.every:
            return False
        self.visits[self.rung] += 1
        self.weights[self.rung] -= self.learning / math.sqrt(1 + sum(self.visits) / len(self.ladder))
        draw = random.Random(f"{self.seed}/{self.count}")
        proposal = self.rung + draw.choice((-1, 1))
        if not 0 <= proposal < len(self.ladder):
            return False
        old, new = self.ladder[self.rung], self.ladder[proposal]
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        log_odds = -(1 / new - 1 / old) * float(loss) + self.weights[proposal] - self.weights[self.rung]
        if not math.log(max(draw.random(), 1e-300)) < log_odds:
            return False
        self.rung = proposal
        self.accepted += 1
        self.optimizer.scale_momenta_(math.sqrt(new / old))
        self._set()
        return True

    def _set(self) -> None:
        for group in self.optimizer.param_groups:
            group["temperature"] = self.ladder[self.rung]

    def state_dict(self) -> dict[str, Any]:
        """Where the walk is, and the weights it has learnt."""
        keys = ("seed", "rung", "count", "weights", "visits", "accepted")
        return {key: copy(getattr(self, key)) for key in keys}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; a seed that was given here stays, with a warning if the saved one differs."""
        if len(state["weights"]) != len(self.ladder):
            raise ValueError(
                f"the state is of a ladder of {len(state['weights'])} temperatures, this one has {len(self.ladder)}: "
                f"give the ladder it was saved with"
            )
        saved = state.get("seed", 0)  # 0.1.0 wrote none and had 0 unless another was given
        if self.seed_given and saved != self.seed:
            warnings.warn(
                f"the state was saved with seed {saved}, and {self.seed}, which was given here, stays: from here on "
                f"the proposals are not those of the run that was saved. To continue that run leave the seed out",
                stacklevel=users_line(),
            )
        for key, value in {**state, "seed": self.seed if self.seed_given else saved}.items():
            setattr(self, key, list(value) if isinstance(value, list) else value)
        self._set()
