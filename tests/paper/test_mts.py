"""Multiple time-stepping: resonances, slow biases, random slow subsets, and the theorem on multirate SGD."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from holonom import Ensemble, Multirate
from holonom._training.stepper import Stepper
from holonom.batches import Shuffled
from holonom.data import Corpus
from holonom.experiments.base import find
from holonom.experiments.run import Fit, Run
from holonom.experiments.setups.mts import random_subsets, resonances, slow_biases
from holonom.experiments.setups.planar import problem as planar
from holonom.experiments.setups.shared.language_model import Text
from holonom.experiments.studies import fig5_8, thm5_3_3
from holonom.models import shlp
from holonom.multirate import RandomSubsets

from .small import small_run


def test_bands_of_a_step_that_is_known() -> None:
    """diag(1, 1 + sin h): unstable for h in (0, π), (2π, 3π), …"""
    bands = resonances.unstable_bands(lambda h: np.diag([1.0, 1 + math.sin(h)]), np.linspace(0.5, 8.5, 81))
    expected = [(0.5, math.pi), (2 * math.pi, 8.5)]
    np.testing.assert_allclose(bands, expected, atol=1e-6)


def test_an_ensemble_of_slow_biases_is_algorithm_5_1_in_numpy() -> None:
    """Gradients from the stepper, at steps 0, 5, … for biases, which drift in between."""
    ensemble = Ensemble(lambda: shlp(2, 4, 1).double(), 2, seed=0)
    parameters = dict(ensemble.named_parameters())
    x, y = torch.randn(20, 2, dtype=torch.float64), torch.randint(2, (20,)).double()
    batches = Shuffled(x, y, 5, ensemble.seeds)
    expected = {name: p.detach().numpy().copy() for name, p in parameters.items()}
    momentum = {name: np.zeros_like(p) for name, p in expected.items()}
    other = Ensemble(lambda: shlp(2, 4, 1).double(), 2, seed=0)
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
        ensemble = Ensemble(lambda: shlp(2, 3, 1), 2, seed=0)
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


def test_subsets_by_name() -> None:
    ensemble = Ensemble(lambda: random_subsets.Perceptron(5), 2, seed=0)
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
    part = Text(torch.zeros(80, 3), torch.zeros(80, 3), 5, 8)

    def trained(arm: str, words: Text, p: float, searches: bool) -> Fit:
        assert words is part
        assert searches
        curve = np.array([[9.0, 9.0], [losses[grid.index(p)] - 0.5, losses[grid.index(p)] + 0.5]])
        return Fit(arm, np.array([0, 1]), {"valid_loss": curve}, Ensemble(lambda: nn.Linear(1, 1), 2, seed=0), 0.0)

    assert fig5_8.search(run, part, "dropout", trained, settings) == best
    assert len(run.notes) == at_edge


def test_random_subsets_are_tuned_on_training_text_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches see no word of the validation text, final runs the whole training text."""
    seen: dict[str, tuple[set[int], set[int]]] = {}
    train, valid = torch.arange(0, 400), torch.arange(400, 800)
    corpus = Corpus(train, valid, valid, [f"w{i}" for i in range(800)])

    def fit(run: Run, arm: str, words: Text, make: object, epochs: int, ensemble: Ensemble | None = None) -> Fit:
        assert (ensemble is not None) == arm.startswith("search")
        seen[arm] = set(words.train.flatten().tolist()), set(words.valid.flatten().tolist())
        curve = np.array([[2.0, 2.0], [1.0, 1.1]])
        return Fit(arm, np.array([0, 1]), {"valid_loss": curve}, Ensemble(lambda: nn.Linear(1, 1), 2, seed=0), 0.0)

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
