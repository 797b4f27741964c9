"""Cross-sections, chains, distances, weight histories."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from holonom import Recorder
from holonom.ensemble import Ensemble
from holonom.metrics import (
    WeightHistory,
    autocorrelation_time,
    block_distances,
    cross_section,
    distance,
    effective_sample_size,
    potential_scale_reduction,
    travelled,
)

EXACT = {"dtype": torch.float64}


def step(x):
    return torch.sigmoid(20 * (x[:, 0] - 0.2) + 3 * x[:, 1])


def test_gradients_along_both_axes_are_the_derivatives():
    for axis, factor in (("x", 20.0), ("y", 3.0)):
        found = cross_section(step, axis, at=0.3, points=101, **EXACT)
        torch.testing.assert_close(found.gradients, factor * found.values * (1 - found.values))
    along = cross_section(step, "x", at=0.0, points=2001, **EXACT)
    assert float(along.steepest) == pytest.approx(5.0, rel=1e-4)
    assert float(along.variation) == pytest.approx(1.0, abs=1e-6)
    numeric = np.gradient(along.values.numpy(), along.position.numpy())
    np.testing.assert_allclose(along.gradients.numpy()[1:-1], numeric[1:-1], atol=1e-3)


def test_widths_of_transitions():
    (width,) = cross_section(step, "x", points=5001, **EXACT).widths()
    assert width.tolist() == pytest.approx([2 * math.log(9) / 20], rel=1e-4)  # from logit −log 9 to log 9

    def bands(x):
        return 0.5 + 0.5 * torch.sin(2 * math.pi * x[:, 0])

    (widths,) = cross_section(bands, "x", bounds=(-1.0, 1.0), points=4001, **EXACT).widths()
    assert len(widths) == 3  # between the peaks and troughs at −0.75, −0.25, 0.25, 0.75
    np.testing.assert_allclose(widths, 2 * math.asin(0.8) / (2 * math.pi), rtol=1e-4)
    (never,) = cross_section(lambda x: 0.3 * bands(x), "x", **EXACT).widths()
    assert len(never) == 0


def test_several_classifiers_have_rows():
    slopes = torch.tensor([5.0, 50.0], dtype=torch.float64)
    found = cross_section(lambda x: torch.sigmoid(slopes[:, None] * x[:, 0]), points=3001, **EXACT)
    assert found.values.shape == found.gradients.shape == (2, 3001)
    torch.testing.assert_close(found.steepest, slopes / 4)
    assert [float(w[0]) for w in found.widths()] == pytest.approx([2 * math.log(9) / 5, 2 * math.log(9) / 50], rel=1e-3)


def test_bad_sections_are_refused():
    with pytest.raises(ValueError, match="axis"):
        cross_section(step, "z")
    with pytest.raises(ValueError, match="increasing"):
        cross_section(step, bounds=(1.0, 0.0))
    with pytest.raises(ValueError, match="predict gave shape"):
        cross_section(lambda x: x)
    with pytest.raises(ValueError, match="low must be below"):
        cross_section(step).widths(0.9, 0.1)


def autoregression(rho, draws=4000, chains=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((chains, draws))
    for t in range(1, draws):
        x[:, t] = rho * x[:, t - 1] + math.sqrt(1 - rho**2) * x[:, t]
    return x


@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_an_autoregression_has_its_known_time(rho):
    draws = autoregression(rho, 20_000)
    exact = (1 + rho) / (1 - rho)
    assert float(autocorrelation_time(draws)) == pytest.approx(exact, rel=0.1)
    assert float(effective_sample_size(draws)) == pytest.approx(80_000 / exact, rel=0.1)
    assert float(potential_scale_reduction(draws)) == pytest.approx(1, abs=0.01)


def test_components_keep_their_shape_and_constant_ones_are_nan():
    draws = np.stack([autoregression(0.5, 200), np.ones((4, 200)), autoregression(0.0, 200, seed=1)], -1)
    found = effective_sample_size(torch.from_numpy(draws).reshape(4, 200, 3, 1))
    assert found.shape == (3, 1)
    assert math.isnan(found[1, 0])
    assert found[0, 0] < found[2, 0]


def test_a_drifting_chain_is_detected_alone_and_among_others():
    draws = autoregression(0.0, 500)
    draws[0] += 3
    assert float(potential_scale_reduction(draws)) > 1.2
    drifting = np.linspace(0, 3, 500)[None] + autoregression(0.0, 500, 1)
    assert float(potential_scale_reduction(drifting)) > 1.2


def test_a_recorder_and_the_functions_agree():
    recorder = Recorder(chains=4)
    draws = autoregression(0.5, 300)
    for column in draws.T:
        recorder(x=torch.from_numpy(column.copy()))
    row = recorder.diagnose()[0]
    assert float(effective_sample_size(recorder.draws("x"))) == pytest.approx(row.ess)
    assert float(autocorrelation_time(recorder.draws("x"))) == pytest.approx(row.iat)
    assert float(potential_scale_reduction(recorder.draws("x"))) == pytest.approx(row.rhat)


def test_bad_draws_are_refused():
    with pytest.raises(ValueError, match="at least 8"):
        effective_sample_size(np.zeros((4, 3)))
    with pytest.raises(ValueError, match="NaN"):
        effective_sample_size(np.full((4, 30), np.nan))


def perceptron():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def flat(state, prefix=""):
    names = [n for n in state if n.startswith(prefix) and "running" not in n and "tracked" not in n]
    return torch.cat([state[n].double().flatten() for n in names])


def test_distance_is_relative_to_the_start_and_without_buffers():
    model, start, end = perceptron(), perceptron().state_dict(), perceptron().state_dict()
    end["1.running_mean"] += 100
    expected = (flat(end) - flat(start)).norm() / flat(start).norm()
    torch.testing.assert_close(distance(model, start, end), expected)
    parts = block_distances(model, start, end)
    assert list(parts) == ["0", "2"]
    torch.testing.assert_close(parts["2"], (flat(end, "2") - flat(start, "2")).norm() / flat(start, "2").norm())
    assert float(distance(model, start, start)) == 0


def test_every_replica_has_a_distance():
    one, two = (Ensemble(perceptron, 3, seed=s) for s in (0, 1))
    found = distance(one, one, two)
    assert found.shape == (3,)
    for i in range(3):
        torch.testing.assert_close(found[i], distance(perceptron(), one.alone(i), two.alone(i)))


def test_a_path_is_at_least_as_long_as_its_displacement():
    model, states = perceptron(), [perceptron().state_dict() for _ in range(4)]
    found = travelled(model, [*states, states[0]])
    assert found.displacement[0] == 0
    assert float(found.displacement[-1]) == 0
    torch.testing.assert_close(found.displacement[2], distance(model, states[0], states[2]))
    legs = [(flat(b) - flat(a)).norm() / flat(states[0]).norm() for a, b in pairwise(states)]
    torch.testing.assert_close(found.length[3], torch.stack(legs).sum())
    assert bool((found.length >= found.displacement - 1e-12).all())
    with pytest.raises(ValueError, match="no states"):
        travelled(model, [])


def test_a_history_of_weights():
    model = perceptron()
    history = WeightHistory(model, "*.weight")
    for time, factor in ((0, 1.0), (50, 3.0)):
        with torch.no_grad():
            model[0].weight.fill_(0.1 * factor)
            model[0].weight[0].zero_()
        history(time)
    assert history.steps == [0, 50]
    assert history.values("0.weight").shape == (2, 4, 3)
    edges, counts = history.histogram("0.weight", bins=3)
    assert edges.tolist() == pytest.approx([0, 0.1, 0.2, 0.3])
    assert counts.sum(1).tolist() == [12, 12]
    assert counts[1].tolist() == [3, 0, 9]
    assert history.near_zero("0.weight", 0.2).tolist() == [1.0, 0.25]
    with pytest.raises(KeyError, match="not recorded"):
        history.values("0.bias")
    with pytest.raises(ValueError, match="names no parameter"):
        WeightHistory(model, "9.*")
    with pytest.raises(ValueError, match="nothing was recorded"):
        WeightHistory(model).values("0.weight")


def test_a_history_plots_its_times():
    pytest.importorskip("matplotlib").use("agg")
    history = WeightHistory(perceptron())
    history(3)
    assert [t.get_text() for t in history.plot("0.weight").get_legend().get_texts()] == ["step 3"]
