"""Every update rule of holonom.constrain against its definition in float64 NumPy, step by step."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import holonom
from holonom.constraints import Circle, LevelSet, Orthogonal, Spectral, Sphere
from holonom.partitions import weights
from tests.manifold_oracle import orthogonal_project, orthogonal_return

LR, STEPS = 0.05, 20


class Given(torch.optim.Optimizer):
    """Moves every parameter by −lr times its gradient, so that a test says what Δ is."""

    def __init__(self, params, lr=LR, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(p.grad)


# --- the definitions, on one block at a time ------------------------------------------------------------------------


def norm(x):
    return np.sqrt(np.sum(x * x))


def sphere_plain(q, step, radius, lr):
    return radius * (q + step) / norm(q + step)


def sphere_tangent(q, step, radius, lr):
    tangent = step - q * np.sum(q * step) / radius**2
    return sphere_plain(q, tangent, radius, lr)


def sphere_angular(q, step, radius, lr):
    return sphere_plain(q, lr * radius * step / norm(step), radius, lr)


def ball_plain(q, step, radius, lr):
    return (q + step) * min(1.0, radius / norm(q + step))


def ball_tangent(q, step, radius, lr):
    if norm(q) >= radius * (1 - 1e-12) and np.sum(q * step) > 0:
        step = step - q * np.sum(q * step) / radius**2
    return ball_plain(q, step, radius, lr)


def circle_plain(q, step, radius, lr):
    return np.clip(q + step, -radius, radius)


def orthogonal_plain(q, step, scale, lr):
    u, _, vh = np.linalg.svd(q + step, full_matrices=False)
    return scale * u @ vh


def orthogonal_tangent(q, step, scale, lr):
    tall = (lambda x: x) if q.shape[0] >= q.shape[1] else np.transpose
    q, step = tall(q) / scale, tall(step) / scale
    return tall(scale * orthogonal_return(q + orthogonal_project(q, step), q))


def spectral_plain(q, step, bound, lr):
    u, sigma, vh = np.linalg.svd(q + step, full_matrices=False)
    return u @ np.diag(np.minimum(sigma, bound)) @ vh


def simplex_plain(q, step, _, lr):
    """The nearest point with Σw = 1."""
    moved = q + step
    return moved + (1 - moved.sum()) / moved.size


ROWS, MATRIX, ENTRIES = (-1,), (-2, -1), ()
CASES = {  # the space, its update, the definition, the dimensions of a block, and what the block is held at
    "sphere, plain": (Sphere("initial"), "plain", sphere_plain, ROWS, None),
    "sphere, tangent": (Sphere("initial"), "tangent", sphere_tangent, ROWS, None),
    "sphere, angular": (Sphere("initial"), "angular", sphere_angular, ROWS, None),
    "sphere of 2, angular": (Sphere(2.0, slack=False), "angular", sphere_angular, ROWS, 2.0),
    "matrix, plain": (Sphere("initial", per="matrix"), "plain", sphere_plain, MATRIX, None),
    "matrix, tangent": (Sphere("initial", per="matrix"), "tangent", sphere_tangent, MATRIX, None),
    "matrix, angular": (Sphere("initial", per="matrix"), "angular", sphere_angular, MATRIX, None),
    "ball, plain": (Sphere(1.5), "plain", ball_plain, ROWS, 1.5),
    "ball, tangent": (Sphere(1.5), "tangent", ball_tangent, ROWS, 1.5),
    "circle, plain": (Circle(0.4), "plain", circle_plain, ENTRIES, 0.4),
    "circle, tangent": (Circle(0.4), "tangent", circle_plain, ENTRIES, 0.4),
    "orthogonal, plain": (Orthogonal(), "plain", orthogonal_plain, MATRIX, 1.0),
    "orthogonal, tangent": (Orthogonal(), "tangent", orthogonal_tangent, MATRIX, 1.0),
    "orthogonal of 1.5, plain": (Orthogonal(scale=1.5), "plain", orthogonal_plain, MATRIX, 1.5),
    "orthogonal of 1.5, tangent": (Orthogonal(scale=1.5), "tangent", orthogonal_tangent, MATRIX, 1.5),
    "spectral, plain": (Spectral(1.2), "plain", spectral_plain, MATRIX, 1.2),
    "level set, plain": (LevelSet(lambda w: w.sum() - 1), "plain", simplex_plain, MATRIX, 1.0),
}


def transcribed(case, q, step):
    """The definition on every block of a matrix."""
    _, _, definition, block, held_at = CASES[case]
    if block == ROWS:
        rows = [definition(w, z, held_at or norm(w), LR) for w, z in zip(q, step, strict=True)]
        return np.stack(rows)
    return definition(q, step, held_at or norm(q), LR)


def network(sizes=((7, 5), (5, 7), (5, 7), (6, 6))):
    """Matrices of several shapes, two of them equal; the module's forward pass is never called."""
    return nn.ModuleList([nn.Linear(i, o, bias=False, dtype=torch.float64) for i, o in sizes])


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("track", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_an_update_is_its_definition(case, track, rng):
    space, update, *_ = CASES[case]
    model = network()
    opt = Given(model.parameters())
    held = holonom.constrain(opt, model, {weights: space}, update, track=track)
    exact = [p.detach().numpy().copy() for p in model.parameters()]
    for _ in range(STEPS):
        for i, p in enumerate(model.parameters()):
            step = LR * rng.standard_normal(p.shape)
            p.grad = torch.from_numpy(-step)
            exact[i] = transcribed(case, exact[i], step)
        opt.step()
    for p, q in zip(model.parameters(), exact, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q, rtol=0, atol=1e-12)
    held.check(opt)


@pytest.mark.parametrize("update", ["plain", "tangent", "angular"])
@pytest.mark.parametrize("per", ["row", "matrix"])
def test_a_dropped_decay_leaves_the_move_without_it(update, per, rng):
    case = f"{'sphere' if per == 'row' else 'matrix'}, {update}"
    model, decay = network(), 0.3
    opt = Given(model.parameters(), weight_decay=decay)
    holonom.constrain(opt, model, {weights: Sphere("initial", per=per)}, update, decay="drop")
    exact = [p.detach().numpy().copy() for p in model.parameters()]
    for _ in range(STEPS):
        for i, p in enumerate(model.parameters()):
            step = LR * rng.standard_normal(p.shape)
            p.grad = torch.from_numpy(-step)
            exact[i] = transcribed(case, exact[i], step)  # what the optimizer did but for its decay
        opt.step()
    for p, q in zip(model.parameters(), exact, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q, rtol=0, atol=1e-12)


def test_lr_is_the_angle_of_a_step_across_the_sphere(rng):
    model = network()
    opt = Given(model.parameters())
    held = holonom.constrain(opt, model, {weights: Sphere("initial")}, "angular")
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        q = p.detach().numpy()
        step = rng.standard_normal(q.shape)
        step -= q * (q * step).sum(1, keepdims=True) / (q * q).sum(1, keepdims=True)
        p.grad = torch.from_numpy(-step)
    opt.step()
    for p, q in zip(model.parameters(), before, strict=True):
        cosine = (p.detach() * q).sum(1) / p.detach().norm(dim=1) / q.norm(dim=1)
        torch.testing.assert_close(cosine.arccos(), torch.full_like(cosine, np.arctan(LR)), rtol=1e-8, atol=0)
    mean, largest = held.angles()["weights"]
    assert mean == pytest.approx(np.arctan(LR), rel=1e-12)
    assert largest == pytest.approx(np.arctan(LR), rel=1e-12)


@pytest.mark.parametrize("update", ["plain", "tangent"])
@pytest.mark.parametrize("size", [(4096, 1000), (1500, 2000), (1501, 1999)])
def test_long_blocks_keep_their_norm_in_single_precision(size, update):
    """On a CPU one sum over so many squares has three digits."""
    model = nn.ModuleList([nn.Linear(*size, bias=False)])
    p = model[0].weight
    radius = float(p.detach().double().norm())
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    held = holonom.constrain(opt, model, {weights: Sphere("initial", per="matrix")}, update)
    assert abs(float(p.detach().double().norm()) / radius - 1) < 5e-7
    for _ in range(3):
        p.grad = 1e-3 * torch.randn_like(p)
        opt.step()
    assert abs(float(p.detach().double().norm()) / radius - 1) < 5e-7
    before = p.detach().clone()
    p.grad.zero_()
    opt.step()
    assert torch.equal(p, before)
    held.check()


@pytest.mark.parametrize("space", [Sphere("initial"), Sphere(1.0), Circle(0.3), Orthogonal()], ids=repr)
@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_projected_momenta_point_along_the_space(space, rng):
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    held = holonom.constrain(opt, model, {weights: space}, "tangent", momentum="project")
    for _ in range(5):
        for p in model.parameters():
            p.grad = torch.from_numpy(rng.standard_normal(p.shape))
        opt.step()
    for p in model.parameters():
        q, step = p.detach().numpy(), -opt.state[p]["momentum_buffer"].numpy()
        if isinstance(space, Circle):
            at = np.abs(q) >= space.radius * (1 - 1e-12)
            assert at.any()
            assert (q * step)[at].max() <= 0  # no step across a bound that is active
        elif isinstance(space, Orthogonal):
            tall = q if q.shape[0] >= q.shape[1] else q.T
            y = tall.T @ (step if q.shape[0] >= q.shape[1] else step.T)
            assert np.abs(y + y.T).max() < 1e-12
        elif space.has_slack:
            at = norm_of_rows(q) >= space.radius * (1 - 1e-12)
            assert at.any()
            assert (q * step).sum(1)[at].max() < 1e-12
        else:
            assert np.abs((q * step).sum(1)).max() < 1e-12
    held.check()


def norm_of_rows(q):
    return np.sqrt((q * q).sum(1))


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("space", "update"),
    [
        (Sphere("initial"), "plain"),
        (Sphere("initial"), "tangent"),
        (Sphere("initial"), "angular"),
        (Orthogonal(scale="initial"), "plain"),
        (Orthogonal(scale="initial"), "tangent"),
    ],
    ids=repr,
)
def test_what_moved_by_a_dropped_decay_alone_does_not_turn(space, update, dtype):
    """Of its rounding an angular update would make a whole turn."""
    model = nn.ModuleList([nn.Linear(24, 16, bias=False)]).to(dtype)
    opt = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    holonom.constrain(opt, model, {weights: space}, update, decay="drop")
    p = model[0].weight
    before = p.detach().clone()
    for _ in range(30):
        p.grad = torch.zeros_like(p)
        opt.step()
    eps = torch.finfo(dtype if dtype == torch.float64 else torch.float32).eps
    torch.testing.assert_close(p.detach(), before, rtol=100 * eps, atol=0)


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_a_dropped_decay_leaves_the_move_of_a_level_set_without_it(rng):
    model = network()
    opt = Given(model.parameters(), weight_decay=0.3)
    holonom.constrain(opt, model, {weights: LevelSet(lambda w: w.sum() - 1)}, decay="drop")
    exact = [p.detach().numpy().copy() for p in model.parameters()]
    for i, p in enumerate(model.parameters()):
        step = LR * rng.standard_normal(p.shape)
        p.grad = torch.from_numpy(-step)
        exact[i] = simplex_plain(exact[i], step, None, LR)
    opt.step()
    for p, q in zip(model.parameters(), exact, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q, rtol=0, atol=1e-12)


class Operations(TorchDispatchMode):
    """The names of what torch runs."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "aten":
            self.found.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("update", ["plain", "tangent"])
@pytest.mark.parametrize("radius", [0.2, torch.tensor(0.2)], ids=["number", "tensor"])
def test_a_bound_is_not_made_a_tensor_at_every_step(radius, update):
    """A device would copy it from the host, and wait for it."""
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False))
    opt = Given(model.parameters())
    with pytest.warns(UserWarning, match="were moved"):
        holonom.constrain(opt, model, {weights: Circle(radius)}, update)
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.1)
    opt.step()
    for p in model.parameters():
        p.grad[0, 0] = torch.nan
    with Operations() as run:
        opt.step()
    assert not {"lift_fresh", "_to_copy"} & set(run.found)
    if update == "plain":  # what a step does besides: one pass over every weight
        found = [name for name in run.found if name not in ("mul_", "sub_", "detach", "neg")]
        assert found == ["clamp_"] * 2
    for p in model.parameters():
        assert p[0, 0].isnan()
        assert p.detach().abs().nan_to_num().max() == torch.tensor(0.2)
