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
from holonom.errors import CheckpointError
from holonom.experiments.setups.cifar.images import Photographs
from holonom.experiments.setups.cifar.network_lines import WHOLE, Walks
from holonom.experiments.setups.cifar.networks import METRICS, Network, Networks, untrained
from holonom.experiments.setups.cifar.recipes import Start
from holonom.experiments.setups.cifar.trainer import Learner

from ..photographs import CPU, SMALL, image_set


@pytest.fixture(scope="module")
def data() -> Photographs:
    return Photographs(image_set(), CPU)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(x, other[name]) for name, x in one.items())


# ── training ─────────────────────────────────────────────────────────────────────────────────────


def test_the_step_is_sgd_with_momentum_and_weight_decay(data: Photographs) -> None:
    """Against a transcription in float64 of v ← μ v + (g + λ θ), θ ← θ − h v over two batches."""
    recipe = replace(SMALL, apart=("head",), apart_step=0.05, apart_weight_decay=0.1)
    model = untrained(recipe)
    start = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
    other = untrained(recipe)
    images, labels = data.epoch(recipe, 0)
    learner = Learner(recipe, model, data.as_input, CPU)
    learner.learn(0, images[:2], labels[:2])
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


def test_the_step_falls_unless_it_is_fixed(data: Photographs) -> None:
    for falling, expected in ((True, [0.1, 0.01, 0.001]), (False, [0.1] * 3)):
        recipe = replace(SMALL, falling=falling)
        learner = Learner(recipe, untrained(recipe), data.as_input, CPU)
        seen = []
        for epoch in range(3):
            learner.learn(epoch, *(part[:1] for part in data.epoch(recipe, epoch)))
            seen.append(learner.optimizer.param_groups[0]["lr"])
        np.testing.assert_allclose(seen, expected)


def test_the_square_of_a_time_step_falls_as_the_step_does(data: Photographs) -> None:
    recipe = replace(SMALL, method="o-CoLA-ud")
    learner = Learner(recipe, untrained(recipe), data.as_input, CPU)
    seen = []
    for epoch in range(3):
        learner.learn(epoch, *(part[:1] for part in data.epoch(recipe, epoch)))
        seen.append([group["lr"] ** 2 for group in learner.optimizer.param_groups])
    np.testing.assert_allclose(seen, [[lr, lr] for lr in (0.1, 0.01, 0.001)])


@pytest.mark.parametrize(("method", "word"), [("o-CoLA-ud", "ABO"), ("o-CoLA-od", "L")])
def test_hidden_kernels_are_and_stay_orthogonal(data: Photographs, method: str, word: str) -> None:
    recipe = replace(SMALL, method=method, weight_decay=0.25)
    model = untrained(recipe)
    learner = Learner(recipe, model, data.as_input, CPU)
    learner.learn(0, *data.epoch(recipe, 0))
    assert isinstance(learner.optimizer, Langevin)
    assert {(g["scheme"], g["weight_decay"]) for g in learner.optimizer.param_groups} == {(word, 0.25)}
    kernels = [x.detach().flatten(1).double() for x in model.parameters() if x.ndim == 4]
    grams = [q @ q.T if len(q) <= q.shape[1] else q.T @ q for q in kernels]
    errors = [float((gram - torch.eye(len(gram))).abs().max()) for gram in grams]
    assert errors[0] > 0.1, "the first layer is free"
    assert max(errors[1:]) < 1e-6


def test_orthogonal_kernels_have_one_step(data: Photographs) -> None:
    recipe = replace(SMALL, method="o-CoLA-ud", apart=("head",))
    with pytest.raises(ValueError, match="one step and weight decay for all blocks, not 2"):
        Learner(recipe, untrained(recipe), data.as_input, CPU)


class Replayed(Learner):
    """A GPU's way through an epoch, with a recording that is a step."""

    recordings = 0

    def learn(self, epoch: int, images: Tensor, labels: Tensor) -> tuple[float, float]:
        self._schedule(epoch)
        self._sums.zero_()
        self.model.train()
        self._replay(images, labels)
        loss, hits = (self._sums / len(images)).tolist()
        return loss, hits

    def _record(self) -> None:
        self.recordings += 1
        self._graph, self._recorded = SimpleNamespace(replay=self._next), self._steps()


@pytest.mark.parametrize(("images", "recordings"), [(24, 0), (64, 3)])
def test_replaying_goes_through_every_batch_once(images: int, recordings: int) -> None:
    """Three epochs of 3 or 8 steps: three steps are too few for a recording, and a smaller h needs another one."""
    data = Photographs(image_set(images), CPU)
    recipe = replace(SMALL, images=images)
    learners = [kind(recipe, untrained(recipe), data.as_input, CPU) for kind in (Learner, Replayed)]
    for epoch in range(3):
        plain, replayed = (learner.learn(epoch, *data.epoch(recipe, epoch)) for learner in learners)
        assert plain == replayed
    assert same(*(learner.model.state_dict() for learner in learners))
    assert isinstance(learners[1], Replayed)
    assert learners[1].recordings == recordings


def test_a_recording_owes_at_its_own_rate() -> None:
    """What a word owes from the last step is a constant of a recording, so it must not be the last epoch's."""
    data = Photographs(image_set(64), CPU)
    recipe = replace(SMALL, images=64, method="o-CoLA-ud")
    learner = Replayed(recipe, untrained(recipe), data.as_input, CPU)
    seen = []
    kept = learner._record
    learner._record = lambda: (seen.extend((g["owed"], g["lr"]) for g in learner.optimizer.param_groups), kept())
    for epoch in range(3):
        learner.learn(epoch, *data.epoch(recipe, epoch))
    assert len({h for _, h in seen}) == 3
    assert all(owed == h for owed, h in seen)


def test_a_projection_without_a_root_ends_a_training(data: Photographs) -> None:
    recipe = replace(SMALL, method="o-CoLA-od", step=1e3)
    loss, _ = Learner(recipe, untrained(recipe), data.as_input, CPU).learn(0, *data.epoch(recipe, 0))
    assert np.isnan(loss)
    assert Network({}, {}, {"train_loss": [loss]}).diverged


def test_metrics_are_those_of_the_model(data: Photographs) -> None:
    learner = Learner(SMALL, untrained(SMALL), data.as_input, CPU)
    loss, accuracy = learner.test(data.test_images, data.test_labels)
    with torch.no_grad():
        outputs = learner.model(data.as_input(data.test_images))
    assert loss == pytest.approx(float(cross_entropy(outputs, data.test_labels)), rel=1e-5)
    assert accuracy == pytest.approx(float((outputs.argmax(1) == data.test_labels).float().mean()))


def test_a_recipe_determines_a_network(data: Photographs, tmp_path: Path) -> None:
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


def test_training_leaves_the_global_generator_alone(data: Photographs, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    Networks(tmp_path, data).get(replace(SMALL, epochs=1))
    assert torch.equal(torch.get_rng_state(), before)


def interrupted(epochs: int) -> Callable[[int], None]:
    def watch(epoch: int) -> None:
        if epoch == epochs:
            raise KeyboardInterrupt

    return watch


@pytest.mark.parametrize("epochs", [1, 2])
def test_an_interrupted_training_goes_on_bit_for_bit(data: Photographs, tmp_path: Path, epochs: int) -> None:
    straight = Networks(tmp_path / "a", data).get(SMALL)
    with pytest.raises(KeyboardInterrupt):
        Networks(tmp_path / "b", data, save_every=0).get(SMALL, interrupted(epochs))
    seen: list[int] = []
    resumed = Networks(tmp_path / "b", data, save_every=0).get(SMALL, seen.append)
    assert seen == list(range(epochs + 1, 4)), "only what was left to do"
    assert same(resumed.initial, straight.initial)
    assert same(resumed.trained, straight.trained)
    assert resumed.curves == straight.curves
    assert [path.suffix for path in (tmp_path / "b").iterdir()] == [".pt"]


def test_a_trained_network_is_read_by_the_next(data: Photographs, tmp_path: Path) -> None:
    first, second = Networks(tmp_path, data), Networks(tmp_path, data)
    one, two = first.get(SMALL), second.get(SMALL)
    assert (first.trained, first.read, second.trained, second.read) == (1, 0, 0, 1)
    assert same(one.initial, two.initial)
    assert same(one.trained, two.trained)
    assert one.curves == two.curves
    elsewhere = Networks(tmp_path, Photographs(image_set(seed=1), CPU))
    elsewhere.get(SMALL)
    assert elsewhere.trained == 1, "other data, another network"


def test_a_damaged_file_is_named(data: Photographs, tmp_path: Path) -> None:
    networks = Networks(tmp_path, data)
    networks.get(SMALL)
    (path,) = tmp_path.glob("*.pt")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=path.name):
        networks.get(SMALL)


def test_training_starts_from_another_network(data: Photographs, tmp_path: Path) -> None:
    networks = Networks(tmp_path, data)
    recipe = replace(SMALL, epochs=1, start=Start(SMALL, forgotten=("stages.0",)))
    network, before = networks.get(recipe), networks.get(SMALL)
    assert (networks.trained, networks.read) == (2, 1)
    for name, x in network.initial.items():
        assert torch.equal(x, (before.initial if name.startswith("stages.0.") else before.trained)[name]), name
    assert not same(network.trained, network.initial)


def test_training_stops_when_it_is_enough(data: Photographs, tmp_path: Path) -> None:
    network = Networks(tmp_path, data).get(replace(SMALL, enough=0.0))
    assert len(network.curves["train_loss"]) == 1


def test_a_diverged_training_stops_and_has_no_line(data: Photographs, tmp_path: Path) -> None:
    networks = Networks(tmp_path, data)
    recipe = replace(SMALL, step=1e30, falling=False)
    network = networks.get(recipe)
    assert network.diverged
    assert len(network.curves["train_loss"]) < 3
    walked = Walks(networks, data, 10, 5).along(recipe, network, {"head": "head"})
    assert all(np.isnan(values).all() for values in walked.values())


# ── lines ────────────────────────────────────────────────────────────────────────────────────────


def test_walks_are_landscape_paths_and_are_kept(
    data: Photographs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = Networks(tmp_path, data)
    network = networks.get(SMALL)
    ends = network.initial, network.trained
    walked = Walks(networks, data, 8, 5).along(SMALL, network, {"first": "stages.0"})
    evaluate = landscape.over((data.as_input(data.test_images[:8]), data.test_labels[:8]), {"loss": cross_entropy})
    whole = landscape.interpolate(untrained(SMALL), *ends, evaluate, 5)
    parts = landscape.layerwise(untrained(SMALL), *ends, evaluate, ["stages.0"], 5)
    np.testing.assert_allclose(walked[WHOLE], whole["loss"], rtol=1e-5)
    np.testing.assert_allclose(walked["first"], parts["stages.0"]["loss"], rtol=1e-5)
    counted: list[list[str]] = []
    original = landscape.layerwise

    def counting(*arguments: Any, **options: Any) -> landscape.Layers:
        counted.append(list(arguments[4]))
        return original(*arguments, **options)

    monkeypatch.setattr(landscape, "layerwise", counting)
    again = Walks(networks, data, 8, 5).along(SMALL, network, {"first": "stages.0", "second": "stages.1"})
    assert counted == [["second"]], "the others were walked before"
    np.testing.assert_array_equal(again[WHOLE], walked[WHOLE])
    Walks(networks, data, 8, 7).along(SMALL, network, {})
    assert counted[-1] == [WHOLE], "other points are another line"


def test_a_network_that_is_trained_anew_has_lines_of_its_own(data: Photographs, tmp_path: Path) -> None:
    networks = Networks(tmp_path, data)
    Walks(networks, data, 8, 5).along(SMALL, networks.get(SMALL), {})
    assert networks.lines(SMALL).exists()
    (tmp_path / f"{networks.key(SMALL)}.pt").unlink()
    networks.get(SMALL)
    assert not networks.lines(SMALL).exists()


def test_a_network_says_whether_it_diverged() -> None:
    finite, lost = {"w": torch.ones(2)}, {"w": torch.tensor([1.0, torch.nan])}
    assert not Network(finite, finite, {}).diverged
    assert Network(finite, lost, {}).diverged
