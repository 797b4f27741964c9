"""The experiments of chapter 5 and section 1.2.3: each ends in claims, and its set-up is what it says it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from holonom import Ensemble, Multirate
from holonom.batches import Shuffled
from holonom.capture import Stepper
from holonom.data import Corpus, ImageSet, Sentences
from holonom.experiments.base import find
from holonom.experiments.claims import FAILS, HOLDS, OPEN
from holonom.experiments.reproduce import reproduce
from holonom.experiments.run import Array, Fit, Run
from holonom.experiments.setups.mts import random_subsets, resonances, slow_biases
from holonom.experiments.setups.planar import problem as planar
from holonom.experiments.setups.shared import language_model as language
from holonom.experiments.setups.transfer import comparison as multirate_transfer
from holonom.experiments.setups.transfer import images as image_transfer
from holonom.experiments.setups.transfer import report as transfer_report
from holonom.experiments.setups.transfer import runs as transfer_runs
from holonom.experiments.setups.transfer import text as text_transfer
from holonom.experiments.setups.transfer.comparison import FULL, OURS, OURS_TUNED, Transfer
from holonom.experiments.setups.transfer.finetuning import Arm, Student, Task, accuracy_on, check_apart
from holonom.experiments.setups.transfer.runs import Size, epochs_to_go
from holonom.experiments.studies import fig5_8, thm5_3_3
from holonom.models import TransformerLM, mlp, resnet34, shlp, tiny_resnet
from holonom.multirate import RandomSubsets

from .small import check_smoke, need_data, small_run

CPU = torch.device("cpu")
EXACT = ["fig1.9", "fig1.11", "fig1.12", "fig1.13", "fig1.14"]
SYNTHETIC = ["fig1.10", "thm5.3.3", "fig5.9", "fig5.10", "fig5.11"]


@pytest.mark.parametrize("id", EXACT)
def test_exact_claims_hold(id: str, tmp_path: Path) -> None:
    assert {claim["verdict"] for claim in check_smoke(id, tmp_path)["claims"]} == {HOLDS}


@pytest.mark.parametrize("id", SYNTHETIC)
def test_smoke(id: str, tmp_path: Path) -> None:
    check_smoke(id, tmp_path)


@pytest.mark.parametrize("id", ["fig5.7", "fig5.8", "fig5.4"])
def test_smoke_on_real_data(id: str, tmp_path: Path) -> None:
    need_data(id)
    check_smoke(id, tmp_path)


@pytest.mark.parametrize("id", ["fig5.6", "table5.1", "table5.2", "table5.3"])
def test_smoke_of_text_transfer(id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On made-up words: reading WikiText-2 takes longer than everything else."""
    words = [f"w{i}" for i in range(40)]
    vocabulary = ["<eos>", "<unk>", *words]
    tokens = torch.randint(len(vocabulary), (2000,), generator=torch.Generator().manual_seed(0))
    phrases = [" ".join(words[i % 37 : i % 37 + 3]) for i in range(64)]
    labels = torch.arange(64) % 2
    monkeypatch.setattr(text_transfer, "wikitext2", lambda root: Corpus(tokens, tokens, tokens, vocabulary))
    monkeypatch.setattr(text_transfer, "sst2", lambda root: Sentences(phrases, labels, phrases, labels))
    first = check_smoke(id, tmp_path)
    if id == "table5.1":  # again, from its checkpoints
        monkeypatch.setattr(text_transfer, "pretrain", lambda *given: pytest.fail("it is kept"))
        again = reproduce(id, scale="smoke", device="cpu", out=tmp_path, resume=True, quiet=True)
        assert again["resumed"]
        assert again["tables"] == first["tables"]


# ── multiple time-stepping ───────────────────────────────────────────────────────────────────────


def test_bands_of_a_step_that_is_known() -> None:
    """diag(1, 1 + sin h): unstable for h in (0, π), (2π, 3π), …"""
    bands = resonances.unstable_bands(lambda h: np.diag([1.0, 1 + math.sin(h)]), np.linspace(0.5, 8.5, 81))
    expected = [(0.5, math.pi), (2 * math.pi, 8.5)]
    np.testing.assert_allclose(bands, expected, atol=1e-6)


# ── slow biases ──────────────────────────────────────────────────────────────────────────────────


def test_an_ensemble_of_slow_biases_is_algorithm_5_1_in_numpy() -> None:
    """Gradients from the stepper, at steps 0, 5, … for biases, which drift in between."""
    ensemble = Ensemble(lambda: shlp(2, 4, 1).double(), 2)
    parameters = dict(ensemble.named_parameters())
    x, y = torch.randn(20, 2, dtype=torch.float64), torch.randint(2, (20,)).double()
    batches = Shuffled(x, y, 5, ensemble.seeds)
    expected = {name: p.detach().numpy().copy() for name, p in parameters.items()}
    momentum = {name: np.zeros_like(p) for name, p in expected.items()}
    other = Ensemble(lambda: shlp(2, 4, 1).double(), 2)
    step = 0
    stepper = Stepper(ensemble, slow_biases.slow(0.9)(ensemble), planar.loss, batches, compiled=False)
    for epoch in range(3):
        order = batches.order(epoch)
        stepper.run(order)
        for index in order:
            with torch.no_grad():
                for name, p in other.named_parameters():
                    p.copy_(torch.from_numpy(expected[name]))
            gradients, _ = other.gradients(planar.loss, *batches.take(index), shared=False)
            for name in expected:
                if step % 5 == 0 or name.endswith("weight"):
                    momentum[name] = 0.9 * momentum[name] + gradients[name].numpy()
                expected[name] = expected[name] - 0.2 * momentum[name]
            step += 1
    for name, p in parameters.items():
        np.testing.assert_allclose(p.detach().numpy(), expected[name], rtol=1e-10, atol=1e-12)
        assert p.requires_grad


def test_arms_of_the_ablation_move_biases_as_far_as_they_should() -> None:
    """With a constant gradient of 1: five steps of SGD move 5h, slow biases 5h at once or on the way, a pause h."""
    travelled = {}
    for name, make in {
        "sgd": slow_biases.sgd(0.0),
        "slow": slow_biases.slow(0.0),
        "leap": slow_biases.slow(0.0, drift=False),
        "pause": slow_biases.slow(0.0, drift=False, stretch=1),
        "faster": slow_biases.faster(0.0),
    }.items():
        ensemble = Ensemble(lambda: shlp(2, 3, 1), 2)
        before = ensemble.get_parameter("0.bias").detach().clone()
        optimizer = make(ensemble)
        for _ in range(5):
            take_ones(ensemble, optimizer)
        travelled[name] = float((before - ensemble.get_parameter("0.bias").detach()).mean())
    assert travelled == pytest.approx({"sgd": 1.0, "slow": 1.0, "leap": 1.0, "pause": 0.2, "faster": 5.0}, rel=1e-5)


def take_ones(ensemble: Ensemble, optimizer: torch.optim.Optimizer) -> None:
    def backward() -> torch.Tensor:
        total = sum(p.sum() for p in ensemble.parameters())
        assert isinstance(total, torch.Tensor)
        total.backward()
        return total

    if isinstance(optimizer, Multirate):
        with optimizer.due():
            backward()
    else:
        optimizer.zero_grad()
        backward()
    optimizer.step()


# ── random subsets ───────────────────────────────────────────────────────────────────────────────


def test_subsets_by_name() -> None:
    ensemble = Ensemble(lambda: random_subsets.Perceptron(5), 2)
    optimizer = random_subsets.subsets({"1.weight": 0.8, "4.weight": 0.5}, momentum=0.9, steps_off=3)(ensemble)
    assert isinstance(optimizer, RandomSubsets)
    assert {(g["momentum"], g["steps_off"], g["catch_up"]) for g in optimizer.param_groups} == {(0.9, 3, True)}
    probability = {id(p): group["probability"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: probability[id(p)] for name, p in ensemble.named_parameters()}
    assert found == {"1.weight": 0.8, "1.bias": 0.0, "4.weight": 0.5, "4.bias": 0.0}
    with optimizer.due():
        off = [float((ensemble.get_parameter(name) == 0).float().mean()) for name in ("1.weight", "4.weight")]
        ensemble.losses(cross_entropy, torch.rand(3, 784), torch.arange(3)).sum().backward()
    assert off[0] == pytest.approx(0.8, abs=0.03)
    assert 0.3 < off[1] < 0.7


@pytest.mark.parametrize(("losses", "best", "at_edge"), [((3, 2, 4), 0.2, False), ((math.nan, 4, 3), 0.4, True)])
def test_a_probability_is_chosen_by_its_mean_loss(
    losses: tuple[float, ...], best: float, at_edge: bool, tmp_path: Path
) -> None:
    grid = (0.1, 0.2, 0.4)
    run, settings = small_run(tmp_path), SimpleNamespace(grid=grid, search_epochs=7)
    part = language.Text(torch.zeros(80, 3), torch.zeros(80, 3), 5, 8)

    def trained(arm: str, words: language.Text, p: float, searches: bool) -> Fit:
        assert words is part
        assert searches
        curve = np.array([[9.0, 9.0], [losses[grid.index(p)] - 0.5, losses[grid.index(p)] + 0.5]])
        return Fit(arm, np.array([0, 1]), {"valid_loss": curve}, Ensemble(lambda: nn.Linear(1, 1), 2), 0.0)

    assert fig5_8.search(run, part, "dropout", trained, settings) == best
    assert len(run.notes) == at_edge


def test_random_subsets_are_tuned_on_training_text_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches see no word of the validation text, final runs the whole training text."""
    seen: dict[str, tuple[set[int], set[int]]] = {}
    train, valid = torch.arange(0, 400), torch.arange(400, 800)
    corpus = Corpus(train, valid, valid, [f"w{i}" for i in range(800)])

    def fit(
        run: Run, arm: str, words: language.Text, make: object, epochs: int, ensemble: Ensemble | None = None
    ) -> Fit:
        assert (ensemble is not None) == arm.startswith("search")
        seen[arm] = set(words.train.flatten().tolist()), set(words.valid.flatten().tolist())
        curve = np.array([[2.0, 2.0], [1.0, 1.1]])
        return Fit(arm, np.array([0, 1]), {"valid_loss": curve}, Ensemble(lambda: nn.Linear(1, 1), 2), 0.0)

    monkeypatch.setattr(fig5_8, "penn_treebank", lambda root: corpus)
    monkeypatch.setattr(fig5_8, "fit", fit)
    fig5_8.fig5_8(small_run(tmp_path), SimpleNamespace(**find("fig5.8").scales["smoke"]))
    whole, judged = seen["SGD"]
    searches = [parts for arm, parts in seen.items() if arm.startswith("search")]
    assert len(searches) == 4
    for trained_on, chosen_on in searches:
        assert trained_on | chosen_on == whole
        assert not chosen_on & trained_on
        assert not judged & (trained_on | chosen_on)
    assert all(parts == (whole, judged) for arm, parts in seen.items() if not arm.startswith("search"))


# ── transfer ─────────────────────────────────────────────────────────────────────────────────────


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


def test_without_drift_the_head_is_differentiated_where_the_body_leapt_to() -> None:
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
    train = lambda task, arm, name, _: transfer_runs.one_by_one(run, task, arm, name, Size(40, 8, 2), accuracy)  # noqa: E731
    arms = {"a": Arm((), 1), "b": Arm((), 1), "head": Arm(("4",), 0)}
    found = multirate_transfer.compare(run, Transfer(small_task(), train), arms, SimpleNamespace(rounds=2))
    assert found["a"].accuracy.shape == (3, 2)
    np.testing.assert_array_equal(found["a"].accuracy, found["b"].accuracy)
    assert found["head"].ratios.shape == (2,)
    run.resume = True
    again = multirate_transfer.compare(run, Transfer(small_task(), train), arms, SimpleNamespace(rounds=2))
    for name, outcome in found.items():
        np.testing.assert_array_equal(again[name].ratios, outcome.ratios)  # read, not measured again
        np.testing.assert_array_equal(again[name].accuracy, outcome.accuracy)


def all_weights(model: nn.Module) -> float:
    """A number that no two states share."""
    return sum(float(x.double().abs().sum()) for x in model.state_dict().values())


@pytest.mark.parametrize("arm", [Arm((), 1), Arm(("4",), 0), Arm(("4",), 3), Arm(("4",), 3, drift=False)])
def test_an_interrupted_run_goes_on_bit_equal(arm: Arm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five batches an epoch and a period of three: the second epoch ends in mid-cycle."""
    monkeypatch.setattr(transfer_runs, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    looks: list[float] = []

    def killed(model: nn.Module) -> float:
        if len(looks) == 3:
            raise KeyboardInterrupt
        looks.append(all_weights(model))
        return looks[-1]

    def finetune(folder: Path, judge: Callable[[nn.Module], float], resume: bool) -> list[float]:
        run = small_run(folder)
        run.resume = resume
        return transfer_runs.finetune(run, small_task(), arm, "arm", 1, Size(40, 8, 4), judge)

    whole = finetune(tmp_path / "whole", all_weights, resume=False)
    with pytest.raises(KeyboardInterrupt):
        finetune(tmp_path / "parts", killed, resume=False)
    assert finetune(tmp_path / "parts", all_weights, resume=True) == whole
    assert len(set(whole)) == 5
    nobody: Callable[[nn.Module], float] = lambda model: pytest.fail("a finished run is read, not trained")  # noqa: E731
    assert finetune(tmp_path / "parts", nobody, resume=True) == whole
    assert finetune(tmp_path / "parts", lambda model: 0.0, resume=False) == [0.0] * 5


def test_a_pre_trained_network_is_kept(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    train = lambda model: nn.init.constant_(model.weight, 3.0)  # noqa: E731
    transfer_runs.pretrained(run, nn.Linear(2, 2), train)
    run.resume = True
    found = transfer_runs.pretrained(run, nn.Linear(2, 2), lambda model: pytest.fail("it is there"))
    assert (found.weight == 3.0).all()


def test_steps_are_chosen_on_held_out_data(tmp_path: Path) -> None:
    """For full fine-tuning, used by all; where the multirate arm's own best is another, it is trained too."""
    best = {1: 0.1, 5: 0.03}

    def train(task: Task, arm: Arm, name: str, held_out: bool) -> Array:
        assert held_out
        return np.array([[0.0], [-abs(best[arm.every] - (arm.lr or 0.0))]])

    run, transfer = small_run(tmp_path), Transfer(small_task(), train)
    chosen, arms = multirate_transfer.arms_at_best_rates(run, transfer, SimpleNamespace(rates=(0.01, 0.03, 0.1)))
    assert chosen.task.lr == 0.1
    assert {arms[FULL].lr, arms[OURS].lr} == {None}
    assert arms[OURS_TUNED].lr == 0.03
    assert [note for note in run.notes if "edge" in note] == [
        f"The best h/k of {FULL}, 0.1, lies at the edge of those tried."
    ]
    chosen, arms = multirate_transfer.arms_at_best_rates(run, transfer, SimpleNamespace(rates=(0.02,)))
    assert chosen.task.lr == 0.02
    assert OURS_TUNED not in arms


def test_held_out_data_are_there_and_apart() -> None:
    check_apart(80, 20, 100)
    for points, held_out in ((81, 20), (80, 0)):
        with pytest.raises(ValueError, match=r"held.out"):
            check_apart(points, held_out, 100)


def test_a_search_starts_from_a_head_that_no_other_run_has(tmp_path: Path) -> None:
    run, first = small_run(tmp_path), []
    judge = lambda model: first.append(float(model[4].weight.sum().detach())) or 0.0  # noqa: E731
    for alone in (False, True):
        found = transfer_runs.one_by_one(run, small_task(), Arm((), 1), f"{alone}", Size(40, 8, 0), judge, alone)
        assert found.shape == (1, 1 if alone else 2)
    assert len(set(first)) == 3


def test_a_time_ratio_is_judged_by_its_median() -> None:
    ratios = np.array([*np.linspace(0.47, 0.53, 31), 3.0])
    verdicts = [transfer_report.shorter("x", "y", ratios, limit).verdict for limit in (0.55, 0.505, 0.45)]
    assert verdicts == [HOLDS, OPEN, FAILS]
    assert transfer_report.shorter("x", "y", ratios[:4], 0.55).verdict == OPEN  # four rounds have no 95 % interval


def test_a_reader_does_not_see_its_padding() -> None:
    torch.manual_seed(0)
    reader = text_transfer.Reader(TransformerLM(12, 8, feedforward=8, dropout=0.0), padding=0)
    short, padded = torch.tensor([[3, 5, 7]]), torch.tensor([[3, 5, 7, 0, 0]])
    torch.testing.assert_close(reader(short), reader(padded))


def test_phrases_become_numbers() -> None:
    numbers = {"<eos>": 0, "<unk>": 1, "good": 2, "film": 3}
    rows = text_transfer.encode(["good film", "dull", "dull film film good"], numbers, length=3)
    assert rows.tolist() == [[2, 3, 0], [1, 0, 0], [1, 3, 3]]


def test_accuracies_of_an_ensemble_are_those_of_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_transfer, "CHUNK", 7)
    make = lambda: text_transfer.Reader(text_transfer.language_model(12, 8, 2), padding=0)  # noqa: E731
    ensemble = Ensemble(make, 3)
    words, labels = torch.randint(12, (20, 5)), torch.randint(2, (20,))
    expected = [float((reader(words).argmax(-1) == labels).float().mean()) for reader in ensemble.unstack()]
    found = text_transfer.Phrases(words, labels).accuracy(ensemble)["accuracy"]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_only_common_words_are_known() -> None:
    corpus = Corpus(
        torch.tensor([0, 1, 1, 2, 3, 3, 4]), torch.tensor([1, 2]), torch.tensor([4]), [*"abc", "<unk>", "<eos>"]
    )
    cut = text_transfer.of_common_words(corpus, 3)
    assert sorted(cut.vocabulary) == ["<eos>", "<unk>", "b"]
    assert [cut.vocabulary[i] for i in cut.train] == ["<unk>", "b", "b", "<unk>", "<unk>", "<unk>", "<eos>"]
    assert [cut.vocabulary[i] for i in cut.valid] == ["b", "<unk>"]
    assert text_transfer.of_common_words(corpus, None) is corpus


def test_judging_images_changes_nothing_that_training_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch statistics are estimated anew, from the images trained on."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (60, 28, 28), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (60,), generator=generator)
    monkeypatch.setitem(image_transfer.SETS, "noise", lambda root: ImageSet(images, labels, images, labels))
    settings = dict(find("fig5.4").scales["smoke"]) | {"source": "noise", "target": "noise"}
    settings |= {"points": 40, "held_out": 20, "batch": 20, "pretrain_points": 40}
    judges = []
    monkeypatch.setattr(
        image_transfer, "one_by_one", lambda *given, alone: judges.append(given[-1]) or np.zeros((2, 1))
    )
    transfer = image_transfer.transfer(small_run(tmp_path), SimpleNamespace(**settings))
    task = transfer.task
    transfer.train(task, Arm((), 1), "full", True)
    twins = [Student.start(task, Arm(("head",), 2), seed=1) for _ in range(2)]
    for number in range(3):
        for student in twins:
            student.step(*task.take(torch.arange(20 * (number % 2), 20 * (number % 2) + 20)))
        judges[0](twins[0].model)
    for (name, p), q in zip(twins[0].model.named_parameters(), twins[1].model.parameters(), strict=True):
        assert torch.equal(p, q), name
    x = task.take(torch.arange(40))[0]
    mean = twins[0].model.get_submodule("stem.0")(x).mean((0, 2, 3))
    torch.testing.assert_close(twins[0].model.get_buffer("stem.1.running_mean"), mean)
    with pytest.raises(ValueError, match="overlap"):
        image_transfer.transfer(small_run(tmp_path), SimpleNamespace(**settings | {"points": 41}))


def test_a_residual_network_has_the_published_size() -> None:
    model = resnet34()
    whole = sum(p.numel() for p in model.parameters())
    assert sum(p.numel() for p in model.head.parameters()) / whole == pytest.approx(0.00024, rel=0.01)  # 0.024 %
    assert whole == 21_282_122
    tiny = tiny_resnet(classes=7, channels=1)
    features = tiny.stages(tiny.stem(torch.zeros(2, 1, 28, 28)))
    assert features.shape == (2, 32, 7, 7)
    assert tiny(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


# ── theorem ──────────────────────────────────────────────────────────────────────────────────────


def test_constants_of_the_bound() -> None:
    problem = thm5_3_3.Problem.draw(0)
    theta = torch.randn(10, dtype=torch.float64, requires_grad=True)
    gradients = torch.stack([torch.autograd.grad(v, theta, retain_graph=True)[0] for v in problem.values(theta)])
    assert gradients.square().sum(1).max() <= 1
    torch.testing.assert_close(gradients.mean(0).square().sum(), problem.squared_gradients(theta))
    hessian = torch.autograd.functional.hessian(lambda t: problem.values(t).mean(), theta.detach())
    assert torch.linalg.eigvalsh(hessian).max() <= problem.smoothness
    lowest = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([lowest], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        search.zero_grad()
        value = problem.values(lowest).mean()
        value.backward()
        return value

    search.step(closure)
    gap = float(problem.values(0 * lowest.detach()).mean() - problem.values(lowest.detach()).mean())
    assert problem.gap() == pytest.approx(gap, abs=1e-8)


def test_descent_is_multirate_sgd_in_numpy(tmp_path: Path) -> None:
    run, problem = small_run(tmp_path), thm5_3_3.Problem.draw(0)
    found = thm5_3_3.descend(run, problem, 0.5, 3, 12)
    a, b = problem.a.numpy(), problem.b.numpy()
    generator = torch.Generator().manual_seed(run.seed + 1)
    theta, slow, total = np.zeros((2, 10)), np.zeros((2, 5)), np.zeros(2)
    for step in range(12):
        x = torch.randint(200, (2, 1), generator=generator).numpy()[:, 0]
        total += (np.square(np.tanh(theta @ a.T - b) @ a / 200)).sum(1)
        gradient = np.tanh((theta * a[x]).sum(1) - b[x])[:, None] * a[x]
        slow = gradient[:, 5:] if step % 3 == 0 else slow
        theta = theta - 0.5 * np.concatenate([gradient[:, :5], slow], 1)
    np.testing.assert_allclose(found, total / 12, rtol=1e-12)


def test_settings_of_all_scales_have_the_same_names() -> None:
    for id in ("fig5.4", "fig5.6", "fig5.7", "fig5.8", "fig5.9"):
        assert len({frozenset(scale) for scale in find(id).scales.values()}) == 1, id


@pytest.mark.parametrize("id", ["fig5.4", "fig5.6", "table5.1", "table5.2", "table5.3", "fig5.8"])
def test_rates_and_probabilities_are_searched_for_at_every_scale(id: str) -> None:
    name = "grid" if id == "fig5.8" else "rates"
    assert all(len(scale[name]) > 1 for scale in find(id).scales.values())


def test_interrupted_pre_training_goes_on(tmp_path: Path) -> None:
    def trained(file: Path, stop_in: int | None) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        for epoch in epochs_to_go(file, {"model": model, "optimizer": optimizer}, 5):
            if epoch == stop_in:
                raise KeyboardInterrupt
            optimizer.zero_grad()
            model(torch.full((4, 3), float(epoch))).square().sum().backward()
            optimizer.step()
        return model.weight.detach()

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut.pt", 3)
    assert torch.equal(trained(tmp_path / "cut.pt", None), trained(tmp_path / "whole.pt", None))
    assert torch.equal(trained(tmp_path / "cut.pt", 0), trained(tmp_path / "whole.pt", None))  # nothing is left to do
