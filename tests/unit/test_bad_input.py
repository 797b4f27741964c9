"""Every mistake is refused where it is made, with what was wrong and where."""

import io
import re
import warnings

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from holonom.errors import CheckpointError, ConstraintError, ProjectionError, SchemeError

from .harness import parameter

NAN, INF = float("nan"), float("inf")


def ring(q):
    return (q**2).sum() - 1


def twice(q):
    return torch.stack([ring(q), 2 * ring(q)])


HYPERPARAMETERS = [  # option, value, error, message
    ("lr", -0.1, ValueError, "lr (h) must be finite and at least 0, got -0.1"),
    ("lr", NAN, ValueError, "lr (h) must be finite and at least 0, got nan"),
    ("lr", INF, ValueError, "lr (h) must be finite"),
    ("lr", torch.tensor([0.1, NAN]), ValueError, "lr (h) must be finite and at least 0, got nan"),
    ("lr", "fast", TypeError, "lr (h) must be a number or a tensor, got 'fast'"),
    ("lr", True, TypeError, "lr (h) must be a number or a tensor"),
    ("maximize", "False", TypeError, "maximize must be True or False, got 'False'"),
    ("maximize", None, TypeError, "maximize must be True or False, got None"),
    ("fuse", "no", TypeError, "fuse must be True or False, or None, got 'no'"),
    ("lr", None, TypeError, "lr (h) must be a number or a tensor"),
    ("friction", -1.0, ValueError, "friction (γ) must be at least 0, got -1.0"),
    ("friction", NAN, ValueError, "friction (γ) must be at least 0, got nan"),
    ("friction", [1.0], TypeError, "friction (γ)"),
    ("temperature", -1e-9, ValueError, "temperature (τ) must be finite and at least 0, got -1e-09"),
    ("temperature", INF, ValueError, "temperature (τ) must be finite"),
    ("coupling", -1.0, ValueError, "coupling (ε)"),
    ("driving_noise", NAN, ValueError, "driving_noise (σ_A)"),
    ("weight_decay", -1.0, ValueError, "weight_decay (λ)"),
    ("seed", 1.5, TypeError, "seed must be a whole number, got 1.5"),
    ("scheme", "BABAOABAB", SchemeError, "gradients per step"),
    ("scheme", None, SchemeError, "scheme must be a word"),
    ("constraint", "circle", TypeError, "constraint must be a holonom.constraints object or None, got 'circle'"),
    ("constraint", Circle, TypeError, "constraint must be a holonom.constraints object or None"),
]

SPACES = [
    (lambda: Sphere(1.0, view="cube"), "Sphere: view must be one of"),
    (lambda: Circle(0.0), "Circle: every radius must be positive and finite, got 0.0"),
    (lambda: Circle(-1.0), "every radius must be positive"),
    (lambda: Circle(NAN), "every radius must be positive and finite"),
    (lambda: Circle(torch.tensor([1.0, 0.0])), "every radius must be positive"),
    (lambda: Circle(1.0, margin=0.0), "Circle: margin must lie between 0 and 1"),
    (lambda: Sphere(INF), "Sphere: every radius must be positive and finite"),
    (lambda: Sphere(1.0, margin=1.0), "Sphere: margin must lie between 0 and 1"),
    (lambda: Orthogonal(view="cube"), "Orthogonal: view must be one of"),
    (lambda: Orthogonal(2.0), "the first argument is view; write Orthogonal(scale=2.0)"),
    (lambda: Orthogonal("initial"), "write Orthogonal(scale='initial')"),
    (lambda: Orthogonal(iterations=0), "iterations must be a whole number of at least 1, got 0"),
    (lambda: Orthogonal(iterations=2.5), "iterations must be a whole number of at least 1, got 2.5"),
    (lambda: Orthogonal(tolerance=0.0), "tolerance must lie between 0 and 1"),
    (lambda: Orthogonal(iterations=5, tolerance=1e-6), "iterations (a fixed K) or a tolerance, not both"),
    (lambda: LevelSet(ring, batch_dims=-1), "batch_dims must be a whole number, at least 0, got -1"),
    (lambda: Circle([1.0, 2.0]), "a radius is a number or a tensor (torch.tensor(…)), got [1.0, 2.0]"),
    (lambda: Sphere(1.0, "conv"), "slack, the second argument, must be True, False or None, got 'conv'"),
    (lambda: Sphere(None), "a radius is a number or a tensor (torch.tensor(…)), got None"),
    (lambda: LevelSet(ring, direction="sideways"), "direction must be 'new' (4.42) or 'old' (4.41), got 'sideways'"),
]

WEIGHTS = [  # space, shape or values, message
    (Orthogonal(), (3,), "only matrices can be orthogonal"),
    (Orthogonal(), (3, 3, 3), "say how to read more than two dimensions"),
    (Orthogonal(view="conv"), (3, 3), "view='conv' needs at least 3 dimensions"),
    (Orthogonal(view="batch conv"), (3, 3, 3), "view='batch conv' needs at least 4 dimensions"),
    (Orthogonal(), torch.ones(3, 2), "the weight is rank-deficient"),
    (Orthogonal(), torch.zeros(3, 3), "the weight is rank-deficient"),
    (Sphere(1.0), (), "a scalar has no rows; use Circle"),
    (Sphere(1.0), (2, 3, 3), "say how to read more than two dimensions"),
    (Sphere(torch.ones(4)), (3, 4), "(4,) radii for rows of shape (3,)"),
    (Sphere(1.0, slack=False), torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "a row is zero and has no nearest point"),
    (Circle(torch.ones(3)), (2, 4), "a radius of shape (3,) does not broadcast to the parameter's (2, 4)"),
    (LevelSet(ring, batch_dims=2), (3,), "2 batch_dims, the shape is (3,)"),
    (LevelSet(twice), torch.tensor([0.6, 0.8]), "the Jacobian of twice is rank-deficient"),
    (LevelSet(ring), torch.zeros(2), "the Jacobian of ring is rank-deficient at the weights"),
    (LevelSet(lambda q: ring(q) + 2, name="nothing"), (2,), "no nearest point that satisfies LevelSet(nothing, "),
    (LevelSet(lambda q: torch.cat([q, q])), (2,), "4 constraints on 2 parameters leave nothing"),
    (LevelSet(lambda q: q @ torch.ones(7)), (2,), "g could not be evaluated on a block of shape (2,)"),
    (LevelSet(lambda q, other: q.sum()), (2,), "It takes every tensor of its group, in order, with joint=True"),
    (LevelSet(lambda q: ring(q.mul_(2))), (2,), "it writes into its argument; let it return a new tensor"),
    (LevelSet(lambda q: ring(q) if q[0] > 0 else -ring(q)), (2,), "g could not be evaluated on a block of shape (2,)"),
    (LevelSet(twice), torch.tensor([0.1, 0.2]), "the Jacobian of twice is rank-deficient"),
]


@pytest.mark.parametrize(("option", "value", "error", "message"), HYPERPARAMETERS)
def test_hyperparameters(option, value, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Langevin([parameter([1.0])], **{"lr": 0.1, option: value})


def test_hyperparameters_of_a_group():
    groups = [{"params": [parameter([1.0])]}, {"params": [parameter([1.0])], "temperature": -1.0}]
    with pytest.raises(ValueError, match=r"temperature \(τ\)"):
        Langevin(groups, lr=0.1)


@pytest.mark.parametrize("number", range(len(SPACES)))
def test_spaces(number):
    make, message = SPACES[number]
    with pytest.raises(ConstraintError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("number", range(len(WEIGHTS)))
def test_weights_a_space_cannot_hold_are_named(number):
    space, weight, message = WEIGHTS[number]
    weight = weight if isinstance(weight, torch.Tensor) else torch.full(weight, 0.5)
    free = torch.nn.Parameter(torch.ones(2))
    named = [("free", free), ("layer.weight", torch.nn.Parameter(weight.clone()))]
    groups = [{"params": named[:1]}, {"params": named[1:], "constraint": space}]
    with pytest.raises(ConstraintError, match=re.escape(message)) as refusal:
        Langevin(groups, lr=0.1)
    assert "'layer.weight'" in str(refusal.value)


def test_without_names_a_parameter_is_known_by_its_number():
    groups = [{"params": [parameter([1.0])]}, {"params": [parameter([1.0])], "constraint": Orthogonal()}]
    with pytest.raises(ConstraintError, match="parameter 1 of shape"):
        Langevin(groups, lr=0.1)


SHARED = parameter([1.0, 2.0])
PARAMETERS = [
    ([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))], TypeError, "torch.complex64"),
    ([torch.ones(2, dtype=torch.int64)], TypeError, "torch.int64"),
    ([{"params": [SHARED]}, {"params": [SHARED]}], ValueError, "one of shape (2,) was given twice"),
    ([3.0], TypeError, "one of the params is float"),
    ([{"params": {SHARED}}], TypeError, "ordered collections: give a list"),
    ([], ValueError, "empty parameter list"),
    ([{"lr": 0.1}], ValueError, "group 0 has no 'params': it has lr"),
    (torch.nn.Linear(2, 2), TypeError, "takes parameters, not a Linear: give model.parameters()"),
    ([torch.nn.Parameter(torch.eye(2).to_sparse())], TypeError, "torch.sparse_coo: make it dense"),
    (
        [{"params": [torch.nn.Parameter(torch.ones(2, 2, device="meta"))], "constraint": Sphere(1.0)}],
        ConstraintError,
        "on parameter 0: the weights are on the meta device",
    ),
]


@pytest.mark.parametrize(("params", "error", "message"), PARAMETERS)
def test_parameters(params, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Langevin(params, lr=0.1)


@pytest.mark.parametrize("space", [Circle(1.0), Sphere(1.0), Orthogonal(), LevelSet(ring, slack=True)], ids=repr)
def test_averaged_noise_has_no_constrained_form(space):
    with pytest.raises(ValueError, match=r"scheme 'M' averages the noise .* use scheme='BAOAB' with friction"):
        Langevin([torch.nn.Parameter(torch.eye(2) / 2)], lr=0.1, scheme="M", constraint=space)


@pytest.mark.parametrize(("lr", "momentum"), [(float("nan"), 0.9), (-1.0, 0.9), (0.1, 1.0), (0.1, -0.1)])
def test_like_sgd_refuses_what_has_no_counterpart(lr, momentum):
    with pytest.raises(ValueError, match="must"):
        Langevin.like_sgd([parameter([1.0])], lr, momentum)


def optimizer(**options):
    return Langevin([torch.nn.Parameter(torch.full((2, 2), 0.3))], **{"lr": 0.1, **options})


CHECKPOINTS = [  # saved with, loaded into, message
    ({"constraint": Circle(1.0)}, {"constraint": Circle(2.0)}, "checkpoint constraint Circle(radius=1.0"),
    ({"constraint": Circle(1.0)}, {}, "here Free(); build the optimizer with the checkpoint's constraint"),
    ({"constraint": Sphere(1.0)}, {"constraint": Sphere(1.0, slack=False)}, "constraint Sphere(radius=1.0, slack=True"),
    (
        {"constraint": Circle(torch.tensor([0.5, 1.0]))},
        {"constraint": Circle(torch.tensor([0.5, 1.5]))},
        "checkpoint constraint Circle(radius=tensor(2,)#",
    ),
    ({"scheme": "BAOAB"}, {"scheme": "OBA"}, "checkpoint scheme BAOAB, here OBA"),
]


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize(("saved", "loaded", "message"), CHECKPOINTS)
def test_a_checkpoint_of_another_optimizer_is_refused(saved, loaded, message):
    target = optimizer(**loaded)
    before = target.state_dict()
    with pytest.raises(CheckpointError, match=re.escape(message)):
        target.load_state_dict(optimizer(**saved).state_dict())
    assert str(target.state_dict()) == str(before)


def test_a_checkpoint_of_another_model_is_refused():
    other = Langevin([torch.nn.Parameter(torch.ones(3, 2))], lr=0.1)
    with pytest.raises(CheckpointError, match=r"state \['momentum'\] of a parameter of shape \(2, 2\)"):
        optimizer().load_state_dict(other.state_dict())
    with pytest.raises(CheckpointError, match="no param_groups"):
        optimizer().load_state_dict({"model": 1})
    with pytest.raises(CheckpointError, match="holonom did not write it"):
        optimizer().load_state_dict(torch.optim.SGD([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1).state_dict())


def test_a_checkpoint_with_momenta_in_other_coordinates_says_so():
    one, other = (Langevin([parameter(torch.eye(3).numpy())], 0.1, constraint=Orthogonal()) for _ in range(2))
    saved = one.state_dict()
    saved["state"][0]["momentum"] = saved["state"][0].pop("spin")
    with pytest.raises(
        CheckpointError, match=r"an orthogonal weight of shape \(3, 3\) in other coordinates.*weights alone"
    ):
        other.load_state_dict(saved)


def test_a_gradient_too_large_for_its_product_does_no_lasting_harm():
    w = torch.nn.Parameter(torch.linalg.qr(torch.arange(36.0).reshape(6, 6).sin()).Q)
    opt = Langevin([w], 0.01, scheme="OBA", constraint=Orthogonal())
    before = w.detach().clone()
    w.grad = torch.full((6, 6), 3e38)
    with pytest.raises(ProjectionError):
        opt.step()
    assert torch.equal(w, before)
    assert bool(opt.state[w]["spin"].isfinite().all())
    opt.scale_momenta_(0.0)
    w.grad = torch.zeros(6, 6)
    opt.step()


@pytest.mark.parametrize("shape", [(6, 6), (6, 4)])
@pytest.mark.parametrize("word", ["L", "OBA"])
@pytest.mark.parametrize("size", [1e60, 1e100, 1e160, 1e300])
def test_a_gradient_out_of_range_is_a_projection_without_a_root(shape, word, size):
    w = torch.nn.Parameter(
        torch.linalg.qr(torch.arange(36.0, dtype=torch.float64).reshape(6, 6).sin()).Q[:, : shape[1]]
    )
    opt = Langevin([w], 0.01, scheme=word, constraint=Orthogonal())
    before = w.detach().clone()
    w.grad = size * torch.ones_like(w).cumsum(0).cos()
    with pytest.raises(ProjectionError, match="parameter 0"):
        opt.step()
    assert torch.equal(w, before)


@pytest.mark.parametrize(("size", "lr"), [(1e20, 1e-21), (1e29, 1e-30), (1e-20, 1e19)])
@pytest.mark.parametrize("shape", [(6, 6), (6, 4)])
def test_sizes_far_from_one_may_make_an_ordinary_step(shape, size, lr):
    start = torch.linalg.qr(torch.arange(36.0).reshape(6, 6).sin()).Q[:, : shape[1]].contiguous()
    ends = []
    for factor in (1.0, size):
        w = torch.nn.Parameter(start.clone())
        opt = Langevin([w], lr * size / factor, scheme="L", constraint=Orthogonal())
        for _ in range(3):
            w.grad = factor * torch.ones_like(w).cumsum(0).cos()
            opt.step()
        ends.append(w.detach())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lr", [1e-12, 1e-46, 1e-200, 5e-324])
@pytest.mark.parametrize("word", ["L", "OBA", "BAOAB"])
def test_rates_below_the_range_of_the_weights_change_nothing(word, lr):
    w = torch.nn.Parameter(torch.linalg.qr(torch.arange(24.0).reshape(6, 4).sin()).Q)
    opt = Langevin([w], lr, scheme=word, constraint=Orthogonal())
    before = w.detach().clone()
    for _ in range(3):
        w.grad = torch.ones_like(w)
        opt.step()
    torch.testing.assert_close(w.detach(), before, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("lr", float("nan"), ValueError, "lr (h) of group 1 is nan"),
        ("friction", float("nan"), ValueError, "friction (γ) of group 1 is nan"),
        ("temperature", -1.0, ValueError, "temperature (τ) of group 1 is -1.0"),
        ("weight_decay", torch.tensor(float("nan")), ValueError, "weight_decay (λ) of group 1 is nan"),
        ("driving_noise", float("inf"), ValueError, "driving_noise (σ_A) of group 1 is inf"),
        ("weight_decay", -3, ValueError, "weight_decay (λ) of group 1 is -3.0"),
        ("friction", np.float32("nan"), ValueError, "friction (γ) of group 1 is nan"),
        ("scheme", "BACDEDCAB", ValueError, "has no state for it"),
        ("constraint", Circle(1.0), TypeError, "it cannot be assigned"),
        ("maximize", "no", TypeError, "maximize must be True or False, got 'no'"),
        ("lr", "0.1", TypeError, "lr (h) of group 1 must be a number or a tensor, got '0.1'"),
        ("temperature", [0.1], TypeError, "temperature (τ) of group 1 must be a number or a tensor, got [0.1]"),
        ("lr", True, TypeError, "lr (h) of group 1 must be a number"),
        ("lr", torch.tensor(True), TypeError, "lr (h) of group 1 must be a number"),
        ("temperature", torch.tensor(1j), TypeError, "temperature (τ) of group 1 must be a number"),
    ],
)
def test_what_is_assigned_later_is_refused_before_anything_moves(name, value, error, message):
    weights = [parameter([1.0]), parameter([2.0])]
    optimizer = Langevin([{"params": [p]} for p in weights], lr=0.1)
    optimizer.param_groups[1][name] = value
    for p in weights:
        p.grad = torch.ones_like(p)
    with pytest.raises(error, match=re.escape(message)):
        optimizer.step()
    assert [p.item() for p in weights] == [1.0, 2.0]


def test_numpys_numbers_are_numbers():
    p = parameter([1.0])
    optimizer = Langevin(
        [{"params": [p], "lr": np.float32(0.5)}], np.float64(0.1), seed=np.int64(3), temperature=np.int32(1)
    )
    group = optimizer.param_groups[0]
    assert (type(group["lr"]), type(group["seed"]), group["temperature"]) == (float, int, 1)


@pytest.mark.parametrize("stepped", [False, True])
def test_a_schedule_computed_by_numpy_leaves_plain_checkpoints(stepped):
    p = parameter([1.0])
    optimizer = Langevin([p], 0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: np.exp(-0.1 * epoch))
    for _ in range(1 + stepped):
        optimizer.param_groups[0]["temperature"] = np.array(0.0)
        p.grad = torch.ones_like(p)
        optimizer.step()
        scheduler.step()
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    assert saved["param_groups"][0]["lr"] == optimizer.param_groups[0]["lr"]
    assert saved["param_groups"][0]["temperature"] == 0.0


def test_weights_of_another_shape_are_named():
    p = torch.nn.Parameter(torch.zeros(3, 4))
    optimizer = Langevin([("layer.weight", p)], 0.1)
    p.data = torch.zeros(5, 4)
    p.grad = torch.zeros(5, 4)
    with pytest.raises(RuntimeError, match=re.escape("'layer.weight' had shape (3, 4)")):
        optimizer.step()


@pytest.mark.parametrize("space", [Circle(1.0), Sphere(1.0), Orthogonal(), LevelSet(ring)], ids=repr)
def test_nan_written_into_weights_is_named(space):
    p = torch.nn.Parameter(torch.eye(2)[:1] if not isinstance(space, LevelSet) else torch.tensor([0.6, 0.8]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = Langevin([("layer.weight", p)], 0.1, constraint=space)
    with torch.no_grad():
        p.fill_(float("nan"))
    p.grad = torch.zeros_like(p)
    with pytest.raises(ConstraintError, match=re.escape("on 'layer.weight': the weights hold NaN or infinity")):
        optimizer.step()


def test_frozen_weights_that_are_moved_are_mentioned():
    p = torch.nn.Parameter(torch.tensor([3.0, 0.1]), requires_grad=False)
    with pytest.warns(UserWarning, match=r"1 are frozen \(requires_grad=False\): to leave them alone"):
        Langevin([p], 0.1, constraint=Circle(1.0))
