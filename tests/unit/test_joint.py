"""A constraint over several tensors is the same constraint on one tensor that holds all their entries."""

import copy

import pytest
import torch

from holonom import Ensemble, Langevin
from holonom.constraints import LevelSet
from holonom.errors import ConstraintError, ProjectionError
from holonom.metrics import equipartition
from tests.injected import inject

SHAPES = [(2, 3), (4,), ()]
AXES = torch.linspace(1.0, 2.0, 11, dtype=torch.float64)
PLANE = torch.linspace(-1.0, 1.0, 11, dtype=torch.float64)


def vector(tensors):
    return torch.cat([x.reshape(-1) for x in tensors])


def g(q):
    return (AXES.to(q) * q**2).sum() - 1  # without dimensions


def h(q):
    return torch.stack([(PLANE.to(q) * q).sum() - 0.2, -q[0] - 0.5])


SPACES = {
    "equality": ({"g": lambda *qs: g(vector(qs)), "joint": True}, {"g": g}),
    "inequalities": ({"inequalities": lambda *qs: h(vector(qs)), "joint": True}, {"inequalities": h}),
    "both": (
        {"g": lambda *qs: g(vector(qs)), "inequalities": lambda *qs: h(vector(qs)), "joint": True},
        {"g": g, "inequalities": h},
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore:weights that did not satisfy")


def build(space="both", word="BAOAB", dtype=torch.float64, **options):
    generator = torch.Generator().manual_seed(1)
    params = [torch.nn.Parameter(0.2 * torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
    options = {"temperature": 0.1, "friction": 0.7, "seed": 4, **options}
    return params, Langevin(params, 0.1, scheme=word, constraint=LevelSet(**SPACES[space][0]), **options)


def push(params, optimizer, steps=1):
    for _ in range(steps):
        for i, p in enumerate(params):
            p.grad = torch.sin(3 * p.detach() + i)
        optimizer.step()


def slices(shape, dtype, device, seed, step, draw, parameter, part):
    """The joint vector's normals, or the part of a tensor in it."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * draw + part)
    drawn = torch.randn(11 if part == 0 else 2, dtype=torch.float64, generator=generator)
    start = [0, 6, 10][parameter] if part == 0 else 0
    return drawn[start : start + shape.numel()].reshape(shape)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("word", ["BAOAB", "OBA", "L", "BACDEDCAB"])
def test_tensors_move_as_one_vector(monkeypatch, space, word):
    inject(monkeypatch, slices)
    params, optimizer = build(space, word)
    generator = torch.Generator().manual_seed(1)
    q = torch.nn.Parameter(vector([0.2 * torch.randn(s, generator=generator).double() for s in SHAPES]))
    together = Langevin(
        [q], 0.1, scheme=word, constraint=LevelSet(**SPACES[space][1]), temperature=0.1, friction=0.7, seed=4
    )
    for _ in range(5):
        for i, p in enumerate(params):
            p.grad = torch.sin(3 * p.detach() + i)
        q.grad = vector([p.grad for p in params])
        optimizer.step()
        together.step()
        torch.testing.assert_close(vector(params), q, rtol=0, atol=1e-12)
    assert optimizer.residuals()[0] < 1e-12
    assert optimizer.cotangencies()[0] < 1e-12
    torch.testing.assert_close(optimizer.temperatures(), together.temperatures(), rtol=1e-10, atol=0, equal_nan=True)
    if word != "L":
        momenta = vector([optimizer.state[p]["momentum"] for p in params])
        torch.testing.assert_close(momenta, together.state[q]["momentum"], rtol=0, atol=1e-12)


def test_every_tensor_draws_noise_of_its_own():
    (a, *_), optimizer = build("equality")
    push(optimizer.param_groups[0]["params"], optimizer)
    first = a.detach().clone()
    (a, *_), optimizer = build("equality", seed=5)
    push(optimizer.param_groups[0]["params"], optimizer)
    assert not torch.equal(first, a)


@pytest.mark.parametrize("space", SPACES)
def test_a_checkpoint_resumes_bit_for_bit(space):
    params, optimizer = build(space)
    push(params, optimizer, 3)
    saved, weights = copy.deepcopy(optimizer.state_dict()), [p.detach().clone() for p in params]
    push(params, optimizer, 3)
    others, resumed = build(space, seed=4)
    with torch.no_grad():
        for p, weight in zip(others, weights, strict=True):
            p.copy_(weight)
    resumed.load_state_dict(saved)
    push(others, resumed, 3)
    assert all(map(torch.equal, params, others))


def test_landed_weights_of_a_checkpoint_are_left_alone():
    """As in bfloat16, whose rounding leaves the manifold by more than a landing allows."""
    params, optimizer = build("both", dtype=torch.bfloat16)
    push(params, optimizer, 3)
    saved, weights = copy.deepcopy(optimizer.state_dict()), [p.detach().clone() for p in params]
    others = [torch.nn.Parameter(weight.clone()) for weight in weights]
    resumed = Langevin(others, 0.1, constraint=LevelSet(**SPACES["both"][0]), temperature=0.1, friction=0.7, seed=4)
    resumed.load_state_dict(saved)
    assert all(map(torch.equal, weights, others))
    push(params, optimizer, 2)
    push(others, resumed, 2)
    assert all(map(torch.equal, params, others))
    assert all(p.dtype == torch.bfloat16 for p in params)
    assert optimizer.state[params[0]]["slack"].dtype == torch.float32
    assert optimizer.residuals()[0] < 0.05


@pytest.mark.parametrize("how", ["in place", "project_"])
def test_an_edit_of_one_tensor_moves_all_of_them_back(how):
    params, optimizer = build("both")
    push(params, optimizer, 2)
    before = [p.detach().clone() for p in params]
    with torch.no_grad():
        params[1].mul_(3)
    if how == "project_":
        optimizer.project_()
        assert optimizer.residuals()[0] < 1e-12
        assert optimizer.cotangencies()[0] < 1e-12
        assert not torch.equal(params[0], before[0])
    push(params, optimizer)
    assert optimizer.residuals()[0] < 1e-12


def test_momenta_are_scaled_together():
    params, optimizer = build("both")
    push(params, optimizer, 2)
    temperature = optimizer.temperatures()[0]
    optimizer.scale_momenta_(2.0)
    assert optimizer.temperatures()[0] == pytest.approx(4 * temperature)
    assert all(torch.isnan(torch.tensor(x)) for x in equipartition(optimizer).values())  # of a tensor by itself


def test_all_tensors_move_or_none():
    params, optimizer = build()
    push(params, optimizer)
    before = [p.detach().clone() for p in params]
    params[1].grad = None
    with pytest.raises(RuntimeError, match=r"parameter 1 has no gradient.*all of them move, or none"):
        optimizer.step()
    optimizer.zero_grad()
    with pytest.warns(UserWarning, match="no parameter of this optimizer has a gradient"):
        optimizer.step()
    assert all(map(torch.equal, before, params))


def test_a_failed_projection_leaves_all_tensors():
    params, optimizer = build("equality", "L", temperature=0.0)
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.full_like(p, 1e8)
    optimizer.param_groups[0]["lr"] = 1e8
    with pytest.raises(ProjectionError, match="parameter 0, parameter 1, parameter 2"):
        optimizer.step()
    assert all(map(torch.equal, before, params))


def ring(a, b):
    return a.square().sum() + b.square().sum() - 1


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (
            [torch.zeros(2), torch.zeros(2).double()],
            r"parameter 0: \(2,\) torch.float32.*parameter 1: \(2,\) torch.float64",
        ),
        ([torch.zeros(2), torch.zeros(2), torch.zeros(2)], "g could not be evaluated"),
        ([torch.zeros(2), torch.tensor([0.0, torch.nan])], "NaN or infinity"),
    ],
)
def test_what_cannot_be_joined_is_refused(tensors, said):
    with pytest.raises(ConstraintError, match=said):
        Langevin([torch.nn.Parameter(x) for x in tensors], 0.1, constraint=LevelSet(ring, joint=True))


def test_batches_of_different_lengths_are_refused():
    params = [torch.nn.Parameter(torch.rand(3, 2)), torch.nn.Parameter(torch.rand(4, 2))]
    with pytest.raises(ConstraintError, match=r"the same 1 leading dimension"):
        Langevin(params, 0.1, constraint=LevelSet(ring, joint=True, batch_dims=1))


def test_a_tensor_that_is_appended_later_is_refused():
    params, optimizer = build()
    push(params, optimizer)
    optimizer.param_groups[0]["params"].append(torch.nn.Parameter(torch.zeros(2)))
    with pytest.raises(ValueError, match="build a new optimizer"):
        optimizer.step()


@pytest.mark.parametrize("rates", [False, True])
def test_replicas_of_a_joint_constraint_are_their_models_alone(rates):
    def make():
        return torch.nn.Linear(3, 2).double()

    space = LevelSet(ring, inequalities=lambda weight, bias: bias - 0.9, joint=True)
    ensemble = Ensemble(make, 3, seed=0)
    models, lr = ensemble.unstack(), [0.1, 0.05, 0.2]
    options = {"temperature": 0.1, "scheme": "BACDEDCAB"}
    optimizer = Langevin(
        ensemble.parameters(),
        torch.tensor(lr, dtype=torch.float64) if rates else 0.1,
        constraint=space,
        seed=ensemble.seeds,
        **options,
    )
    push(list(ensemble.parameters()), optimizer, 4)
    for i, model in enumerate(models):
        alone = Langevin(
            model.parameters(), lr[i] if rates else 0.1, constraint=space, seed=ensemble.seeds[i], **options
        )
        push(list(model.parameters()), alone, 4)
        for p, q in zip(model.parameters(), ensemble.parameters(), strict=True):
            torch.testing.assert_close(q[i], p, rtol=0, atol=1e-12)


def test_rates_of_replicas_reach_every_block():
    """Blocks within a replica move at their replica's rate."""
    blocks = torch.rand(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    space = LevelSet(lambda q: q.square().sum() - 1, batch_dims=1)
    seeds, lr = torch.tensor([5, 6]), torch.tensor([0.1, 0.3], dtype=torch.float64)
    q = torch.nn.Parameter(blocks.clone())
    optimizer = Langevin([q], lr, constraint=space, temperature=0.1, seed=seeds)
    push([q], optimizer, 3)
    for i in range(2):
        p = torch.nn.Parameter(blocks[i].clone())
        push([p], Langevin([p], float(lr[i]), constraint=space, temperature=0.1, seed=seeds[i]), 3)
        torch.testing.assert_close(q[i], p, rtol=0, atol=1e-12)
