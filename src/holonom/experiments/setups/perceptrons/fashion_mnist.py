"""The set-up of paper Fig. 7 and Table 4.3: a perceptron on few images of Fashion-MNIST.

784-1000-10 ReLU, batches of 128. The seeds train on 10,000 images and test on the 60,000 others; the
10,000 are drawn from the published training file, pixels are scaled to [0, 1] and not centred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, nll_loss
from torch.optim import Optimizer

from .... import presets
from ....batches import Shuffled
from ....data import fashion_mnist
from ....ensemble import Ensemble
from ....models import shlp
from ....optimizer import Langevin
from ....training import Evaluate
from ... import ranks
from ...run import Array, Fit, Run
from ..shared.optimizers import Momentum, initial_projection, published_word
from ..shared.shrinking_circles import ShrinkingCircles

BATCH, CHUNK = 128, 4000
HEADINGS = {"train_accuracy": "train accuracy %", "test_accuracy": "test accuracy %", "test_loss": "test loss"}


class Constrained(NamedTuple):
    """A setting of c-CoLA-ud, or of s-CoLA-ud with rows inside spheres; radii are the input and the output layer's."""

    space: str
    radii: tuple[float, float]
    lr: float
    friction: float
    temperature: float = 0.0
    annealed: bool = False

    def __str__(self) -> str:
        parts = [f"{'c' if self.space == 'circle' else 's'}-CoLA-ud r₀={self.radii[0]:g} r₁={self.radii[1]:g}"]
        parts.append(f"h={self.lr:g}{'↓' if self.annealed else ''} γ={self.friction:g}")
        return " ".join(parts + ([f"τ={self.temperature:g}"] if self.temperature else []))


@dataclass(frozen=True)
class Images:
    """Training and test images, (N, 784) for all runs or (R, N, 784) with different ones for each."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def shared(self) -> bool:
        return self.x.ndim == 2

    def folds(self, count: int, first: int, of: int) -> Images:
        """Cross-validation: run i is tested on part i (modulo ``of``) of the training images, trained on the others."""
        parts_x, parts_y = self.x.chunk(of), self.y.chunk(of)
        size = min(map(len, parts_x))
        folds = []
        for number in (i % of for i in range(first, first + count)):
            rest = [i for i in range(of) if i != number]
            folds.append((
                torch.cat([parts_x[i][:size] for i in rest]), torch.cat([parts_y[i][:size] for i in rest]),
                parts_x[number][:size], parts_y[number][:size],
            ))  # fmt: skip
        return Images(*(torch.stack(part) for part in zip(*folds, strict=True)))


def load(run: Run, train: int, test: int) -> Images:
    """``train`` images of the training file and ``test`` of all others, chosen by the run's seed."""
    raw = fashion_mnist(run.root)
    order = torch.randperm(len(raw.train_images), generator=torch.Generator().manual_seed(run.seed))
    images = torch.cat([raw.train_images[order], raw.test_images])
    labels = torch.cat([raw.train_labels[order], raw.test_labels])
    pixels = images.flatten(1).to(run.device).float() / 255
    labels = labels.to(run.device)
    rest = slice(len(labels) - test, None) if train + test < len(labels) else slice(train, None)
    return Images(pixels[:train], labels[:train], pixels[rest], labels[rest])


def momentum(run: Run, arm: str, cells: Sequence[Momentum], images: Images, hidden: int, epochs: int) -> Fit:
    """SGD with momentum as the scheme OBA at τ = 0, in SGD's terms: all settings in one ensemble."""
    ensemble = run.ensemble(lambda: shlp(784, hidden, 10), len(cells))
    lr, mu, decay = (ensemble.spread([cell[i] for cell in cells]) for i in range(3))
    optimizer = Langevin.like_sgd(
        ensemble.named_parameters(), lr.clone(), mu, weight_decay=decay, seed=ensemble.seeds, fuse=_fuse(ensemble)
    )
    return _train(run, arm, ensemble, optimizer, images, epochs, _anneal(ensemble, optimizer, lr, cells, epochs))


def constrained(run: Run, arm: str, cells: Sequence[Constrained], images: Images, hidden: int, epochs: int) -> Fit:
    """c-CoLA-ud or s-CoLA-ud: all settings of one space in one ensemble."""
    ensemble = run.ensemble(lambda: shlp(784, hidden, 10), len(cells))
    h: Any = ensemble.spread([cell.lr for cell in cells])
    friction: Any = ensemble.spread([cell.friction for cell in cells])
    hot = any(cell.temperature for cell in cells)
    temperature: Any = ensemble.spread([cell.temperature for cell in cells]) if hot else 0.0
    radii = [ensemble.spread([cell.radii[layer] for cell in cells]) for layer in (0, 1)]
    method: Any = presets.c_cola_ud
    shaped = [r[:, None, None] for r in radii]
    if cells[0].space == "sphere":
        method = presets.s_cola_ud
        shaped = [r[:, None].expand(-1, rows).contiguous() for r, rows in zip(radii, (hidden, 10), strict=True)]
    with initial_projection(), published_word():
        optimizer = method(
            ensemble, h.clone(), shaped, friction=friction, temperature=temperature, scheme="ABO", fuse=_fuse(ensemble)
        )
    return _train(run, arm, ensemble, optimizer, images, epochs, _anneal(ensemble, optimizer, h, cells, epochs))


def shrinking(run: Run, arm: str, cell: Constrained, images: Images, hidden: int, epochs: int) -> Fit:
    """The published code's circles, which shrink; ``circle_1`` and ``circle_2`` are the smallest of each layer."""
    ensemble = run.ensemble(lambda: shlp(784, hidden, 10))
    named = dict(ensemble.named_parameters())
    groups = [{"params": [named[f"{place}.weight"]], "radius": r} for place, r in zip("02", cell.radii, strict=True)]
    free = {"params": [named["0.bias"], named["2.bias"]]}
    optimizer = ShrinkingCircles([*groups, free], cell.lr, cell.friction)

    def left(_: Ensemble) -> dict[str, Tensor]:
        return {f"circle_{place}": one for place, one in enumerate(optimizer.smallest_circles(), 1)}

    return _train(run, arm, ensemble, optimizer, images, epochs, also=left)


def _anneal(
    ensemble: Ensemble, optimizer: Langevin, start: Tensor, cells: Sequence[Momentum | Constrained], epochs: int
) -> Callable[[int], None]:
    """Lowers the step of annealed cells along a cosine to a hundredth."""
    annealed = ensemble.spread([float(cell.annealed) for cell in cells])

    def anneal(epoch: int) -> None:
        falling = 0.01 + 0.99 * (1 + math.cos(math.pi * epoch / epochs)) / 2
        for group in optimizer.param_groups:
            group["lr"].copy_(start * (1 + annealed * (falling - 1)))

    return anneal


def _train(
    run: Run,
    arm: str,
    ensemble: Ensemble,
    optimizer: Optimizer,
    images: Images,
    epochs: int,
    after_epoch: Callable[[int], None] | None = None,
    also: Evaluate | None = None,
) -> Fit:
    x, y, x_test, y_test = images.x, images.y, images.x_test, images.y_test
    if not images.shared:
        x, y, x_test, y_test = (
            part.repeat(ensemble.repeats, *[1] * (part.ndim - 1)) for part in (x, y, x_test, y_test)
        )
    batches = Shuffled(x, y, BATCH, ensemble.seeds, own_data=not images.shared)

    def evaluate(ensemble: Ensemble) -> dict[str, Tensor]:
        weight = dict(ensemble.named_parameters())["2.weight"]
        return {
            **_metrics(ensemble, x, y, images.shared, "train"),
            **_metrics(ensemble, x_test, y_test, images.shared, "test"),
            "largest_output_weight": weight.abs().amax((1, 2)),
            **(also(ensemble) if also else {}),
        }

    steps = epochs * batches.per_epoch
    return run.fit(
        arm,
        ensemble,
        optimizer,
        cross_entropy,
        batches,
        steps,
        evaluate,
        evaluations=20,
        after_epoch=after_epoch,
        compiled=False if ensemble.seeds.is_cuda else None,
        checkpoint_every=steps // 4,  # the ensembles are large
    )


def _fuse(ensemble: Ensemble) -> bool | None:
    """On a GPU only the update gains from fusing: products fill the device already."""
    return True if ensemble.seeds.is_cuda else None


def _metrics(ensemble: Ensemble, x: Tensor, y: Tensor, shared: bool, prefix: str) -> dict[str, Tensor]:
    """Loss and accuracy, in chunks of images, since the hidden layers of all members are large."""
    along = 0 if shared else 1
    loss, hits = torch.zeros(2, ensemble.replicas, device=x.device)
    for start in range(0, x.shape[along], CHUNK):
        part = [tensor.narrow(along, start, min(CHUNK, x.shape[along] - start)) for tensor in (x, y)]
        logits = ensemble(part[0], shared=shared)
        target = part[1].expand(logits.shape[:2])
        loss += cross_entropy(logits.movedim(-1, 1), target, reduction="none").sum(1)
        hits += (logits.argmax(-1) == target).sum(1)
    return {f"{prefix}_loss": loss / x.shape[along], f"{prefix}_accuracy": hits / x.shape[along]}


@torch.no_grad()
def averaged(fit: Fit, images: Images) -> list[tuple[float, float]]:
    """Accuracy and loss of the runs' mean prediction, for every setting of a fit's ensemble."""
    ensemble = fit.ensemble.eval()
    starts = range(0, len(images.x_test), CHUNK)
    parts = [ensemble(images.x_test[i : i + CHUNK]).softmax(-1).double().cpu() for i in starts]
    local: Array = torch.cat(parts, 1).flatten(1).T.numpy()
    everyone = torch.from_numpy(ranks.gather(local, ensemble.repeats))
    scores = []
    for members in everyone.chunk(ensemble.repeats, 1):
        mean = members.mean(1).reshape(len(images.y_test), -1)
        target = images.y_test.cpu()
        hits = (mean.argmax(1) == target).double().mean()
        scores.append((float(hits), float(nll_loss(mean.clamp_min(1e-12).log(), target))))
    return scores
