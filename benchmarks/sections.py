"""The sections of the suite: which contenders meet on which weights, and what was promised.

Section by section a problem is built, its contenders are listed, and nothing is measured: that is
``run.py``'s business. ``quick`` sizes are a smoke test, too small to compile and not worth a verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal, Sphere

from . import ensembles, landscape, multirate, ours, peers, tensors
from .tensors import Problem
from .timing import Contender, Effort, Runnable


@dataclass
class Section:
    """A table: a baseline and those measured against it."""

    title: str
    baseline: Contender
    contenders: list[Contender]
    effort: Effort = field(default_factory=Effort)


SLOW = Effort(least_rounds=3, most_rounds=5, seconds=3.0)
ORTHOGONAL_LIMIT = 1e-6
SMALL_RATE = {"L": 1e-3, "OBA": 1e-2}
LARGE_RATE = {"L": 1e-1, "OBA": 1e-1}


def _networks(quick: bool) -> dict[str, list[tensors.Shape]]:
    if quick:
        return {"tiny": tensors.perceptron_shapes(20, 30, 10)}
    return {
        "1M": tensors.perceptron_shapes(784, 1000, 200, 10),
        "10M": [(1024, 1024)] * 9 + [(1024, 600)],
    }


def circle(quick: bool) -> list[Section]:
    """Every weight on its own circle; one compiled pass should cost little more than SGD's."""
    sections = []
    for size, shapes in _networks(quick).items():
        problem = Problem(tensors.uniform(shapes, 0.4))
        targets = {"10M": (2.0, 6.0)}.get(size, (None, None))
        common: dict[str, Any] = {"scheme": "BAOAB", "friction": 1.0, "constraint": Circle(0.5)}
        contenders = [
            ours.holonom("BAOAB τ=0, fused", problem, 0.01, fuse=True, target=targets[0], **common),
            ours.holonom("BAOAB τ=0, not compiled", problem, 0.01, fuse=False, target=targets[1], **common),
            ours.holonom("BAOAB τ=1e-4, fused", problem, 0.01, fuse=True, temperature=1e-4, **common),
            ours.holonom("BAOAB τ=1e-4, not compiled", problem, 0.01, fuse=False, temperature=1e-4, **common),
            ours.normals(problem),
        ]
        sections.append(Section(f"circle, {size} parameters", ours.sgd(problem), contenders))
    return sections


def sphere(quick: bool) -> list[Section]:
    """Rows of one matrix at norm 1, or bounded by it."""
    size = 32 if quick else 1024
    problem = Problem(tensors.unit_rows(size, size))
    inside = Problem([w * 0.9 for w in problem.start])
    contenders = []
    for scheme, lr in (("L", 1e-3), ("BAOAB", 0.01)):
        for slack, weights in ((False, problem), (True, inside)):
            name = f"{scheme}, ‖w‖ {'≤' if slack else '='} 1, fused"
            space = Sphere(1.0, slack=slack)
            contenders.append(ours.holonom(name, weights, lr, target=2.5, scheme=scheme, constraint=space, fuse=True))
    space = Sphere(1.0, slack=False)
    contenders += [
        ours.holonom("BAOAB, ‖w‖ = 1, not compiled", problem, 0.01, scheme="BAOAB", constraint=space, fuse=False),
        ours.renormalised_sgd(problem),
        peers.geoopt_sphere(problem, exact=False),
        peers.geoopt_sphere(problem, exact=True),
    ]
    return [Section(f"sphere, rows of {size}×{size}", ours.sgd(problem), contenders)]


def _orthogonal_ours(problem: Problem, rates: dict[str, float], targets: dict[str, float]) -> list[Contender]:
    return [
        ours.holonom(
            f"{scheme}, lr {lr:g}", problem, lr, target=targets[scheme], error_limit=ORTHOGONAL_LIMIT,
            scheme=scheme, constraint=Orthogonal(),
        )
        for scheme, lr in rates.items()
    ]  # fmt: skip


def orthogonal(quick: bool) -> list[Section]:
    """Twenty small orthogonal matrices, at a small rate and at one that turns each by half a radian."""
    count, size = (3, 10) if quick else (20, 100)
    problem = Problem(tensors.orthogonal([(size, size)] * count), gradient_norm=5.0, gradients=8)
    targets = {"L": 5.5, "OBA": 5.5}
    contenders = _orthogonal_ours(problem, SMALL_RATE, targets) + _orthogonal_ours(problem, LARGE_RATE, targets)
    contenders += [
        peers.landing(problem, 1e-2),
        peers.pogo(problem, 1e-3),
        peers.pogo(problem, 1e-3, batched=True),
        ours.muon(problem),
        peers.geoopt_stiefel(problem, canonical=False, lr=1e-3),
        peers.geoopt_stiefel(problem, canonical=False, lr=1e-3, batched=True),
        peers.geoopt_stiefel(problem, canonical=True, lr=1e-3),
        *(ours.parametrized(problem, name, 1e-3) for name in ("cayley", "matrix_exp", "householder")),
        peers.geotorch_orthogonal(problem, 1e-3),
    ]
    return [Section(f"orthogonal, {count} of {size}×{size}", ours.sgd(problem), contenders)]


def resnet(quick: bool) -> list[Section]:
    """All convolutions and the classifier of a ResNet-34 for 32×32 images, each (out, in·kh·kw)."""
    shapes = tensors.resnet34_shapes()
    if quick:
        shapes = [(8, 3, 3, 3), (8, 8, 3, 3), (8, 8, 3, 3), (16, 8, 1, 1), (4, 16)]
    problem = Problem(tensors.orthogonal(shapes), gradient_norm=5.0, gradients=2)
    contenders = [
        ours.holonom(
            f"{scheme}, lr {lr:g}", problem, lr, target=20.0, error_limit=ORTHOGONAL_LIMIT, scheme=scheme,
            constraint=Orthogonal(view="conv"),
        )
        for scheme, lr in SMALL_RATE.items()
    ]  # fmt: skip
    contenders += [ours.muon(problem), peers.geoopt_stiefel(problem, canonical=False, lr=1e-3)]
    return [Section("orthogonal, ResNet-34 (3×3 stem, 10 classes)", ours.sgd(problem), contenders, SLOW)]


def matrix(quick: bool) -> list[Section]:
    """One large orthogonal matrix, whose step is counted in matrix products."""
    size = 32 if quick else 1024
    problem = Problem(tensors.orthogonal([(size, size)]), gradient_norm=5.0, gradients=4)
    contenders = [
        ours.product(size),
        *_orthogonal_ours(problem, SMALL_RATE, {"L": 40.0, "OBA": 75.0}),
        *_orthogonal_ours(problem, {"L": 1e-1}, {"L": 40.0}),
        peers.pogo(problem, 1e-3),
        ours.muon(problem),
        peers.geoopt_stiefel(problem, canonical=False, lr=1e-3),
        *(ours.parametrized(problem, name, 1e-3) for name in ("cayley", "matrix_exp", "householder")),
        peers.geotorch_orthogonal(problem, 1e-3),
    ]
    return [Section(f"orthogonal, one {size}×{size}", ours.sgd(problem), contenders, SLOW)]


def free(quick: bool) -> list[Section]:
    """No constraint: what the integrator itself costs."""
    sections = []
    for size, shapes in _networks(quick).items():
        problem = Problem(tensors.uniform(shapes, 0.4))
        contenders = [
            ours.holonom("BAOAB τ=0, fused", problem, 0.01, fuse=True, target=1.5),
            ours.holonom("BAOAB τ=0, not compiled", problem, 0.01, fuse=False),
        ]
        sections.append(Section(f"no constraint, {size} parameters", ours.sgd(problem), contenders))
    return sections


def sampling(quick: bool) -> list[Section]:
    """Samplers, each with the gradient of one linear loss, since posteriors evaluates gradients itself."""
    size, shapes = next(iter(_networks(quick).items()))
    problem = Problem(tensors.uniform(shapes, 0.4))

    def trained(name: str, role: str, make: Callable[[list[torch.nn.Parameter]], Callable[[], object]]) -> Contender:
        def build() -> Runnable:
            params = problem.parameters()
            runnable = peers.with_linear_loss(problem, params, make(params))
            runnable.note = partial(ours.compiler_note, role == "holonom" and name.endswith(", fused"))
            return runnable

        return Contender(name, role, build)

    def langevin(scheme: str, fuse: bool) -> Contender:
        name = f"{scheme} τ=1e-4, {'fused' if fuse else 'not compiled'}"
        options: dict[str, Any] = {"scheme": scheme, "temperature": 1e-4, "fuse": fuse}
        return trained(name, "holonom", lambda params: Langevin(params, 1e-3, seed=0, **options).step)

    baseline = trained(
        "torch SGD and the gradient", "baseline",
        lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=True).step,
    )  # fmt: skip
    contenders = [langevin(scheme, fuse) for scheme in ("L", "BAOAB") for fuse in (True, False)]
    contenders += [peers.posteriors_sampler(problem, kind, 1e-3, 1e-4) for kind in ("sgld", "baoa")]
    contenders += [trained("the gradient alone", "floor", lambda params: lambda: None), ours.normals(problem)]
    return [Section(f"sampling with gradient, {size} parameters", baseline, contenders)]


def guard(quick: bool) -> list[Section]:
    """What looking for NaN and infinity in every gradient costs."""
    sections = []
    for size, shapes in _networks(quick).items():
        problem = Problem(tensors.uniform(shapes, 0.4))
        contenders = [
            ours.holonom(
                f"circle, BAOAB τ=0, fused, guard {'on' if on else 'off'}", problem, 0.01, guard=on,
                constraint=Circle(0.5), fuse=True,
            )
            for on in (True, False)
        ]  # fmt: skip
        sections.append(Section(f"gradient guard, {size} parameters", ours.sgd(problem), contenders))
    return sections


def replicas(quick: bool) -> list[Section]:
    """All replicas in one program: an epoch of a hundred against an epoch of one, in units of the plain loop."""
    count = 4 if quick else 100
    contenders = [
        # Forty times cheaper a replica is 2.5 plain epochs for a hundred.
        ensembles.together("C-SGLD", count, target=count / 40, compiled=not quick),
        ensembles.together("SGD", count, compiled=not quick),
        ensembles.together("C-SGLD", count, compiled=False),
        ensembles.alone("SGD"),
        ensembles.floor(count),
    ]
    return [Section(f"{count} perceptrons 2-500-1, batch 2", ensembles.alone("C-SGLD"), contenders)]


def landscapes(quick: bool) -> list[Section]:
    """A path through weight space, and decision boundaries; five times faster than the loop is a ratio of 0.2."""
    images, grid, classifiers = (100, 40, 2) if quick else (2000, 1000, 5)
    sections = []
    for sizes in ((20, 16, 4),) if quick else ((784, 1000, 10), (784, 100, 100, 10)):
        name = "-".join(map(str, sizes))
        path = landscape.all_points(sizes, images, target=0.2)
        sections.append(Section(f"51-point path, {name}", landscape.loading_loop(sizes, images), [path], SLOW))
    if torch.cuda.is_available():
        residual = (None, images, "cuda")
        path = landscape.all_points(*residual, target=0.5)
        sections.append(Section("51-point path, ResNet-18, GPU", landscape.loading_loop(*residual), [path], SLOW))
    boundaries = landscape.all_boundaries(classifiers, grid)
    title = f"curvature of {classifiers} boundaries, {grid}×{grid}"
    sections.append(Section(title, landscape.one_by_one(classifiers, grid), [boundaries], SLOW))
    return sections


def multiple_rates(quick: bool) -> list[Section]:
    """What due() and drift cost, and how much of the possible speed-up of fine-tuning is reached."""
    sections = []
    for size, shapes in _networks(quick).items():
        problem = Problem(tensors.uniform(shapes, 0.4))
        title = f"multirate step, {size} parameters"
        sections.append(Section(title, ours.sgd(problem), [multirate.all_due(problem, target=1.1)]))
        fast = max(1, len(shapes) // 2)
        contenders = [
            multirate.fast_step(problem, fast, drift=False, target=1.1),
            multirate.fast_step(problem, fast, drift=True),
        ]
        title = f"multirate fast step, last {fast} tensors of {size}"
        sections.append(Section(title, multirate.fast_sgd(problem, fast), contenders))
    # 95 % of the speed-up the passes allow is 1/0.95 of their time.
    contenders = [multirate.cycle(quick, drift, target=1.05) for drift in (True, False)]
    title = f"fine-tuning cycle, residual network of {multirate.size(quick):,} parameters"
    sections.append(Section(title, multirate.allowed(quick), [*contenders, multirate.full(quick)], SLOW))
    return sections


SECTIONS: dict[str, Callable[[bool], list[Section]]] = {
    "circle": circle,
    "sphere": sphere,
    "orthogonal": orthogonal,
    "resnet": resnet,
    "matrix": matrix,
    "free": free,
    "sampling": sampling,
    "guard": guard,
    "replicas": replicas,
    "multirate": multiple_rates,
    "landscape": landscapes,
}
