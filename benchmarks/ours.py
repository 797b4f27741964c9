"""holonom and torch's own optimizers as contenders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from holonom import Langevin
from holonom._backends import inductor
from holonom.constraints import Circle, Constraint, Orthogonal, Sphere

from .tensors import Problem, circle_error, orthogonality_error, sphere_error
from .timing import Contender, MissingPeer, Runnable, UnsuitedPeer

Measure = Callable[[Sequence[Tensor]], float]


def sgd(problem: Problem) -> Contender:
    """What every ratio is relative to."""

    def build() -> Runnable:
        params = problem.parameters()
        optimizer = torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=True)
        return Runnable(optimizer.step, problem.loader(params))

    return Contender("torch SGD, momentum 0.9, foreach", "baseline", build)


def holonom(
    name: str,
    problem: Problem,
    lr: float,
    *,
    target: float | None = None,
    error_limit: float | None = None,
    guard: bool = True,
    **options: Any,
) -> Contender:
    """A Langevin optimizer; its error is read from weights and state, not from its own diagnostics."""

    def build() -> Runnable:
        params = problem.parameters()
        optimizer = Langevin(_groups(params, options.get("constraint")), lr, **{"seed": 0, **options})
        if not guard:
            optimizer.guard_gradients = False
        error = partial(_error, optimizer, params, options)
        return Runnable(optimizer.step, problem.loader(params), error, partial(compiler_note, options.get("fuse")))

    return Contender(name, "holonom", build, target, error_limit)


def compiler_note(fused: bool | None) -> str:
    """A step that could not be compiled runs uncompiled, and its row must not hide that."""
    failed = any(kernel is None for kernel in inductor._kernels.values())
    return "the compiler failed: ran uncompiled" if failed and fused else ""


def _groups(params: list[torch.nn.Parameter], constraint: Constraint | None) -> list[dict[str, Any]]:
    """A classifier's matrix stands beside the convolutions of a network, but is read as it is."""
    if isinstance(constraint, Orthogonal) and constraint.block_view == "conv":
        flat = [p for p in params if p.ndim == 2]
        groups: list[dict[str, Any]] = [{"params": [p for p in params if p.ndim > 2]}]
        return [*groups, {"params": flat, "constraint": Orthogonal()}] if flat else groups
    return [{"params": params}]


def _error(optimizer: Langevin, params: list[torch.nn.Parameter], options: dict[str, Any]) -> float | None:
    constraint = options.get("constraint")
    states = [optimizer.state[p] for p in params]
    if isinstance(constraint, Circle):
        return circle_error(params, [s["turns"] for s in states], float(constraint.radius))
    if isinstance(constraint, Sphere):
        return sphere_error(params, [s["slack"] for s in states if "slack" in s], float(constraint.radius))
    if isinstance(constraint, Orthogonal):
        return orthogonality_error(params)
    return None


def normals(problem: Problem) -> Contender:
    """What drawing one normal per weight costs by itself."""

    def build() -> Runnable:
        shapes = [w.shape for w in problem.start]
        return Runnable(lambda: [torch.randn(shape, device=problem.device) for shape in shapes])

    return Contender("torch.randn of the same shapes", "floor", build)


def product(size: int) -> Contender:
    """One matrix product, the unit of an orthogonal step's cost."""

    def build() -> Runnable:
        a, b = (torch.randn(size, size, device=Problem.device) for _ in range(2))
        out = torch.empty_like(a)
        return Runnable(lambda: torch.matmul(a, b, out=out))

    return Contender(f"one {size}×{size}×{size} product", "floor", build)


def renormalised_sgd(problem: Problem) -> Contender:
    """The usual way to hold rows at norm 1: step, then divide."""

    def build() -> Runnable:
        params = problem.parameters()
        optimizer = torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=True)

        @torch.no_grad()
        def step() -> None:
            optimizer.step()
            for p in params:
                p.div_(torch.linalg.vector_norm(p, dim=-1, keepdim=True))

        return Runnable(step, problem.loader(params), lambda: sphere_error(params, [], 1.0))

    return Contender("torch SGD + rows / norm", "peer", build)


def muon(problem: Problem, lr: float = 1e-3) -> Contender:
    """Orthogonalises updates, not weights: no constraint, but the same kind of products."""

    def build() -> Runnable:
        if not hasattr(torch.optim, "Muon"):
            raise MissingPeer("this torch has no Muon")
        large = max(w.numel() for w in problem.start) >= 1 << 18
        if large and Problem.device == "cpu":
            raise UnsuitedPeer("it multiplies in bfloat16, which few CPUs have instructions for")
        params = [torch.nn.Parameter(w.flatten(1).clone()) for w in problem.start]
        optimizer = torch.optim.Muon(params, lr=lr, weight_decay=0.0)
        flat = Problem([], gradients=0)
        flat.gradients = [[g.flatten(1) for g in gradients] for gradients in problem.gradients]
        return Runnable(optimizer.step, flat.loader(params))

    return Contender("torch Muon (no constraint)", "peer", build)


def parametrized(problem: Problem, map_name: str, lr: float) -> Contender:
    """torch's orthogonal parametrization: weight from its parameters, backward through it, SGD step."""

    def build() -> Runnable:
        from torch.nn.utils.parametrizations import orthogonal

        modules = [bare_linear(w) for w in problem.start]
        for module in modules:
            orthogonal(module, orthogonal_map=map_name)
        return through_parametrization(problem, modules, lr)

    return Contender(f"torch parametrization, {map_name}", "peer", build)


def bare_linear(weight: Tensor) -> torch.nn.Linear:
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=weight.device)
    linear.weight.data.copy_(weight)
    return linear


def through_parametrization(problem: Problem, modules: list[torch.nn.Linear], lr: float) -> Runnable:
    """A step of SGD on whatever parametrizes the weights of some modules, from given weight gradients."""
    params = [p for module in modules for p in module.parameters()]
    optimizer = torch.optim.SGD(params, lr=lr, momentum=0.9, foreach=True)
    current: list[Tensor] = []

    def load(i: int) -> None:
        current[:] = problem.gradient(i)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward([module.weight for module in modules], current)
        optimizer.step()

    return Runnable(step, load, lambda: orthogonality_error([module.weight for module in modules]))
