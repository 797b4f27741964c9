"""Priors: independent normals by name, or a log density of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from .._random import mix
from ..errors import PartitionError
from ..partitions import partition
from .chains import Chains, Named

LogDensity = Callable[[Named], Tensor]
_STREAM = 0x9E1  # keeps draws from the prior apart from other uses of a chain's seed


class GaussianPrior:
    """Every parameter N(mean, std²) by itself; ``table`` has a mean and a std for each name."""

    def __init__(self, table: dict[str, tuple[float | Tensor, float | Tensor]]) -> None:
        self.table = table

    @property
    def widest(self) -> float | None:
        """The largest standard deviation: parameters that the data say nothing about move this far."""
        return max(float(torch.as_tensor(std).max()) for _, std in self.table.values())

    def describe(self) -> dict[str, Any]:
        return {name: [_text(mean), _text(std)] for name, (mean, std) in self.table.items()}

    def draw(self, like: Mapping[str, Tensor], seed: int) -> Named:
        """One state, from the seed of a chain."""
        generator = torch.Generator().manual_seed(mix(seed, _STREAM) >> 1)
        state = {}
        for name, p in like.items():
            mean, std = (torch.as_tensor(x).detach().cpu().double() for x in self.table[name])
            state[name] = (mean + std * torch.randn(p.shape, generator=generator, dtype=torch.float64)).to(p)
        return state

    def add_gradient_(self, chains: Chains, gradients: Named, weight: float) -> None:
        """∇ of −weight · log density, added."""
        for name, p in chains.parameters.items():
            mean, std = (x.to(p) if isinstance(x, Tensor) else x for x in self.table[name])
            if isinstance(mean, Tensor) or isinstance(std, Tensor) or mean:
                gradients[name] = gradients[name] + (p.detach() - mean) * (weight / std**2)
            else:
                gradients[name] = gradients[name].add(p.detach(), alpha=weight / std**2)

    def log_density(self, chains: Chains) -> Tensor:
        """(R,), without the normalising constant."""
        total = torch.zeros(len(chains.seeds), dtype=torch.float64, device=chains.seeds.device)
        for name, p in chains.parameters.items():
            mean, std = (x.to(p) if isinstance(x, Tensor) else x for x in self.table[name])
            total -= ((p.detach() - mean) / std).reshape(len(p), -1).double().square().sum(1) / 2
        return total

    def check(self, chains: Chains, where: str) -> None:
        """Its density is positive everywhere."""


class FunctionPrior:
    """A differentiable log density of the sampled parameters by name, up to a constant."""

    widest: float | None = None

    def __init__(self, function: LogDensity, like: Named) -> None:
        self.own, self.mapped = function, True
        self._evaluate_one(like)  # what fails for one state says why
        try:
            vmap(self._evaluate_one)({name: p[None] for name, p in like.items()})
        except RuntimeError:
            self.mapped = False

    def function(self, state: Named) -> Tensor:
        device = next(iter(state.values())).device
        value = torch.as_tensor(self.own(state)).to(device)  # it may be a plain number
        if value.numel() != 1:
            raise ValueError(f"the prior must return one number, the log density, got shape {tuple(value.shape)}")
        return value.reshape(())

    def _evaluate_one(self, state: Named) -> tuple[Named, Tensor]:
        gradient, value = grad_and_value(self.function)(state)
        return gradient, value

    def describe(self) -> dict[str, Any]:
        return {"function": getattr(self.own, "__qualname__", repr(type(self.own)))}

    def draw(self, like: Mapping[str, Tensor], seed: int) -> Named:
        raise ValueError(
            "init='prior' draws from the prior, which a log density does not say how to do; pass init='model' or a "
            "list of state dicts, one for each chain"
        )

    def _evaluate(self, chains: Chains) -> tuple[Named, Tensor]:
        states = {name: p.detach() for name, p in chains.parameters.items()}
        if self.mapped:
            gradients, values = vmap(self._evaluate_one)(states)
            return gradients, values
        each = [self._evaluate_one({n: p[i] for n, p in states.items()}) for i in range(len(chains.seeds))]
        return {n: torch.stack([g[n] for g, _ in each]) for n in states}, torch.stack([value for _, value in each])

    def add_gradient_(self, chains: Chains, gradients: Named, weight: float) -> None:
        for name, g in self._evaluate(chains)[0].items():
            gradients[name] = gradients[name].add(g, alpha=-weight)

    def log_density(self, chains: Chains) -> Tensor:
        return self._evaluate(chains)[1].double()

    def check(self, chains: Chains, where: str) -> None:
        """Raise where the density is zero or not defined: a gradient alone does not show that."""
        values = self.log_density(chains).detach()
        if bool(values.isfinite().all()):
            return
        chain = int((~values.isfinite()).nonzero()[0])
        raise ValueError(
            f"the prior's log density is {float(values[chain])} in chain {chain} {where}. Start where it is finite "
            f"(init=…); kernels without a Metropolis test follow its gradient and leave its support unseen: use "
            f"kernel='hmc' or 'mala', or constraints, such as LevelSet with inequalities"
        )


Prior = GaussianPrior | FunctionPrior


def make_prior(prior: Any, model: nn.Module) -> Prior:
    """From a standard deviation, a dict selector → std or (mean, std), or a function state → log density."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if isinstance(prior, Mapping):
        rules = [(selector, {"prior": value}) for selector, value in prior.items()]
        try:
            groups = partition(model, rules, verbose=False)
        except PartitionError as error:
            raise PartitionError(f"prior: {str(error).replace('{}', '1.0')}") from None
        found = {name: group["prior"] for group in groups for name, _ in group["params"] if name in trained}
        return GaussianPrior({name: _mean_and_std(found[name], name, p) for name, p in trained.items()})
    if callable(prior) and not isinstance(prior, Tensor):
        return FunctionPrior(prior, {name: p.detach() for name, p in trained.items()})
    return GaussianPrior({name: _mean_and_std(prior, name, p) for name, p in trained.items()})


def _mean_and_std(value: Any, name: str, p: Tensor) -> tuple[float | Tensor, float | Tensor]:
    mean, std = value if isinstance(value, tuple) and len(value) == 2 else (0.0, value)
    for what, x in (("mean", mean), ("standard deviation", std)):
        if isinstance(x, bool) or not isinstance(x, (int, float, Tensor)):
            raise TypeError(f"the prior of {name!r} is a standard deviation or (mean, std), got {value!r}")
        if isinstance(x, Tensor) and x.ndim and x.shape != p.shape:
            raise ValueError(f"the {what} of the prior of {name!r} has shape {tuple(x.shape)}, not {tuple(p.shape)}")
    if not bool((torch.as_tensor(std) > 0).all()) or not bool(torch.as_tensor(std).isfinite().all()):
        raise ValueError(
            f"the standard deviation of the prior of {name!r} must be positive and finite, got {std}; a flat prior is "
            f"a function that returns 0"
        )
    if not bool(torch.as_tensor(mean).isfinite().all()):
        raise ValueError(f"the mean of the prior of {name!r} must be finite")
    return _plain(mean), _plain(std)


def _plain(x: float | Tensor) -> float | Tensor:
    return x.detach() if isinstance(x, Tensor) and x.ndim else float(x)


def _text(x: float | Tensor) -> Any:
    if not isinstance(x, Tensor):
        return x
    values = x.double()
    return f"tensor{tuple(x.shape)} {math.fsum(values.flatten().tolist()):.17g} {float(values.norm()):.17g}"
