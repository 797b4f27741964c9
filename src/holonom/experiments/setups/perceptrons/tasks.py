"""Perceptrons on spirals and digits: the problems whose landscapes thesis 3.4 and 6.1 look at."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from .... import landscape
from ....batches import Shuffled
from ....data import mnist
from ....ensemble import Ensemble, Loss
from ....models import mlp
from ... import ranks
from ...run import Fit, Run, accuracy_and_loss, both
from ..planar import problem as planar
from ..planar.problem import Draw, Method

PIXEL_MEAN, PIXEL_DEVIATION = 0.1307, 0.3081
OTHER_START = 7919  # added to the seed for initial weights that no training has seen


@dataclass(frozen=True)
class Task:
    """A perceptron and its points: (N, d) for all runs, or (R, N, d) with points of its own for each."""

    run: Run
    name: str
    sizes: tuple[int, ...]
    loss: Loss
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    batch: int

    @property
    def shared(self) -> bool:
        return self.x.ndim == 2

    @property
    def per_epoch(self) -> int:
        """Steps."""
        return self.x.shape[-2] // self.batch

    def ensemble(self) -> Ensemble:
        """The networks before training: the same at every call."""
        return self.run.ensemble(lambda: mlp(self.sizes))

    def elsewhere(self) -> Ensemble:
        """As many networks from the same initialiser, independent of :meth:`ensemble`'s."""
        first, count = ranks.share(self.run.replicas)
        other = Ensemble(lambda: mlp(self.sizes), count, self.run.seed + OTHER_START, first=first)
        return other.to(self.run.device)

    def fit(self, method: str, make: Method, steps: int, *, stream: int = 0) -> Fit:
        """Train all runs from their initial weights.

        ``stream`` chooses another order of the batches, for a second training of the same start.
        """
        ensemble = self.ensemble()
        optimizer = make(ensemble)
        batches = Shuffled(self.x, self.y, self.batch, ensemble.seeds + stream, own_data=not self.shared)
        on_train = accuracy_and_loss(self.loss, self.x, self.y, "train", self.shared)
        on_test = accuracy_and_loss(self.loss, self.x_test, self.y_test, "test", self.shared)
        return self.run.fit(
            f"{self.name}, {method}", ensemble, optimizer, self.loss, batches, steps, both(on_train, on_test),
            evaluations=min(20, steps),
        )  # fmt: skip

    def test_loss(self) -> landscape.Evaluation:
        """What the papers draw along a path."""
        return landscape.over((self.x_test, self.y_test), {"test loss": self.loss}, shared=self.shared)


def on_spirals(
    run: Run,
    name: str,
    draw: Draw,
    hidden: tuple[int, ...],
    points: int = 500,
    percent: float = 5,
    test: int | None = None,
) -> Task:
    """Training points, and as many test points if ``test`` does not say otherwise, drawn afresh for every run.

    A batch is a percentage of the training points.
    """
    drawn = planar.problem(run, draw, train=points, test=test or points, hidden=1, percent=percent)
    sets = (drawn.x, drawn.y, drawn.x_test, drawn.y_test)
    return Task(run, name, (2, *hidden, 1), planar.loss, *sets, drawn.batch)


def on_digits(run: Run, hidden: tuple[int, ...], train: int | None, test: int | None, batch: int = 128) -> Task:
    """MNIST with pixels centred and scaled by the training set's mean and deviation; None takes all images."""
    images = mnist(run.root)
    x, x_test = (
        ((part.flatten(1).to(run.device).float() / 255) - PIXEL_MEAN) / PIXEL_DEVIATION
        for part in (images.train_images[:train], images.test_images[:test])
    )
    y, y_test = (part.to(run.device) for part in (images.train_labels[:train], images.test_labels[:test]))
    return Task(run, "MNIST", (784, *hidden, 10), cross_entropy, x, y, x_test, y_test, batch)
