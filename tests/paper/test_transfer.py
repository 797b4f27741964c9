"""Fine-tuning with several time scales: its steps, its runs, and what is chosen on held-out data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from holonom import Ensemble
from holonom.data import Corpus, ImageSet
from holonom.experiments.artifacts import ArtifactCache
from holonom.experiments.base import find
from holonom.experiments.run import Array
from holonom.experiments.setups.transfer import comparison, images, runs, text
from holonom.experiments.setups.transfer.comparison import FULL, OURS, OURS_TUNED, Transfer
from holonom.experiments.setups.transfer.finetuning import Arm, Student, Task, accuracy_on, check_split
from holonom.experiments.setups.transfer.report import shorter
from holonom.experiments.setups.transfer.runs import Size, remaining_epochs
from holonom.experiments.verdicts import FAILS, HOLDS, OPEN
from holonom.models import TransformerLM, mlp, resnet34, tiny_resnet

from .small import small_run

CPU = torch.device("cpu")


def small_task() -> Task:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 6, generator=generator), torch.randint(3, (40,), generator=generator)
    make = lambda: nn.Sequential(mlp([6, 5, 5]), nn.ReLU(), mlp([5, 4]), nn.BatchNorm1d(4), nn.Linear(4, 3))  # noqa: E731
    return Task(make, lambda i: (x[i], y[i]), head="4", last="2", timed_batch=8, lr=0.05, device=CPU)


@pytest.mark.parametrize(
    ("arm", "slow_moves"),
    [
        (Arm(("4",), 0), [0, 0, 0, 0, 0]),
        (Arm(("4",), 5), [1, 1, 1, 1, 1]),
        (Arm(("4",), 5, drift=False), [5, 0, 0, 0, 0]),
        (Arm(("4",), 5, same_step=True), [0.2, 0.2, 0.2, 0.2, 0.2]),
        (Arm(("4",), 5, lr=0.1), [2, 2, 2, 2, 2]),
    ],
)
def test_arms_move_the_body_in_units_of_the_step(arm: Arm, slow_moves: list[float]) -> None:
    task = small_task()
    student = Student.start(task, arm, seed=3)
    x, y = task.take(torch.arange(8))
    reference = Student.start(task, Arm((), 1), seed=3).model
    cross_entropy(reference(x), y).backward()
    gradient = reference.get_parameter("0.0.weight").grad
    assert gradient is not None
    for moves in slow_moves:
        before = student.model.get_parameter("0.0.weight").detach().clone()
        student.step(x, y)
        moved = before - student.model.get_parameter("0.0.weight")
        torch.testing.assert_close(moved, 0.05 * moves * gradient, atol=1e-6, rtol=1e-3)


def test_without_drift_the_head_is_differentiated_after_the_body_has_moved() -> None:
    """Algorithm 5.2: θ_S first, then the first fast gradient."""
    task = small_task()
    student = Student.start(task, Arm(("4",), 5, drift=False), seed=3)
    reference = Student.start(task, Arm((), 1), seed=3).model
    x, y = task.take(torch.arange(8))
    student.step(x, y)
    cross_entropy(reference(x), y).backward()
    with torch.no_grad():
        for name, p in reference.named_parameters():
            assert p.grad is not None
            if not name.startswith("4."):
                p -= 5 * 0.05 * p.grad
    reference.zero_grad()
    cross_entropy(reference(x), y).backward()
    head = reference.get_parameter("4.weight")
    assert head.grad is not None
    torch.testing.assert_close(student.model.get_parameter("4.weight"), head - 0.05 * head.grad)


def test_arms_share_seeds_and_one_of_period_one_is_full_fine_tuning(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    accuracy = accuracy_on(lambda: iter([small_task().take(torch.arange(40))]), CPU, autocast=False)
    train = lambda task, arm, name, _: runs.finetune_all(run, task, arm, name, Size(40, 8, 2), accuracy)  # noqa: E731
    arms = {"a": Arm((), 1), "b": Arm((), 1), "head": Arm(("4",), 0)}
    found = comparison.compare(run, Transfer(small_task(), train), arms, SimpleNamespace(rounds=2))
    assert found["a"].accuracy.shape == (3, 2)
    np.testing.assert_array_equal(found["a"].accuracy, found["b"].accuracy)
    assert found["head"].ratios.shape == (2,)
    run.resume = True
    again = comparison.compare(run, Transfer(small_task(), train), arms, SimpleNamespace(rounds=2))
    for name, outcome in found.items():
        np.testing.assert_array_equal(again[name].ratios, outcome.ratios)  # read, not measured again
        np.testing.assert_array_equal(again[name].accuracy, outcome.accuracy)


def all_weights(model: nn.Module) -> float:
    """A number that no two states share."""
    return sum(float(x.double().abs().sum()) for x in model.state_dict().values())


@pytest.mark.parametrize("arm", [Arm((), 1), Arm(("4",), 0), Arm(("4",), 3), Arm(("4",), 3, drift=False)])
def test_an_interrupted_run_goes_on_bit_equal(arm: Arm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five batches an epoch and a period of three: the second epoch ends in mid-cycle."""
    monkeypatch.setattr(runs, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    values: list[float] = []

    def interrupted(model: nn.Module) -> float:
        if len(values) == 3:
            raise KeyboardInterrupt
        values.append(all_weights(model))
        return values[-1]

    def finetune(folder: Path, evaluate: Callable[[nn.Module], float], resume: bool) -> list[float]:
        run = small_run(folder)
        run.resume = resume
        return runs.finetune(run, small_task(), arm, "arm", 1, Size(40, 8, 4), evaluate)

    whole = finetune(tmp_path / "whole", all_weights, resume=False)
    with pytest.raises(KeyboardInterrupt):
        finetune(tmp_path / "parts", interrupted, resume=False)
    assert finetune(tmp_path / "parts", all_weights, resume=True) == whole
    assert len(set(whole)) == 5
    no_training: Callable[[nn.Module], float] = lambda model: pytest.fail("a finished run is read, not trained")  # noqa: E731
    assert finetune(tmp_path / "parts", no_training, resume=True) == whole
    assert finetune(tmp_path / "parts", lambda model: 0.0, resume=False) == [0.0] * 5


def test_a_pre_trained_network_is_cached(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    train = lambda model: nn.init.constant_(model.weight, 3.0)  # noqa: E731
    runs.pretrained(run, nn.Linear(2, 2), train)
    run.resume = True
    found = runs.pretrained(run, nn.Linear(2, 2), lambda model: pytest.fail("it is there"))
    assert (found.weight == 3.0).all()


def test_steps_are_chosen_on_held_out_data(tmp_path: Path) -> None:
    """For full fine-tuning, used by all; where the multirate arm has another best step, it is trained too."""
    best = {1: 0.1, 5: 0.03}

    def train(task: Task, arm: Arm, name: str, held_out: bool) -> Array:
        assert held_out
        return np.array([[0.0], [-abs(best[arm.every] - (arm.lr or 0.0))]])

    run, transfer = small_run(tmp_path), Transfer(small_task(), train)
    chosen, arms = comparison.arms_at_best_rates(run, transfer, SimpleNamespace(rates=(0.01, 0.03, 0.1)))
    assert chosen.task.lr == 0.1
    assert {arms[FULL].lr, arms[OURS].lr} == {None}
    assert arms[OURS_TUNED].lr == 0.03
    assert [note for note in run.notes if "edge" in note] == [
        f"The best h/k of {FULL}, 0.1, lies at the edge of those tried."
    ]
    chosen, arms = comparison.arms_at_best_rates(run, transfer, SimpleNamespace(rates=(0.02,)))
    assert chosen.task.lr == 0.02
    assert OURS_TUNED not in arms


def test_held_out_data_do_not_overlap_the_training_data() -> None:
    check_split(80, 20, 100)
    for points, held_out in ((81, 20), (80, 0)):
        with pytest.raises(ValueError, match=r"held.out"):
            check_split(points, held_out, 100)


def test_a_search_starts_from_a_head_that_no_other_run_has(tmp_path: Path) -> None:
    run, first = small_run(tmp_path), []
    evaluate = lambda model: first.append(float(model[4].weight.sum().detach())) or 0.0  # noqa: E731
    for alone in (False, True):
        found = runs.finetune_all(run, small_task(), Arm((), 1), f"{alone}", Size(40, 8, 0), evaluate, alone)
        assert found.shape == (1, 1 if alone else 2)
    assert len(set(first)) == 3


def test_a_time_ratio_is_tested_by_its_median() -> None:
    ratios = np.array([*np.linspace(0.47, 0.53, 31), 3.0])
    verdicts = [shorter("x", "y", ratios, limit).verdict for limit in (0.55, 0.505, 0.45)]
    assert verdicts == [HOLDS, OPEN, FAILS]
    assert shorter("x", "y", ratios[:4], 0.55).verdict == OPEN  # four rounds have no 95 % interval


def test_a_classifier_ignores_padding() -> None:
    torch.manual_seed(0)
    classifier = text.PhraseClassifier(TransformerLM(12, 8, feedforward=8, dropout=0.0), padding=0)
    short, padded = torch.tensor([[3, 5, 7]]), torch.tensor([[3, 5, 7, 0, 0]])
    torch.testing.assert_close(classifier(short), classifier(padded))


def test_phrases_become_numbers() -> None:
    numbers = {"<eos>": 0, "<unk>": 1, "good": 2, "film": 3}
    rows = text.encode(["good film", "dull", "dull film film good"], numbers, length=3)
    assert rows.tolist() == [[2, 3, 0], [1, 0, 0], [1, 3, 3]]


def test_accuracies_of_an_ensemble_are_those_of_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "CHUNK", 7)
    make = lambda: text.PhraseClassifier(text.transformer(12, 8, 2), padding=0)  # noqa: E731
    ensemble = Ensemble(make, 3, seed=0)
    words, labels = torch.randint(12, (20, 5)), torch.randint(2, (20,))
    expected = [float((classifier(words).argmax(-1) == labels).float().mean()) for classifier in ensemble.unstack()]
    found = text.Phrases(words, labels).accuracy(ensemble)["accuracy"]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_rare_words_are_unknown() -> None:
    corpus = Corpus(
        torch.tensor([0, 1, 1, 2, 3, 3, 4]), torch.tensor([1, 2]), torch.tensor([4]), [*"abc", "<unk>", "<eos>"]
    )
    cut = text.with_common_words(corpus, 3)
    assert sorted(cut.vocabulary) == ["<eos>", "<unk>", "b"]
    assert [cut.vocabulary[i] for i in cut.train] == ["<unk>", "b", "b", "<unk>", "<unk>", "<unk>", "<eos>"]
    assert [cut.vocabulary[i] for i in cut.valid] == ["b", "<unk>"]
    assert text.with_common_words(corpus, None) is corpus


def test_evaluating_images_changes_nothing_that_training_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch statistics are estimated again from training images."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (60, 28, 28), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (60,), generator=generator)
    monkeypatch.setitem(images.SETS, "noise", lambda root: ImageSet(pixels, labels, pixels, labels))
    settings = dict(find("fig5.4").scales["smoke"]) | {"source": "noise", "target": "noise"}
    settings |= {"points": 40, "held_out": 20, "batch": 20, "pretrain_points": 40}
    evaluations = []
    monkeypatch.setattr(images, "finetune_all", lambda *given, alone: evaluations.append(given[-1]) or np.zeros((2, 1)))
    transfer = images.transfer(small_run(tmp_path), SimpleNamespace(**settings))
    task = transfer.task
    transfer.train(task, Arm((), 1), "full", True)
    twins = [Student.start(task, Arm(("head",), 2), seed=1) for _ in range(2)]
    for number in range(3):
        for student in twins:
            student.step(*task.take(torch.arange(20 * (number % 2), 20 * (number % 2) + 20)))
        evaluations[0](twins[0].model)
    for (name, p), q in zip(twins[0].model.named_parameters(), twins[1].model.parameters(), strict=True):
        assert torch.equal(p, q), name
    x = task.take(torch.arange(40))[0]
    mean = twins[0].model.get_submodule("stem.0")(x).mean((0, 2, 3))
    torch.testing.assert_close(twins[0].model.get_buffer("stem.1.running_mean"), mean)
    with pytest.raises(ValueError, match="overlap"):
        images.transfer(small_run(tmp_path), SimpleNamespace(**settings | {"points": 41}))


def test_a_residual_network_has_the_published_size() -> None:
    model = resnet34()
    whole = sum(p.numel() for p in model.parameters())
    assert sum(p.numel() for p in model.head.parameters()) / whole == pytest.approx(0.00024, rel=0.01)  # 0.024 %
    assert whole == 21_282_122
    tiny = tiny_resnet(classes=7, channels=1)
    features = tiny.stages(tiny.stem(torch.zeros(2, 1, 28, 28)))
    assert features.shape == (2, 32, 7, 7)
    assert tiny(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


@pytest.mark.parametrize("id", ["fig5.4", "fig5.6", "table5.1", "table5.2", "table5.3", "fig5.8"])
def test_rates_and_probabilities_are_searched_for_at_every_scale(id: str) -> None:
    name = "grid" if id == "fig5.8" else "rates"
    assert all(len(scale[name]) > 1 for scale in find(id).scales.values())


def test_interrupted_pre_training_goes_on(tmp_path: Path) -> None:
    def trained(name: str, stop_in: int | None) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        for epoch in remaining_epochs(ArtifactCache(tmp_path), name, {"model": model, "optimizer": optimizer}, 5):
            if epoch == stop_in:
                raise KeyboardInterrupt
            optimizer.zero_grad()
            model(torch.full((4, 3), float(epoch))).square().sum().backward()
            optimizer.step()
        return model.weight.detach()

    with pytest.raises(KeyboardInterrupt):
        trained("cut", 3)
    assert torch.equal(trained("cut", None), trained("whole", None))
    assert torch.equal(trained("cut", 0), trained("whole", None))  # nothing is left to do
