"""Sampling models that take several inputs: a tuple, or keyword inputs, equal one input in parts."""

import numpy as np
import pytest
import torch
from torch import nn

from holonom import Ensemble
from holonom.constraints import LevelSet
from holonom.errors import ConstraintError
from holonom.sampling import learning_coefficient, load, sample

# Runs of a few steps have not mixed, and say so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:the chains have not mixed:UserWarning", "ignore:the noise of the minibatches:UserWarning"
)


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y = normals(12, 3), normals(12, 1, seed=1)
FIRST, SECOND = X[:, :1].contiguous(), X[:, 1:].contiguous()


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(x)


class Parts(Whole):
    def forward(self, first, second, branch=None):
        out = super().forward(torch.cat([first, second], -1))
        return out if branch is None or float(out.detach().sum()) > -1e9 else -out


def run(model, data, **options):
    settings = {"steps": 20, "chains": 2, "seed": 0, "progress": False, **options}
    return sample(model, nn.MSELoss(), data, **settings)


def same(one, other):
    torch.testing.assert_close(one.draws["linear.weight"], other.draws["linear.weight"])
    torch.testing.assert_close(one.losses, other.losses)


@pytest.mark.parametrize("options", [{}, {"batch_size": 5}, {"kernel": "hmc"}], ids=str)
@pytest.mark.parametrize(
    "x", [(FIRST, SECOND), [FIRST, SECOND], {"second": SECOND, "first": FIRST}], ids=["tuple", "list", "dict"]
)
def test_several_inputs_are_one_input_in_parts(x, options):
    found, wanted = run(Parts(), (x, Y), **options), run(Whole(), (X, Y), **options)
    same(found, wanted)
    x = tuple(x) if isinstance(x, list) else x
    for size in (None, 5):
        predicted, expected = found.predict(x, batch_size=size), wanted.predict(X, batch_size=size)
        torch.testing.assert_close(predicted.mean, expected.mean)
        torch.testing.assert_close(predicted.variance, expected.variance)
    torch.testing.assert_close(found.outputs(x), wanted.outputs(X))


@pytest.mark.parametrize("options", [{}, {"batch_size": 5}], ids=str)
def test_chain_by_chain(options):
    inputs = {"first": FIRST, "second": SECOND, "branch": FIRST}
    with pytest.warns(UserWarning, match="one after another"):
        found = run(Parts(), (inputs, Y), lr=0.03, **options)
    wanted = run(Whole(), (X, Y), lr=0.03, **options)
    same(found, wanted)
    torch.testing.assert_close(found.predict(inputs).mean, wanted.predict(X).mean)


@pytest.mark.filterwarnings("ignore:the learning coefficient is")
def test_the_learning_coefficient_of_several_inputs():
    options = {"restoring": 100.0, "steps": 20, "chains": 2, "seed": 0, "progress": False, "batch_size": 5}
    found = learning_coefficient(Parts(), nn.MSELoss(), ((FIRST, SECOND), Y), **options)
    wanted = learning_coefficient(Whole(), nn.MSELoss(), (X, Y), **options)
    assert found.value == pytest.approx(wanted.value, rel=1e-4)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-6)


def test_a_folder_knows_all_inputs(tmp_path):
    done = run(Parts(), ((FIRST, SECOND), Y), out=tmp_path)
    same(load(tmp_path, Parts()), done)
    with pytest.raises(ValueError, match="other settings: data"):
        run(Parts(), ((FIRST, SECOND + 1), Y), out=tmp_path)


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        ((X.numpy(), Y.numpy()), TypeError, "torch.from_numpy"),
        (X, TypeError, "data is a pair of inputs and targets"),
        ((X, X, Y), TypeError, r"Several inputs are a tuple, \(\(x1, x2\), y\)"),
        (((X, np.zeros(12)), Y), TypeError, "data is a pair"),
        (((), Y), TypeError, "data is a pair"),
        (({0: X}, Y), TypeError, "data is a pair"),
        (((X, X[:3]), Y), ValueError, r"\(12, 3\), \(3, 3\) and targets of shape \(12, 1\)"),
        (((X, torch.tensor(1.0)), Y), ValueError, "must be as many examples"),
        ((X[:0], Y[:0]), ValueError, "must be as many examples"),
        (((X, X), Y), TypeError, "positional argument"),
    ],
)
def test_data_that_is_none(data, error, said):
    with pytest.raises(error, match=said):
        run(Whole(), data)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lr": "auto"}, "lr must be a number, or None, got 'auto'"),
        ({"num_data": "12"}, "num_data must be a number"),
        ({"num_data": True}, "num_data must be a number"),
    ],
)
def test_numbers_that_are_none(options, said):
    with pytest.raises(TypeError, match=said):
        run(Whole(), (X, Y), **options)


def test_models_and_losses_that_are_none():
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, got function"):
        sample(lambda x: x, nn.MSELoss(), (X, Y), steps=10)
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, got function"):
        learning_coefficient(lambda x: x, nn.MSELoss(), (X, Y), restoring=1.0, steps=10)
    with pytest.raises(TypeError, match=r"loss must be a function, such as nn\.CrossEntropyLoss"):
        sample(Whole(), "mse", (X, Y), steps=10)


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (lambda model: Ensemble(Whole, 2), "give one model, not an Ensemble"),
        (lambda model: torch.compile(model, backend="eager"), r"inside torch\.compile it cannot: give the model"),
        (nn.DataParallel, "inside DataParallel it cannot"),
    ],
)
def test_models_that_are_wrapped_are_refused(wrap, said):
    with pytest.raises(TypeError, match=said):
        run(wrap(Whole()), (X, Y))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prior": 1.0}, "unknown option 'prior' of local sampling: it follows from at and restoring"),
        ({"burnin": 5}, "unknown option 'burnin' of local sampling: there are batch_size, burn_in"),
        ({"restoring": None}, "restoring must be a number, got None"),
        ({"beta": "1"}, "beta must be a number, got '1'"),
    ],
)
def test_options_of_local_sampling_that_are_none(options, said):
    with pytest.raises(TypeError, match=said):
        learning_coefficient(Whole(), nn.MSELoss(), (X, Y), **{"restoring": 1.0, "steps": 10, **options})


def test_half_precision_is_named_where_no_lr_can_be_chosen():
    def loss(output, target):
        return 50 * (output - target).square().mean()

    data = X.bfloat16(), Y.bfloat16()
    with pytest.raises(ValueError, match=r"lost in torch\.bfloat16 weights.*sample in float32"):
        sample(Whole().bfloat16(), loss, data, steps=20, chains=2, seed=0, progress=False)


def test_predictions_need_whole_numbers():
    posterior = run(Whole(), (X, Y))
    for options in ({"every": 0}, {"every": 1.5}, {"batch_size": 0}, {"batch_size": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be a whole number of at least 1"):
            posterior.predict(X, **options)


def test_a_model_may_return_more_than_a_tensor():
    class Pair(Whole):
        def forward(self, x):
            return super().forward(x), x

    def loss(output, target):
        return (output[0] - target).square().mean()

    wanted = run(Whole(), (X, Y), lr=0.05)
    same(sample(Pair(), loss, (X, Y), steps=20, chains=2, seed=0, progress=False, lr=0.05), wanted)


def test_joint_constraints_are_refused():
    space = LevelSet(lambda a, b: a.square().sum() + b.square().sum() - 1, joint=True)
    with pytest.raises(ConstraintError, match=r"holds several tensors at once.*holonom\.Langevin"):
        run(Whole(), (X, Y), constraints={"*": space})
