"""Training one network: same recipe, same weights, also when interrupted; and the lines between its states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from holonom import Langevin, landscape
from holonom._training import graphs
from holonom.errors import CheckpointError
from holonom.experiments.setups.cifar.images import CifarImages
from holonom.experiments.setups.cifar.network_lines import WHOLE, NetworkLines
from holonom.experiments.setups.cifar.networks import LINES, METRICS, NETWORK, Network, Networks, untrained
from holonom.experiments.setups.cifar.recipes import Start
from holonom.experiments.setups.cifar.trainer import Trainer

from ..random_images import CPU, SMALL, image_set


@pytest.fixture(scope="module")
def data() -> CifarImages:
    return CifarImages(image_set(), CPU)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(x, other[name]) for name, x in one.items())


# ── training ─────────────────────────────────────────────────────────────────────────────────────


def test_the_step_is_sgd_with_momentum_and_weight_decay(data: CifarImages) -> None:
    """Against a transcription in float64 of v ← μ v + (g + λ θ), θ ← θ − h v over two batches."""
    recipe = replace(SMALL, special_blocks=("head",), special_step=0.05, special_weight_decay=0.1)
    model = untrained(recipe)
    start = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
    other = untrained(recipe)
    images, labels = data.epoch(recipe, 0)
    trainer = Trainer(recipe, model, data.as_input, CPU)
    trainer.train_epoch(0, images[:2], labels[:2])
    momentum = {name: np.zeros_like(x) for name, x in start.items()}
    other.train()
    for x, y in zip(images[:2], labels[:2], strict=True):
        other.load_state_dict({name: torch.from_numpy(value) for name, value in start.items()}, strict=False)
        loss = cross_entropy(other(data.as_input(x)), y)
        for name, gradient in zip(start, torch.autograd.grad(loss, list(other.parameters())), strict=True):
            h, decay = (0.05, 0.1) if name.startswith("head.") else (recipe.step, recipe.weight_decay)
            momentum[name] = 0.9 * momentum[name] + gradient.double().numpy() + decay * start[name]
            start[name] = start[name] - h * momentum[name]
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.detach().numpy(), start[name], atol=2e-5, err_msg=name)


def test_the_step_decays_unless_it_is_constant(data: CifarImages) -> None:
    for step_decay, expected in ((True, [0.1, 0.01, 0.001]), (False, [0.1] * 3)):
        recipe = replace(SMALL, step_decay=step_decay)
        trainer = Trainer(recipe, untrained(recipe), data.as_input, CPU)
        seen = []
        for epoch in range(3):
            trainer.train_epoch(epoch, *(part[:1] for part in data.epoch(recipe, epoch)))
            seen.append(trainer.optimizer.param_groups[0]["lr"])
        np.testing.assert_allclose(seen, expected)


def test_the_square_of_a_time_step_decays_as_the_step_does(data: CifarImages) -> None:
    recipe = replace(SMALL, method="o-CoLA-ud")
    trainer = Trainer(recipe, untrained(recipe), data.as_input, CPU)
    seen = []
    for epoch in range(3):
        trainer.train_epoch(epoch, *(part[:1] for part in data.epoch(recipe, epoch)))
        seen.append([group["lr"] ** 2 for group in trainer.optimizer.param_groups])
    np.testing.assert_allclose(seen, [[lr, lr] for lr in (0.1, 0.01, 0.001)])


@pytest.mark.parametrize(("method", "word"), [("o-CoLA-ud", "ABO"), ("o-CoLA-od", "L")])
def test_hidden_kernels_are_and_stay_orthogonal(data: CifarImages, method: str, word: str) -> None:
    recipe = replace(SMALL, method=method, weight_decay=0.25)
    model = untrained(recipe)
    trainer = Trainer(recipe, model, data.as_input, CPU)
    trainer.train_epoch(0, *data.epoch(recipe, 0))
    assert isinstance(trainer.optimizer, Langevin)
    assert {(g["scheme"], g["weight_decay"]) for g in trainer.optimizer.param_groups} == {(word, 0.25)}
    kernels = [x.detach().flatten(1).double() for x in model.parameters() if x.ndim == 4]
    grams = [q @ q.T if len(q) <= q.shape[1] else q.T @ q for q in kernels]
    errors = [float((gram - torch.eye(len(gram))).abs().max()) for gram in grams]
    assert errors[0] > 0.1, "the first layer is free"
    assert max(errors[1:]) < 1e-6


def test_orthogonal_kernels_have_one_step(data: CifarImages) -> None:
    recipe = replace(SMALL, method="o-CoLA-ud", special_blocks=("head",))
    with pytest.raises(ValueError, match="one step and weight decay for all blocks, not 2"):
        Trainer(recipe, untrained(recipe), data.as_input, CPU)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[float, float]]]:
    """A stand-in for a GPU: a capture is the step itself. Lists (owed, lr) of all groups at every capture."""
    made: list[list[tuple[float, float]]] = []

    def record(step: Callable[[], None]) -> SimpleNamespace:
        groups = step.__self__.optimizer.param_groups  # type: ignore[attr-defined]
        made.append([(group.get("owed"), group["lr"]) for group in groups])
        return SimpleNamespace(replay=step)

    monkeypatch.setattr(graphs, "record", record)
    return made


class Captured(Trainer):
    """Goes through an epoch as on a GPU."""

    def _load(self, images: Tensor, labels: Tensor) -> None:
        super()._load(images, labels)
        self._graphed._cuda = True

    def _count(self, steps: int) -> None:
        """The stand-in's replays count themselves."""


@pytest.mark.parametrize(("images", "count"), [(24, 0), (64, 3)])
def test_replaying_goes_through_every_batch_once(images: int, count: int, captures: list[Any]) -> None:
    """Three epochs with three rates: of 1 step, which is never captured, or of 8."""
    data = CifarImages(image_set(images), CPU)
    recipe = replace(SMALL, images=images, batch=8 if count else 24)
    trainers = [kind(recipe, untrained(recipe), data.as_input, CPU) for kind in (Trainer, Captured)]
    for epoch in range(3):
        plain, replayed = (trainer.train_epoch(epoch, *data.epoch(recipe, epoch)) for trainer in trainers)
        assert plain == replayed
    assert same(*(trainer.model.state_dict() for trainer in trainers))
    assert len(captures) == count


def test_a_capture_owes_at_its_own_rate(captures: list[list[tuple[float, float]]]) -> None:
    """What a scheme owes from the last step is a constant of a capture, so it must not be the last epoch's."""
    data = CifarImages(image_set(64), CPU)
    recipe = replace(SMALL, images=64, method="o-CoLA-ud")
    trainer = Captured(recipe, untrained(recipe), data.as_input, CPU)
    for epoch in range(3):
        trainer.train_epoch(epoch, *data.epoch(recipe, epoch))
    numbers = [pair for groups in captures for pair in groups]
    assert len({h for _, h in numbers}) == 3
    assert all(owed == h for owed, h in numbers)


def test_a_projection_without_a_root_ends_a_training(data: CifarImages) -> None:
    recipe = replace(SMALL, method="o-CoLA-od", step=1e3)
    loss, _ = Trainer(recipe, untrained(recipe), data.as_input, CPU).train_epoch(0, *data.epoch(recipe, 0))
    assert np.isnan(loss)
    assert Network({}, {}, {"train_loss": [loss]}).diverged


def test_metrics_are_those_of_the_model(data: CifarImages) -> None:
    trainer = Trainer(SMALL, untrained(SMALL), data.as_input, CPU)
    loss, accuracy = trainer.evaluate(data.test_images, data.test_labels)
    with torch.no_grad():
        outputs = trainer.model(data.as_input(data.test_images))
    assert loss == pytest.approx(float(cross_entropy(outputs, data.test_labels)), rel=1e-5)
    assert accuracy == pytest.approx(float((outputs.argmax(1) == data.test_labels).float().mean()))


def test_a_recipe_determines_a_network(data: CifarImages, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    first = Networks(tmp_path / "a", data).get(SMALL)
    torch.rand(1)
    again = Networks(tmp_path / "b", data).get(SMALL)
    assert same(first.initial, again.initial)
    assert same(first.trained, again.trained)
    assert first.curves == again.curves
    assert [len(first.curves[metric]) for metric in METRICS] == [3] * 4
    other = Networks(tmp_path / "a", data).get(replace(SMALL, seed=6))
    assert not same(first.trained, other.trained)
    torch.set_rng_state(before)


def test_training_leaves_the_global_generator_alone(data: CifarImages, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    Networks(tmp_path, data).get(replace(SMALL, epochs=1))
    assert torch.equal(torch.get_rng_state(), before)


def interrupted(epochs: int) -> Callable[[int], None]:
    def progress(epoch: int) -> None:
        if epoch == epochs:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("epochs", [1, 2])
def test_an_interrupted_training_goes_on_bit_for_bit(data: CifarImages, tmp_path: Path, epochs: int) -> None:
    straight = Networks(tmp_path / "a", data).get(SMALL)
    with pytest.raises(KeyboardInterrupt):
        Networks(tmp_path / "b", data, save_every=0).get(SMALL, interrupted(epochs))
    seen: list[int] = []
    resumed = Networks(tmp_path / "b", data, save_every=0).get(SMALL, seen.append)
    assert seen == list(range(epochs + 1, 4)), "only what was left to do"
    assert same(resumed.initial, straight.initial)
    assert same(resumed.trained, straight.trained)
    assert resumed.curves == straight.curves
    (folder,) = (tmp_path / "b").iterdir()
    assert {path.name for path in folder.iterdir()} == {"identity.json", "network.pt"}


def test_a_trained_network_is_read_by_the_next(data: CifarImages, tmp_path: Path) -> None:
    first, second = Networks(tmp_path, data), Networks(tmp_path, data)
    one, two = first.get(SMALL), second.get(SMALL)
    assert (first.trained, first.read, second.trained, second.read) == (1, 0, 0, 1)
    assert same(one.initial, two.initial)
    assert same(one.trained, two.trained)
    assert one.curves == two.curves
    elsewhere = Networks(tmp_path, CifarImages(image_set(seed=1), CPU))
    elsewhere.get(SMALL)
    assert elsewhere.trained == 1, "other data, another network"


def test_a_damaged_file_is_named(data: CifarImages, tmp_path: Path) -> None:
    networks = Networks(tmp_path, data)
    networks.get(SMALL)
    (path,) = tmp_path.glob("*/*.pt")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=f"{path.name} cannot be read .*; delete it to train this network again"):
        networks.get(SMALL)


def test_training_starts_from_another_network(data: CifarImages, tmp_path: Path) -> None:
    networks = Networks(tmp_path, data)
    recipe = replace(SMALL, epochs=1, start=Start(SMALL, reset=("stages.0",)))
    network, before = networks.get(recipe), networks.get(SMALL)
    assert (networks.trained, networks.read) == (2, 1)
    for name, x in network.initial.items():
        assert torch.equal(x, (before.initial if name.startswith("stages.0.") else before.trained)[name]), name
    assert not same(network.trained, network.initial)


def test_training_stops_at_a_training_accuracy(data: CifarImages, tmp_path: Path) -> None:
    network = Networks(tmp_path, data).get(replace(SMALL, stop_accuracy=0.0))
    assert len(network.curves["train_loss"]) == 1


def test_a_diverged_training_stops_and_has_no_line(data: CifarImages, tmp_path: Path) -> None:
    networks = Networks(tmp_path, data)
    recipe = replace(SMALL, step=1e30, step_decay=False)
    network = networks.get(recipe)
    assert network.diverged
    assert len(network.curves["train_loss"]) < 3
    losses = NetworkLines(networks, data, 10, 5).losses(recipe, network, {"head": "head"})
    assert all(np.isnan(values).all() for values in losses.values())


# ── lines ────────────────────────────────────────────────────────────────────────────────────────


def test_lines_are_landscape_paths_and_are_cached(
    data: CifarImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = Networks(tmp_path, data)
    network = networks.get(SMALL)
    ends = network.initial, network.trained
    losses = NetworkLines(networks, data, 8, 5).losses(SMALL, network, {"first": "stages.0"})
    evaluate = landscape.over((data.as_input(data.test_images[:8]), data.test_labels[:8]), {"loss": cross_entropy})
    whole = landscape.interpolate(untrained(SMALL), *ends, evaluate, 5)
    parts = landscape.layerwise(untrained(SMALL), *ends, evaluate, ["stages.0"], 5)
    np.testing.assert_allclose(losses[WHOLE], whole["loss"], rtol=1e-5)
    np.testing.assert_allclose(losses["first"], parts["stages.0"]["loss"], rtol=1e-5)
    counted: list[list[str]] = []
    original = landscape.layerwise

    def counting(*arguments: Any, **options: Any) -> landscape.Layers:
        counted.append(list(arguments[4]))
        return original(*arguments, **options)

    monkeypatch.setattr(landscape, "layerwise", counting)
    again = NetworkLines(networks, data, 8, 5).losses(SMALL, network, {"first": "stages.0", "second": "stages.1"})
    assert counted == [["second"]], "the others are in the cache"
    np.testing.assert_array_equal(again[WHOLE], losses[WHOLE])
    NetworkLines(networks, data, 8, 7).losses(SMALL, network, {})
    assert counted[-1] == [WHOLE], "other points are another line"


def test_a_network_that_is_trained_again_loses_its_lines(data: CifarImages, tmp_path: Path) -> None:
    networks = Networks(tmp_path, data)
    NetworkLines(networks, data, 8, 5).losses(SMALL, networks.get(SMALL), {})
    cache = networks.cache(SMALL)
    assert LINES in cache
    cache.remove(NETWORK)
    networks.get(SMALL)
    assert LINES not in cache


def test_a_network_says_whether_it_diverged() -> None:
    finite, lost = {"w": torch.ones(2)}, {"w": torch.tensor([1.0, torch.nan])}
    assert not Network(finite, finite, {}).diverged
    assert Network(finite, lost, {}).diverged
