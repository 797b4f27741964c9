"""Gradients that cannot be used: refused by name and step, with weights and state as they were."""

import warnings

import numpy as np
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
WORDS = ["BAOAB", "L", "BACDEDCAB"]


def model(space, word="BAOAB", **options):
    named = [(name, torch.nn.Parameter(torch.eye(2).double())) for name in ("first", "second")]
    options = {"lr": 0.05, "temperature": 0.01, "scheme": word, "constraint": space, **options}
    optimizer = Langevin(named, **options)
    return [p for _, p in named], optimizer


def give(params, *gradients):
    for p, g in zip(params, gradients, strict=True):
        p.grad = None if g is None else torch.as_tensor(g).double()


def good(p):
    return torch.from_numpy(slope(p.detach().numpy()))


def everything(params, optimizer):
    """All tensors and numbers a step could change."""
    tensors = [p.detach().clone() for p in params]
    for p in params:
        tensors += [x.clone() for x in optimizer.state[p].values()]
    return tensors, [(g["step"], g["owed"]) for g in optimizer.param_groups]


def unchanged(before, after):
    return all(torch.equal(x, y) for x, y in zip(before[0], after[0], strict=True)) and before[1] == after[1]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("space", SPACES)
def test_non_finite_gradients_change_nothing(space, bad, word):
    params, optimizer = model(SPACES[space], word)
    for _ in range(3):
        give(params, *map(good, params))
        optimizer.step()
    before = everything(params, optimizer)
    give(params, good(params[0]), [[0.0, bad], [1.0, 2.0]])
    with pytest.raises(NonFiniteGradientError, match=r"step 3: the gradient of 'second' has 1 of 4 entries NaN or inf"):
        optimizer.step()
    assert unchanged(before, everything(params, optimizer))
    with pytest.raises(NonFiniteGradientError, match="'second'"):
        optimizer.synchronize()
    assert unchanged(before, everything(params, optimizer))


def test_a_run_continues_as_if_the_bad_gradient_had_not_been():
    runs = []
    for bad in (False, True):
        params, optimizer = model(None)
        for number in range(4):
            if bad and number == 2:
                give(params, [[NAN] * 2] * 2, good(params[1]))
                with pytest.raises(NonFiniteGradientError):
                    optimizer.step()
            give(params, *map(good, params))
            optimizer.step()
        runs.append(everything(params, optimizer))
    assert unchanged(*runs)


def test_a_finite_gradient_whose_sum_overflows_is_taken():
    p = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = Langevin([p], lr=1e-200, scheme="L")
    p.grad = torch.full((4,), 1e308, dtype=torch.float64)
    optimizer.step()
    np.testing.assert_allclose(p.detach(), -1e108)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_one_bad_entry_among_many_is_found(bad, dtype):
    p = torch.nn.Parameter(torch.zeros(100_003, dtype=dtype))
    optimizer = Langevin([p], lr=0.1)
    for place in (0, 50_001, 100_002):
        p.grad = torch.ones_like(p)
        p.grad[place] = bad
        with pytest.raises(NonFiniteGradientError, match="1 of 100003"):
            optimizer.step()
        assert not p.any()


def test_the_guard_can_be_switched_off():
    params, optimizer = model(None)
    optimizer.guard_gradients = False
    give(params, good(params[0]), torch.full((2, 2), NAN))
    optimizer.step()
    assert params[1].isnan().all()
    assert params[0].isfinite().all()


def test_sparse_gradients_are_refused_by_name():
    params, optimizer = model(None)
    give(params, *map(good, params))
    params[1].grad = params[1].grad.to_sparse()
    before = everything(params, optimizer)
    with pytest.raises(RuntimeError, match=r"'second' has a torch.sparse_coo gradient.*sparse=False"):
        optimizer.step()
    assert unchanged(before, everything(params, optimizer))


def test_no_gradients_at_all_warns_once_and_changes_nothing():
    params, optimizer = model(None)
    before = everything(params, optimizer)
    with pytest.warns(UserWarning, match="no parameter of this optimizer has a gradient"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert unchanged((before[0], None), (everything(params, optimizer)[0], None))


@pytest.mark.parametrize("space", SPACES)
def test_the_gradient_itself_is_never_written(space):
    params, optimizer = model(SPACES[space], weight_decay=0.1, maximize=True)
    gradients = [good(p) for p in params]
    give(params, *(g.clone() for g in gradients))
    optimizer.step()
    optimizer.synchronize()
    assert all(torch.equal(p.grad, g) for p, g in zip(params, gradients, strict=True))


@pytest.mark.parametrize("space", SPACES)
def test_a_stepsize_of_zero_changes_nothing_but_the_count(space):
    params, optimizer = model(SPACES[space])
    give(params, *map(good, params))
    optimizer.step()
    before = everything(params, optimizer)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    after = everything(params, optimizer)
    assert unchanged((before[0], None), (after[0], None))
    assert after[1] == [(2, before[1][0][1])]


ROOTLESS = {  # a step so long that the projection has no root
    "orthogonal": (Orthogonal(), "BAOAB", torch.eye(2), [[0.0, 1e3], [-1e3, 0.0]], "did not converge"),
    "orthogonal, overdamped": (Orthogonal(), "L", torch.eye(2), [[0.0, 99.0], [-99.0, 0.0]], "did not converge"),
    "level set": (LevelSet(ring), "BAOAB", [1.0, 0.0], [0.0, 1e3], r"onto ring\(q\) = 0 has no root"),
    "level set, old": (LevelSet(ring, direction="old"), "L", [1.0, 0.0], [0.0, 99.0], "has no root in reach"),
}


@pytest.mark.parametrize("case", ROOTLESS)
def test_a_projection_without_a_root_names_the_parameter(case):
    space, word, start, gradient, message = ROOTLESS[case]
    p = torch.nn.Parameter(torch.as_tensor(start).double())
    optimizer = Langevin([("layer.weight", p)], lr=0.1, scheme=word, constraint=space)
    before = p.detach().clone()
    p.grad = torch.as_tensor(gradient).double()
    with pytest.raises(ProjectionError, match=f"'layer.weight': .*{message}.*[Ll]ower lr"):
        optimizer.step()
    assert torch.equal(p, before)
