"""What is easily done wrong with an ensemble: rates, lengths, clipping, inputs, averaged losses, unmappable models."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler, swa_utils

from holonom import Ensemble, EnsembleError, Langevin, PartitionError, presets
from holonom.constraints import Circle, LevelSet
from holonom.errors import ConstraintError
from holonom.models import mlp

R = 3
RATES = [0.1, 0.2, 0.05]


def perceptron():
    return mlp([2, 4, 1]).double()


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 2, generator=generator).double(), torch.randn(5, 1, generator=generator).double()


def optimizer_at(lr, **options):
    ensemble = Ensemble(perceptron, R, seed=0)
    return ensemble, Langevin(ensemble.parameters(), lr, seed=ensemble.seeds, **options)


# ── torch's schedulers on one rate a replica ──

SCHEDULERS = {
    "StepLR": lambda o, at: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o, at: lr_scheduler.MultiStepLR(o, [1, 3], 0.5),
    "ConstantLR": lambda o, at: lr_scheduler.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o, at: lr_scheduler.LinearLR(o, 0.5, 1.0, 3),
    "ExponentialLR": lambda o, at: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o, at: lr_scheduler.CosineAnnealingLR(o, 4, eta_min=0.01),
    "CosineAnnealingWarmRestarts": lambda o, at: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "PolynomialLR": lambda o, at: lr_scheduler.PolynomialLR(o, 4),
    "LambdaLR": lambda o, at: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o, at: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "CyclicLR": lambda o, at: lr_scheduler.CyclicLR(o, at(0.01), at(0.1), 2, cycle_momentum=False),
    "OneCycleLR": lambda o, at: lr_scheduler.OneCycleLR(o, at(0.1), total_steps=6, cycle_momentum=False),
    "OneCycleLR, one rate": lambda o, at: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6, cycle_momentum=False),
    "SequentialLR": lambda o, at: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o, at: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, 1.0, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o, at: swa_utils.SWALR(o, 0.05, anneal_epochs=3),
}


def schedule(make, lr, at):
    """The rates of six steps."""
    _, optimizer = optimizer_at(lr)
    scheduler, seen = make(optimizer, at), []
    for _ in range(6):
        seen.append(torch.as_tensor(optimizer.param_groups[0]["lr"], dtype=torch.float64).clone())
        optimizer.step()
        scheduler.step()
    return torch.stack(seen)


@pytest.mark.filterwarnings("ignore:no parameter of this optimizer")
@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_do_to_every_replicas_rate_what_they_do_to_one(name):
    make = SCHEDULERS[name]
    together = schedule(make, doubles(RATES), lambda x: doubles([x * (i + 1) for i in range(R)]))
    for i, rate in enumerate(RATES):
        alone = schedule(make, rate, lambda x, i=i: x * (i + 1))
        torch.testing.assert_close(together[:, i], alone, rtol=1e-12, atol=0)


def test_a_schedule_trains_every_replica_as_alone():
    x, y = batch()
    runs = []
    for lr in (doubles(RATES), RATES[1]):
        ensemble, optimizer = optimizer_at(lr)
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
        for _ in range(4):
            optimizer.zero_grad()
            ensemble.losses(F.mse_loss, x, y).sum().backward()
            optimizer.step()
            scheduler.step()
        runs.append([p[1].detach() for p in ensemble.parameters()])
    for p, q in zip(*runs, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-14)


@pytest.mark.filterwarnings("ignore:no parameter of this optimizer")
def test_groups_that_share_a_rate_tensor_may_have_schedules_of_their_own():
    ensemble = Ensemble(perceptron, R, seed=0)
    given = doubles(RATES)
    groups = [{"params": [p]} for p in ensemble.parameters()]
    optimizer = Langevin(groups, given, seed=ensemble.seeds)
    given.mul_(2)  # in place, before there is a scheduler
    assert all(torch.equal(group["lr"], doubles(RATES) * 2) for group in optimizer.param_groups)
    factors = [1.0, 0.5, 0.25, 0.125]
    scheduler = lr_scheduler.LambdaLR(optimizer, [lambda epoch, f=f: f**epoch for f in factors])
    optimizer.step()
    scheduler.step()
    for group, factor in zip(optimizer.param_groups, factors, strict=True):
        torch.testing.assert_close(group["lr"].plain, doubles(RATES) * 2 * factor)


@pytest.mark.filterwarnings("ignore:no parameter of this optimizer")
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_rates_survive_checkpoints_copies_and_pickles():
    ensemble, optimizer = optimizer_at(doubles(RATES))
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
    ensemble.losses(F.mse_loss, *batch()).sum().backward()
    optimizer.step()
    scheduler.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert type(saved["param_groups"][0]["lr"]) is torch.Tensor
    _, other = optimizer_at(doubles(RATES))
    other.load_state_dict(saved)
    for one in (other, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        one.step()
        lr_scheduler.ExponentialLR(one, 0.5, last_epoch=0).step()
        torch.testing.assert_close(one.param_groups[0]["lr"].plain, doubles(RATES) / 4)
    torch.testing.assert_close(optimizer.param_groups[0]["lr"].plain, doubles(RATES) / 2)


@pytest.mark.filterwarnings("ignore:no parameter of this optimizer")
def test_an_assigned_tensor_can_be_scheduled_after_a_step():
    _, optimizer = optimizer_at(0.1)
    optimizer.param_groups[0]["lr"] = doubles(RATES)
    optimizer.step()
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"].tolist() == [rate / 2 for rate in RATES]


@pytest.mark.parametrize("rates", [[1, 2, 4], 1])
def test_whole_rates_are_scheduled_like_others(rates):
    ensemble, optimizer = optimizer_at(torch.tensor(rates))
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    ensemble.losses(F.mse_loss, *batch()).sum().backward()
    optimizer.step()
    scheduler.step()
    assert torch.equal(optimizer.param_groups[0]["lr"], torch.tensor(rates) * 0.5)


def test_a_scheduler_that_wants_one_number_is_told_so():
    _, optimizer = optimizer_at(doubles(RATES))
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    scheduler.step(1.0)
    with pytest.raises(ValueError, match=r"holds 3 rates, one a replica.*LambdaLR"):
        scheduler.step(1.0)


# ── lengths ──


@pytest.mark.parametrize("name", ["lr", "friction", "temperature", "coupling", "driving_noise", "weight_decay"])
@pytest.mark.parametrize("length", [0, 2, 4])
def test_numbers_of_a_wrong_length_are_refused(name, length):
    ensemble = Ensemble(perceptron, R, seed=0)
    for seed in (ensemble.seeds, 5):
        with pytest.raises(ValueError, match=rf"{name}.*\({length},\).*there are 3 replicas.*shape \(3,\)"):
            Langevin(ensemble.parameters(), **{"lr": 0.1, name: torch.ones(length)}, seed=seed)
    with pytest.raises(ValueError, match=rf"{name}.*\({length},\).*not those of replicas"):
        Langevin(perceptron().parameters(), **{"lr": 0.1, name: torch.ones(length)})


def test_a_number_of_a_wrong_length_that_is_assigned_is_refused_before_anything_moves():
    ensemble, optimizer = optimizer_at(0.1, temperature=1e-3)
    ensemble.losses(F.mse_loss, *batch()).sum().backward()
    optimizer.param_groups[0]["temperature"] = torch.ones(2)
    before = [p.detach().clone() for p in ensemble.parameters()]
    with pytest.raises(ValueError, match=r"temperature \(τ\) of shape \(2,\).*3 replicas"):
        optimizer.step()
    assert all(map(torch.equal, before, ensemble.parameters()))


# ── clipping ──


@pytest.mark.parametrize("max_norm", [0.3, [0.3, 5.0, 0.01]])
def test_every_replica_is_clipped_by_its_own_norm(max_norm):
    ensemble = Ensemble(perceptron, R, seed=0)
    x, y = batch()
    ensemble.losses(F.mse_loss, x, 3 * y).sum().backward()
    models = ensemble.unstack()
    norms = ensemble.clip_grad_norm_(doubles(max_norm) if isinstance(max_norm, list) else max_norm)
    assert norms.shape == (R,)
    for i, model in enumerate(models):
        F.mse_loss(model(x), 3 * y).backward()
        bound = max_norm[i] if isinstance(max_norm, list) else max_norm
        torch.testing.assert_close(norms[i], nn.utils.clip_grad_norm_(model.parameters(), bound))
        for p, q in zip(model.parameters(), ensemble.parameters(), strict=True):
            torch.testing.assert_close(q.grad[i], p.grad)


def test_a_diverged_replica_does_not_clip_the_others():
    ensemble = Ensemble(perceptron, R, seed=0)
    assert ensemble.clip_grad_norm_(1.0).tolist() == [0.0] * R  # no gradients yet
    with pytest.raises(EnsembleError, match="max_norm must be at least 0, got -1"):
        ensemble.clip_grad_norm_(-1.0)
    for p in ensemble.parameters():
        p.grad = torch.ones_like(p)
        p.grad[1] = torch.inf
    norms = ensemble.clip_grad_norm_(1e9)
    assert norms.isfinite().tolist() == [True, False, True]
    assert all(bool((p.grad[[0, 2]] == 1).all()) for p in ensemble.parameters())
    with pytest.raises(EnsembleError, match=r"shape \(2,\); give a number, or \(3,\)"):
        ensemble.clip_grad_norm_(torch.ones(2))


# ── several inputs, keywords ──


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 3).double(), nn.Linear(4, 3).double()

    def forward(self, x, z, *, scale=1.0, mask=None, mode="sum"):
        out = scale * (self.first(x) + self.second(z))
        return out if mask is None else out * mask


@pytest.mark.parametrize("shared", [True, False])
def test_tuples_are_several_inputs_and_dicts_keywords(shared):
    ensemble = Ensemble(Mixed, R, seed=0)
    lead = () if shared else (R,)
    x, z, mask, y = (torch.randn(*lead, 5, n).double() for n in (2, 4, 3, 3))
    keywords = {"scale": 2.0, "mask": mask, "mode": "sum"}
    own = [[t if shared else t[i] for t in (x, z, mask, y)] for i in range(R)]
    outputs = [m(a, b, scale=2.0, mask=c) for m, (a, b, c, _) in zip(ensemble.unstack(), own, strict=True)]
    torch.testing.assert_close(ensemble(x, z, shared=shared, **keywords), torch.stack(outputs))
    wanted = torch.stack([F.mse_loss(o, t[3]) for o, t in zip(outputs, own, strict=True)])
    named = {"x": x, "z": z, **keywords}
    torch.testing.assert_close(ensemble.losses(F.mse_loss, named, y, shared=shared), wanted)
    gradients, values = ensemble.gradients(F.mse_loss, named, y, shared=shared)
    torch.testing.assert_close(values, wanted)
    wanted.sum().backward()
    plain = [F.mse_loss(m(a, b), t) for m, (a, b, _, t) in zip(ensemble.unstack(), own, strict=True)]
    torch.testing.assert_close(ensemble.losses(F.mse_loss, (x, z), y, shared=shared), torch.stack(plain))
    assert gradients["first.weight"].shape == (R, 3, 2)


def test_a_tuple_inside_a_tuple_is_one_input():
    class Pair(nn.Linear):
        def forward(self, pair):
            return super().forward(pair[0] + pair[1])

    ensemble = Ensemble(lambda: Pair(2, 1), R, seed=0)
    x = torch.randn(4, 2)
    torch.testing.assert_close(
        ensemble.losses(F.mse_loss, ((x, x),), torch.zeros(4, 1)),
        torch.stack([F.mse_loss(m((x, x)), torch.zeros(4, 1)) for m in ensemble.unstack()]),
    )


# ── models that exist ──


def test_an_ensemble_of_given_models():
    models = [perceptron() for _ in range(R)]
    ensemble = Ensemble.from_models(models, seed=4)
    assert torch.equal(ensemble.seeds, Ensemble(perceptron, R, seed=4).seeds)
    x, _ = batch()
    torch.testing.assert_close(ensemble(x), torch.stack([model(x) for model in models]))
    with torch.no_grad():
        for p in ensemble.parameters():
            p.mul_(2)
    for model, mine in zip(models, ensemble.unstack(), strict=True):
        for p, q in zip(model.parameters(), mine.parameters(), strict=True):
            assert torch.equal(2 * p, q)  # copies: the models given are as they were
    assert Ensemble.from_models(models, repeats=2).replicas == 2 * R


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.ReLU()), r"1\.p: 0\.1 and 0\.5"),
        (lambda: nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.1), nn.Tanh()), "the type of 2: ReLU and Tanh"),
        (lambda: nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.1), nn.ReLU()), r"0\.weight.*\(3, 2\).*\(4, 2\)"),
        (
            lambda: nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.1), nn.ReLU()).requires_grad_(False),
            "trained and .*frozen",
        ),
        (lambda: nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.1), nn.ReLU()).eval(), "training: True and False"),
    ],
)
def test_models_that_differ_are_refused_with_what_differs(other, said):
    first = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.1), nn.ReLU())
    with pytest.raises(EnsembleError, match=rf"from_models.*replica 1 differs from replica 0 in .*{said}"):
        Ensemble.from_models([first, other()])


def test_from_models_wants_models():
    with pytest.raises(EnsembleError, match="got an empty one"):
        Ensemble.from_models([])
    with pytest.raises(EnsembleError, match="got function"):
        Ensemble.from_models([perceptron])


# ── presets want the ensemble ──


def test_presets_want_the_ensemble_itself():
    ensemble = Ensemble(perceptron, R, seed=0)
    twin = copy.deepcopy(ensemble)
    for preset in (presets.sgld, presets.langevin, presets.o_cola_od, presets.c_cola_ud):
        for given in (ensemble.parameters(), list(ensemble.named_parameters()), [{"params": ensemble.parameters()}]):
            if isinstance(given, list) and isinstance(given[0], dict):
                given[0]["params"] = list(given[0]["params"])
            with pytest.raises(PartitionError, match="give the ensemble itself"):
                preset(given)
    with pytest.raises(PartitionError, match="give the ensemble itself"):
        presets.sgld(twin.parameters())
    for make in (presets.sgld, Langevin):
        optimizer = make(ensemble.parameters(), 0.1, seed=ensemble.seeds)
        assert torch.equal(optimizer.param_groups[0]["seed"], ensemble.seeds)
    assert torch.equal(presets.dhsgdc(ensemble).param_groups[0]["seed"], ensemble.seeds)


# ── one replica's tensor is what a function of the user sees ──


def ellipsoid(q):
    assert q.shape == (4, 2)
    return (q**2).sum() - 1


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_radii_that_may_be_those_of_replicas_or_of_a_dimension_are_refused():
    ensemble = Ensemble(lambda: nn.Linear(R, 2), R, seed=0)
    radii = torch.linspace(0.1, 0.5, R)
    weight = ensemble.get_parameter("weight")
    with pytest.raises(ConstraintError, match=rf"{R} radii may be those of replicas .* \({R}, 1, 1\) or \(1, 1, {R}\)"):
        Langevin([weight], 0.1, constraint=Circle(radii), seed=ensemble.seeds)
    opt = Langevin([weight], 0.1, constraint=Circle(radii[:, None, None]), seed=ensemble.seeds)
    assert (weight.abs().amax((1, 2)) <= radii).all()
    assert opt.residuals()[0] < 1e-6
    Langevin([nn.Parameter(torch.zeros(R, R))], 0.1, constraint=Circle(radii), seed=0)  # no replicas


@pytest.mark.filterwarnings("ignore:weights that did not satisfy their constraint:UserWarning")
def test_level_sets_do_not_count_the_replicas():
    for seeds in (True, False):
        ensemble = Ensemble(perceptron, R, seed=0)
        weight = ensemble.get_submodule("0").weight
        Langevin([weight], 0.1, constraint=LevelSet(ellipsoid), seed=ensemble.seeds if seeds else 3)
        torch.testing.assert_close(weight.detach().square().sum((1, 2)), torch.ones(R, dtype=torch.float64))

    def unit(row):
        assert row.shape == (2,)
        return row.square().sum() - 1

    optimizer = Langevin([weight], 0.1, constraint=LevelSet(unit, batch_dims=1), seed=ensemble.seeds)
    torch.testing.assert_close(weight.detach().square().sum(2), torch.ones(R, 4, dtype=torch.float64))
    assert "batch_dims=1" in optimizer.param_groups[0]["constraint"]


# ── averaged losses ──


def train_once(reduce, **options):
    ensemble, optimizer = optimizer_at(0.1, **options)
    reduce(ensemble.losses(F.mse_loss, *batch())).backward()
    optimizer.step()


def test_averaged_losses_at_a_temperature_are_warned_about():
    with pytest.warns(UserWarning, match=r"1/3 everywhere.*3 times its temperature.*\.sum\(\)") as said:
        train_once(torch.mean, temperature=1e-3)
    assert said[0].filename == __file__
    with pytest.warns(UserWarning, match="1/3 everywhere"):
        train_once(lambda losses: losses.sum() / R, temperature=torch.full((R,), 1e-3))


@pytest.mark.parametrize(
    ("reduce", "options"),
    [
        (torch.sum, {"temperature": 1e-3}),
        (torch.mean, {}),
        (lambda losses: losses @ doubles([1 / 3, 1 / 3, 1 / 2]), {"temperature": 1e-3}),
    ],
)
def test_other_sums_are_not(reduce, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_once(reduce, **options)


def test_losses_can_be_traced():
    ensemble = Ensemble(perceptron, R, seed=0)
    compiled = torch.compile(lambda x, y: ensemble.losses(F.mse_loss, x, y), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*batch()), ensemble.losses(F.mse_loss, *batch()))


# ── models that cannot be mapped ──


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(4, dtype=torch.float64)

    def forward(self, x):
        self.seen.add_(x.mean(0))
        return x - self.seen


@pytest.mark.parametrize("layer", [Branching, Counting])
@pytest.mark.parametrize("through", ["forward", "losses", "gradients"])
def test_a_failure_of_the_map_names_the_module(layer, through):
    def make():
        inner = nn.Sequential(nn.Linear(4, 4), layer()).double()
        return nn.Sequential(nn.Linear(2, 4).double(), inner, nn.Linear(4, 1).double())

    ensemble = Ensemble(make, R, seed=0)
    x, y = batch()
    arguments = (x,) if through == "forward" else (F.mse_loss, x, y)
    with pytest.raises(EnsembleError, match=rf"1\.1 \({layer.__name__}\) cannot be run for all replicas") as caught:
        getattr(ensemble, through)(*arguments)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_errors_of_the_model_itself_stay_as_they_are():
    ensemble = Ensemble(perceptron, R, seed=0)
    with pytest.raises(RuntimeError, match="size") as caught:
        ensemble(torch.randn(4, 7).double())
    assert not isinstance(caught.value, EnsembleError)
    with pytest.raises(EnsembleError, match="the loss, or a gradient, cannot be run"):
        ensemble.losses(lambda o, t: (o - t).sum() if float(o.sum()) > 0 else o.sum(), *batch())


def test_a_model_is_no_function_that_builds_models():
    model = nn.Linear(2, 3)
    with pytest.raises(EnsembleError, match=r"give a function that builds a model, such as lambda: Linear"):
        Ensemble(model, 3)
    with pytest.raises(EnsembleError, match="returned the same model twice"):
        Ensemble(lambda: model, 3, seed=0)
    with pytest.raises(EnsembleError, match=r"takes a list of nn\.Modules, got one Sequential"):
        Ensemble.from_models(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    assert len(Ensemble.from_models(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])).unstack()) == 2


def test_an_ensemble_of_one_leaves_the_given_model_as_it_is():
    model = nn.Linear(2, 3)
    ensemble = Ensemble(lambda: model, 1, seed=0)
    assert model.weight.shape == (3, 2)
    assert torch.equal(ensemble.alone(0).weight, ensemble.weight[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of torch's map over replicas
def test_parametrized_layers_are_alike():
    def make():
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), parametrizations.weight_norm(nn.Linear(4, 2))).double()

    ensemble = Ensemble(make, 2, seed=0)
    x = torch.randn(5, 3, dtype=torch.float64)
    ensemble.losses(F.mse_loss, x, torch.zeros(5, 2, dtype=torch.float64)).sum().backward()
    for i, model in enumerate(ensemble.unstack()):
        F.mse_loss(model(x), torch.zeros(5, 2, dtype=torch.float64)).backward()
        for p, q in zip(ensemble.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(p.grad[i], q.grad, rtol=0, atol=1e-12)
    with pytest.raises(EnsembleError, match="parametrizations"):
        Ensemble.from_models([make(), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()])
