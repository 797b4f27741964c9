"""An ensemble is its replicas: names, outputs, gradients, statistics and whole training runs."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from holonom import Ensemble, EnsembleError, Langevin, presets
from holonom.batches import Shuffled
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere, View
from holonom.models import TransformerLM, mlp
from holonom.partitions import locate

R = 3
pytestmark = pytest.mark.filterwarnings("ignore:weights that did not satisfy")


def perceptron():
    return mlp([2, 6, 6, 1]).double()


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).double()


def transformer():
    return TransformerLM(11, embedding=8, heads=2, feedforward=8, layers=1, dropout=0.0).double()


def next_token(output, target):
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def planar(output, target):
    return F.binary_cross_entropy_with_logits(output.squeeze(-1), target)


def images(shape):
    return torch.randn(*shape, 5, 1, 6, 6, dtype=torch.float64), torch.randint(0, 3, (*shape, 5))


def tokens(shape):
    return torch.randint(0, 11, (*shape, 4, 2)), torch.randint(0, 11, (*shape, 4, 2))


def points(shape):
    return torch.randn(*shape, 5, 2, dtype=torch.float64), torch.randint(0, 2, (*shape, 5)).double()


CASES = {
    "perceptron": (perceptron, points, planar),
    "convolutional": (convolutional, images, F.cross_entropy),
    "transformer": (transformer, tokens, next_token),
}


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shared", [True, False])
def test_outputs_losses_and_gradients_are_those_of_the_replicas(case, shared):
    make, data, loss = CASES[case]
    ensemble = Ensemble(make, R, seed=0)
    models = ensemble.unstack()
    x, y = data(() if shared else (R,))
    batches = [(x, y) if shared else (x[i], y[i]) for i in range(R)]
    losses = ensemble.losses(loss, x, y, shared=shared)
    gradients, values = ensemble.gradients(loss, x, y, shared=shared)
    losses.sum().backward()
    for i, (model, (own_x, own_y)) in enumerate(zip(models, batches, strict=True)):
        alone = loss(model(own_x), own_y)
        alone.backward()
        assert torch.isclose(losses[i], alone)
        assert torch.isclose(values[i], alone)
        for (name, p), q in zip(model.named_parameters(), ensemble.parameters(), strict=True):
            torch.testing.assert_close(q.grad[i], p.grad)
            torch.testing.assert_close(gradients[name][i], p.grad)
    ensemble.eval()
    out = ensemble(x, shared=shared)
    for i, model in enumerate(ensemble.unstack()):
        assert not model.training
        torch.testing.assert_close(out[i], model(batches[i][0]))


@pytest.mark.parametrize("through", ["losses", "gradients"])
def test_running_statistics_are_kept_per_replica(through):
    ensemble = Ensemble(convolutional, R, seed=0)
    models = ensemble.unstack()
    x, y = images((R,))
    for _ in range(2):
        getattr(ensemble, through)(F.cross_entropy, x, y, shared=False)
        for i, model in enumerate(models):
            model(x[i])
    for name, buffer in ensemble.named_buffers():
        if name == "_seeds":
            continue
        for i, model in enumerate(models):
            torch.testing.assert_close(buffer[i], dict(model.named_buffers())[name])


def test_names_are_the_models_own():
    ensemble = Ensemble(convolutional, R, seed=0)
    model = convolutional()
    assert list(dict(ensemble.named_parameters())) == list(dict(model.named_parameters()))
    assert list(ensemble.state_dict()) == list(model.state_dict())
    for name, p in model.named_parameters():
        assert dict(ensemble.named_parameters())[name].shape == (R, *p.shape)


def test_replicas_are_what_their_seeds_make_and_the_global_generator_stays():
    before = torch.get_rng_state()
    ensemble = Ensemble(perceptron, R, seed=5)
    assert torch.equal(before, torch.get_rng_state())
    for i, seed in enumerate(ensemble.seeds):
        torch.manual_seed(int(seed))
        for p, q in zip(perceptron().parameters(), ensemble.parameters(), strict=True):
            assert torch.equal(p, q[i])
    part = Ensemble(perceptron, 1, seed=5, first=2)
    assert torch.equal(part.seeds, ensemble.seeds[2:])
    assert not torch.equal(ensemble.seeds, Ensemble(perceptron, R, seed=6).seeds)


def test_repeats_stack_the_same_replicas():
    ensemble = Ensemble(perceptron, 2, repeats=3, seed=0)
    assert ensemble.replicas == 6
    weight = next(ensemble.parameters())
    assert torch.equal(weight[:2], weight[2:4])
    assert ensemble.spread([1.0, 2.0, 3.0]).tolist() == [1, 1, 2, 2, 3, 3]
    with warnings.catch_warnings():  # torch warns about torch.tensor(tensor)
        warnings.simplefilter("error")
        assert ensemble.spread(torch.tensor([1.0, 2.0, 3.0])).tolist() == [1, 1, 2, 2, 3, 3]


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    ensemble = Ensemble(Tied, R, seed=0)
    assert ensemble.a.weight is ensemble.b.weight
    x = torch.randn(4, 3)
    out = ensemble(x)
    for i, model in enumerate(ensemble.unstack()):
        assert model.a.weight is model.b.weight
        torch.testing.assert_close(out[i], model(x))


def test_places_do_not_count_the_replicas():
    ensemble, model = Ensemble(convolutional, R, seed=0), convolutional()
    for ours, theirs in zip(locate(ensemble), locate(model), strict=True):
        assert (ours.name, ours.ndim, ours.layer, ours.layers) == (
            theirs.name,
            theirs.ndim,
            theirs.layer,
            theirs.layers,
        )
    views = {place.name: place.view for place in locate(ensemble)}
    assert views["0.weight"] == views["5.weight"] == View(batch=1)


# ── a replica is the run it would be alone ──


def ellipsoid(q):
    return (torch.arange(1.0, q.numel() + 1, dtype=q.dtype).reshape(q.shape) * q**2).sum() - 1


def spaces(batch):
    view = "batch" if batch else None
    return {
        "free": None,
        "circle": Circle(0.9),
        "sphere": Sphere(1.0, view=view),
        "rigid sphere": Sphere(1.0, slack=False, view=view),
        "orthogonal": Orthogonal(view),
        "orthogonal, K": Orthogonal(view, iterations=4),
        "level set": LevelSet(ellipsoid),
    }


WORDS = ["L", "OBA", "ABO", "BAOAB", "BAAOAAB", "BACDEDCAB", "BAFEFAB"]
FEW = ["L", "ABO", "BACDEDCAB"]


def groups(model, space):
    named = dict(model.named_parameters())
    return [
        {"params": [("2.weight", named.pop("2.weight"))], "constraint": space},
        {"params": list(named.items())},
    ]


def train(model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        shared = {"shared": False} if isinstance(model, Ensemble) else {}
        loss = model.losses(planar, x, y, **shared).sum() if shared else planar(model(x), y)
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("word", "space"),
    [(word, space) for space in spaces(False) for word in (FEW if space in ("orthogonal, K", "level set") else WORDS)],
)
def test_replica_equals_the_model_trained_alone(space, word):
    ensemble = Ensemble(perceptron, R, seed=1)
    models = ensemble.unstack()
    x, y = points((6, R))
    options = {"lr": 0.05, "scheme": word, "temperature": 1e-3, "friction": 0.7}
    train(
        ensemble,
        Langevin(groups(ensemble, spaces(True)[space]), seed=ensemble.seeds, **options),
        zip(x, y, strict=True),
    )
    for i, model in enumerate(models):
        optimizer = Langevin(groups(model, spaces(False)[space]), seed=ensemble.seeds[i], **options)
        train(model, optimizer, zip(x[:, i], y[:, i], strict=True))
        for p, q in zip(model.parameters(), ensemble.parameters(), strict=True):
            torch.testing.assert_close(q[i], p, rtol=0, atol=1e-12)


def test_replicas_do_not_depend_on_their_number():
    x, y = points((4, 5))
    runs = []
    for count in (2, 5):
        ensemble = Ensemble(perceptron, count, seed=0)
        optimizer = presets.adlala(ensemble)
        train(ensemble, optimizer, [(x[t, :count], y[t, :count]) for t in range(4)])
        runs.append([p[:2].detach() for p in ensemble.parameters()])
        assert optimizer.state[next(iter(optimizer.param_groups[0]["params"]))]["thermostat"].shape == (count,)
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_torch_optimizers_train_replicas_apart(make):
    ensemble = Ensemble(perceptron, R, seed=0)
    models = ensemble.unstack()
    x, y = points((5, R))
    train(ensemble, make(ensemble.parameters(), 0.05), zip(x, y, strict=True))
    for i, model in enumerate(models):
        train(model, make(model.parameters(), 0.05), zip(x[:, i], y[:, i], strict=True))
        for p, q in zip(model.parameters(), ensemble.parameters(), strict=True):
            torch.testing.assert_close(q[i], p, rtol=0, atol=1e-12)


def test_presets_on_ensembles_constrain_each_replica():
    ensemble = Ensemble(lambda: mlp([2, 8, 8, 8, 1]).double(), R, seed=0)
    optimizer = presets.o_cola_od(ensemble, temperature=1e-4)
    train(ensemble, optimizer, [points((R,)) for _ in range(3)])
    for model in ensemble.unstack():
        for layer in (model[2], model[4]):
            torch.testing.assert_close(layer.weight.T @ layer.weight, torch.eye(8, dtype=torch.float64))


# ── data ──


def test_orders_are_permutations_of_each_replicas_own():
    x, y = points((R,))
    batches = Shuffled(x, y, 2, torch.tensor([4, 5, 4]), own_data=True)
    order = batches.order(3)
    assert order.shape == (2, R, 2)
    assert torch.equal(order[:, 0], order[:, 2])
    assert all(len(set(order[:, i].flatten().tolist())) == 4 for i in range(R))
    assert not torch.equal(order, batches.order(4))
    own_x, own_y = batches.take(order[1])
    assert torch.equal(own_x[2, 1], x[2, order[1, 2, 1]])
    assert torch.equal(own_y[2, 1], y[2, order[1, 2, 1]])


# ── bad input ──


def test_errors_say_what_to_do():
    ensemble = Ensemble(perceptron, R, seed=0)
    x, y = points(())
    with pytest.raises(EnsembleError, match="at least 1"):
        Ensemble(perceptron, 0, seed=0)
    with pytest.raises(EnsembleError, match=r"nn\.Module"):
        Ensemble(lambda: 3, 2, seed=0)
    with pytest.raises(EnsembleError, match="without parameters"):
        Ensemble(nn.ReLU, 2, seed=0)
    sizes = iter([3, 4])
    with pytest.raises(EnsembleError, match=r"same architecture.*weight"):
        Ensemble(lambda: nn.Linear(next(sizes), 1), 2, seed=0)
    with pytest.raises(EnsembleError, match="shared=True"):
        ensemble(x, shared=False)
    with pytest.raises(EnsembleError, match="reduction='mean'"):
        ensemble.losses(lambda o, t: o.squeeze(-1) - t, x, y)
    with pytest.raises(EnsembleError, match="no replica 7"):
        ensemble.alone(7)
    with pytest.raises(EnsembleError, match="one for each"):
        ensemble.spread([1.0, 2.0])
    with pytest.raises(ValueError, match="3 seeds need parameters"):
        Langevin(perceptron().parameters(), 0.1, seed=ensemble.seeds)
    with pytest.raises(TypeError, match="int64"):
        Langevin(ensemble.parameters(), 0.1, seed=torch.tensor([0.5]))


@pytest.mark.parametrize(
    ("layer", "said"),
    [(nn.LSTM(3, 4), "an nn.LSTM, which torch cannot"), (nn.BatchNorm1d(4, momentum=None), "momentum")],
)
def test_layers_that_cannot_be_mapped_are_refused_at_once(layer, said):
    with pytest.raises(EnsembleError, match=said):
        Ensemble(lambda: nn.Sequential(nn.Linear(3, 4), layer), 2, seed=0)
