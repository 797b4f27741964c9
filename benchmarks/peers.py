"""Other libraries as contenders, each through its public interface, and one published formula."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from types import ModuleType

import torch
from torch import Tensor

from .ours import bare_linear, through_parametrization
from .tensors import Problem, orthogonality_error, sphere_error
from .timing import Contender, MissingPeer, Runnable

PEERS = ("geoopt", "geotorch", "posteriors", "pogo-torch")


def versions() -> dict[str, str]:
    """What is installed of the libraries that are compared with."""
    return {name: _version(name) for name in PEERS}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _require(name: str) -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        raise MissingPeer(name) from None


# ── geoopt ───────────────────────────────────────────────────────────────────────────────────────


def geoopt_sphere(problem: Problem, exact: bool, lr: float = 1e-3) -> Contender:
    """Unit rows. SphereExact moves along geodesics, Sphere renormalises."""
    kind = "SphereExact" if exact else "Sphere"

    def build() -> Runnable:
        geoopt = _require("geoopt")
        manifold = getattr(geoopt, kind)()
        params = [geoopt.ManifoldParameter(w.clone(), manifold=manifold) for w in problem.start]
        optimizer = geoopt.optim.RiemannianSGD(params, lr=lr, momentum=0.9)
        return Runnable(optimizer.step, problem.loader(params), lambda: sphere_error(params, [], 1.0))

    return Contender(f"geoopt RiemannianSGD, {kind}", "peer", build)


def geoopt_stiefel(problem: Problem, canonical: bool, lr: float, batched: bool = False) -> Contender:
    """Orthonormal columns; ``batched`` hands all matrices over as one tensor, which geoopt's kernels like."""
    kind = "canonical" if canonical else "euclidean"

    def build() -> Runnable:
        geoopt = _require("geoopt")
        manifold = geoopt.Stiefel(canonical=canonical)
        tall = Problem([_tall(w) for w in problem.start], gradients=0)
        tall.gradients = [[_tall(g) for g in gradients] for gradients in problem.gradients]
        tall = tall.stacked() if batched else tall
        params = [geoopt.ManifoldParameter(w.clone(), manifold=manifold) for w in tall.start]
        optimizer = geoopt.optim.RiemannianSGD(params, lr=lr, momentum=0.9)
        return Runnable(optimizer.step, tall.loader(params), lambda: _error(params, batched))

    suffix = ", one batched tensor" if batched else ""
    return Contender(f"geoopt RiemannianSGD, Stiefel {kind}{suffix}", "peer", build)


def _tall(weight: Tensor) -> Tensor:
    matrix = weight.flatten(1)
    return matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT.contiguous()


# ── geotorch ─────────────────────────────────────────────────────────────────────────────────────


def geotorch_orthogonal(problem: Problem, lr: float) -> Contender:
    def build() -> Runnable:
        geotorch = _require("geotorch")
        modules = [bare_linear(w) for w in problem.start]
        for module in modules:
            geotorch.orthogonal(module, "weight")
        return through_parametrization(problem, modules, lr)

    return Contender("geotorch.orthogonal + SGD", "peer", build)


# ── posteriors ───────────────────────────────────────────────────────────────────────────────────


def linear_loss(params: Iterable[Tensor], slopes: Iterable[Tensor]) -> Tensor:
    """A loss whose gradient is given and costs one pass, so that the step is what is compared."""
    return torch.stack([torch.dot(p.flatten(), g.flatten()) for p, g in zip(params, slopes)]).sum()


def with_linear_loss(problem: Problem, params: list[torch.nn.Parameter], step: Callable[[], object]) -> Runnable:
    """An optimizer's step together with the gradient of the linear loss."""
    slopes: list[Tensor] = []

    def load(i: int) -> None:
        slopes[:] = problem.gradient(i)

    def both() -> None:
        for p in params:
            p.grad = None
        linear_loss(params, slopes).backward()
        step()

    return Runnable(both, load)


def posteriors_sampler(problem: Problem, kind: str, lr: float, temperature: float) -> Contender:
    """``sgld`` or ``baoa``; its update evaluates the gradient itself, through functional autograd."""

    def build() -> Runnable:
        module = getattr(_require("posteriors.sgmcmc"), kind)

        def log_posterior(params: dict[str, Tensor], batch: list[Tensor]) -> tuple[Tensor, Tensor]:
            return -linear_loss(params.values(), batch), torch.zeros(())

        transform = module.build(log_posterior, lr, temperature=temperature)
        state = [transform.init({str(i): w.clone() for i, w in enumerate(problem.start)})]
        slopes: list[Tensor] = []

        def load(i: int) -> None:
            slopes[:] = problem.gradient(i)

        def step() -> None:
            state[0], _ = transform.update(state[0], slopes, inplace=True)

        return Runnable(step, load)

    return Contender(f"posteriors {kind}", "peer", build)


# ── retraction-free ──────────────────────────────────────────────────────────────────────────────


def pogo(problem: Problem, lr: float, batched: bool = False) -> Contender:
    """POGO with a momentum base: a tangent step and one Newton–Schulz step, without a retraction."""

    def build() -> Runnable:
        module, base = _require("pogo"), _require("pogo.base")
        shown = problem.stacked() if batched else problem
        params = shown.parameters()
        reshape = {} if batched else {"flatten_fn": lambda x: x.flatten(1).unsqueeze(0)}
        optimizer = module.POGO(params, base.SGD(momentum=0.9), lr, **reshape)
        return Runnable(optimizer.step, shown.loader(params), lambda: _error(params, batched))

    return Contender(f"POGO, momentum 0.9{', one batched tensor' if batched else ''}", "peer", build)


def landing(problem: Problem, lr: float) -> Contender:
    r"""The landing field (Ablin & Peyré 2022), written here from its formula for square X, without momentum.

    X ← X − η (skew(G Xᵀ) X + λ (X Xᵀ − I) X) with λ = 1: it lands on the constraint in the long run only.
    """

    def build() -> Runnable:
        stack = problem.stacked()
        x = stack.start[0].clone()
        identity = torch.eye(x.shape[-1], device=x.device)
        current = [stack.gradient(0)[0]]

        def load(i: int) -> None:
            current[0] = stack.gradient(i)[0]

        @torch.no_grad()
        def step() -> None:
            gx = torch.matmul(current[0], x.mT)
            field = (gx - gx.mT) / 2 + torch.matmul(x, x.mT) - identity
            x.sub_(torch.matmul(field, x), alpha=lr)

        return Runnable(step, load, lambda: _error([x], True))

    return Contender("landing field, own code, no momentum, one batched tensor", "peer", build)


def _error(weights: Sequence[Tensor], batched: bool) -> float:
    return orthogonality_error([m for w in weights for m in (w.unbind(0) if batched else [w])])
