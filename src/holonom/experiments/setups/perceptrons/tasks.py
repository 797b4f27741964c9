"""Perceptrons on spirals and MNIST, and the loss on lines between their states (thesis 3.4 and 6.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
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
from ..shared.loss_lines import Line
from ..shared.mnist import normalised

INDEPENDENT = 7919  # added to the seed for initial weights that no training has seen

State = dict[str, Tensor]


@dataclass(frozen=True)
class Task:
    """A perceptron and its points: (N, d) for all runs, or (R, N, d) with different points for each."""

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

    def independent(self) -> Ensemble:
        """As many networks from the same initialiser, independent of :meth:`ensemble`'s."""
        first, count = ranks.share(self.run.replicas)
        ensemble = Ensemble(lambda: mlp(self.sizes), count, self.run.seed + INDEPENDENT, first=first)
        return ensemble.to(self.run.device)

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
        """The evaluation along a line."""
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
    """Training points and ``test`` (by default as many) test points, drawn separately for every run.

    A batch is a percentage of the training points.
    """
    drawn = planar.problem(run, draw, train=points, test=test or points, hidden=1, percent=percent)
    sets = (drawn.x, drawn.y, drawn.x_test, drawn.y_test)
    return Task(run, name, (2, *hidden, 1), planar.loss, *sets, drawn.batch)


def on_digits(run: Run, hidden: tuple[int, ...], train: int | None, test: int | None, batch: int = 128) -> Task:
    """MNIST with pixels centred and scaled by the training set's mean and deviation; None takes all images."""
    images = mnist(run.root)
    x, x_test = (
        normalised(part.flatten(1).to(run.device).float() / 255)
        for part in (images.train_images[:train], images.test_images[:test])
    )
    y, y_test = (part.to(run.device) for part in (images.train_labels[:train], images.test_labels[:test]))
    return Task(run, "MNIST", (784, *hidden, 10), cross_entropy, x, y, x_test, y_test, batch)


def line(task: Task, start: nn.Module, end: nn.Module, points: int) -> Line:
    """Test loss on θ(α) = (1 − α) θ_start + α θ_end (3.34), (6.1); both ends are ensembles."""
    ends, diverged = finite_ends(start, end)
    path = landscape.interpolate(start, *ends, task.test_loss(), points, nonfinite="keep", progress=False)
    return _line(path, diverged)


def by_layer(task: Task, start: nn.Module, end: nn.Module, points: int) -> dict[str, Line]:
    """The same for one layer at a time, all others staying at the end (6.2); "layer 1" is next to the input."""
    ends, diverged = finite_ends(start, end)
    paths = landscape.layerwise(start, *ends, task.test_loss(), alphas=points, nonfinite="keep", progress=False)
    return {f"layer {i}": _line(path, diverged) for i, path in enumerate(paths.values(), 1)}


def finite_ends(start: nn.Module, end: nn.Module) -> tuple[tuple[State, State], Tensor]:
    """The two states, and which runs diverged: these stay at the start, since no line leads to their end."""
    first, last = ({name: x.detach() for name, x in part.state_dict().items()} for part in (start, end))
    diverged = torch.stack([~x.flatten(1).isfinite().all(1) for x in last.values()]).any(0)
    end_state = {name: torch.where(diverged.view(-1, *[1] * (x.ndim - 1)), first[name], x) for name, x in last.items()}
    return (first, end_state), diverged.cpu()


def _line(path: landscape.Path, diverged: Tensor) -> Line:
    values = path["test loss"].clone()
    values[diverged] = torch.nan
    return Line(path.alphas.numpy(), ranks.gather(values.T.numpy()).T)
