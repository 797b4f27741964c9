"""Initial states: fresh, at a barrier, transplanted, adversarial."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from holonom.ensemble import Ensemble
from holonom.landscape import adversarial, barrier_state, fresh, interpolate, transplanted


def perceptron():
    return nn.Sequential(
        nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )


class Well(nn.Module):
    """L(w) = (w² − 1)²: two minima and a barrier of height 1 between them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)

    def forward(self, x):
        return (self.layer(x) ** 2 - 1) ** 2


def well(w):
    return {"layer.weight": torch.tensor([[w]])}


def test_fresh_weights_come_from_the_seed_and_nothing_else():
    model = perceptron()
    model[1].running_mean.normal_()
    before, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.random.get_rng_state()
    one, same, other = fresh(model, 1), fresh(model, 1), fresh(model, 2)
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not torch.equal(one["0.weight"], other["0.weight"])
    assert not torch.equal(one["0.weight"], before["0.weight"])
    assert not one["1.running_mean"].any()
    model.load_state_dict(one)


def test_a_module_that_cannot_reset_itself_is_named():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    with pytest.raises(ValueError, match="Own cannot initialise"):
        fresh(Own())
    with pytest.raises(ValueError, match="another Ensemble"):
        fresh(Ensemble(perceptron, 2, seed=0))


def test_the_top_of_a_barrier_and_its_neighbours():
    path = interpolate(Well(), well(-1.0), well(1.0), lambda m: m(torch.ones(1, 1)).sum())
    assert path.profile() == "barrier"
    assert path.profile().height == pytest.approx(1.0)
    assert path.profile().place == pytest.approx(0.5)
    for shift, w in ((0.0, 0.0), (-0.1, -0.2), (0.1, 0.2), (5.0, 1.0)):
        assert float(barrier_state(path, shift)["layer.weight"]) == pytest.approx(w, abs=1e-6)
    downhill = interpolate(Well(), well(0.0), well(1.0), lambda m: m(torch.ones(1, 1)).sum())
    with pytest.raises(ValueError, match="no barrier to start from"):
        barrier_state(downhill)


def test_every_replica_has_a_top_of_its_own():
    ends = [{"layer.weight": torch.tensor([[[a]], [[b]]])} for a, b in ((-1.0, -1.5), (1.0, 1.0))]
    path = interpolate(Well(), *ends, lambda m: m(torch.ones(1, 1)).sum(), 201, replicas=2)
    assert [float(x) for x in barrier_state(path)["layer.weight"]] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert [profile.place for profile in path.profiles()] == pytest.approx([0.5, 0.6])
    assert barrier_state(path, replica=1)["layer.weight"].shape == (1, 1)
    mixed = [{"layer.weight": torch.tensor([[[a]], [[b]]])} for a, b in ((-1.0, 0.5), (1.0, 1.0))]
    some = interpolate(Well(), *mixed, lambda m: m(torch.ones(1, 1)).sum(), replicas=2)
    assert float(barrier_state(some, replica=0)["layer.weight"]) == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(ValueError, match="of replica 1 has no barrier"):
        barrier_state(some)


def test_blocks_are_transplanted_whole():
    model, trained, initial = perceptron(), perceptron().state_dict(), perceptron().state_dict()
    trained["1.running_mean"].normal_()
    partial = transplanted(model, trained, initial, ["0", "1"])
    for name, x in partial.items():
        source = initial if name.startswith(("0.", "1.")) else trained
        assert torch.equal(x, source[name])
        assert x.data_ptr() != source[name].data_ptr()
    model.load_state_dict(partial)
    assert torch.equal(transplanted(model, trained, initial, "3.weight")["3.weight"], initial["3.weight"])
    assert torch.equal(transplanted(model, trained, initial, "3.weight")["3.bias"], trained["3.bias"])
    with pytest.raises(ValueError, match="names nothing"):
        transplanted(model, trained, initial, ["9"])


@pytest.mark.parametrize("classes", [2, 3])
def test_an_adversarial_start_fits_random_labels(classes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = perceptron()
        model[-1] = nn.Linear(16, 1 if classes == 2 else classes)
        x = torch.randn(24, 3)
    before, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.random.get_rng_state()
    found = adversarial(
        model, x, classes, lambda p: torch.optim.Adam(p, 0.02), epochs=400, batch_size=8, accuracy=0.95, seed=1
    )
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert found.accuracy >= 0.95
    assert 1 < found.epochs <= 400
    model.load_state_dict(found.state)
    labels = torch.randint(classes, (24,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = model.eval()(x)
    guess = (out[:, 0] > 0).long() if classes == 2 else out.argmax(1)
    assert float((guess == labels).float().mean()) == pytest.approx(found.accuracy)


class Numbered(Dataset):
    """24 examples that count how often they were read."""

    def __init__(self):
        self.x = torch.randn(24, 3, generator=torch.Generator().manual_seed(2))
        self.reads = torch.zeros(24, dtype=torch.long)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        self.reads[index] += 1
        return self.x[index], "a label nobody reads"


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_adversarial_start_reads_a_data_set_or_its_loader(wrapped):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = perceptron()
    random = torch.random.get_rng_state()
    sizes, data = [], Numbered()

    def optimizer(params):
        return torch.optim.Adam(params, 0.02)

    def counted(outputs, labels):
        sizes.append(len(labels))
        return nn.functional.cross_entropy(outputs, labels)

    given = DataLoader(data, batch_size=6) if wrapped else data
    options = {"epochs": 400, "batch_size": 8, "accuracy": 0.95, "seed": 1}
    found = adversarial(model, given, 3, optimizer, loss=counted, **options)
    assert torch.equal(random, torch.random.get_rng_state())
    assert set(sizes) == {6 if wrapped else 8}
    assert (data.reads == 2 * found.epochs).all(), "every example once to learn and once to test"
    assert found.accuracy >= 0.95
    model.load_state_dict(found.state)
    labels = torch.randint(3, (24,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hits = (model.eval()(data.x).argmax(1) == labels).float().mean()
    assert float(hits) == pytest.approx(found.accuracy), "labels stay with their examples"


def test_a_stream_cannot_keep_its_labels():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(3), 0

    with pytest.raises(TypeError, match="cannot keep their labels"):
        adversarial(perceptron(), DataLoader(Stream()), 3, lambda p: torch.optim.SGD(p, 0.1))


def test_random_labels_need_two_classes_and_data():
    model = perceptron()
    with pytest.raises(ValueError, match="at least 2 classes"):
        adversarial(model, torch.zeros(4, 3), 1, lambda p: torch.optim.SGD(p, 0.1))
    with pytest.raises(ValueError, match="need inputs"):
        adversarial(model, torch.zeros(0, 3), 2, lambda p: torch.optim.SGD(p, 0.1))
