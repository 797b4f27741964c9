"""sample: chains of a model's weights whose law is the Bayes posterior."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._lines import users_line
from .._random.seeds import fresh_seed, refuse_ranks
from .._training.threads import few_threads
from ..constraints import Constraint
from ..ensemble import Loss
from ..errors import CheckpointError
from .adjusted import Adjusted
from .chains import make_chains, set_states
from .checks import check_loss, check_model
from .inputs import Inputs, moved, rows
from .kernels import HMC, Cyclical, Kernel, kernel_named
from .posterior import Posterior
from .prior import make_prior
from .request import Init, Request
from .spaces import land_, make_spaces
from .store import Folder, Store
from .target import Target
from .unadjusted import Unadjusted

CHECKPOINTS = 20  # of a run, and one a minute
EXAMPLES_TRIED = 8


def sample(
    model: nn.Module,
    loss: Loss,
    data: tuple[Inputs, Tensor],
    *,
    num_data: float | None = None,
    chains: int = 4,
    prior: Any = 1.0,
    steps: int,
    kernel: str | Kernel = "baoab",
    lr: float | None = None,
    burn_in: int | None = None,
    thin: int | None = None,
    batch_size: int | None = None,
    init: Init = "prior",
    seed: int | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    constraints: Mapping[Any, Constraint] | None = None,
) -> Posterior:
    r"""Draw weights from the posterior ∝ exp(−num_data · NLL(w)) · prior(w), NLL the mean negative log-likelihood.

        >>> posterior = sample(model, nn.CrossEntropyLoss(), (x, y), steps=5000, kernel="hmc")
        >>> print(posterior)                                  # ESS, R̂ and a verdict
        >>> posterior.predict(x_test, probabilities="softmax").probabilities

    The chains run as one program (an :class:`holonom.Ensemble`), one after another where torch cannot map the model.
    Internally L = NLL − log prior/num_data is sampled at the temperature 1/num_data, so that ``lr`` is
    :class:`holonom.Langevin`'s for a mean loss. ``model`` itself is not changed.

    Args:
        model: its parameters with ``requires_grad`` are sampled; the others, and buffers, are constants.
        loss: ``loss(output, target)``, the mean negative log-likelihood of a batch: cross-entropy, or a squared error
            divided by twice the variance of the observations.
        data: inputs and targets, (examples, …) each. Several inputs are a tuple, ``((x1, x2), y)``, given to the model
            as ``model(x1, x2)``, or a dict of keyword inputs, ``({"x": x, "mask": mask}, y)``.
        num_data: how many examples the likelihood has; None for as many as ``data`` has.
        chains: independent chains, R.
        prior: the standard deviation of independent normals around 0; a dict from selectors, as
            :func:`holonom.partition` takes them, to std or (mean, std); or a differentiable function from the sampled
            parameters by name to the log density. Where such a density ends only a Metropolis test sees: the other
            kernels raise when a draw lies outside.
        steps: transitions of every chain, the burn-in included.
        kernel: "baoab", "sgld", "adl" or "cyclical"; "hmc" or "mala", which have no bias and need full batches; or one
            of them with settings, :class:`HMC(leapfrogs=32) <holonom.sampling.HMC>`.
        lr: the time step. None chooses it during the burn-in: with a Metropolis test by its acceptance, else
            1/√λ (1/(2λ) for "sgld" and "cyclical") where λ is the largest curvature of L that was met, less if the
            noise of minibatches would raise the temperature by more than 5 %. It does not look at constraints, and
            says so.
        burn_in: transitions to forget; None for half of them (for "cyclical", the first cycle).
        thin: keep one in this many; None for at most 1000 draws of a chain, and one gibibyte in memory.
        batch_size: examples of a gradient, drawn anew at every step; None for all of them. The noise of minibatches
            heats kernels without a Metropolis test: it is measured, and warned about where it matters.
        init: "prior" draws every chain's start from the prior; "model" starts all of them at the model's weights; or a
            list of R state dicts.
        seed: of everything that is random; None draws one from torch's generator. The result tells it.
        out: a folder for draws and checkpoints. The same call with the same folder continues a run that was
            interrupted, bit for bit; one with other settings is refused.
        progress: show a bar, if tqdm is installed and the terminal has room for one.
        constraints: selectors → :mod:`holonom.constraints` spaces. The prior is then a density with respect to the
            surface measure; spaces with slack variables sample the lifted law, flat on their sphere and not in the
            weights.
    """
    request = Request(
        model, loss, data, steps, num_data, chains, prior, kernel, lr, burn_in, thin, batch_size, init, seed, out,
        progress, constraints,
    )  # fmt: skip
    return run(request)


def run(request: Request) -> Posterior:
    """Carry out a request."""
    kernel = kernel_named(request.kernel)
    request.check()
    model, loss, steps, burn_in = request.model, request.loss, request.steps, request.forgotten
    check_model(model)
    folder = None if request.out is None else Folder(Path(request.out))
    seed = _seed(request, folder)
    spaces = make_spaces(request.constraints, model)
    prior = make_prior(request.prior, model)
    device = next(model.parameters()).device
    x, y = moved(request.data[0], device), request.data[1].to(device)
    check_loss(model, loss, x, y, request.num_data)
    few = rows(x, slice(EXAMPLES_TRIED)), y[:EXAMPLES_TRIED]
    members = make_chains(model, request.chains, seed, loss, *few)
    set_states(members, request.starts(prior, members))
    land_(spaces, members)
    prior.check(members, "at its start")
    target = Target(members, loss, (x, y), request.examples, prior, request.batch_size)
    mover: Adjusted | Unadjusted = (
        Adjusted(kernel, target, spaces, request.lr, burn_in)
        if isinstance(kernel, HMC)
        else Unadjusted(kernel, target, spaces, request.lr, steps, burn_in)
    )
    thin = request.thinning(members)
    kept = [step for step in range(burn_in + thin, steps + 1, thin) if mover.keeps(step)]
    if not kept:
        raise ValueError(f"no draw would be kept: {steps} steps, {burn_in} of them burn-in, one in {thin} kept")
    settings = request.settings(members, spaces, prior, seed, len(kept))

    names = members.parameters if request.keep_weights else {}
    store = Store({n: (p.shape[1:], p.dtype) for n, p in names.items()}, len(kept), request.chains)
    start, seconds = 0, 0.0
    if folder is not None:
        folder.reserve(settings)
        if (state := folder.checkpoint(device)) is not None:
            start, seconds = int(state["step"]), float(state["seconds"])
            set_states(members, [{n: p[i] for n, p in state["parameters"].items()} for i in range(request.chains)])
            mover.load_state_dict(state["kernel"])
            expected = state["potential"]
    store.open(None if folder is None else folder.path, "r+" if start else "w+")
    number = {step: i for i, step in enumerate(kept)}
    since = time.perf_counter() - seconds

    def save(step: int) -> None:
        mover.check()
        if folder is not None:
            store.flush()
            own = {name: p.detach() for name, p in members.parameters.items()}
            results = {
                "lr": mover.lr,
                "acceptance": mover.acceptance,
                "heating": mover.heating,
                "mapped": members.mapped,
            }
            progress = {"step": step, "draws": sum(s <= step for s in kept), "seconds": time.perf_counter() - since}
            potential = target.potential(mover.losses)
            folder.save(
                {"parameters": own, "potential": potential, "kernel": mover.state_dict(), **progress, **results}
            )

    mover.begin(start)
    mover.check()
    if start and not torch.allclose(target.potential(mover.losses), expected, rtol=1e-3, atol=1e-6):
        raise CheckpointError(
            f"{request.out} holds a run whose loss or prior had other values at the same weights: call with the same "
            f"functions to continue it, or give another out"
        )
    saved = time.perf_counter()
    with few_threads(members.parameters.values()), _bar(request.progress, start, steps) as bar:
        for step in range(start, steps):
            mover.step(step)
            if (i := number.get(step + 1)) is not None:
                prior.check(members, f"after {step + 1} steps")
                store.put(i, members.parameters, mover.losses)
            if step == burn_in and (text := mover.too_hot()) is not None:
                warnings.warn(text, stacklevel=users_line())
            due = (step + 1) % max(1, steps // CHECKPOINTS) == 0 or time.perf_counter() - saved > 60
            if due or step + 1 == steps:
                save(step + 1)
                saved = time.perf_counter()
            if bar is not None:
                bar.update()
    posterior = Posterior(
        store.draws, store.losses, mover.lr, mover.acceptance, mover.heating, time.perf_counter() - since, seed,
        settings, copy.deepcopy(model), members.mapped,
    )  # fmt: skip
    if not isinstance(kernel, Cyclical) and (text := posterior.shortcoming()):
        warnings.warn(text, stacklevel=users_line())
    return posterior


def load(out: str | Path, model: nn.Module) -> Posterior:
    """The draws of a run in the folder ``out``, finished or not, without continuing it."""
    folder = Folder(Path(out))
    settings, state = folder.settings(), folder.checkpoint()
    if settings is None or state is None:
        raise FileNotFoundError(f"{out} holds no run that sample(..., out=...) has saved yet")
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if {name: [list(p.shape), str(p.dtype)] for name, p in own.items()} != settings["model"]:
        raise ValueError(f"{out} is of another model, whose parameters are {settings['model']}")
    names = own if settings["weights"] else {}
    store = Store({n: (p.shape, p.dtype) for n, p in names.items()}, int(settings["draws"]), int(settings["chains"]))
    store.open(folder.path, "c")
    filled = int(state["draws"])
    return Posterior(
        {name: x[:, :filled] for name, x in store.draws.items()}, store.losses[:, :filled], state["lr"],
        state["acceptance"], state["heating"], state["seconds"], settings["seed"], settings, copy.deepcopy(model),
        state["mapped"],
    )  # fmt: skip


def _seed(request: Request, folder: Folder | None) -> int:
    """The one that was given, that of the run to be continued, or a fresh one from torch's CPU generator."""
    if request.seed is not None:
        return request.seed
    found = folder.settings() if folder else None
    if found:
        return int(found["seed"])
    refuse_ranks("sample()")
    return fresh_seed()


def _bar(progress: bool, start: int, steps: int) -> Any:
    if not progress:
        return nullcontext()
    try:
        from tqdm import tqdm
    except ImportError:
        return nullcontext()
    return tqdm(total=steps, initial=start, disable=None)
