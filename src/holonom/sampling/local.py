"""Local sampling: the posterior near given weights, and the learning coefficient there."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from .._lines import users_line
from ..ensemble import Loss
from .checks import check_model
from .inputs import Inputs, call, checked, count, moved, split
from .kernels import Kernel
from .posterior import Posterior
from .request import Request
from .sample import run

State = Mapping[str, Tensor]

_OPTIONS = {field.name for field in fields(Request)} - {"model", "loss", "data", "num_data", "prior", "init"}


@dataclass(frozen=True)
class LearningCoefficient:
    """λ̂ = nβ (E[L(w)] − L(w*)), the mean over chains.

    Attributes:
        value: λ̂; d/2 in a regular model of d parameters, less where the loss is degenerate, as n → ∞.
        error: its standard error, from the spread between chains; NaN for one chain.
        per_chain: (R,) estimates.
        loss: L(w*), of all data.
        posterior: the run, with ``losses`` (chains, draws) and no weights.
    """

    value: float
    error: float
    per_chain: Tensor
    loss: float
    posterior: Posterior

    def __str__(self) -> str:
        return f"learning coefficient {self.value:.4g} ± {self.error:.2g} ({len(self.per_chain)} chains)"


def local(
    model: nn.Module,
    loss: Loss,
    data: tuple[Inputs, Tensor],
    *,
    restoring: float,
    steps: int,
    at: State | None = None,
    beta: float | None = None,
    num_data: float | None = None,
    kernel: str | Kernel = "baoab",
    **options: Any,
) -> Posterior:
    """Draw weights near w* from the density ∝ exp(−nβ L(w) − ½ γ ‖w − w*‖²), L the mean loss of n examples.

    It is :func:`holonom.sampling.sample` with nβ examples and a prior N(w*, 1/γ) around the given weights, where all
    chains start; ``lr`` and the kernels mean what they mean there.

    Args:
        restoring: γ, the strength of the pull towards w*.
        steps, kernel: as for :func:`holonom.sampling.sample`.
        at: w*, a state dict; None for the model's present weights.
        beta: β, the inverse temperature; None for 1/log n.
        num_data: n; None for as many examples as ``data`` has.
        options: chains, lr, burn_in, thin, batch_size, seed, out, progress, as for :func:`holonom.sampling.sample`.
    """
    request = _request(model, loss, data, restoring, at, beta, num_data, steps=steps, kernel=kernel, **options)
    return run(request)


def learning_coefficient(
    model: nn.Module,
    loss: Loss,
    data: tuple[Inputs, Tensor],
    *,
    restoring: float,
    steps: int,
    at: State | None = None,
    beta: float | None = None,
    num_data: float | None = None,
    kernel: str | Kernel = "baoab",
    **options: Any,
) -> LearningCoefficient:
    """The local learning coefficient at w*, λ̂ = nβ (E[L(w)] − L(w*)) under the law of :func:`local`.

    The mean is over all steps after the burn-in. It depends on n, β and ``restoring``: a strong pull keeps the chains
    from where the loss is flat, a weak one lets them leave the basin. With minibatches E[L] is the mean of their
    losses, and their noise heats (see :func:`holonom.sampling.sample`). Arguments are those of :func:`local`.
    """
    options = {"thin": 1, **options, "keep_weights": False}
    request = _request(model, loss, data, restoring, at, beta, num_data, steps=steps, kernel=kernel, **options)
    posterior = run(request)
    start = _mean_loss(request.model, loss, request.data, request.batch_size)
    per_chain = (posterior.losses.mean(1) - start) * request.examples
    error = float(per_chain.std() / math.sqrt(len(per_chain))) if len(per_chain) > 1 else math.nan
    value = float(per_chain.mean())
    if value < -2 * (0.0 if math.isnan(error) else error):
        warnings.warn(
            f"the learning coefficient is {value:.3g}, below 0: the chains found lower losses than that of the weights "
            f"they are pulled to ({start:.4g}), which are no minimum. Train them further, or raise restoring",
            stacklevel=users_line(),
        )
    return LearningCoefficient(value, error, per_chain, start, posterior)


def _request(
    model: nn.Module,
    loss: Loss,
    data: tuple[Inputs, Tensor],
    restoring: float,
    at: State | None,
    beta: float | None,
    num_data: float | None,
    **options: Any,
) -> Request:
    if wrong := sorted(set(options) - _OPTIONS):
        known = ", ".join(sorted(_OPTIONS - {"steps", "kernel", "keep_weights"}))
        hint = "it follows from at and restoring" if wrong[0] in ("prior", "init") else f"there are {known}"
        raise TypeError(f"unknown option {wrong[0]!r} of local sampling: {hint}")
    for name, value in (("restoring", restoring), ("beta", beta)):
        if isinstance(value, (bool, str)) or not (hasattr(value, "__float__") or (value is None and name == "beta")):
            raise TypeError(f"{name} must be a number, got {value!r}")
    if not (restoring > 0 and math.isfinite(restoring)):
        raise ValueError(f"restoring (γ) must be positive and finite, got {restoring}: without it the law is not local")
    n = float(count(checked(data)[0]) if num_data is None else num_data)
    if beta is None and n <= 1:
        raise ValueError(f"beta=None is 1/log n, which needs more than one example; n is {n:g}")
    beta = 1 / math.log(n) if beta is None else beta
    if not (beta > 0 and math.isfinite(beta)):
        raise ValueError(f"beta (β) must be positive and finite, got {beta}")
    check_model(model)
    own = {name: p.detach() for name, p in model.named_parameters()}
    if at is not None:
        if wrong := [name for name, p in model.named_parameters() if p.requires_grad and name not in at]:
            raise ValueError(f"at has no {wrong[0]!r}; give the state dict of the weights to sample around")
        own |= {name: at[name].detach().to(p) for name, p in own.items() if name in at}
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in moved.named_parameters():
            p.copy_(own[name])
    prior = {name: (p.clone(), restoring**-0.5) for name, p in own.items()}
    return Request(moved, loss, data, num_data=n * beta, prior=prior, init="model", **options)


@torch.no_grad()
def _mean_loss(model: nn.Module, loss: Loss, data: tuple[Inputs, Tensor], batch_size: int | None) -> float:
    device = next(model.parameters()).device
    total, seen = 0.0, 0
    for x, y in zip(split(data[0], batch_size), torch.split(data[1], batch_size or len(data[1])), strict=True):
        total += float(loss(call(model, moved(x, device)), y.to(device))) * len(y)
        seen += len(y)
    return total / seen
