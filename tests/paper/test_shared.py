"""What several subjects share: language models, loss lines, exact spectra, and results cached by a run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import iv

from holonom import Ensemble
from holonom.experiments.setups.shared import langevin_spectrum, language_model
from holonom.experiments.setups.shared.loss_lines import Line
from holonom.models import TransformerLM

from .small import small_run


def test_circles_by_role_bound_weights_and_leave_biases() -> None:
    ensemble = Ensemble(lambda: TransformerLM(11, 8, feedforward=8), 2, seed=0)
    optimizer = language_model.c_cola_ud(ensemble, language_model.Circles())
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
        ensemble.losses(language_model.loss, tokens, tokens.flip(0)).sum().backward()
        optimizer.step()
    for name, p in ensemble.named_parameters():
        assert p.abs().max() <= radius[name] * (1 + 1e-6)


def test_held_out_text_is_the_end_of_every_column() -> None:
    columns = torch.arange(1200).reshape(400, 3)
    part = language_model.Text(columns, columns[:50], 1200, 8).held_out()
    assert torch.equal(torch.cat([part.train, part.valid]), columns)
    assert len(part.valid) == 40
    assert len(language_model.Text(columns[:100], columns[:50], 1200, 8).held_out().valid) == language_model.LENGTH + 1


def test_spectrum_of_a_tilted_circle() -> None:
    """Von Mises: ⟨sin⟩ = I₁/I₀ and ⟨sin²⟩ = 1 − I₁/(κI₀), κ = a/τ."""
    tilt, temperature = 0.8, 0.5
    s, kappa = langevin_spectrum.circle(1.0, temperature, tilt), tilt / temperature
    mean = iv(1, kappa) / iv(0, kappa)
    assert s.mean == pytest.approx(mean, abs=1e-10)
    assert s.variance == pytest.approx(1 - mean / kappa - mean**2, abs=1e-10)
    assert s.asymptotic_variance < s.bound
    assert s.deviation(np.zeros(1))[0] == pytest.approx(s.variance)
    assert s.variance_of_average(1e6) == pytest.approx(s.asymptotic_variance, rel=1e-5)


@pytest.mark.parametrize(("radius", "temperature"), [(1.0, 1.0), (2.0, 0.3)])
def test_flat_spectra_have_known_gaps_and_attain_the_bound(radius: float, temperature: float) -> None:
    for s, gap in (
        (langevin_spectrum.circle(radius, temperature), temperature / radius**2),
        (langevin_spectrum.sphere(radius, temperature), 2 * temperature / radius**2),
    ):
        assert s.gap == pytest.approx(gap)
        assert s.asymptotic_variance == pytest.approx(s.bound)


def test_a_resumed_run_reads_what_the_interrupted_one_made(tmp_path: Path) -> None:
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


def test_heights_of_known_curves() -> None:
    alphas = np.linspace(0, 1, 5)
    found = Line(alphas, np.array([[1.0, 0.8, 0.5, 0.2, 0.0], [1.0, 0.5, 1.5, 0.7, 0.0]]))
    np.testing.assert_allclose(found.heights(), [0, 1])
    np.testing.assert_allclose(found.barriers(), [0, 1])
