"""What is recorded for the configurational temperature, and what is said where nothing is."""

import math

import pytest
import torch
from torch import nn

from holonom import Ensemble, Langevin
from holonom import optimizer as module
from holonom._step.finite import any_non_finite
from holonom.batches import Shuffled
from holonom.constraints import Circle, Orthogonal, Sphere
from holonom.training import train


def build(word="BAOAB", dtype=torch.float64, count=2, **options):
    params = [nn.Parameter(torch.linspace(-0.8, 0.8, 6 + i, dtype=dtype)) for i in range(count)]
    return params, Langevin(params, 0.1, scheme=word, **{"temperature": 0.01, "seed": 1, **options})


def steps(params, opt, count=3, first=0):
    for number in range(first, first + count):
        for i, p in enumerate(params):
            p.grad = p.detach() + 0.3 * (i + 1) + 0.1 * number
        opt.step()


@pytest.mark.parametrize("maximize", [False, True])
def test_the_sums_are_those_of_positions_and_forces(maximize):
    """Weight decay and the sign of ``maximize`` belong to the force; the positions are those before the step."""
    params, opt = build(weight_decay=0.2, maximize=maximize)
    steps(params, opt, 2)
    opt.record_temperatures()
    start = [p.detach().clone() for p in params]
    virial, count = 0.0, 0
    for number in range(4):
        for i, (p, q0) in enumerate(zip(params, start, strict=True)):
            q = p.detach().clone()
            force = (-1 if maximize else 1) * (q + 0.3 * (i + 1) + 0.1 * number) + 0.2 * q
            virial, count = virial + float(((q - q0) * force).sum()), count + q.numel()
        steps(params, opt, 1, number)
    assert opt.temperatures("configurational") == pytest.approx([virial / count], rel=1e-12)


def test_recording_moves_nothing_and_can_begin_anew_and_end():
    params, opt = build()
    others, plain = build()
    opt.record_temperatures()
    assert math.isnan(opt.temperatures("configurational")[0])
    steps(params, opt)
    steps(others, plain)
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)
    first = opt.temperatures("configurational")
    opt.record_temperatures()
    steps(params, opt)
    assert opt.temperatures("configurational") != first
    opt.record_temperatures(False)
    assert [sorted(opt.state[p]) for p in params] == [sorted(plain.state[p]) for p in others]
    steps(params, opt)
    for _ in range(2):
        steps(others, plain)
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


def test_only_parameters_that_move_count():
    params, opt = build()
    opt.record_temperatures()
    steps(params, opt, 1)
    params[0].grad = None
    params[1].grad = torch.ones_like(params[1])
    opt.step()
    assert opt.state[params[0]]["virial"][1] == 6 + 7 + 7


def test_synchronize_does_not_count_a_gradient_twice():
    params, opt = build()
    opt.record_temperatures()
    steps(params, opt, 1)
    opt.synchronize()
    assert opt.state[params[0]]["virial"][1] == 13


def test_a_skipped_step_does_not_count(monkeypatch):
    """As on a device, which keeps what it finds to itself."""
    monkeypatch.setattr(
        module, "skip_non_finite", lambda work: any_non_finite([g for w in work for b in w[2] for g in b])
    )
    params, opt = build()
    opt.record_temperatures()
    steps(params, opt)
    before = opt.state[params[0]]["virial"].clone()
    for p in params:
        p.grad = torch.full_like(p, torch.nan)
    opt.step()
    assert torch.equal(opt.state[params[0]]["virial"], before)


@pytest.mark.parametrize("space", [Sphere(2.0), Sphere(2.0, slack=False), Orthogonal()])
def test_spaces_without_an_identity_are_not_a_number(space):
    start = (
        torch.eye(2) if isinstance(space, Orthogonal) else torch.diag(torch.full((2,), 1.0 if space.has_slack else 2.0))
    )
    matrix, free = nn.Parameter(start), nn.Parameter(torch.ones(3))
    opt = Langevin([{"params": [matrix], "constraint": space}, {"params": [free]}], 0.1, temperature=0.1, seed=0)
    opt.record_temperatures()
    for _ in range(3):
        matrix.grad, free.grad = torch.ones(2, 2), free.detach().clone()
        opt.step()
    found = opt.temperatures("configurational")
    assert math.isnan(found[0])
    assert math.isfinite(found[1])


def test_what_was_not_recorded_is_said():
    _, opt = build()
    with pytest.raises(ValueError, match=r"group 0 was not recorded: call record_temperatures\(\)"):
        opt.temperatures("configurational")
    with pytest.raises(ValueError, match='"kinetic" or "configurational", got \'potential\''):
        opt.temperatures("potential")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_keeps_what_was_recorded(dtype):
    params, opt = build(dtype=dtype)
    opt.record_temperatures()
    steps(params, opt)
    others, loaded = build(dtype=dtype)
    loaded.load_state_dict(opt.state_dict())
    with torch.no_grad():
        for p, q in zip(others, params, strict=True):
            p.copy_(q)
    steps(params, opt, first=3)
    steps(others, loaded, first=3)
    assert loaded.temperatures("configurational") == opt.temperatures("configurational")
    assert loaded.state[others[0]]["virial"].dtype == torch.float64


@pytest.mark.parametrize("constraint", [None, Circle(1.0), Circle(torch.linspace(0.9, 1.5, 6))])
def test_compiled_and_half_precision_steps_record_the_same(constraint):
    found = []
    for dtype, fuse in ((torch.float64, False), (torch.float32, True), (torch.bfloat16, False)):
        params, opt = build(dtype=dtype, count=1, constraint=constraint, temperature=0.0, fuse=fuse)
        opt.record_temperatures()
        steps(params, opt, 6)
        found += opt.temperatures("configurational")
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[2] == pytest.approx(found[0], rel=0.1)


@pytest.mark.long
def test_a_whole_compiled_training_step_records():
    found = []
    for compiled in (False, True):
        ensemble = Ensemble(lambda: nn.Linear(2, 1).double(), 2)
        x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)).double()
        batches = Shuffled(x, x[:, :1], 4, ensemble.seeds)
        opt = Langevin(ensemble.parameters(), 0.1, temperature=0.01, seed=ensemble.seeds)
        opt.record_temperatures()
        train(ensemble, opt, nn.functional.mse_loss, batches, 4, evaluate=lambda e: {}, compiled=compiled)
        found += opt.temperatures("configurational")
    assert math.isfinite(found[0])
    assert found[1] == pytest.approx(found[0], rel=1e-6)
