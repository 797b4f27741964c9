"""What a plan lists, and what studies take for published and for their rivals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

from holonom._training.stepper import Stepper
from holonom.batches import Shuffled
from holonom.cli import main
from holonom.data import Corpus, Sentences
from holonom.experiments import planning
from holonom.experiments.base import catalogue
from holonom.experiments.planning import AT_MOST, EXACT, MORE, Part, Plan, PlannedRun, plan
from holonom.experiments.setups.cifar import training
from holonom.experiments.setups.perceptrons.fashion_mnist import Constrained, Images
from holonom.experiments.setups.perceptrons.search import best as best_settings
from holonom.experiments.setups.planar.problem import FOUR_TURNS, problem
from holonom.experiments.setups.shared.optimizers import Momentum
from holonom.experiments.setups.transfer import text
from holonom.experiments.studies import fig5, fig7, table2
from holonom.experiments.verdicts import FAILS, HOLDS
from holonom.models import shlp

from ..random_images import image_set
from .small import small_run


def test_a_plan_lists_every_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four networks start from the one that was trained from scratch."""
    monkeypatch.setattr(training, "cifar10", lambda root: image_set(64, 32))
    found = plan("fig6.4", scale="smoke", device="cpu", overrides={"epochs": 50})
    assert found.complete
    assert [part.title for part in found.parts] == ["from scratch", *(f"B{i} forgotten" for i in range(1, 5))]
    assert {(part.runs, part.steps) for part in found.parts} == {(2, 50 * 4)}
    assert found.seconds == pytest.approx(sum(part.seconds for part in found.parts))
    assert found.seconds > 0


def test_a_plan_says_that_it_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.randint(4, (2000,), generator=torch.Generator().manual_seed(0))
    corpus = Corpus(tokens, tokens, tokens, ["<eos>", "<unk>", "a", "b"])
    phrases = Sentences(["a b"] * 64, torch.arange(64) % 2, ["a"] * 8, torch.arange(8) % 2)
    monkeypatch.setattr(text, "wikitext2", lambda root: corpus)
    monkeypatch.setattr(text, "sst2", lambda root: phrases)
    found = plan("table5.1", scale="smoke", device="cpu")
    assert not found.complete
    assert [(part.title, part.steps, part.unit) for part in found.parts] == [("pre-training", 1, "epoch")]


def forbidden(*_: Any) -> Any:
    raise AssertionError("a plan does not evaluate")


def planned(tmp_path: Path) -> PlannedRun:
    return PlannedRun("x", "smoke", 2, 0, torch.device("cpu"), tmp_path, quiet=True)


def train(run: PlannedRun, arm: str, lr: float, momentum: float = 0.0, hidden: int = 3, compiled: bool = False) -> Any:
    ensemble = run.ensemble(lambda: shlp(2, hidden, 1))
    batches = Shuffled(torch.zeros(2, 8, 2), torch.zeros(2, 8, 1), 4, ensemble.seeds, own_data=True)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr, momentum=momentum)
    return run.fit(arm, ensemble, optimizer, mse_loss, batches, 40, forbidden, 4, compiled=compiled)


def test_a_plan_times_trainings_that_differ_in_numbers_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    real = PlannedRun._measure
    monkeypatch.setattr(PlannedRun, "_measure", lambda run, *rest: measured.append(run) or real(run, *rest))
    run = planned(tmp_path)
    trained: dict[str, dict[str, Any]] = {
        "a": {"lr": 0.1},
        "b": {"lr": 0.2},
        "momentum": {"lr": 0.1, "momentum": 0.9},
        "wide": {"lr": 0.1, "hidden": 4},
        "compiled": {"lr": 0.3, "compiled": True},
    }
    for arm, options in trained.items():
        fit = train(run, arm, **options)
        assert fit.final("any metric").shape == (2,)
        assert fit.split(["one", "two"])["two"].curves["another"].shape == (5, 1)
    assert len(measured) == 3
    a, b, *_, compiled = run.parts
    assert (a.seconds, a.bound) == (b.seconds, EXACT)
    assert (compiled.seconds, compiled.bound) == (a.seconds, AT_MOST)
    assert a.seconds > 0


def test_a_plan_gives_long_steps_up_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "TOO_LONG", 0.0)
    monkeypatch.setattr(Stepper, "run", forbidden)
    run = planned(tmp_path)
    train(run, "a", 0.1)
    train(run, "b", 0.1, momentum=0.9)  # would be given up in its gradients, too
    first, second = run.parts
    assert first.bound == second.bound == MORE
    assert first.seconds == second.seconds > 0


def test_a_plan_of_fig7_ends_before_test_images_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(run: Any, train: int, test: int) -> Images:
        return Images(torch.zeros(train, 784), torch.arange(train) % 10, torch.zeros(9, 784), torch.zeros(9).long())

    monkeypatch.setattr(fig7, "load", load)
    monkeypatch.setattr(fig7, "averaged", forbidden)
    found = plan("fig7", scale="smoke", device="cpu")
    assert found.complete
    assert {"SGD-m grid", "search, circle", "published code's circles"} <= {part.title for part in found.parts}


def test_a_plan_says_what_its_times_mean(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [Part("a", 2, 10, 3600.0, bound=MORE), Part("b", 2, 10, 60.0, bound=AT_MOST), Part("c", 2, 10, 30.0)]
    monkeypatch.setattr(planning, "plan", lambda id, **_: Plan(id, parts, True, torch.device("cpu")))
    assert main(["reproduce", "fig1", "--plan"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "more than 1 h" in said
    assert "given up after 1 s" in said
    assert "take less" in said


def test_validation_points_leave_the_others_as_they_are(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    plain, validated = (problem(run, FOUR_TURNS, train=20, test=30, hidden=2, validate=v) for v in (False, True))
    for name in ("x", "y", "x_test", "y_test"):
        assert torch.equal(getattr(plain, name), getattr(validated, name))
    assert plain.x_valid is None
    assert validated.x_valid.shape == validated.x_test.shape
    assert not torch.equal(validated.x_valid, validated.x_test)
    fit = validated.fit("SGD", lambda ensemble: torch.optim.SGD(ensemble.parameters(), 0.1), 2)
    assert "valid_accuracy" in fit.curves


def made(accuracy: float, loss: float) -> Any:
    """A fit of ten runs."""
    values = {"test_accuracy": accuracy, "test_loss": loss}
    return SimpleNamespace(final=lambda metric: values[metric] + 1e-4 * np.linspace(-1, 1, 10))


def test_the_published_number_beside_a_cell_is_that_cells_own() -> None:
    best, lowest = Momentum(0.1, 0.8, 5e-5), Momentum(0.05, 0.8, 1e-4)
    cells = {fig7.PLAIN: made(0.87, 0.8), fig7.DECAYED: made(0.87, 0.5), best: made(0.86, 0.5), lowest: made(0.85, 0.4)}
    ours = {"a": made(0.88, 0.3), "b": made(0.88, 0.3), "c": made(0.88, 0.3)}
    claims = fig7.verdicts(cells, ours, best, lowest)
    chosen = next(claim for claim in claims if claim.name.startswith("c-CoLA-ud is more accurate than the grid's best"))
    assert str(best) in chosen.name
    assert chosen.published == "87.63 against 87.29 % of this cell"
    assert chosen.size == pytest.approx(0.0034)
    assert chosen.verdict == HOLDS
    assert "0.511" in claims[-1].published
    assert claims[-1].size is None  # its own best settings are not published
    assert fig7.published(fig7.DECAYED) == (87.47, 0.531)


def test_the_rival_of_a_search_is_the_best_in_cross_validation() -> None:
    scores = {"a": (0.9, 0.3), "b": (0.8, 0.1), "c": (np.nan, np.nan)}
    assert best_settings(scores) == ("a", "b")
    assert isinstance(fig7.PUBLISHED, Constrained)


@pytest.mark.parametrize(
    ("cells", "number", "plain", "decayed"),
    [(table2.ALL, 0, "4.83", "4.77"), (table2.ALL, 1, "5.13", "5.01"), (table2.FEW, 0, "4.84", "4.77"),
     (table2.FEW, 1, "5.13", "5.02")],
)  # fmt: skip
def test_published_losses_are_those_of_the_cells_trained(
    cells: tuple[Momentum, ...], number: int, plain: str, decayed: str
) -> None:
    values = 5.0 + 1e-3 * np.linspace(-1, 1, 6)
    rivals = {str(cell): values for cell in table2.rivals(cells, number)}  # no other setting has all runs
    smallest = {table2.OURS: values + 1, table2.TUNED: values - 1, table2.TUNED_SGD: values - 2, **rivals}
    behind, tuned, ahead, searched = table2.verdicts("corpus", number, cells, smallest)
    ours = table2.PUBLISHED[table2.OURS][number]
    assert behind.published == f"{ours} against {plain}"
    assert tuned.published == f"{decayed} against {ours}"
    assert behind.size == pytest.approx(float(plain) - ours)
    assert (behind.verdict, tuned.verdict, ahead.verdict, searched.verdict) == (FAILS, HOLDS, HOLDS, FAILS)
    assert ahead.size is searched.size is None


def test_penalties_with_smaller_steps_are_simulated_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {}

    def free(run: Any, arm: str, sets: Any, depth: int, epochs: int, *, strengths: Any, steps: Any) -> Any:
        taken[steps[0]] = epochs
        return SimpleNamespace(split=lambda names: dict.fromkeys(names, arm))

    monkeypatch.setattr(fig5, "free", free)
    settings = SimpleNamespace(**catalogue()["fig5"].settings("paper", {}))
    cells = [cell for h in settings.steps for cell in fig5.sweep(None, [], 4, h, settings)]  # type: ignore[arg-type]
    assert taken == {0.1: 600, 0.05: 1200, 0.01: 6000}
    assert len(cells) == len(set(cells)) == 36
    valid = {cell: np.full(3, -abs(cell[1] - 0.002) - cell[0]) for cell in cells}
    assert fig5.chosen(cells, valid) == (0.01, 0.002)


def test_both_methods_are_searched_with_the_same_effort() -> None:
    circles, momenta = table2.circles(0, 12), table2.momenta(0, 12)
    assert len(set(circles)) == len(set(momenta)) == 12
    assert circles[0] == table2.CIRCLES["Penn Treebank"]
    assert any(cell.weight_decay for cell in momenta)
    assert not all(cell.weight_decay for cell in momenta)


def test_the_papers_table_is_complete_at_paper_scale() -> None:
    assert len(table2.ALL) == 8
    assert {Momentum(0.1, 0.7, 1e-4), Momentum(0.2, 0.7)} <= set(table2.ALL)


def test_paper_scale_is_the_published_size() -> None:
    """Of the networks of chapter 6 (6.1.3.1), and of fine-tuning (Figs. 5.4 and 5.6)."""
    studies = catalogue()
    published = {"epochs": 100, "train": 50_000, "width": 64, "batch": 128, "replicas": 10}
    for id in ("fig6.1B", "fig6.2B", "fig6.3", "fig6.4", "fig6.5", "fig6.6", "fig6.7", "fig6.8", "fig6.9", "fig6.10",
               "fig6.12", "fig6.13", "fig6.14", "fig6.15", "fig6.16", "fig6.18", "fig6.19", "table6.1", "table6.2",
               "table6.4"):  # fmt: skip
        scales = studies[id].scales
        assert published.items() <= scales["paper"].items(), id
        assert (scales["large"]["epochs"], scales["large"]["replicas"]) == (30, 6), id
    for id in ("fig5.6", "table5.1", "table5.2", "table5.3"):
        assert {"batch": 16, "replicas": 10}.items() <= studies[id].scales["paper"].items(), id
    assert studies["fig5.4"].scales["paper"]["replicas"] == 20
    assert list(studies["fig1"].scales) == ["smoke", "ci", "paper"]
