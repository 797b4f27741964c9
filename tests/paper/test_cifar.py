"""Networks on CIFAR-10: shared between experiments, their lines, and what is claimed of them; on random images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from holonom.experiments.setups.cifar import training
from holonom.experiments.setups.cifar.images import CifarImages
from holonom.experiments.setups.cifar.optimizers import STEP, drop_twice, make_optimizer
from holonom.experiments.setups.cifar.recipes import Recipe, Start
from holonom.experiments.setups.cifar.study import (
    BLOCKS,
    SMOKE,
    STAGES,
    Arm,
    Study,
    as_published,
    barrier_blocks,
    mean_profile,
    vgg_layers,
)
from holonom.experiments.setups.shared.loss_lines import Line, mostly
from holonom.experiments.studies.fig6_3 import tops
from holonom.experiments.studies.fig6_5 import adversarial
from holonom.experiments.studies.fig6_12 import STARTS, beside
from holonom.experiments.studies.fig6_18 import FULL, STATISTICS, groups
from holonom.experiments.studies.table6_1 import Row

from ..random_images import image_set
from .small import small_run


@pytest.fixture(autouse=True)
def random_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "cifar10", lambda root: image_set(64, 32))


def small_study(folder: Path, **changes: Any) -> Study:
    return Study(small_run(folder / "test"), SimpleNamespace(**{**SMOKE, **changes}))


def test_experiments_share_their_networks(tmp_path: Path) -> None:
    first, second = small_study(tmp_path), small_study(tmp_path)
    one, two = first.arm("base"), second.arm("the same", blocks=STAGES)
    assert (first.networks.trained, second.networks.trained, second.networks.read) == (2, 0, 2)
    np.testing.assert_array_equal(one.whole.values, two.whole.values)
    np.testing.assert_array_equal(one.accuracy, two.accuracy)
    second.report({"base": two})
    assert "0 networks were trained for this result and 2 read" in second.run.notes[0]
    assert json.dumps(second.run.tables)


def test_arms_share_their_seeds_and_runs_do_not(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    base, bare = study.arm("base"), study.arm("no weight decay", weight_decay=0.0)
    np.testing.assert_array_equal(base.whole.values[:, 0], bare.whole.values[:, 0])
    assert base.whole.values[0, 0] != base.whole.values[1, 0]
    assert base.whole.values[0, -1] != bare.whole.values[0, -1]


def test_every_run_starts_from_its_given_state(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    base = study.arm("base")
    seen = []

    def start_of(number: int, recipe: Recipe) -> Start:
        seen.append((number, recipe.seed))
        return Start(base.recipe.seeded(recipe.seed), 0.25 * (number + 1))

    again = study.arm("again", start_of=start_of)
    assert seen == list(enumerate(study.seeds))
    np.testing.assert_allclose(again.whole.values[:, 0], base.whole.values[[0, 1], [1, 2]], rtol=1e-5)


def test_metrics_of_an_arm(tmp_path: Path) -> None:
    arm = small_study(tmp_path, epochs=3).arm("base", stop_accuracy=0.0)
    assert arm.curves["test_accuracy"].shape == (3, 2)
    np.testing.assert_array_equal(arm.curves["train_loss"][0], arm.curves["train_loss"][2])
    assert arm.steps.tolist() == [4, 8, 12]
    assert (arm.distance > 0).all()
    lost = small_study(tmp_path, epochs=3).arm("lost", step=1e30, step_decay=False, blocks=BLOCKS)
    at_the_end = small_study(tmp_path, epochs=1).arm("lost in the last epoch", step=1e30, step_decay=False)
    assert np.isnan(lost.accuracy).all()
    assert np.isnan(at_the_end.accuracy).all()
    assert np.isnan(lost.distance).all()
    assert np.isnan(lost.highest()).all()


def line(*rows: list[float]) -> Line:
    return Line(np.linspace(0, 1, len(rows[0])), np.array(rows))


FALLS, CLIMBS, STAYS = [4.0, 3.0, 2.0, 1.0, 0.0], [2.0, 1.0, 3.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0, 0.0]


def made(name: str = "made", whole: Line | None = None, accuracy: float = 0.5, **blocks: Line) -> Arm:
    curves = {"test_accuracy": np.full((1, 6), accuracy)}
    return Arm(name, Recipe(), curves, whole=whole or line(*6 * [FALLS]), blocks=blocks)


def test_shapes_of_known_lines() -> None:
    mixed = line(FALLS, CLIMBS, STAYS)
    assert mixed.are("barrier").tolist() == [0, 1, 0]
    assert mixed.are("plateau", "barrier").tolist() == [0, 1, 1]
    assert mostly("", "", line(*6 * [STAYS]), "plateau").verdict == "holds"
    assert mostly("", "", line(*6 * [FALLS]), "plateau").verdict == "does not hold"
    assert mean_profile(line(CLIMBS, [np.nan] * 5)) == "barrier"
    assert mean_profile(line([np.nan] * 5)) == "diverged"


def test_blocks_are_split_by_their_barriers() -> None:
    falls, climbs = line(FALLS, FALLS), line(CLIMBS, CLIMBS)
    assert barrier_blocks(made(B1=falls, B2=climbs)) == (("B2",), True)
    assert barrier_blocks(made(B1=falls, B2=falls), ("B1",)) == (("B1",), False)
    assert barrier_blocks(made(B1=climbs, B2=climbs), ("B1",)) == (("B1",), False)
    np.testing.assert_allclose(made(B1=falls, B2=climbs).highest(), [2, 2])
    some = made(B1=line(FALLS, FALLS), B2=line(FALLS, CLIMBS), B3=line(CLIMBS, CLIMBS))
    assert some.crossing().tolist() == [1, 1]
    assert made(B1=falls, B2=line(FALLS, CLIMBS)).crossing().tolist() == [0, 1]


def test_the_top_of_a_line_is_its_barriers_or_lies_inside() -> None:
    late = [9.0, 5.0, 1.0, 3.0, 0.0]  # the barrier's top is lower than where the line comes from
    assert tops(line(FALLS, CLIMBS, [9.0, 1.0, 2.0, 3.0, 9.0], late, [np.nan] * 5)).tolist() == [
        0.25, 0.5, 0.75, 0.75, 0.25,
    ]  # fmt: skip


def test_rows_of_the_summary() -> None:
    low = made("low", accuracy=0.5, B=line(*6 * [FALLS]))
    high = made("high", accuracy=0.6, B=line(*6 * [CLIMBS]))
    row = Row("deeper", "H-LB", "better", (high,), low)
    assert row.shapes() == "NB, H-LB (+2)"
    assert row.gain() == pytest.approx(10)
    assert [claim.verdict for claim in row.claims()] == ["holds", "holds"]
    assert [claim.verdict for claim in Row("", "L-LB", "worse", (high,), low).claims()] == ["does not hold"] * 2
    varied = Row("", "B / NB / P", "worse", (low, made(whole=line(*6 * [STAYS]))), high)
    assert varied.claims()[0].verdict == "holds"
    assert varied.shapes() == "NB / P"


def test_groups_of_the_third_block_are_the_whole_of_it() -> None:
    parts = groups(Recipe(width=2))
    whole = set(parts.pop(FULL))
    assert all(name.endswith(("running_mean", "running_var")) for name in parts[STATISTICS])
    names = [name for part in parts.values() for name in part]
    assert len(names) == len(set(names))
    assert whole - set(names) == {name for name in whole if name.endswith("num_batches_tracked")}


def test_layers_of_vgg() -> None:
    for kind, norms in (("vgg11", 8), ("vgg11 without norm", 0)):
        layers = vgg_layers(Recipe(architecture=kind, width=2))
        assert list(layers) == [f"layer {i}" for i in range(1, 12)]
        assert sum("running_mean" in name for names in layers.values() for name in names) == norms
    before = torch.get_rng_state()
    vgg_layers(Recipe(architecture="vgg11", width=2))
    assert torch.equal(before, torch.get_rng_state())


def test_published_numbers_are_claimed_of_networks_of_that_size() -> None:
    full = Recipe(width=64, images=50_000, epochs=100)
    values = np.array([92.0, 92.3, 92.1])
    for changes, made in (({}, 1), ({"epochs": 30}, 0), ({"width": 8}, 0), ({"images": 9}, 0)):
        arm: Any = SimpleNamespace(recipe=replace(full, **changes))
        assert len(as_published(arm, "accuracy", "92.2 %", values, 92.2, 1.0)) == made


def test_the_step_falls_tenfold_after_each_third() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], STEP)
    schedule = drop_twice(optimizer, 99)
    seen = []
    for epoch in (1, 32, 33, 65, 66, 99):
        schedule(epoch)
        seen.append(optimizer.param_groups[0]["lr"])
    np.testing.assert_allclose(seen, [0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_the_underdamped_method_has_the_papers_word() -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    settings = [{"params": list(net.parameters()), "lr": 0.04, "weight_decay": 0.0}]
    optimizer = make_optimizer("o-CoLA-ud", net, settings, momentum=0.9, fused=False)
    assert {(group["scheme"], group["lr"]) for group in optimizer.param_groups} == {("ABO", 0.2)}


def test_the_momentum_that_is_held_is_sgds_under_the_schedule() -> None:
    """γ as printed lets e^(−γh) drift with h = √lr; in SGD's terms it stays, and the steps are SGD's."""
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    settings = [{"params": list(net.parameters()), "lr": STEP, "weight_decay": 0.0}]
    held, drifting = (make_optimizer(m, net, settings, momentum=0.9, fused=False)
                      for m in ("o-CoLA-ud, momentum held", "o-CoLA-ud"))  # fmt: skip
    for optimizer, root in ((held, False), (drifting, True)):
        drop_twice(optimizer, 3, root)(2)
    for group in held.param_groups:
        assert (group["scheme"], group["lr"], group["momentum"]) == ("OBA", pytest.approx(0.001), 0.9)
    for group in drifting.param_groups:
        assert float(np.exp(-group["friction"] * group["lr"])) == pytest.approx(0.984, abs=1e-3)
    assert any("Orthogonal" in repr(group["constraint"]) for group in held.param_groups)
    assert not Recipe(method="o-CoLA-ud, momentum held").lr_is_root


def test_sgd_from_an_orthogonal_start_starts_where_the_constraint_does() -> None:
    nets = [torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    before = nets[0][0].weight.detach().clone()
    for method, net in zip(("SGD, orthogonal start", "o-CoLA-od"), nets, strict=True):
        settings = [{"params": list(net.parameters()), "lr": STEP, "weight_decay": 0.0}]
        optimizer = make_optimizer(method, net, settings, momentum=0.9, fused=False)
        assert isinstance(optimizer, torch.optim.SGD) == (method == "SGD, orthogonal start")
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(p, q)
    q = nets[0][1].weight.detach()
    torch.testing.assert_close(q.mT @ q, torch.eye(4), atol=1e-5, rtol=0)
    assert torch.equal(nets[0][0].weight.detach(), before)


def test_brightness_multiplies_images_and_changes_no_other_draw() -> None:
    data = CifarImages(image_set(64), torch.device("cpu"))
    plain = Recipe(images=64, batch=16)
    before, labels = data.epoch(plain, 0)
    after, same = data.epoch(replace(plain, brightness=0.05), 0)
    assert torch.equal(labels, same)
    assert after.dtype == torch.uint8
    inside = (before > 40) & (before < 240)
    factors = (after.double() / before.double()).flatten(2).where(inside.flatten(2), torch.nan).nanmedian(-1).values
    assert float((factors - 1).abs().max()) <= 0.055
    assert len(factors.unique()) > 20, "every image has its own"


def test_an_adversarial_block_is_the_fooled_networks_and_the_rest_is_fresh() -> None:
    study: Any = SimpleNamespace(base=Recipe(width=2), settings=SimpleNamespace(random_epochs=1))
    study.arm = lambda name, weight_decay, start: start
    start: Any = adversarial(study, "B4", 0.0)
    assert start.network.random_labels
    model = start.network.model()
    initial = {name: x.double() for name, x in model.state_dict().items()}
    trained = {name: x + 1 for name, x in initial.items()}
    for name, value in start.state(model, initial, trained).items():
        assert torch.equal(value, (trained if name.startswith("stages.3.") else initial)[name]), name


def test_starts_beside_a_barrier_are_five_intervals_away() -> None:
    found = []
    arm = lambda name, recipe, start_of: found.append([start_of(i, recipe).alpha for i in range(2)])  # noqa: E731
    study: Any = SimpleNamespace(arm=arm)
    scratch: Any = SimpleNamespace(recipe=Recipe(), whole=line(CLIMBS, [5.0, 4.0, 3.0, 2.0, 0.0]))
    for name, (offset, _) in STARTS.items():
        beside(study, scratch, name, offset)
    np.testing.assert_allclose(np.diff(found, axis=0), 0.1)
    np.testing.assert_allclose(found[1], tops(scratch.whole))
