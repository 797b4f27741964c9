"""Gradients that a step cannot use, and steps without a projection: what is refused leaves everything as it was."""

import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from holonom.errors import NonFiniteGradientError, ProjectionError

from .harness import slope

NAN, INF = float("nan"), float("inf")


def ring(q):
    return (q**2).sum() - 1


SPACES = {
    "free": None,
    "circle": Circle(2.0),
    "sphere": Sphere(3.0),
    "orthogonal": Orthogonal(),
    "level set": LevelSet(lambda q: (q**2).sum() - 2),
}


def model(space, **options):
    params = [torch.nn.Parameter(torch.eye(2).double()) for _ in range(2)]
    optimizer = Langevin(zip(("first", "second"), params, strict=True), 0.05, constraint=space, **options)
    for p in params:
        p.grad = torch.from_numpy(slope(p.detach().numpy()))
    optimizer.step()
    return params, optimizer


def everything(params, optimizer):
    """All tensors and numbers a step could change."""
    tensors = [p.detach().clone() for p in params]
    tensors += [torch.as_tensor(x).clone() for p in params for x in optimizer.state[p].values()]
    return tensors, [(g["step"], g["owed"]) for g in optimizer.param_groups]


def unchanged(before, after):
    return all(torch.equal(x, y) for x, y in zip(before[0], after[0], strict=True)) and before[1] == after[1]


@pytest.mark.parametrize("bad", [NAN, -INF])
@pytest.mark.parametrize("space", SPACES)
def test_synchronize_refuses_a_bad_gradient_as_a_step_does(space, bad):
    params, optimizer = model(SPACES[space], temperature=0.01)
    before = everything(params, optimizer)
    params[1].grad[0, 1] = bad
    for refused in (optimizer.step, optimizer.synchronize):
        with pytest.raises(
            NonFiniteGradientError, match="step 1: the gradient of 'second' has 1 of 4 entries NaN or inf"
        ):
            refused()
        assert unchanged(before, everything(params, optimizer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_one_bad_entry_among_many_is_found(bad, dtype):
    """More entries than are summed: these are checked by their extremes."""
    p = torch.nn.Parameter(torch.zeros(100_003, dtype=dtype))
    optimizer = Langevin([p], lr=0.1)
    for place in (0, 50_001, 100_002):
        p.grad = torch.ones_like(p)
        p.grad[place] = bad
        with pytest.raises(NonFiniteGradientError, match="1 of 100003"):
            optimizer.step()
        assert not p.any()


def test_the_check_can_be_switched_off():
    params, optimizer = model(None)
    optimizer.guard_gradients = False
    params[1].grad.fill_(NAN)
    optimizer.step()
    assert params[1].isnan().all()
    assert params[0].isfinite().all()


@pytest.mark.parametrize("space", SPACES)
def test_synchronize_only_reads_gradients(space):
    params, optimizer = model(SPACES[space], weight_decay=0.1, maximize=True)
    before = [(p.grad, p.grad.clone()) for p in params]
    optimizer.synchronize()
    assert all(p.grad is g and torch.equal(g, value) for p, (g, value) in zip(params, before, strict=True))


@pytest.mark.parametrize("space", SPACES)
def test_a_stepsize_of_zero_changes_nothing_but_the_count(space):
    """With noise, too."""
    params, optimizer = model(SPACES[space], temperature=0.01)
    before, [(_, owed)] = everything(params, optimizer)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    after, numbers = everything(params, optimizer)
    clocks = [i for i, (x, y) in enumerate(zip(before, after, strict=True)) if not torch.equal(x, y)]
    assert [(int(before[i]), int(after[i])) for i in clocks] == [(1, 2)]
    assert numbers == [(2, owed)]


ROOTLESS = {  # a step so long that the projection has no root
    "orthogonal": (Orthogonal(), "BAOAB", torch.eye(2), [[0.0, 1e3], [-1e3, 0.0]], "did not converge"),
    "orthogonal, overdamped": (Orthogonal(), "L", torch.eye(2), [[0.0, 99.0], [-99.0, 0.0]], "did not converge"),
    "level set": (LevelSet(ring), "BAOAB", [1.0, 0.0], [0.0, 1e3], r"onto ring\(q\) = 0 has no root"),
    "level set, old": (LevelSet(ring, direction="old"), "L", [1.0, 0.0], [0.0, 99.0], "has no root in reach"),
}


@pytest.mark.parametrize("case", ROOTLESS)
def test_a_projection_without_a_root_names_the_parameter_and_changes_nothing(case):
    space, word, start, gradient, message = ROOTLESS[case]
    p = torch.nn.Parameter(torch.as_tensor(start).double())
    optimizer = Langevin([("layer.weight", p)], lr=0.1, scheme=word, constraint=space)
    before = everything([p], optimizer)
    p.grad = torch.as_tensor(gradient).double()
    with pytest.raises(ProjectionError, match=f"'layer.weight': .*{message}.*[Ll]ower lr"):
        optimizer.step()
    assert unchanged(before, everything([p], optimizer))
