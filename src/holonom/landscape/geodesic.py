"""Constrained parameters: how far a straight line leaves their manifold, and paths that stay on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from .._step.buckets import SIZES
from ..constraints import Circle, Free, Orthogonal, Sphere
from ..constraints.base import Constraint
from ..errors import ConstraintError
from ..optimizer import Langevin
from .points import Curve, Points, combine
from .states import Subject

Constraints = Langevin | Mapping[str, Constraint] | None


def constrained(subject: Subject, constraints: Constraints) -> dict[str, Constraint]:
    """The constraints of parameters that lie on a manifold, by name."""
    if constraints is None:
        return {}
    if isinstance(constraints, Langevin):
        names = {id(p): name for name, p in subject.owner.named_parameters()}
        found = {
            names[id(p)]: space.held_at(constraints.state[p].get(SIZES))
            for p, space in constraints._spaces.items()
            if id(p) in names and not isinstance(space, Free)
        }
    else:
        found = {
            name: space
            for pattern, space in constraints.items()
            for name in subject.parameters
            if fnmatchcase(name, pattern)
        }
        if without := [name for name, space in found.items() if space.takes_sizes]:
            raise ValueError(
                f"{', '.join(without)}: initial radii are kept by an optimizer; give this model's, not constraints"
            )
    if not found:
        raise ValueError(
            "constraints name no parameter of this model; give this model's optimizer, or {name pattern: constraint}"
        )
    return found


@torch.no_grad()
def departure(subject: Subject, spaces: Mapping[str, Constraint], points: Points) -> Tensor:
    """(P,): at every point the largest distance of a constrained block from its manifold.

    With a slack variable a weight inside its circle or sphere is on the manifold.
    """
    found = []
    for row in points.coefficients:
        farthest = 0.0
        for name, space in spaces.items():
            x = points.curves[name](row[None])[0] if name in points.curves else _at(points, name, row)
            for piece in _pieces(subject, space, x, name):
                farthest = max(farthest, _distance(space, piece, name))
        found.append(farthest)
    return torch.tensor(found, dtype=torch.float64)


def _at(points: Points, name: str, row: Tensor) -> Tensor:
    return combine(row.tolist(), points.anchors[name]) if name in points.anchors else points.fixed[name]


def _pieces(subject: Subject, space: Constraint, x: Tensor, name: str) -> list[Tensor]:
    """The tensors a constraint applies to: the stack of all replicas (an ensemble's constraint), or every replica."""
    try:
        space.check(x, name)
    except ConstraintError:
        if subject.replicas is None:
            raise
        return list(x)
    return [x]


def _distance(space: Constraint, x: Tensor, name: str) -> float:
    landed = x.double().contiguous().clone()
    return space.land_(landed, name).distance


def geodesics(
    subject: Subject, spaces: Mapping[str, Constraint], start: Mapping[str, Tensor], end: Mapping[str, Tensor]
) -> dict[str, Curve]:
    """A curve on its manifold for each constrained parameter, as a function of rows (1 − α, α)."""
    return {name: _curve(subject, space, start[name], end[name], name) for name, space in spaces.items()}


def _curve(subject: Subject, space: Constraint, start: Tensor, end: Tensor, name: str) -> Curve:
    geodesics: dict[type[Constraint], Callable[..., Callable[[Tensor], Tensor]]] = {
        Circle: _on_circles, Sphere: _on_spheres, Orthogonal: _by_rotation,
    }  # fmt: skip
    if type(space) not in geodesics:
        raise ConstraintError(f"{name}: no geodesics are implemented on {space!r}; use along='line'")
    make = geodesics[type(space)]
    pairs = zip(*(_pieces(subject, space, x.double().contiguous(), name) for x in (start, end)), strict=True)
    curves = [make(space, a, b, name) for a, b in pairs]

    def curve(weights: Tensor) -> Tensor:
        alphas = weights[:, 1].to(start.device)
        points = [torch.stack([one(alpha) for alpha in alphas]) for one in curves]
        return torch.stack(points, 1).reshape(len(alphas), *start.shape).to(start.dtype)

    return curve


def _on_circles(space: Circle, start: Tensor, end: Tensor, name: str) -> Callable[[Tensor], Tensor]:
    """θ = r sin φ with φ between its two values, on the half of the circle where the slack is positive."""
    r = space.radius_of(start)
    first, last = (torch.asin((x / r).clamp(-1, 1)) for x in (start, end))
    return lambda alpha: r * torch.sin(torch.lerp(first, last, alpha))


def _on_spheres(space: Sphere, start: Tensor, end: Tensor, name: str) -> Callable[[Tensor], Tensor]:
    """Great circles, row by row; a slack variable is one more coordinate and positive."""
    a, b = space.view(start), space.view(end)
    r = space.radius_of(start)
    if space.has_slack:
        a, b = (torch.cat([x, (r**2 - x.square().sum(-1, keepdim=True)).clamp_min(0).sqrt()], -1) for x in (a, b))
    # Accurate at all angles; an arc cosine is not.
    angle = 2 * torch.atan2((a - b).norm(dim=-1, keepdim=True), (a + b).norm(dim=-1, keepdim=True))
    if bool((angle > torch.pi - 1e-6).any()):
        raise ConstraintError(
            f"{name}: two rows are opposite points of their sphere, so the shortest great circle is not unique"
        )
    columns = space.view(start).shape[-1]

    def at(alpha: Tensor) -> Tensor:
        row = _sine_ratio((1 - alpha), angle) * a + _sine_ratio(alpha, angle) * b
        return _as_weight(space, row[..., :columns], start)

    return at


def _sine_ratio(share: Tensor, angle: Tensor) -> Tensor:
    """sin(share·angle)/sin(angle), and its limit for small angles."""
    apart = angle >= 1e-8
    return torch.where(apart, torch.sin(share * angle) / torch.sin(angle.where(apart, 1.0)), share)


def _by_rotation(space: Orthogonal, start: Tensor, end: Tensor, name: str) -> Callable[[Tensor], Tensor]:
    """exp(αA) Q₀ with exp(A) Q₀ = Q₁ and A skew: the geodesic of square weights, of tall ones a curve on the manifold.

    The rotation of a tall weight acts in the span of its two ends only, with the smallest possible rotation of the rest
    of that span.
    """
    c = space.radius_of(start)
    first, last = (space.view(x) if c is None else space.view(x) / c for x in (start, end))
    shape = first.shape[-2:]
    turns = [_turn(a, b, name) for a, b in zip(first.reshape(-1, *shape), last.reshape(-1, *shape), strict=True)]

    def at(alpha: Tensor) -> Tensor:
        points = torch.stack([turn(alpha) for turn in turns]).reshape(first.shape)
        return _as_weight(space, points if c is None else points * c, start)

    return at


def _as_weight(space: Constraint, block: Tensor, like: Tensor) -> Tensor:
    weight = torch.empty_like(like)
    space.write_(weight, block)
    return weight


def _turn(first: Tensor, last: Tensor, name: str) -> Callable[[Tensor], Tensor]:
    from scipy.linalg import schur

    basis, q, p = _completed(first, last)
    turn = p @ q.mT
    if float(torch.linalg.det(turn)) < 0:
        raise ConstraintError(f"{name}: determinants of opposite sign: no orthogonal matrices connect these two")
    # A rotation is normal, so its Schur form is made of plane rotations: angles θ in planes (i, j).
    block, z = (torch.from_numpy(x).to(first.device) for x in schur(turn.cpu().numpy(), output="real"))
    planes = _planes(block)
    i, j = (torch.tensor([plane[k] for plane in planes], dtype=torch.long, device=z.device) for k in (0, 1))
    angles = torch.tensor([plane[2] for plane in planes], dtype=z.dtype, device=z.device)
    inside = z.mT @ q[:, : first.shape[1]]
    outside = basis @ z

    def at(alpha: Tensor) -> Tensor:
        c, s = torch.cos(alpha * angles)[:, None], torch.sin(alpha * angles)[:, None]
        turned = inside.clone()
        turned[i] = c * inside[i] - s * inside[j]
        turned[j] = s * inside[i] + c * inside[j]
        return outside @ turned

    return at


def _planes(block: Tensor) -> list[tuple[int, int, float]]:
    """(i, j, θ) of the plane rotations in a quasi-diagonal rotation; eigenvalues −1 are paired to half turns."""
    found, flipped, i = [], [], 0
    while i < len(block):
        if i + 1 < len(block) and abs(float(block[i + 1, i])) > 1e-9:
            found.append((i, i + 1, math.atan2(float(block[i + 1, i]), float(block[i, i]))))
            i += 2
            continue
        if float(block[i, i]) < 0:
            flipped.append(i)
        i += 1
    return found + [(a, b, math.pi) for a, b in zip(flipped[::2], flipped[1::2], strict=True)]


def _completed(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A basis of the span of both, and both completed to square orthogonal matrices in it."""
    rows, columns = first.shape
    if 2 * columns < rows:
        basis = torch.linalg.qr(torch.cat([first, last], 1)).Q
    else:
        basis = torch.eye(rows, dtype=first.dtype, device=first.device)
    q, p = basis.mT @ first, basis.mT @ last
    if len(q) == columns:
        return basis, q, p
    rest_q, rest_p = (torch.linalg.qr(x, mode="complete").Q[:, columns:] for x in (q, p))
    u, _, vh = torch.linalg.svd(rest_p.mT @ rest_q)
    aligned = torch.cat([p, rest_p @ u @ vh], 1)
    whole = torch.cat([q, rest_q], 1)
    if float(torch.linalg.det(aligned @ whole.mT)) < 0:  # reverse the direction that is rotated most
        u[:, -1] *= -1
        aligned = torch.cat([p, rest_p @ u @ vh], 1)
    return basis, whole, aligned
