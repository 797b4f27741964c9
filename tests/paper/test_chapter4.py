"""The experiments of the paper and of chapter 4: each ends in claims, and its set-up is what it says it is."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import iv
from torch.nn.functional import cross_entropy

from holonom import Ensemble
from holonom.batches import Shuffled
from holonom.experiments.setups.perceptrons import fashion_mnist as fashion
from holonom.experiments.setups.planar import spiral_depth
from holonom.experiments.setups.shared import langevin_spectrum as spectrum
from holonom.experiments.setups.shared import language_model as language
from holonom.experiments.setups.shared.momentum import Momentum
from holonom.experiments.studies import fig7
from holonom.models import TransformerLM

from .small import check_smoke, need_data, small_run

SYNTHETIC = ["fig1", "fig2", "fig3", "table4.5", "fig4", "fig5", "figD2", "cor4.2"]


@pytest.mark.parametrize("id", SYNTHETIC)
def test_smoke(id: str, tmp_path: Path) -> None:
    check_smoke(id, tmp_path)


@pytest.mark.parametrize("id", ["fig7", "table2"])
def test_smoke_on_real_data(id: str, tmp_path: Path) -> None:
    need_data(id)
    check_smoke(id, tmp_path)


# ── depth ────────────────────────────────────────────────────────────────────────────────────────


def test_every_member_has_its_own_penalty() -> None:
    """∇λ‖WᵀW − I‖² = 4λ W(WᵀW − I), on hidden weights alone."""
    ensemble = Ensemble(lambda: spiral_depth.DeepPerceptron(3).double(), 2, repeats=2)
    strengths = [0.0, 0.3]
    ensemble.get_buffer("strength").copy_(ensemble.spread(strengths))
    x, y = torch.randn(5, 2, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    gradients, _ = ensemble.gradients(spiral_depth.loss, x, y)
    parameters = dict(ensemble.named_parameters())
    for name in parameters:
        w = parameters[name].detach().numpy()[2:]
        pull = gradients[name].numpy()[2:] - gradients[name].numpy()[:2]
        hidden = name in ("body.2.weight", "body.4.weight")
        expected = 4 * 0.3 * w @ (w.transpose(0, 2, 1) @ w - np.eye(100)) if hidden else 0.0
        np.testing.assert_allclose(pull, expected, atol=1e-12)


def test_an_orthogonal_start_is_orthogonal_between_hidden_layers_only() -> None:
    model = spiral_depth.DeepPerceptron(4, orthogonal=True)
    for w in model.hidden_weights():
        torch.testing.assert_close(w.mT @ w, torch.eye(100), atol=1e-5, rtol=0)
    assert len(model.hidden_weights()) == 3
    assert model.body[0].weight.abs().max() <= 1 / math.sqrt(2)


def test_a_run_that_diverged_is_right_half_of_the_time() -> None:
    ensemble = Ensemble(lambda: spiral_depth.DeepPerceptron(2), 2)
    with torch.no_grad():
        ensemble.get_parameter("body.0.weight")[1] = math.nan
    found = spiral_depth._metrics(ensemble, torch.randn(2, 8, 2), torch.ones(2, 8), "test")
    assert found["test_accuracy"][1] == 0.5
    assert found["test_loss"][0].isfinite()


# ── Fashion-MNIST ────────────────────────────────────────────────────────────────────────────────


def images(count: int = 60) -> fashion.Images:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2 * count, 784, generator=generator)
    y = torch.randint(10, (2 * count,), generator=generator)
    return fashion.Images(x[:count], y[:count], x[count:], y[count:])


def test_a_grid_of_momenta_is_sgd_cell_by_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion, "BATCH", 20)
    data, cells = images(), [Momentum(0.1, 0.8), Momentum(0.05, 0.95, 0.1)]
    fit = fashion.momentum(small_run(tmp_path), "grid", cells, data, 5, epochs=2)
    trained = fit.ensemble.unstack()
    for number, cell in enumerate(cells):
        alone = Ensemble(lambda: fashion.shlp(784, 5, 10), 2)
        optimizer = torch.optim.SGD(alone.parameters(), cell.lr, momentum=cell.momentum, weight_decay=cell.weight_decay)
        batches = Shuffled(data.x, data.y, 20, alone.seeds)
        for epoch in range(2):
            for index in batches.order(epoch):
                optimizer.zero_grad()
                alone.losses(cross_entropy, *batches.take(index), shared=False).sum().backward()
                optimizer.step()
        for one, other in zip(alone.unstack(), trained[2 * number : 2 * number + 2], strict=True):
            for p, q in zip(one.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(p, q, atol=1e-5, rtol=1e-4)


def test_cross_validation_never_trains_on_what_it_tests() -> None:
    data = images()
    folds = data.folds(3, 0, 3)
    for x, x_test in zip(folds.x, folds.x_test, strict=True):
        assert not (x[:, None] == x_test[None]).all(-1).any()
    seen = folds.x_test.flatten(0, 1)
    assert sorted(seen[:, 0].tolist()) == sorted(data.x[:, 0].tolist())
    assert not (data.x_test[:, None] == seen[None]).all(-1).any()


def test_annealing_lowers_the_step_of_those_who_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def keep(run, arm, ensemble, optimizer, data, epochs, after_epoch):
        after_epoch(epochs)
        seen["lr"] = optimizer.param_groups[0]["lr"].tolist()

    monkeypatch.setattr(fashion, "_train", keep)
    cells = [fig7.PUBLISHED, fig7.PUBLISHED._replace(annealed=True)]
    fashion.constrained(small_run(tmp_path, 1), "x", cells, images(), 5, epochs=4)
    assert seen["lr"] == pytest.approx([0.3, 0.003])


def test_candidates_are_different_and_repeatable() -> None:
    drawn = fig7.draw(3, "circle", 20)
    assert len({fig7.PUBLISHED, *drawn}) == 21
    assert drawn == fig7.draw(3, "circle", 20)
    assert drawn != fig7.draw(4, "circle", 20)


# ── language ─────────────────────────────────────────────────────────────────────────────────────


def test_circles_by_role_bound_weights_and_leave_biases() -> None:
    ensemble = Ensemble(lambda: TransformerLM(11, 8, feedforward=8), 2)
    optimizer = language.c_cola_ud(ensemble, language.Circles())
    radius = dict.fromkeys(dict(ensemble.named_parameters()), math.inf)
    for group in optimizer.param_groups:
        for name in group["param_names"]:
            if group["constraint"] != "Free()":
                radius[name] = float(group["constraint"].split("radius=")[1].split(",")[0])
    assert radius["embedding.weight"] == radius["decoder.weight"] == 0.5
    assert radius["layers.1.feedforward.0.weight"] == 0.1
    assert radius["layers.0.norm2.weight"] == radius["layers.0.attention.inputs.weight"] == 1.0
    assert {name for name, r in radius.items() if r == math.inf} == {n for n in radius if n.endswith("bias")}
    tokens = torch.randint(11, (6, 3))
    for _ in range(5):
        optimizer.zero_grad()
        ensemble.losses(language.loss, tokens, tokens.flip(0)).sum().backward()
        optimizer.step()
    for name, p in ensemble.named_parameters():
        assert p.abs().max() <= radius[name] * (1 + 1e-6)


def test_held_out_text_is_the_end_of_every_column() -> None:
    columns = torch.arange(1200).reshape(400, 3)
    part = language.Text(columns, columns[:50], 1200, 8).held_out()
    assert torch.equal(torch.cat([part.train, part.valid]), columns)
    assert len(part.valid) == 40
    assert len(language.Text(columns[:100], columns[:50], 1200, 8).held_out().valid) == language.LENGTH + 1


# ── theory ───────────────────────────────────────────────────────────────────────────────────────


def test_spectrum_of_a_tilted_circle() -> None:
    """Von Mises: ⟨sin⟩ = I₁/I₀ and ⟨sin²⟩ = 1 − I₁/(κI₀), κ = a/τ."""
    tilt, temperature = 0.8, 0.5
    s, kappa = spectrum.circle(1.0, temperature, tilt), tilt / temperature
    mean = iv(1, kappa) / iv(0, kappa)
    assert s.mean == pytest.approx(mean, abs=1e-10)
    assert s.variance == pytest.approx(1 - mean / kappa - mean**2, abs=1e-10)
    assert s.asymptotic_variance < s.bound
    assert s.deviation(np.zeros(1))[0] == pytest.approx(s.variance)
    assert s.variance_of_average(1e6) == pytest.approx(s.asymptotic_variance, rel=1e-5)


@pytest.mark.parametrize(("radius", "temperature"), [(1.0, 1.0), (2.0, 0.3)])
def test_flat_spectra_have_known_gaps_and_attain_the_bound(radius: float, temperature: float) -> None:
    for s, gap in (
        (spectrum.circle(radius, temperature), temperature / radius**2),
        (spectrum.sphere(radius, temperature), 2 * temperature / radius**2),
    ):
        assert s.gap == pytest.approx(gap)
        assert s.asymptotic_variance == pytest.approx(s.bound)


def test_what_an_interrupted_run_has_made_is_read(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> np.ndarray:
        made.append(0)
        return np.arange(3.0) * len(made)

    run = small_run(tmp_path)
    assert run.once("numbers", make).tolist() == [0.0, 1.0, 2.0]
    run.resume = True
    assert run.once("numbers", make).tolist() == [0.0, 1.0, 2.0]
    run.resume = False
    assert run.once("numbers", make).tolist() == [0.0, 2.0, 4.0], "without resuming it starts over"
