"""Hyperparameters with one value per leading index: every replica is the run it would be alone."""

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from tests.injected import inject

from .harness import Normals, array, close, parameter

COUNT = 3
BASE = {"lr": 0.05, "temperature": 0.02, "friction": 0.7, "coupling": 0.5, "driving_noise": 0.1}
LADDERS = {
    "lr": [0.02, 0.05, 0.1],
    "temperature": [0.0, 0.02, 0.05],
    "friction": [0.1, 1.0, 3.0],
    "coupling": [0.1, 1.0, 2.0],
    "driving_noise": [0.0, 0.1, 0.2],
    "weight_decay": [0.0, 0.1, 0.3],
}


def ellipsoid(q):
    return (torch.arange(1.0, 7.0, dtype=torch.float64).reshape(q.shape) * q**2).sum() - 1


SPACES = {  # for the batch, for one replica
    "free": (None, None),
    "circle": (Circle(2.0), Circle(2.0)),
    "sphere": (Sphere(1.0, view="batch"), Sphere(1.0)),
    "orthogonal": (Orthogonal(view="batch"), Orthogonal()),
    "orthogonal, K": (Orthogonal(view="batch", iterations=3), Orthogonal(iterations=3)),
    "level set": (LevelSet(ellipsoid, batch_dims=1, direction="old"), LevelSet(ellipsoid, direction="old")),
}
UNDERDAMPED = [("lr",), ("temperature",), ("friction",), ("weight_decay",), ("lr", "temperature", "friction")]
THERMOSTATTED = [("temperature",), ("temperature", "coupling", "driving_noise"), ("lr", "temperature")]
ALONE = [("lr",), ("coupling",), ("driving_noise",)]  # ξ must be one per replica here too
TOGETHER = ("lr", "temperature", "friction")


class Slices(Normals):
    """Draws for all replicas; a run of one replica gets its slice."""

    def __init__(self):
        super().__init__()
        self.replica = None

    def library(self, shape, dtype, device, seed, step, draw, index, part):
        reader = "all" if self.replica is None else self.replica
        full = shape if self.replica is None else (COUNT, *shape)
        drawn = self._next(reader, full, index, part)
        return torch.from_numpy(drawn if self.replica is None else drawn[self.replica].copy())


def run(params, space, word, options, steps=2):
    optimizer = Langevin(params, scheme=word, constraint=space, **{"seed": 0, **options})
    for _ in range(steps):
        for p in params:
            p.grad = torch.from_numpy(np.sin(3 * array(p)) + 0.2)
        optimizer.step()
    return [array(p) for p in params]


def agree(monkeypatch, rng, space, word, names, tensors=1):
    normals = Slices()
    inject(monkeypatch, normals.library)
    starts = [0.3 * rng.standard_normal((COUNT, 3, 2)) for _ in range(tensors)]
    ladders = {name: torch.tensor(LADDERS[name], dtype=torch.float64) for name in names}
    many = run([parameter(x) for x in starts], SPACES[space][0], word, {**BASE, **ladders})
    for replica in range(COUNT):
        normals.replica = replica
        own = {**BASE, **{name: LADDERS[name][replica] for name in names}}
        alone = run([parameter(x[replica]) for x in starts], SPACES[space][1], word, own)
        for batch, one in zip(many, alone, strict=True):
            close(batch[replica], one)


pytestmark = pytest.mark.filterwarnings("ignore:weights that did not satisfy")


@pytest.mark.parametrize("names", UNDERDAMPED, ids="+".join)
@pytest.mark.parametrize("space", SPACES)
def test_baoab(monkeypatch, rng, space, names):
    agree(monkeypatch, rng, space, "BAOAB", names)


@pytest.mark.parametrize("names", [("lr",), ("temperature",), ("lr", "temperature")], ids="+".join)
@pytest.mark.parametrize("space", SPACES)
def test_overdamped(monkeypatch, rng, space, names):
    agree(monkeypatch, rng, space, "L", names)


def test_averaged_noise(monkeypatch, rng):
    agree(monkeypatch, rng, "free", "M", ("lr", "temperature"))


@pytest.mark.parametrize("names", THERMOSTATTED, ids="+".join)
@pytest.mark.parametrize("word", ["BACDEDCAB", "BAFEFAB"])
@pytest.mark.parametrize("space", ["free", "circle", "orthogonal"])
def test_each_replica_has_its_thermostat(monkeypatch, rng, space, word, names):
    agree(monkeypatch, rng, space, word, names)


@pytest.mark.parametrize("names", ALONE, ids="+".join)
def test_a_ladder_of_anything_gives_each_replica_its_thermostat(monkeypatch, rng, names):
    agree(monkeypatch, rng, "free", "BACDEDCAB", names)


@pytest.mark.parametrize("space", ["free", "circle", "sphere", "level set"])
def test_several_tensors(monkeypatch, rng, space):
    agree(monkeypatch, rng, space, "BAOAB", TOGETHER, tensors=2)


@pytest.mark.parametrize("tensors", [2, COUNT])
@pytest.mark.parametrize("space", ["orthogonal", "orthogonal, K"])
@pytest.mark.parametrize("word", ["BAOAB", "L", "BACDEDCAB"])
def test_several_tensors_of_one_shape(monkeypatch, rng, space, tensors, word):
    agree(monkeypatch, rng, space, word, TOGETHER, tensors)


def test_a_number_on_the_host_may_be_a_tensor(monkeypatch, rng):
    starts = rng.standard_normal((4, 3))
    plain = run([parameter(starts)], None, "BAOAB", BASE)
    boxed = run([parameter(starts)], None, "BAOAB", {k: torch.tensor(v, dtype=torch.float64) for k, v in BASE.items()})
    np.testing.assert_array_equal(plain, boxed)
    assert (plain[0] != starts).all()


@pytest.mark.parametrize("word", ["BAOAB", "BACDEDCAB", "BAFEFAB", "OBA", "L"])
def test_numbers_of_the_host_are_brought_to_parameters_of_a_device(word):
    """Tensors on torch's device "meta" have no numbers, but refuse to meet those of the host, as a GPU's do."""
    params = [torch.nn.Parameter(torch.empty(COUNT, 4, device="meta")) for _ in range(2)]
    rates, warm = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.1, 0.2, 0.3], device="meta")
    opt = Langevin(params, rates, scheme=word, temperature=warm, weight_decay=rates, seed=0)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1)
    for _ in range(3):
        for p in params:
            p.grad = torch.empty_like(p)
        opt.step()
        schedule.step()
        opt.param_groups[0]["friction"] = rates
    opt.synchronize()
    saved = torch.optim.Optimizer.state_dict(opt)  # Langevin's looks at ξ and at skipped steps
    saved["param_groups"][0] |= {"owed": rates, "temperature": rates}  # as torch.load(map_location="cpu") reads them
    opt.load_state_dict(saved)
    opt.step()
    group = opt.param_groups[0]
    assert {x.device.type for x in group.values() if isinstance(x, torch.Tensor) and x.numel() > 1} == {"meta"}
