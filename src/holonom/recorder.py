"""Recording a chain, and asking whether it has mixed (thesis 1.3.2.4)."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ._sharding.shards import is_sharded


@dataclass(frozen=True)
class Diagnosis:
    """The worst-mixing component of one recorded quantity.

    ``ess`` is the effective sample size, ``iat`` the integrated autocorrelation time (1.67) in
    recorded draws, ``rhat`` the rank-normalised split R̂; a single chain is compared with itself, first
    half against second.
    """

    name: str
    components: int
    mean: float
    std: float
    ess: float
    iat: float
    rhat: float


@dataclass(frozen=True)
class Verdict:
    """Whether the chain has mixed, as a truth value and as a sentence."""

    mixed: bool
    text: str

    def __bool__(self) -> bool:
        return self.mixed

    def __str__(self) -> str:
        return self.text


class Recorder:
    """Keeps every ``every``-th draw of named quantities after ``warmup`` calls; of a DTensor, the whole on every rank.

    >>> recorder = Recorder(every=10, warmup=1000)
    >>> for step in range(20_000):
    ...     ...
    ...     opt.step()
    ...     recorder(loss=loss, **dict(model.named_parameters()))
    >>> print(recorder.verdict())
    >>> samples = recorder.draws("loss")              # (chains, draws, *shape)

    Args:
        every: keep one call in this many.
        warmup: calls to forget at the start.
        chains: with more than one, the first dimension of every quantity runs over chains.
    """

    def __init__(self, every: int = 1, warmup: int = 0, chains: int = 1) -> None:
        if every < 1 or warmup < 0 or chains < 1:
            raise ValueError(f"every and chains must be at least 1, warmup at least 0; got {every}, {chains}, {warmup}")
        self.every = every
        self.warmup = warmup
        self.chains = chains
        self.calls = 0
        self._kept: dict[str, list[np.ndarray[Any, Any]]] = {}

    def __call__(self, **quantities: Tensor | float) -> None:
        self.calls += 1
        if self.calls <= self.warmup or (self.calls - self.warmup - 1) % self.every:
            return
        if self._kept and quantities.keys() != self._kept.keys():
            raise ValueError(f"record the same quantities every time: {sorted(self._kept)}, not {sorted(quantities)}")
        for name, value in quantities.items():
            if isinstance(value, Tensor):
                value = value.detach().full_tensor() if is_sharded(value) else value.detach()  # type: ignore[attr-defined]
                array = value.double().cpu().numpy().copy()
            else:
                array = np.asarray(float(value))
            if self.chains > 1 and array.shape[:1] != (self.chains,):
                raise ValueError(
                    f"{name} has shape {array.shape}; its first dimension must run over {self.chains} chains"
                )
            self._kept.setdefault(name, []).append(array)

    def __len__(self) -> int:
        return len(next(iter(self._kept.values()), []))

    def draws(self, name: str) -> np.ndarray[Any, Any]:
        """The kept draws, (chains, draws, *shape)."""
        if name not in self._kept:
            raise KeyError(f"{name!r} was not recorded; there are {sorted(self._kept)}")
        stacked = np.stack(self._kept[name])
        return stacked.swapaxes(0, 1) if self.chains > 1 else stacked[None]

    def diagnose(self) -> list[Diagnosis]:
        """ESS, IAT and R̂ of every quantity, for its worst component. Chains that are copies are refused."""
        if len(self) < 8:
            raise ValueError(f"{len(self)} draws are too few to judge mixing; record at least 8")
        self._refuse_copies()
        return [self._diagnose(name) for name, kept in self._kept.items() if kept[0].size]

    def verdict(self, rhat: float = 1.01, ess: float = 400) -> Verdict:
        """Mixed if every component has R̂ below ``rhat`` and at least ``ess`` effective draws."""
        rows = self.diagnose()
        bad = [row for row in rows if not (row.rhat <= rhat and row.ess >= ess)]
        if not bad:
            least = min(rows, key=lambda row: row.ess)
            return Verdict(
                True, f"mixed: R̂ ≤ {rhat} and ESS ≥ {ess:g} everywhere (least: {least.ess:.0f}, {least.name})"
            )
        if lost := next((row for row in bad if math.isnan(row.ess)), None):
            what = "never moved" if math.isfinite(lost.mean) else "is not a number"
            return Verdict(False, f"not mixed: a component of {lost.name} {what}.")
        worst = max(bad, key=lambda row: (row.rhat if math.isfinite(row.rhat) else math.inf, -row.ess))
        advice = "run longer"
        if not worst.rhat <= rhat:
            advice = (
                "lengthen the warm-up and run longer; if chains stay in different modes, SimulatedTempering crosses "
                "between them and keeps the law of its lowest temperature"
            )
        return Verdict(
            False,
            f"not mixed: {len(bad)} of {len(rows)} quantities; worst {worst.name} with R̂ = {worst.rhat:.3f} and "
            f"ESS = {worst.ess:.0f} of {self.chains * len(self)} draws. {advice[0].upper()}{advice[1:]}.",
        )

    def _refuse_copies(self) -> None:
        """R̂ and ESS take chains for independent: one that is counted twice looks mixed."""
        digests = [hashlib.blake2b() for _ in range(self.chains)]
        moved = [False] * self.chains
        for name in self._kept:
            for chain, own in enumerate(self.draws(name)):
                digests[chain].update(own.tobytes())
                moved[chain] |= bool((own != own[:1]).any() and np.isfinite(own).all())
        seen: dict[bytes, int] = {}
        for chain, digest in enumerate(digests):
            other = seen.setdefault(digest.digest(), chain)
            if other != chain and moved[chain]:
                raise ValueError(
                    f"chains {other} and {chain} are copies: equal in every draw of {', '.join(sorted(self._kept))}. "
                    f"They count as one chain. Give every chain its own noise: no seed, or different ones "
                    f"(seed=ensemble.seeds for an Ensemble)"
                )

    def _diagnose(self, name: str) -> Diagnosis:
        try:
            from arviz_stats.base.array import array_stats
        except ImportError:
            raise ImportError("judging mixing needs arviz-stats: pip install 'holonom[diagnostics]'") from None
        draws = self.draws(name)
        flat = draws.reshape(*draws.shape[:2], -1)
        if self.chains == 1:
            half = flat.shape[1] // 2
            flat = np.concatenate([flat[:, :half], flat[:, half : 2 * half]])
        spread = flat.std(axis=(0, 1))
        if not (spread > 0).all():  # lost, or never moved: whatever the others do, not a chain that mixes
            still = int(np.argmax(~(spread > 0)))
            return Diagnosis(
                name, flat.shape[2], float(flat[:, :, still].mean()), float(spread[still]), math.nan, math.nan, math.nan
            )
        by_component = np.moveaxis(flat, 2, 0)
        ess = np.array([float(array_stats.ess(x, chain_axis=0, draw_axis=1)) for x in by_component])
        rhat = np.array([float(array_stats.rhat(x, chain_axis=0, draw_axis=1)) for x in by_component])
        worst = int(np.argmin(ess))
        total = flat.shape[0] * flat.shape[1]
        x = by_component[worst]
        return Diagnosis(
            name, draws[0, 0].size, float(x.mean()), float(x.std()), float(ess[worst]), total / float(ess[worst]),
            float(rhat.max()),
        )  # fmt: skip
