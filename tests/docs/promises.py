"""What pages that run say of themselves, asserted of the names that their blocks leave behind."""

from collections.abc import Callable
from typing import Any

Names = dict[str, Any]


def start(names: Names) -> None:
    assert names["loss"] < 0.2
    assert max(names["opt"].residuals()) < 1e-5
    assert max(names["held"].residuals().values()) < 1e-5


def orthogonal_resnet(names: Names) -> None:
    assert names["orthogonal"][-1] > 0.8
    assert (names["singular_values"](names["model"]) - 1).abs().max() < 1e-5
    assert (names["singular_values"](names["plain"]) - 1).abs().max() > 0.3


def bounded_weights(names: Names) -> None:
    assert names["largest"] <= 1
    assert names["bounded_losses"][-1] < names["free_losses"][-1] - 0.1
    assert names["free_losses"][-1] > min(names["free_losses"]) + 0.1  # it has learnt the noise


def posterior(names: Names) -> None:
    edge, inside, gap = (names["deviation"][i] for i in (0, 25, 40))  # at -4, -1.5 and 0
    assert edge > 3 * inside
    assert gap > 1.2 * inside
    assert names["posterior"].verdict(names["where"][::20], rhat=1.05, ess=200).mixed


def ensembles(names: Names) -> None:
    assert names["found"].shape == (100,)
    assert names["found"].mean() > 0.75
    assert names["history"]["accuracy"][-1].mean() > 0.75


def multirate(names: Names) -> None:
    assert names["accuracies"][-1] > 0.95
    assert 0.3 < names["spent"][5] / names["spent"][1] < 0.6


def landscapes(names: Names) -> None:
    assert "0" in names["layers"].barriers()
    assert names["around"]["loss"].argmin() == names["around"]["loss"].numel() // 2  # the trained weights


def own_constraint(names: Names) -> None:
    assert 0.98 * names["optimum"] < names["rewards"][-1] <= names["optimum"] + 1e-4
    assert names["shares"].min() >= 0
    assert (names["shares"] @ names["cost"]).max() <= 1
    assert names["together"].traits.joint


def training_loops(names: Names) -> None:
    assert names["same"]
    assert names["before"] < 0.99
    assert abs(names["after"] - 1) < 1e-5


PROMISES: dict[str, Callable[[Names], None]] = {
    "start": start,
    "orthogonal-resnet": orthogonal_resnet,
    "bounded-weights": bounded_weights,
    "posterior": posterior,
    "ensembles": ensembles,
    "multirate": multirate,
    "landscapes": landscapes,
    "own-constraint": own_constraint,
    "training-loops": training_loops,
}
