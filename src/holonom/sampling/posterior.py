"""Posterior: the draws of a run, what they predict, and whether the chains have mixed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from .._numbers import as_whole
from ..recorder import Recorder, Verdict
from .inputs import Inputs, call, moved, split

_COMPONENTS = 32  # of a parameter that the summary looks at
LEAST_ACCEPTANCE, LARGEST_RHAT = 0.1, 1.1  # of a run that is not warned about
_PROBABILITIES = {"softmax": lambda x: torch.softmax(x, -1), "sigmoid": torch.sigmoid}


@dataclass(frozen=True)
class Prediction:
    """The mean and the variance of the model's outputs over the posterior, and class probabilities.

    ``variance`` is what is not known about the function; a new observation has the likelihood's own in addition.
    ``probabilities`` are softmax or sigmoid of the outputs, averaged over draws; None if they were not asked for.
    """

    mean: Tensor
    variance: Tensor
    probabilities: Tensor | None = None


@dataclass(frozen=True)
class Posterior:
    """What :func:`holonom.sampling.sample` returns.

    Attributes:
        draws: parameter name → CPU tensor (chains, draws, *shape); mapped from disk if the run has a folder.
        losses: (chains, draws) mean negative log-likelihoods: of all data, or of one minibatch each.
        lr: the time step of the draws, chosen or given.
        acceptance: mean acceptance probability after the burn-in; None for kernels without a Metropolis test.
        heating: by which share minibatch noise raised the temperature, estimated; 0 with full batches.
        seconds: how long the run took, interruptions not counted.
        seed: reproduces the run.
        settings: everything that decides the draws.
    """

    draws: dict[str, Tensor]
    losses: Tensor
    lr: float
    acceptance: float | None
    heating: float
    seconds: float
    seed: int
    settings: dict[str, Any]
    model: nn.Module
    mapped: bool = True

    @property
    def chains(self) -> int:
        """How many chains there are."""
        return self.losses.shape[0]

    def __len__(self) -> int:
        """Draws of one chain."""
        return self.losses.shape[1]

    # ── predictions ──────────────────────────────────────────────────────────────────────────────

    def state(self, chain: int, draw: int) -> dict[str, Tensor]:
        """One draw, as ``model.load_state_dict(state, strict=False)`` takes it."""
        return {name: x[chain, draw].clone() for name, x in self.draws.items()}

    @torch.no_grad()
    def predict(
        self, x: Inputs, *, probabilities: str | None = None, batch_size: int | None = None, every: int = 1
    ) -> Prediction:
        """Mean and variance of the outputs at ``x`` over all draws of all chains.

        Args:
            x: inputs, (examples, …); a tuple or a dict of several, as in ``data``.
            probabilities: "softmax" (over the last dimension) or "sigmoid", if the outputs are logits.
            batch_size: examples at once; None for all.
            every: use one draw in this many.
        """
        if probabilities is not None and probabilities not in _PROBABILITIES:
            raise ValueError(f"probabilities must be 'softmax', 'sigmoid' or None, got {probabilities!r}")
        if batch_size is not None and (as_whole(batch_size) is None or batch_size < 1):
            raise ValueError(f"batch_size must be a whole number of at least 1, or None, got {batch_size!r}")
        parts = [self._predict(part, probabilities, every) for part in split(x, batch_size)]
        mean, variance = (torch.cat([part[i] for part in parts]) for i in (0, 1))
        return Prediction(mean, variance, torch.cat([part[2] for part in parts]) if probabilities else None)

    def _predict(self, x: Inputs, probabilities: str | None, every: int) -> tuple[Tensor, Tensor, Tensor]:
        count, mean, second, chance = 0, torch.zeros(()), torch.zeros(()), torch.zeros(())
        for outputs in self._outputs(x, every):  # in double precision, by Welford's updates for batches
            outputs = outputs.double()
            number, own = len(outputs), outputs.mean(0)
            delta = own - mean
            second = second + (outputs - own).square().sum(0) + delta.square() * (count * number / (count + number))
            mean = mean + delta * (number / (count + number))
            count += number
            if probabilities:
                chance = chance + _PROBABILITIES[probabilities](outputs).sum(0)
        dtype = outputs.dtype if next(self.model.parameters()).dtype == torch.float64 else torch.float32
        return mean.to(dtype), (second / max(1, count - 1)).to(dtype), (chance / count).to(dtype)

    @torch.no_grad()
    def outputs(self, x: Inputs, every: int = 1) -> Tensor:
        """The outputs of every draw, (chains, draws, examples, …), on the CPU."""
        return torch.stack([found.cpu() for found in self._outputs(x, every)], 1)

    def _outputs(self, x: Inputs, every: int) -> Iterator[Tensor]:
        """(chains, examples, …), draw after draw."""
        if not len(self):
            raise ValueError("no draw was kept: raise steps, or lower burn_in or thin")
        if as_whole(every) is None or every < 1:
            raise ValueError(f"every must be a whole number of at least 1, got {every!r}")
        own = dict(self.model.named_parameters())
        x = moved(x, next(iter(own.values())).device)
        for draw in range(0, len(self), every):
            states = {name: found[:, draw].to(own[name]) for name, found in self.draws.items()}
            if self.mapped:
                yield vmap(lambda state: call(self.model, x, state))(states)
            else:
                each = [{name: s[i] for name, s in states.items()} for i in range(self.chains)]
                yield torch.stack([call(self.model, x, state) for state in each])

    # ── have the chains mixed? ───────────────────────────────────────────────────────────────────

    def rhat(self) -> dict[str, Tensor]:
        """The rank-normalised split R̂ of every number, by parameter name; near 1 if the chains agree."""
        return {name: _by_component("rhat", x) for name, x in self.draws.items()}

    def ess(self) -> dict[str, Tensor]:
        """The effective sample size of every number, over all chains."""
        return {name: _by_component("ess", x) for name, x in self.draws.items()}

    def shortcoming(self) -> str | None:
        """What makes the draws useless, as far as acceptance and losses tell; None if nothing does."""
        if self.acceptance is not None and self.acceptance < LEAST_ACCEPTANCE:
            return (
                f"only {100 * self.acceptance:.1f} % of the proposals were accepted, so that the chains hardly moved: "
                f"give a smaller lr, or leave lr=None and give a longer burn_in"
            )
        rhat = _split_rhat(self.losses)
        if rhat > LARGEST_RHAT:
            return (
                f"the chains have not mixed: R̂ of their losses is {rhat:.2f}, and should be near 1. Run longer (steps, "
                f"of which burn_in are forgotten); inputs that are standardised mix faster. print(posterior) says more"
            )
        return None

    def recorder(self, x: Inputs | None = None) -> Recorder:
        """The losses and some numbers of every parameter, or the outputs at ``x``, as a :class:`holonom.Recorder`."""
        rows = {"loss": self.losses}
        if x is None:
            rows |= {name: _some(draws) for name, draws in self.draws.items()}
        else:
            rows |= {"output": self.outputs(x).flatten(2)}
        recorder = Recorder(chains=self.chains)
        for i in range(len(self)):
            recorder(**{name: (row[:, i] if self.chains > 1 else row[0, i]) for name, row in rows.items()})
        return recorder

    def verdict(self, x: Inputs | None = None, rhat: float = 1.01, ess: float = 400) -> Verdict:
        """Whether the chains have mixed: in the weights, or with ``x`` in the outputs at ``x``.

        Units of a network may be swapped, and what is not identified need not mix: judge a network by its outputs.
        """
        return self.recorder(x).verdict(rhat, ess)

    def summary(self) -> str:
        """A row for every parameter (its worst-mixing component) and a verdict."""
        lines = [repr(self)]
        try:
            recorder = self.recorder()
            rows = recorder.diagnose()
            verdict = str(recorder.verdict())
        except (ImportError, ValueError) as error:
            return "\n".join([*lines, str(error)])
        lines.append(f"{'':<24} {'shape':>12} {'mean':>10} {'std':>10} {'ESS':>7} {'R̂':>7}")
        for row in rows:
            shape = "×".join(map(str, self.draws[row.name].shape[2:])) if row.name in self.draws else ""
            ess = "–" if math.isnan(row.ess) else f"{row.ess:.0f}"
            lines.append(f"{row.name:<24} {shape:>12} {row.mean:>10.4g} {row.std:>10.3g} {ess:>7} {row.rhat:>7.3f}")
        return "\n".join([*lines, verdict])

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        numbers = [f"lr {self.lr:.3g}", f"seed {self.seed}", f"{self.seconds:.1f} s"]
        if self.acceptance is not None:
            numbers.insert(1, f"acceptance {self.acceptance:.2f}")
        if self.heating:
            numbers.insert(1, f"minibatches heat by {100 * self.heating:.1f} %")
        return f"{self.chains} chains × {len(self)} draws of {self.settings['kernel']}: {', '.join(numbers)}"

    def to_arviz(self) -> Any:
        """The draws for ArviZ: a DataTree, or InferenceData of releases before 1.0."""
        groups = {
            "posterior": {name: x.numpy() for name, x in self.draws.items()},
            "sample_stats": {"loss": self.losses.numpy()},
        }
        try:
            from arviz_base import from_dict
        except ImportError:
            try:
                from arviz import from_dict
            except ImportError:
                raise ImportError("to_arviz() needs arviz-base: pip install 'holonom[arviz]'") from None
            return from_dict(**groups)
        return from_dict(groups)


def _split_rhat(x: Tensor) -> float:
    """R̂ of (chains, draws) with every chain cut in two; NaN for fewer than eight draws."""
    half = x.shape[1] // 2
    if half < 4:
        return math.nan
    parts = torch.cat([x[:, :half], x[:, -half:]])
    within = parts.var(1).mean()
    return float((1 - 1 / half + parts.mean(1).var() / within).sqrt())


def _some(draws: Tensor) -> Tensor:
    """At most 32 numbers of a parameter, evenly spread."""
    flat = draws.flatten(2)
    count = flat.shape[2]
    if count <= _COMPONENTS:
        return flat
    return flat[:, :, torch.linspace(0, count - 1, _COMPONENTS).round().long()]


def _by_component(statistic: str, draws: Tensor) -> Tensor:
    try:
        from arviz_stats.base.array import array_stats
    except ImportError:
        raise ImportError("judging mixing needs arviz-stats: pip install 'holonom[diagnostics]'") from None
    function = getattr(array_stats, statistic)
    flat = draws.flatten(2).double().numpy()
    values = [float(function(flat[:, :, i], chain_axis=0, draw_axis=1)) for i in range(flat.shape[2])]
    return torch.from_numpy(np.array(values)).reshape(draws.shape[2:])
