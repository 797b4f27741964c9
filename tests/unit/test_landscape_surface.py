"""Surfaces and planes against single evaluations of the states they claim to show."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from holonom.ensemble import Ensemble
from holonom.landscape import over, random_plane, surface, trajectory_plane

X = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(10) % 4
LOSS = over((X, Y), F.cross_entropy)


def perceptron():
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4))


def build(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return perceptron()


def loss_of(state):
    model = build(0)
    model.load_state_dict(state)
    with torch.no_grad():
        return float(F.cross_entropy(model(X), Y))


def test_the_fan_is_the_thesis_surface():
    start, one, two = (build(s).state_dict() for s in (1, 2, 3))
    found = surface(build(0), start, (one, two), LOSS, grid=5)
    assert found.values.shape == (1, 5, 5)
    for i, alpha in enumerate(found.x.tolist()):
        for j, beta in enumerate(found.y.tolist()):
            f1 = {k: start[k] + alpha * (one[k] - start[k]) for k in start}
            f2 = {k: start[k] + alpha * (two[k] - start[k]) for k in start}
            state = {k: beta * f1[k] + (1 - beta) * f2[k] for k in start}
            assert float(found.values[0, i, j]) == pytest.approx(loss_of(state), rel=1e-5)
    assert float(found["cross_entropy"][0].std()) < 1e-6  # α = 0 is the start for every β


def test_the_plane_goes_through_its_three_states():
    start, one, two = (build(s).state_dict() for s in (1, 2, 3))
    found = surface(build(0), start, (one, two), LOSS, grid=7, coordinates="plane", margin=0.25)
    at = [int((found.x - value).abs().argmin()) for value in (0.0, 1.0)]
    assert [float(found.x[i]) for i in at] == pytest.approx([0.0, 1.0])
    for (i, j), state in {(0, 0): start, (1, 0): one, (0, 1): two}.items():
        assert float(found.values[0, at[i], at[j]]) == pytest.approx(loss_of(state), rel=1e-5)


def test_a_surface_of_an_ensemble_has_replicas():
    ensembles = [Ensemble(perceptron, 2, seed=s) for s in (1, 2, 3)]
    found = surface(ensembles[0], ensembles[0], (ensembles[1], ensembles[2]), LOSS, grid=3)
    assert found.values.shape == (1, 2, 3, 3)
    for i in range(2):
        alone = [e.alone(i) for e in ensembles]
        one = surface(alone[0], alone[0], (alone[1], alone[2]), LOSS, grid=3)
        torch.testing.assert_close(found.values[0, i], one.values[0], rtol=1e-5, atol=1e-6)


def test_random_directions_have_the_filters_norms():
    from holonom.landscape.directions import filter_normalised
    from holonom.landscape.states import Subject

    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))
    state = model.state_dict()
    direction = filter_normalised(Subject(model), state, 0, 0)
    for name in ("0.weight", "3.weight"):
        torch.testing.assert_close(direction[name].flatten(1).norm(dim=1), state[name].flatten(1).norm(dim=1))
    for name in ("0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "3.bias"):
        assert not direction[name].any()
    other = filter_normalised(Subject(model), state, 0, 1)
    cosine = F.cosine_similarity(direction["3.weight"].flatten(), other["3.weight"].flatten(), 0)
    assert abs(float(cosine)) < 0.5


def test_a_random_plane_is_centred_and_repeatable():
    center = build(1)
    before = torch.random.get_rng_state()
    found = random_plane(build(0), center, LOSS, grid=5, span=0.5, seed=4)
    again = random_plane(build(0), center, LOSS, grid=5, span=0.5, seed=4)
    other = random_plane(build(0), center, LOSS, grid=5, span=0.5, seed=5)
    assert torch.equal(before, torch.random.get_rng_state())
    assert float(found.values[0, 2, 2]) == pytest.approx(loss_of(center.state_dict()), rel=1e-5)
    assert torch.equal(found.values, again.values)
    assert not torch.allclose(found.values, other.values)
    assert not torch.allclose(found.values[0], found.values[0].mT)


def test_a_trajectory_in_a_plane_has_no_residual_and_one_outside_has():
    center, one, two, three = (build(s).state_dict() for s in (1, 2, 3, 4))

    def at(u, v, w=0.0):
        return {k: center[k] + u * one[k] + v * two[k] + w * three[k] for k in center}

    flat = [at(1.0, 0.2), at(0.6, 0.5), at(0.1, 0.3), center]
    found = trajectory_plane(build(0), flat, LOSS, grid=5)
    assert float(found.residuals.max()) < 1e-5
    assert torch.allclose(found.marks[-1], torch.zeros(2, dtype=torch.float64), atol=1e-9)
    names = list(center)
    for i, j in ((0, 1), (1, 2), (0, 3)):
        apart = torch.cat([(flat[i][k] - flat[j][k]).double().flatten() for k in names]).norm()
        torch.testing.assert_close((found.marks[i] - found.marks[j]).norm(), apart, rtol=1e-5, atol=1e-6)
    bent = trajectory_plane(build(0), [at(1.0, 0.2, 0.1), at(0.6, 0.5), at(0.1, 0.3, 0.2), center], LOSS, grid=5)
    assert 0.01 < float(bent.residuals.max()) < 1
    assert "off-plane" in repr(bent)


def test_the_plane_shows_the_loss_of_the_states_in_it():
    """A grid that contains a mark must show that state's own loss there."""
    center, one, two = (build(s).state_dict() for s in (1, 2, 3))
    states = [{k: center[k] + u * one[k] + v * two[k] for k in center} for u, v in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0))]
    found = trajectory_plane(build(0), states, LOSS, grid=2, margin=0.0)
    corners = [(i, j) for i in (0, 1) for j in (0, 1)]
    for mark, state in zip(found.marks, states, strict=True):
        for i, j in corners:
            if torch.allclose(mark, torch.stack([found.x[i], found.y[j]]), atol=1e-9):
                assert float(found.values[0, i, j]) == pytest.approx(loss_of(state), rel=1e-4)
    direction_loss = surface(
        build(0), states[2], (states[0], states[1]), LOSS, grid=3, coordinates="plane", margin=1e-9
    )
    assert float(direction_loss.values[0, -1, 0]) == pytest.approx(loss_of(states[0]), rel=1e-4)


def test_surfaces_plot():
    pytest.importorskip("matplotlib").use("agg")
    states = [build(s).state_dict() for s in range(5)]
    axes = trajectory_plane(build(0), states, LOSS, grid=4).plot()
    assert "off-plane residual" in axes.get_title()
    assert surface(build(0), states[0], (states[1], states[2]), LOSS, grid=3).plot().get_xlabel() == "α"


def test_bad_surfaces_are_refused():
    a, b = build(1), build(2)
    with pytest.raises(ValueError, match="two ends"):
        surface(build(0), a, (b,), LOSS)
    with pytest.raises(ValueError, match="coordinates"):
        surface(build(0), a, (b, a), LOSS, coordinates="polar")
    with pytest.raises(ValueError, match="grid"):
        surface(build(0), a, (b, a), LOSS, grid=1)
    with pytest.raises(ValueError, match="at least 3"):
        trajectory_plane(build(0), [a, b], LOSS)
    with pytest.raises(ValueError, match="one line"):
        trajectory_plane(build(0), [a, a, a], LOSS)
    ensemble = Ensemble(perceptron, 2, seed=0)
    with pytest.raises(ValueError, match="alone"):
        trajectory_plane(ensemble, [ensemble] * 3, LOSS)
    with pytest.raises(FloatingPointError, match="grid point"):
        random_plane(build(0), a, lambda m: m(X).sum() * torch.inf, grid=3)
