"""LevelSet with equalities and inequalities at once: a simplex, its corners, and what cannot be."""

import pytest
import torch

from holonom import Langevin
from holonom.constraints import LevelSet
from holonom.errors import ConstraintError

FORCE = torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.float64)


def total(w):
    return w.sum() - 1  # a number without dimensions


def below_zero(w):
    return -w


def simplex(**options):
    return LevelSet(total, inequalities=below_zero, **options)


def weights(dtype=torch.float64):
    return torch.nn.Parameter(torch.rand(20, 4, dtype=dtype, generator=torch.Generator().manual_seed(1)))


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("word", ["BAOAB", "L"])
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_weights_stay_on_the_simplex_and_not_below_zero(word, dtype, rounding):
    w = weights(dtype)
    options = {"scheme": word, "temperature": 0.3, "seed": 2}
    optimizer = Langevin([w], 0.02 if word == "L" else 0.2, constraint=simplex(batch_dims=1), **options)
    touched = 0
    for _ in range(50):
        w.grad = FORCE.to(dtype).expand_as(w).clone()
        optimizer.step()
        touched += int((w < 1e-3).sum())
        assert bool((w >= 0).all())
        assert float((w.detach().sum(1) - 1).abs().max()) <= rounding
        assert optimizer.residuals()[0] <= rounding
        assert optimizer.cotangencies()[0] <= 100 * rounding
    assert touched > 20  # bounds were met


def test_the_minimum_is_at_the_corner_of_the_smallest_slope():
    w = torch.nn.Parameter(torch.tensor([0.3, 0.2, 0.2, 0.3], dtype=torch.float64))
    optimizer = Langevin([w], 0.3, friction=1.0, constraint=simplex())
    for _ in range(150):
        w.grad = FORCE.clone()
        optimizer.step()
    torch.testing.assert_close(w.detach(), torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),
        ([0.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]),
        ([2.0, -1.0, 0.0, 0.0], [0.997, 0.001, 0.001, 0.001]),
        ([0.9, 0.4, 0.3, -0.2], [0.9 - 0.601 / 3, 0.4 - 0.601 / 3, 0.3 - 0.601 / 3, 0.001]),
    ],
)
@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_landing_is_the_nearest_point(start, end):
    w = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    Langevin([w], 0.1, constraint=simplex())
    torch.testing.assert_close(w.detach(), torch.tensor(end, dtype=torch.float64), rtol=0, atol=1e-9)


def test_only_inequalities():
    w = torch.nn.Parameter(torch.tensor([0.3, 0.2], dtype=torch.float64))
    other = torch.nn.Parameter(w.detach().clone())
    optimizers = [
        Langevin([w], 0.1, constraint=LevelSet(inequalities=below_zero), temperature=0.1, seed=3),
        Langevin([other], 0.1, constraint=LevelSet(below_zero, slack=True), temperature=0.1, seed=3),
    ]
    for _ in range(20):
        for p, optimizer in zip((w, other), optimizers, strict=True):
            p.grad = torch.ones_like(p)
            optimizer.step()
    assert torch.equal(w, other)
    assert optimizers[0].param_groups[0]["constraint"].endswith("inequalities=below_zero)")


def test_degrees_of_freedom_are_the_weights_less_the_equalities():
    assert simplex().degrees_of_freedom(torch.rand(4)) == 3
    assert simplex(batch_dims=1).degrees_of_freedom(torch.rand(5, 4)) == 15
    assert LevelSet(inequalities=below_zero).degrees_of_freedom(torch.rand(4)) == 4


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (LevelSet, "give a function g"),
        (lambda: LevelSet(3), "give a function g"),
        (lambda: LevelSet(total, inequalities=0.0), "give a function g"),
        (lambda: LevelSet(total, slack=True, inequalities=below_zero), "slack=True makes g an inequality"),
        (lambda: LevelSet(slack=True, inequalities=below_zero), "slack=True makes g an inequality"),
        (lambda: LevelSet(total, below_zero), r"the second argument is slack; write LevelSet\(g, inequalities=h\)"),
        (lambda: LevelSet(total, "no"), "slack must be True or False, got 'no'"),
        (lambda: LevelSet(total, batch_dims=True), "batch_dims must be a whole number"),
    ],
)
def test_options_that_contradict_each_other(make, said):
    with pytest.raises(ConstraintError, match=said):
        make()


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (LevelSet(total, inequalities=lambda w: w @ torch.ones(7)), "inequalities could not be evaluated"),
        (LevelSet(lambda w: 1.0), "It must return a tensor"),
        (LevelSet(lambda w: w.sum() > 0), r"it returned torch\.bool\. It must return a tensor of real numbers"),
        (LevelSet(lambda w: w.sum() * 1j), r"it returned torch\.complex64"),
        (LevelSet(total, inequalities=lambda w: w.sum() - 0.5), "rank-deficient"),
        (LevelSet(total, inequalities=lambda w: 0.5 - w), "no nearest point .*inequalities=.* see that there is one"),
        (LevelSet(lambda w: torch.stack([w.sum() - 1] * 5), inequalities=below_zero), "5 constraints on 4 parameters"),
    ],
)
def test_constraints_that_cannot_hold(space, said):
    with pytest.raises(ConstraintError, match=said):
        Langevin([torch.nn.Parameter(torch.tensor([0.3, 0.2, 0.2, 0.3]))], 0.1, constraint=space)


def test_a_checkpoint_resumes_bit_for_bit():
    runs = []
    for stop in (False, True):
        w = torch.nn.Parameter(torch.tensor([0.3, 0.2, 0.2, 0.3], dtype=torch.float64))
        optimizer = Langevin([w], 0.2, constraint=simplex(), temperature=0.2, seed=5)
        for step in range(10):
            if stop and step == 5:
                w, state = torch.nn.Parameter(w.detach().clone()), optimizer.state_dict()
                optimizer = Langevin([w], 0.2, constraint=simplex(), temperature=0.2, seed=5)
                optimizer.load_state_dict(state)
            w.grad = FORCE.clone()
            optimizer.step()
        runs.append(w.detach())
    assert torch.equal(*runs)


def root(w):
    return w.square().sum().sqrt() - 1


UNDEFINED = [
    (LevelSet(lambda w: w.log().sum(), name="g"), [-1.0, 2.0], "g is NaN or infinite at the weights: initialise"),
    (LevelSet(inequalities=lambda w: w.log(), name="h"), [0.0, 2.0], "h is NaN or infinite at the weights"),
    (LevelSet(root), [0.0, 0.0], "the gradient of root is NaN or infinite at the weights, as that of a norm may"),
    (LevelSet(inequalities=root), [0.0, 0.0], "the gradient of root is NaN"),
    (LevelSet(inequalities=root, batch_dims=1), [[0.3, 0.0], [0.0, 0.0]], r"the gradient .* \(block 1 of 2\)"),
]


@pytest.mark.parametrize(("space", "start", "said"), UNDEFINED)
def test_functions_that_are_undefined_at_the_first_weights(space, start, said):
    first, second = (torch.nn.Parameter(torch.tensor(q)) for q in ([3.0, 4.0], start))
    circle = LevelSet(lambda w: w.square().sum() - 1)
    with pytest.raises(ConstraintError, match=f"LevelSet on parameter 1: {said}"):
        Langevin([{"params": [first], "constraint": circle}, {"params": [second], "constraint": space}], 0.1)
    assert torch.equal(first, torch.tensor([3.0, 4.0]))  # nothing is half done
    assert torch.equal(second, torch.tensor(start))


@pytest.mark.parametrize("word", ["BAOAB", "L"])
@pytest.mark.parametrize("through_data", [False, True])
@pytest.mark.parametrize(
    ("space", "edit", "said"),
    [
        (LevelSet(lambda w: w.log().sum()), [-1.0, 2.0], "NaN or infinite at the weights"),
        (LevelSet(root), [0.0, 0.0], "the gradient of root is NaN"),
        (LevelSet(inequalities=root), [0.0, 0.0], "the gradient of root is NaN"),
        (LevelSet(lambda w: w.square().sum() - 1), [0.0, 0.0], "rank-deficient"),
    ],
)
@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_edits_to_where_functions_are_undefined(space, edit, said, through_data, word):
    w = torch.nn.Parameter(torch.tensor([0.6, 0.8]))
    optimizer = Langevin([w], 0.1, scheme=word, constraint=space)
    w.grad = torch.full((2,), 0.1)
    optimizer.step()
    good = w.detach().clone()
    (w.data if through_data else w.detach()).copy_(torch.tensor(edit))
    with pytest.raises(ConstraintError, match=said):
        optimizer.step()
    assert torch.equal(w, torch.tensor(edit))
    w.data.copy_(good)
    optimizer.step()
    assert optimizer.residuals()[0] < 1e-6
