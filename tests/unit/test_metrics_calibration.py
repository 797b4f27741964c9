"""ECE, negative log-likelihood and Brier score against torchmetrics and NumPy."""

import numpy as np
import pytest
import torch

from holonom.metrics import brier_score, expected_calibration_error, negative_log_likelihood


def sample(n=200, classes=4, seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    p = (scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)).softmax(1)
    return p, torch.randint(classes, (n,), generator=generator)


@pytest.mark.integrations
@pytest.mark.parametrize("bins", [5, 15, 40])
def test_calibration_error_equals_torchmetrics(bins):
    functional = pytest.importorskip("torchmetrics.functional.classification")
    p, y = sample()
    expected = functional.multiclass_calibration_error(p, y, 4, n_bins=bins, norm="l1")
    assert float(expected_calibration_error(p, y, bins)) == pytest.approx(float(expected), rel=1e-6)


def test_calibration_error_by_hand():
    p, y = sample(50)
    confidence, right = p.numpy().max(1), p.numpy().argmax(1) == y.numpy()
    total = 0.0
    for b in range(10):
        inside = (confidence > b / 10) & (confidence <= (b + 1) / 10)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert float(expected_calibration_error(p, y, 10)) == pytest.approx(total, rel=1e-12)


def test_scores_by_hand():
    p, y = sample()
    rows = np.arange(200)
    assert float(negative_log_likelihood(p, y)) == pytest.approx(-np.log(p.numpy()[rows, y.numpy()]).mean(), rel=1e-12)
    hits = np.eye(4)[y.numpy()]
    assert float(brier_score(p, y)) == pytest.approx(((p.numpy() - hits) ** 2).sum(1).mean(), rel=1e-12)


def test_a_perfect_and_a_hopeless_model():
    y = torch.tensor([0, 1, 1, 0])
    sure = torch.nn.functional.one_hot(y, 2).double()
    for score in (expected_calibration_error, negative_log_likelihood, brier_score):
        assert float(score(sure, y)) == 0
    wrong = 1 - sure
    assert float(expected_calibration_error(wrong, y)) == 1
    assert float(brier_score(wrong, y)) == 2
    assert float(negative_log_likelihood(wrong, y)) == float("inf")


def test_honest_probabilities_are_calibrated():
    """Labels drawn from the probabilities themselves: the error falls like 1/√N."""
    p, _ = sample(100_000)
    y = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    assert float(expected_calibration_error(p, y)) < 0.01
    flat = torch.full_like(p, 0.25)
    assert float(expected_calibration_error(flat, y)) < 0.01
    assert float(brier_score(flat, y)) == pytest.approx(0.75)


def test_leading_dimensions_are_models():
    pairs = [sample(seed=s) for s in range(3)]
    p, y = torch.stack([p for p, _ in pairs]), pairs[0][1]
    for score in (expected_calibration_error, negative_log_likelihood, brier_score):
        together = score(p, y)
        assert together.shape == (3,)
        assert together.tolist() == pytest.approx([float(score(one, y)) for one, _ in pairs])


def test_one_number_is_the_probability_of_class_one():
    p = torch.tensor([0.9, 0.2, 0.6])
    y = torch.tensor([1, 0, 0])
    both = torch.stack([1 - p, p], 1)
    for score in (expected_calibration_error, negative_log_likelihood, brier_score):
        assert float(score(p, y)) == pytest.approx(float(score(both, y)))


@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        (torch.ones(3, 1), torch.zeros(3), "one class only"),
        (torch.ones(0, 2), torch.zeros(0), "at least one example"),
        (torch.full((3, 2), 0.5), torch.zeros(4), "4 labels for 3"),
        (torch.full((3, 2), 2.0), torch.zeros(3), "softmax"),
        (torch.tensor([[0.9, 0.3]]), torch.zeros(1), "softmax"),
        (torch.full((3, 2), 0.5), torch.tensor([0, 1, 2]), "there are 2 classes"),
        (torch.full((3, 2), 0.5), torch.tensor([0.5, 1, 1]), "whole numbers"),
        (torch.full((3, 2), torch.nan), torch.zeros(3), "softmax"),
    ],
)
def test_bad_probabilities_are_refused(p, y, message):
    for score in (expected_calibration_error, negative_log_likelihood, brier_score):
        with pytest.raises(ValueError, match=message):
            score(p, y)
    with pytest.raises(ValueError, match="bins"):
        expected_calibration_error(torch.full((3, 2), 0.5), torch.zeros(3), bins=0)
