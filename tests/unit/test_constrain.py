"""holonom.constrain: what rules claim, what is refused, the handle and its diagnostics."""

import copy
import pickle
import re
import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.swa_utils import AveragedModel

import holonom
from holonom import Langevin
from holonom._constrain.claims import Claim
from holonom._constrain.shards import adopted, moved
from holonom.constraints import Circle, LevelSet, Orthogonal, Spectral, Sphere
from holonom.errors import CheckpointError, ConstraintError, PartitionError, ProjectionError
from holonom.partitions import embeddings, hidden, output, role, weights

pytestmark = pytest.mark.filterwarnings("ignore:weights that did not satisfy")


def network(dtype=torch.float32):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)]
    return nn.Sequential(*layers).to(dtype)


def train(model, opt, steps=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        x, y = torch.randn(16, 6, generator=generator), torch.randint(3, (16,), generator=generator)
        opt.zero_grad()
        nn.functional.cross_entropy(model(x.to(dtype)).float(), y).backward()
        opt.step()


def adamw(model, **options):
    return AdamW(model.parameters(), **{"lr": 1e-2, "weight_decay": 0.0, **options})


def snapshot(model):
    return [p.detach().clone() for p in model.parameters()]


def equal(model, weights):
    return all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True))


def test_an_optimizer_that_takes_no_hooks_says_what_to_do():
    class Bare(torch.optim.Optimizer):
        def __init__(self, inner=None):
            self.defaults = {}
            if inner is not None:
                self.optimizer = inner

    model = network()
    for optimizer, advice in (
        (Bare(), r"its constructor must call that of torch.optim.Optimizer, super\(\).__init__\(params, defaults\)$"),
        (Bare(SGD(model.parameters(), lr=0.1)), "constrain the one inside, before it is wrapped$"),
    ):
        with pytest.raises(TypeError, match=advice):
            holonom.constrain(optimizer, model, {"0.weight": Sphere("initial")})


# --- rules ----------------------------------------------------------------------------------------------------------


def test_what_no_rule_claims_moves_as_without_a_constraint():
    model, twin = network(), network()
    opt, bare = SGD(model.parameters(), lr=0.1), SGD(twin.parameters(), lr=0.1)
    holonom.constrain(opt, model, {weights & hidden: Sphere("initial")})
    train(model, opt, steps=1)
    train(twin, bare, steps=1)
    same = {name for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True) if torch.equal(p, q)}
    assert same == {"0.weight", "6.weight", *(name for name in dict(model.named_parameters()) if "bias" in name)}


def test_every_rule_has_its_residual_and_angle():
    model = network()
    opt = adamw(model)
    held = holonom.constrain(
        opt, model, {"2.weight": Orthogonal(), "4.weight": Circle(0.2), output & weights: Sphere(0.7)}, track=True
    )
    train(model, opt)
    assert list(held.residuals()) == ["'2.weight'", "'4.weight'", "output & weights"]
    assert max(held.residuals().values()) < 1e-6
    angles = held.angles()
    assert list(angles) == list(held.residuals())
    assert all(0 < turned.mean <= turned.largest < 0.5 for turned in angles.values())


def test_frozen_parameters_stay_free():
    model = network()
    model[2].weight.requires_grad_(False)
    before = model[2].weight.clone()
    held = holonom.constrain(adamw(model), model, {weights & hidden: Orthogonal()})
    assert torch.equal(model[2].weight, before)
    assert "1 tensors, 144 parameters" in repr(held)
    with pytest.raises(PartitionError, match="claims frozen parameters only"):
        holonom.constrain(adamw(model), model, {"2.weight": Orthogonal()})


def test_an_ensemble_holds_every_replica():
    ensemble = holonom.Ensemble(network, replicas=3, seed=0)
    opt = adamw(ensemble)
    held = holonom.constrain(opt, ensemble, {weights & hidden: Sphere("initial", per="matrix")}, "tangent")
    before = [p.flatten(1).norm(dim=1) for p in ensemble.parameters() if p.shape[1:] == (12, 12)]
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    for _ in range(3):
        opt.zero_grad()
        ensemble.losses(nn.functional.cross_entropy, x, y).sum().backward()
        opt.step()
    after = [p.flatten(1).norm(dim=1) for p in ensemble.parameters() if p.shape[1:] == (12, 12)]
    assert len(after) == 2
    torch.testing.assert_close(after, before)
    held.check()


def test_factor_rescales_once_and_says_nothing():
    model = network()
    before = model[2].weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        holonom.constrain(adamw(model), model, {"2.weight": Sphere("initial", factor=2.0)})
    torch.testing.assert_close(model[2].weight.detach(), 2 * before)


@pytest.mark.filterwarnings("default:weights that did not satisfy")
def test_weights_that_start_elsewhere_are_moved_with_a_warning():
    model = network()
    with pytest.warns(UserWarning, match="weights that did not satisfy their constraint were moved"):
        holonom.constrain(adamw(model), model, {"2.weight": Sphere(1.0, slack=False)})
    torch.testing.assert_close(model[2].weight.norm(dim=1), torch.ones(12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("update", ["plain", "tangent"])
def test_a_radius_that_is_changed_in_place_is_seen(update, dtype):
    radius, model = torch.tensor(0.5, dtype=dtype), torch.nn.Linear(3, 2, bias=False)
    opt = torch.optim.SGD(model.parameters(), 1.0)
    holonom.constrain(opt, model, {"weight": Circle(radius)}, update)
    for bound in (0.5, 0.1):
        radius.fill_(bound)
        for _ in range(2):
            model.weight.grad = torch.full_like(model.weight, -1.0)
            opt.step()
        torch.testing.assert_close(model.weight.detach(), torch.full_like(model.weight, bound))


def test_a_step_that_cannot_begin_has_no_weights_to_put_back(monkeypatch):
    model = network()
    opt = adamw(model)
    held = holonom.constrain(opt, model, {"2.weight": Sphere("initial")}, "tangent")
    model[2].weight.grad = torch.ones_like(model[2].weight)
    opt.step()
    (bucket,) = held._plan.buckets
    loaded = torch.full_like(model[2].weight, 0.5)
    model[2].weight.data.copy_(loaded)

    def fails(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr("holonom._constrain.buckets.copy_", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        bucket.start()
    bucket.restore()
    torch.testing.assert_close(model[2].weight.detach(), loaded, rtol=0, atol=0)


def test_an_error_of_a_circle_of_ones_own_leaves_the_weights_where_the_step_left_them():
    class Failing(Circle):
        def nearest_(self, x):
            x.q.zero_()
            raise ValueError("halfway")

    model = torch.nn.Linear(3, 2, bias=False)
    torch.nn.init.constant_(model.weight, 0.1)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    holonom.constrain(opt, model, {"weight": Failing(0.5)})
    model.weight.grad = torch.full_like(model.weight, 0.5)
    with pytest.raises(ValueError, match="halfway"):
        opt.step()
    torch.testing.assert_close(model.weight.detach(), torch.full_like(model.weight, 0.05))


def test_a_bound_is_reached_without_a_margin():
    model = network()
    holonom.constrain(adamw(model), model, {"2.weight": Circle(0.1)})
    assert float(model[2].weight.detach().abs().max()) == pytest.approx(0.1)


# --- bad input ------------------------------------------------------------------------------------------------------


def zero_row(model):
    model[2].weight.data[3] = 0


RULE = {weights & hidden: Sphere("initial")}
BAD = {
    "matches nothing": (lambda m: (adamw(m), m, {"no.such": Sphere()}), {}, PartitionError, "'no.such' claims no"),
    "not owned": (
        lambda m: (AdamW(m[2].parameters(), weight_decay=0.0), m, RULE), {}, PartitionError,
        "claims '4.weight', which the optimizer does not own",
    ),
    "claimed twice": (
        lambda m: (adamw(m), m, {**RULE, "4.weight": Sphere()}), {}, PartitionError,
        "claimed twice, '4.weight' by weights & hidden and '4.weight'",
    ),
    "zero block": (lambda m: (zero_row(m), (adamw(m), m, RULE))[1], {}, ConstraintError, "on '2.weight': 1 of 12"),
    "radii of another length": (
        lambda m: (adamw(m), m, {"2.weight": Sphere(torch.ones(5))}), {}, ConstraintError,
        r"on '2.weight': \(5,\) radii for rows of shape \(12,\)",
    ),
    "no heads": (
        lambda m: (adamw(m), m, {"2.weight": Sphere("initial", per="head")}), {}, PartitionError, "of attention heads",
    ),
    "Langevin": (lambda m: (Langevin(m.parameters()), m, RULE), {}, TypeError, "holonom.partition"),
    "Langevin inside": (
        lambda m: (holonom.together(Langevin(m[:4].parameters()), SGD(m[4:].parameters(), 0.1)), m, RULE), {},
        TypeError, "holonom.partition",
    ),
    "no optimizer": (lambda m: (m, m, RULE), {}, TypeError, "takes a torch.optim.Optimizer, got Sequential"),
    "no model": (lambda m: (adamw(m), m.parameters(), RULE), {}, TypeError, "needs the model"),
    "no rules": (lambda m: (adamw(m), m, {}), {}, PartitionError, "no rules"),
    "rules are a space": (lambda m: (adamw(m), m, Sphere("initial")), {}, TypeError, "rules map selectors to spaces"),
    "a key is a module": (
        lambda m: (adamw(m), m, {m[2]: Sphere("initial")}), {}, PartitionError, "or 'rest'; got Linear",
    ),
    "no space": (lambda m: (adamw(m), m, {weights: "initial"}), {}, TypeError, "the rule weights holds 'initial'"),
    "a rule is no pair": (lambda m: (adamw(m), m, [weights]), {}, PartitionError, "a selector and a space"),
    "update": (lambda m: (adamw(m), m, RULE), {"update": "polar"}, ValueError, "update must be 'plain' or"),
    "momentum": (lambda m: (adamw(m), m, RULE), {"momentum": "drop"}, ValueError, "momentum must be 'keep' or"),
    "decay": (lambda m: (adamw(m), m, RULE), {"decay": "keep"}, ValueError, "decay must be None or 'drop'"),
    "track": (lambda m: (adamw(m), m, RULE), {"track": "no"}, TypeError, "track must be True or False, got 'no'"),
    "angular and bounds": (
        lambda m: (adamw(m), m, {"2.weight": Sphere(1.0)}), {"update": "angular"}, ConstraintError,
        "turns blocks of a fixed norm, and '2.weight'",
    ),
    "angular and matrices": (
        lambda m: (adamw(m), m, {"2.weight": Orthogonal()}), {"update": "angular"}, ConstraintError, "fixed norm",
    ),
    "tangent and edges": (
        lambda m: (adamw(m), m, {"2.weight": Spectral(1.0)}), {"update": "tangent"}, ConstraintError,
        "'2.weight' has no tangent projection of a step: use update='plain'",
    ),
    "momenta and edges": (
        lambda m: (adamw(m), m, {"2.weight": Spectral(1.0)}), {"momentum": "project"}, ConstraintError, "no tangent",
    ),
    "joint": (
        lambda m: (adamw(m), m, {weights & hidden: LevelSet(lambda a, b: a.sum() - b.sum(), joint=True)}), {},
        ConstraintError, "holonom.Langevin only",
    ),
    "NaN": (
        lambda m: (m[2].weight.data.fill_(float("nan")), (adamw(m), m, RULE))[1], {}, ConstraintError,
        "'2.weight': the weights hold NaN",
    ),
    "decay of an equality": (
        lambda m: (adamw(m, weight_decay=0.1), m, RULE), {}, ConstraintError,
        r"group 0 of AdamW has weight_decay=0.1, which pulls 2 tensor\(s\), such as '2.weight'",
    ),
    "coupled decay": (
        lambda m: (SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=0.1), m, RULE), {"decay": "drop"},
        ConstraintError, "a part of the gradient",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_is_done(name):
    make, options, error, message = BAD[name]
    model = network()
    given = make(model)
    before = snapshot(model)
    with pytest.raises(error, match=message):
        holonom.constrain(*given, **options)
    assert all(torch.equal(p.nan_to_num(), q.nan_to_num()) for p, q in zip(model.parameters(), before, strict=True))
    if isinstance(given[0], torch.optim.Optimizer):
        assert not holonom._torch.step_hooks(given[0])


def test_weights_without_values_are_refused():
    model = network().to("meta")
    with pytest.raises(ConstraintError, match=r"'2\.weight': the weights are on the meta device"):
        holonom.constrain(adamw(model), model, RULE)


def test_a_later_call_cannot_claim_again():
    model = network()
    opt = adamw(model)
    held = holonom.constrain(opt, model, {"2.weight": Sphere("initial")})
    with pytest.raises(PartitionError, match=r"'2.weight' is held on .* already, by another call"):
        holonom.constrain(opt, model, {weights & hidden: Sphere("initial")})
    holonom.constrain(opt, model, {"4.weight": Orthogonal()}, "tangent")
    train(model, opt)
    held.remove()
    holonom.constrain(opt, model, {"2.weight": Orthogonal()}).check()


def test_the_groups_that_an_error_prints_are_accepted():
    model = network()
    with pytest.raises(ConstraintError) as refusal:
        holonom.constrain(adamw(model, weight_decay=0.1), model, {weights & hidden: Sphere("initial")})
    code = re.search(r"groups = (holonom\.partition\(.*?\}\))\n", str(refusal.value), re.DOTALL).group(1)
    groups = eval(code, {"holonom": holonom, "model": model, "weights": weights, "hidden": hidden})
    opt = AdamW(groups, lr=1e-2)
    assert [group["weight_decay"] for group in opt.param_groups] == [0.0, 0.1]
    held = holonom.constrain(opt, model, {weights & hidden: Sphere("initial")})
    train(model, opt)
    held.check(opt)


def test_decay_that_is_set_later_is_refused_before_the_step():
    model = network()
    opt = adamw(model)
    holonom.constrain(opt, model, RULE)
    train(model, opt)
    opt.param_groups[0]["weight_decay"] = 0.1
    before = snapshot(model)
    with pytest.raises(ConstraintError, match=r"has weight_decay=0\.1"):
        train(model, opt)
    assert equal(model, before)


def test_decay_of_bounds_is_allowed():
    model = network()
    opt = adamw(model, weight_decay=0.5)
    held = holonom.constrain(opt, model, {weights & hidden: Sphere(1.0)}, "tangent")
    train(model, opt)
    held.check()


# --- the handle -----------------------------------------------------------------------------------------------------


def test_a_removed_handle_holds_nothing_and_says_so():
    model, twin = network(), network()
    opt, bare = adamw(model), adamw(twin)
    held = holonom.constrain(opt, model, RULE)
    held.remove()
    train(model, opt)
    train(twin, bare)
    assert equal(model, snapshot(twin))
    assert not holonom._torch.step_hooks(opt)
    assert "holonom" not in opt.state_dict()
    held.remove()
    for call in (held.residuals, held.angles, held.check, held.state_dict, held.project_, held.attach):
        with pytest.raises(RuntimeError, match="this handle was removed"):
            call()


def test_angles_of_plain_need_the_weights_from_before():
    model = network()
    held = holonom.constrain(adamw(model), model, RULE)
    with pytest.raises(RuntimeError, match="track=True"):
        held.angles()
    tracked = holonom.constrain(adamw(model), model, RULE, track=True)
    with pytest.raises(RuntimeError, match="there was none"):
        tracked.angles()


def test_angles_are_those_of_the_last_step():
    model = network(torch.float64)
    opt = adamw(model)
    held = holonom.constrain(opt, model, {"2.weight": Sphere("initial", per="matrix")}, track=True)
    train(model, opt)
    before = model[2].weight.detach().clone()
    train(model, opt, steps=1, seed=2)
    after = model[2].weight.detach()
    cosine = (before * after).sum() / before.norm() / after.norm()
    assert held.angles()["'2.weight'"].largest == pytest.approx(float(cosine.arccos()), rel=1e-6)


def test_angles_need_a_step_since_a_checkpoint_was_loaded_or_groups_changed():
    model = network()
    opt = adamw(model)
    held = holonom.constrain(opt, model, RULE, "tangent")
    train(model, opt)
    for change in (
        lambda: opt.load_state_dict(opt.state_dict()),
        lambda: held.load_state_dict(held.state_dict()),
        lambda: opt.param_groups[0]["params"].reverse(),
    ):
        change()
        with pytest.raises(RuntimeError, match="there was none since the handle was built, copied or loaded"):
            held.angles()
        train(model, opt, steps=1)
        assert held.angles()["weights & hidden"].mean > 0
    *_, handle = copy.deepcopy((model, opt, held))
    with pytest.raises(RuntimeError, match="there was none"):
        handle.angles()


def test_check_finds_hooks_that_others_removed():
    model = network()
    opt = adamw(model)
    held = holonom.constrain(opt, model, RULE)
    held.check()
    opt._optimizer_step_post_hooks.clear()
    with pytest.raises(RuntimeError, match="the step hooks of AdamW are gone"):
        held.check()
    held.attach()
    train(model, opt)
    held.check()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_check_finds_copies_and_attach_mends_them(copied):
    model = network()
    opt = adamw(model)
    held = holonom.constrain(opt, model, RULE, "tangent")
    train(model, opt)
    alone = copied(opt)
    with pytest.raises(RuntimeError, match="not the one that was constrained"):
        held.check(alone)
    twin, other, handle = copied((model, opt, held))
    with pytest.raises(RuntimeError, match="the step hooks of AdamW are gone"):
        handle.check(other)
    handle.attach()
    train(model, opt)
    train(twin, other)
    assert equal(twin, snapshot(model))
    handle.check(other)
    held.check(opt)


def test_check_finds_weights_that_others_moved():
    model = network()
    opt = adamw(model)
    held = holonom.constrain(opt, model, RULE)
    train(model, opt)
    train(model, copy.copy(opt))  # the same parameters, no hooks
    with pytest.raises(ProjectionError, match="weights under the rule weights & hidden violate"):
        held.check()
    held.project_()
    held.check()


def test_check_names_weights_that_are_no_numbers():
    model = network()
    held = holonom.constrain(adamw(model), model, RULE)
    train(model, held.optimizer)
    for p in model.parameters():
        p.grad.fill_(float("nan"))
    held.optimizer.step()
    with pytest.raises(ProjectionError, match="weights & hidden hold NaN or infinity: load good ones"):
        held.check()


def test_check_looks_through_wrappers():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model = network()
    opt = adamw(model)
    held = holonom.constrain(opt, model, RULE)
    held.check(Wrapper(Wrapper(opt)))
    with pytest.raises(RuntimeError, match="not the one"):
        held.check(Wrapper(adamw(model)))


def test_a_step_to_a_matrix_of_zeros_without_a_copy_says_where_the_weights_are():
    model = network()
    opt = SGD(model.parameters(), lr=1.0)
    holonom.constrain(opt, model, {"2.weight": Orthogonal()}, update="plain")
    model[2].weight.grad = model[2].weight.detach().clone()
    with pytest.raises(ConstraintError, match=r"'2.weight': .*These weights are where the step left them"):
        opt.step()
    assert not model[2].weight.any()


def test_a_projection_without_a_root_leaves_its_weights_and_moves_the_others():
    model = network()
    opt = SGD(model.parameters(), lr=1.0)
    held = holonom.constrain(opt, model, {"2.weight": Orthogonal(), "4.weight": Sphere("initial")}, "tangent")
    before = snapshot(model)
    for p in model.parameters():
        p.grad = 50 * torch.randn_like(p)
    with pytest.raises(ProjectionError, match=r"'2.weight': .*These weights are as they were before the step"):
        opt.step()
    assert torch.equal(model[2].weight, before[2])
    assert not torch.equal(model[4].weight, before[4])
    held.check()


def test_a_projection_that_fails_on_a_device_is_counted(monkeypatch):
    """There a root that does not exist is NaN, and nothing can be raised without waiting."""
    model = network()
    opt = SGD(model.parameters(), lr=0.1)
    held = holonom.constrain(opt, model, {"2.weight": Orthogonal()}, "tangent")
    before = snapshot(model)
    move_ = Orthogonal.move_
    monkeypatch.setattr(Orthogonal, "move_", lambda self, x, step: x.q.fill_(float("nan")))
    train(model, opt, steps=2)
    monkeypatch.setattr(Orthogonal, "move_", move_)
    assert torch.equal(model[2].weight, before[2])
    with pytest.raises(ProjectionError, match=r"2 projection\(s\) since the last check"):
        held.check()
    held.check()


# --- edits and averages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["plain", "tangent", "angular"])
def test_loaded_weights_are_taken_up(update):
    model, twin = network(torch.float64), network(torch.float64)
    opt = adamw(model)
    held = holonom.constrain(opt, model, RULE, update)
    radius = model[2].weight.detach().norm(dim=1)
    train(model, opt)
    with torch.no_grad():
        model[2].weight.copy_(-3 * twin[2].weight)
    train(model, opt, steps=1)
    held.check()
    start = twin[2].weight.detach()
    cosine = -(model[2].weight.detach() * start).sum(1) / radius / start.norm(dim=1)
    assert float(cosine.min()) > 0.99


def test_orthogonal_weights_that_were_edited_are_projected_from_their_nearest_point():
    model = network(torch.float64)
    opt = adamw(model)
    held = holonom.constrain(opt, model, {"2.weight": Orthogonal()}, "tangent")
    with torch.no_grad():
        model[2].weight.mul_(2).add_(0.1 * torch.randn(12, 12, dtype=torch.float64))
    train(model, opt, steps=1)
    assert held.residuals()["'2.weight'"] < 1e-12


@pytest.mark.parametrize(
    "space", [Sphere("initial"), Sphere("initial", per="matrix"), Orthogonal(scale="initial")], ids=repr
)
def test_an_average_is_projected(space):
    model = network()
    opt = adamw(model, lr=0.1)
    held = holonom.constrain(opt, model, {weights & hidden: space})
    average = AveragedModel(model)
    for seed in range(3):
        train(model, opt, seed=seed)
        average.update_parameters(model)
    free = average.module[0].weight.clone()
    weight = average.module[2].weight
    off = weight.norm() / model[2].weight.norm()
    holonom.project_(average, like=held)
    assert abs(off - 1) > 1e-3
    assert float((weight.norm() / model[2].weight.norm()).detach()) == pytest.approx(1, abs=1e-6)
    assert torch.equal(average.module[0].weight, free)


# --- half precision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["plain", "tangent", "angular"])
def test_half_precision_keeps_its_norm_in_float32(update):
    model = network(torch.bfloat16)
    opt = SGD(model.parameters(), lr=1e-3)
    held = holonom.constrain(opt, model, {"2.weight": Sphere("initial", per="matrix")}, update, track=True)
    train(model, opt, steps=40)
    master, radius = held.state_dict()["held"]["2.weight"]["master"], held.state_dict()["held"]["2.weight"]["sizes"]
    assert master.dtype == torch.float32
    assert float(master.norm() / radius) == pytest.approx(1, abs=1e-6)
    assert torch.equal(master.bfloat16(), model[2].weight)
    assert held.residuals()["'2.weight'"] < 2e-3  # rounding of the entries
    held.check()


def test_float32_weights_go_where_the_model_goes():
    """Trainers move a model to a device after its optimizer was built."""
    there = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16, device="meta"))
    claim = Claim(0, "weight", there, "Sphere", Sphere(1.0, slack=False), master=torch.zeros(3))
    assert adopted(claim).device == there.device
    assert moved(claim).device == there.device


# --- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("update", ["plain", "tangent", "angular"])
def test_a_resumed_run_is_the_run(update, dtype, tmp_path):
    matrices = Sphere("initial", per="matrix") if update == "angular" else Orthogonal(scale="initial")
    rules = {"2.weight": Sphere("initial", factor=2.0), "4.weight": matrices}
    model = network(dtype)
    opt = adamw(model)
    holonom.constrain(opt, model, rules, update)
    train(model, opt, seed=1)
    torch.save((model.state_dict(), opt.state_dict()), tmp_path / "checkpoint.pt")
    train(model, opt, seed=2)
    other = network(dtype)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5).add_(0.1)  # another start, so that its radii are others
    again = adamw(other)
    held = holonom.constrain(again, other, rules, update)
    weights_, state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other.load_state_dict(weights_)
    again.load_state_dict(state)
    held.check()
    train(other, again, seed=2)
    assert equal(other, snapshot(model))


def test_the_handle_alone_restores_radii():
    model, other = network(), network()
    first = holonom.constrain(adamw(model), model, {"2.weight": Sphere("initial", factor=3.0)})
    opt = adamw(other)
    held = holonom.constrain(opt, other, {"2.weight": Sphere("initial", factor=3.0)})
    other.load_state_dict(model.state_dict())
    held.load_state_dict(first.state_dict())
    train(other, opt)
    torch.testing.assert_close(other[2].weight.norm(dim=1), model[2].weight.norm(dim=1))


def test_a_checkpoint_of_other_rules_is_refused_before_anything_is_loaded():
    model = network()
    opt = adamw(model)
    holonom.constrain(opt, model, {"2.weight": Sphere("initial")})
    train(model, opt)
    saved = opt.state_dict()
    for rules, message in (
        ({"2.weight": Sphere("initial", per="matrix")}, "'2.weight' is held on .* in the checkpoint on"),
        ({"4.weight": Sphere("initial")}, "but not in the checkpoint, which holds '2.weight'"),
    ):
        other = network()
        again = adamw(other)
        holonom.constrain(again, other, rules)
        with pytest.raises(CheckpointError, match=message):
            again.load_state_dict(saved)
        assert not again.state


def test_a_checkpoint_without_radii_is_warned_about():
    model = network()
    opt = adamw(model)
    train(model, opt)
    saved = opt.state_dict()
    holonom.constrain(opt, model, {"2.weight": Sphere("initial")})
    with pytest.warns(UserWarning, match="has no 'holonom' entry"):
        opt.load_state_dict(saved)


def test_a_bare_optimizer_loads_the_checkpoint():
    model = network()
    opt = adamw(model)
    holonom.constrain(opt, model, RULE)
    train(model, opt)
    bare = adamw(network())
    bare.load_state_dict(opt.state_dict())
    assert len(bare.state) == len(list(model.parameters()))


def test_two_handles_share_a_checkpoint():
    model = network()
    opt = adamw(model)
    holonom.constrain(opt, model, {"2.weight": Sphere("initial")})
    holonom.constrain(opt, model, {"4.weight": Sphere("initial", per="matrix")}, "angular")
    train(model, opt)
    state = opt.state_dict()
    assert set(state["holonom"]["held"]) == {"2.weight", "4.weight"}
    opt.load_state_dict(state)


# --- other readings of parameters -----------------------------------------------------------------------------------


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        y = self.embedding(x)
        return self.head(self.norm(self.attention(y, y, y, need_weights=False)[0]))


def test_rules_read_parameters_by_their_modules():
    torch.manual_seed(0)
    model = Language()
    opt = adamw(model)
    packed = model.attention.in_proj_weight
    before = packed.detach().unflatten(0, (3, 2, 4)).flatten(2).norm(dim=2)
    held = holonom.constrain(
        opt, model, {role("attention"): Sphere("initial", per="head"), embeddings: Sphere("initial")}, "angular"
    )
    x = torch.randint(10, (4, 6))
    for _ in range(3):
        opt.zero_grad()
        nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        opt.step()
    torch.testing.assert_close(packed.detach().unflatten(0, (3, 2, 4)).flatten(2).norm(dim=2), before)
    held.check()


@pytest.mark.parametrize("per", ["row", "column", "matrix"])
def test_kernels_in_any_memory_format(per):
    found = []
    for memory in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 4 * 4, 2))
        model = model.to(memory_format=memory)
        opt = adamw(model)
        held = holonom.constrain(opt, model, {"1.weight": Sphere("initial", per=per)}, "tangent")
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        for _ in range(3):
            opt.zero_grad()
            model(x).square().sum().backward()
            opt.step()
        held.check()
        assert model[1].weight.is_contiguous(memory_format=memory)
        found.append(model[1].weight.detach().clone())
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=0)


@pytest.mark.filterwarnings("default:weights that did not satisfy")
def test_warnings_point_at_the_line_of_the_user():
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="weights that did not satisfy") as moved:
        holonom.constrain(opt, model, {"2.weight": Sphere(1.0, slack=False)}, momentum="project")
    with pytest.warns(UserWarning, match="found no exp_avg or momentum_buffer in the state of SGD") as none:
        train(model, opt)
    assert {warning.filename for warning in [*moved, *none]} == {__file__}
    assert len(none) == 1
