"""Norms of gradients by layer: against back-propagation by hand, in place activations, ensembles, orthogonal layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from holonom import Ensemble
from holonom.init import orthogonal_
from holonom.metrics import gradient_norms
from holonom.models import mlp


def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().sum()


def test_norms_are_those_of_back_propagation_by_hand() -> None:
    torch.manual_seed(0)
    model = mlp([3, 5, 4, 2]).double()
    x, y = torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    first, second, third = (layer for layer in model if isinstance(layer, nn.Linear))
    with torch.no_grad():
        z1 = first(x)
        z2 = second(z1.relu())
        d3 = 2 * (third(z2.relu()) - y)
        d2 = d3 @ third.weight * (z2 > 0)
        d1 = d2 @ second.weight * (z1 > 0)
    found = gradient_norms(model, squares, x, y)
    assert found.layers == ("0", "2", "4")
    torch.testing.assert_close(found.signals, torch.stack([d1.norm(), d2.norm(), d3.norm()]))
    inputs = (x, z1.relu(), z2.relu())
    expected = [(d.T @ a).norm() for d, a in zip((d1, d2, d3), inputs, strict=True)]
    torch.testing.assert_close(found.weights, torch.stack(expected))
    torch.testing.assert_close(found.growth(0, 1), d1.norm() / d2.norm())
    assert all(p.grad is None for p in model.parameters())


def test_an_activation_in_place_changes_nothing() -> None:
    torch.manual_seed(0)
    model = mlp([3, 5, 5, 2])
    other = mlp([3, 5, 5, 2], lambda: nn.ReLU(inplace=True))
    other.load_state_dict(model.state_dict())
    x, y = torch.randn(7, 3), torch.tensor([0, 1, 0, 1, 1, 0, 1])
    one, two = (gradient_norms(m, cross_entropy, x, y) for m in (model, other))
    torch.testing.assert_close(one.signals, two.signals)
    torch.testing.assert_close(one.weights, two.weights)


def test_an_ensemble_has_the_norms_of_its_replicas() -> None:
    ensemble = Ensemble(lambda: nn.Sequential(nn.Linear(2, 4), nn.Dropout(), nn.Linear(4, 1)), 3, seed=0).train()
    x, y = torch.randn(6, 2), torch.ones(6, 1)
    found = gradient_norms(ensemble, binary_cross_entropy_with_logits, x, y)
    assert found.weights.shape == found.signals.shape == (3, 2)
    for replica, model in enumerate(ensemble.unstack()):
        alone = gradient_norms(model, binary_cross_entropy_with_logits, x, y)
        torch.testing.assert_close(found.weights[replica], alone.weights)
    assert ensemble.training


def test_orthogonal_layers_keep_the_norm_and_a_relu_never_lets_it_grow() -> None:
    torch.manual_seed(0)
    linear, rectified = mlp([8] * 12, nn.Identity), mlp([8] * 12)
    for model in (linear, rectified):
        for layer in model:
            if isinstance(layer, nn.Linear):
                orthogonal_(layer.weight)
    x, y = torch.randn(50, 8), torch.zeros(50, 8)
    assert float(gradient_norms(linear, squares, x, y).growth()) == pytest.approx(1, abs=1e-5)
    kept = gradient_norms(rectified, squares, x, y).signals
    assert bool((kept[:-1] <= kept[1:] * (1 + 1e-5)).all())


def test_frozen_weights_and_layers_that_are_not_called_are_nan() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)
            self.used.weight.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(self.used(x))

    found = gradient_norms(Odd(), squares, torch.ones(3, 2), torch.zeros(3, 2))
    assert found.signals.isnan().tolist() == [False, True]
    assert found.weights.isnan().tolist() == [True, False]
    assert float(found.weights[1]) == 0


def test_wrong_calls_are_refused_in_words() -> None:
    model = mlp([2, 3, 1])
    with pytest.raises(ValueError, match=r"one number, got shape .*reduction='mean'"):
        gradient_norms(model, lambda output, y: (output - y).square(), torch.ones(4, 2), torch.ones(4, 1))
    with pytest.raises(ValueError, match="no layer with a weight"):
        gradient_norms(nn.LayerNorm(2), squares, torch.ones(4, 2), torch.ones(4, 2))
    norms = gradient_norms(model, squares, torch.ones(4, 2), torch.ones(4, 1))
    with pytest.raises(ValueError, match="first must lie before last among 2 layers"):
        norms.growth(1, 0)
