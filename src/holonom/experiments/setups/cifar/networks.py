"""Trained networks of a run set, each in a file named after its recipe: what one figure trained, others read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ....files import load, save
from .images import Photographs, generator
from .recipes import Recipe, State
from .trainer import Learner

METRICS = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
FOLDER = "networks"
AGAIN = "delete it to train this network again"
Watch = Callable[[int], None]


@dataclass(frozen=True)
class Network:
    """States before and after training, on the CPU, the metrics of every epoch, and the seconds that training took."""

    initial: State
    trained: State
    curves: dict[str, list[float]]
    seconds: float = 0.0

    @property
    def diverged(self) -> bool:
        lost = not all(bool(x.isfinite().all()) for x in self.trained.values() if x.is_floating_point())
        return lost or not all(math.isfinite(x) for x in self.curves.get("train_loss", ())[-1:])


class Networks:
    """Trains a network, or reads it if its file is there; training goes on at the last epoch that was saved.

    Attributes:
        trained, read: how many, so far.

    Args:
        save_every: seconds between two checkpoints of a training.
        compiled: see :class:`Learner`.
    """

    def __init__(self, folder: Path, data: Photographs, save_every: float = 30.0, compiled: bool = False) -> None:
        from .... import __version__

        self.folder = folder
        self.data = data
        self.save_every = save_every
        self.compiled = compiled
        self.trained, self.read = 0, 0
        self._circumstances = (data.fingerprint, data.device.type, compiled, __version__)

    def key(self, recipe: Recipe) -> str:
        """The name of a network's files: other data, devices or versions train another network."""
        return recipe.key(*self._circumstances)

    def lines(self, recipe: Recipe) -> Path:
        """The file of what was seen on a network's lines."""
        return self.folder / f"{self.key(recipe)}.lines"

    def get(self, recipe: Recipe, watch: Watch = lambda epoch: None) -> Network:
        """``watch`` is called with the number of epochs done."""
        key = self.key(recipe)
        path = self.folder / f"{key}.pt"
        if path.exists():
            self.read += 1
            watch(recipe.epochs)
            return Network(**load(path, AGAIN))
        network = self._train(recipe, self.folder / f"{key}.part", watch)
        self.trained += 1
        self.lines(recipe).unlink(missing_ok=True)  # of one that was deleted, whose weights need not have been the same
        save(vars(network), path)
        (self.folder / f"{key}.part").unlink(missing_ok=True)
        return network

    def _train(self, recipe: Recipe, checkpoint: Path, watch: Watch) -> Network:
        model = untrained(recipe)
        if recipe.start is not None:
            other = self.get(recipe.start.network)
            model.load_state_dict(recipe.start.state(model, other.initial, other.trained))
        initial = _kept(model)
        learner = Learner(recipe, model, self.data.as_input, self.data.device, self.compiled)
        curves: dict[str, list[float]] = {metric: [] for metric in METRICS}
        before = 0.0
        if checkpoint.exists():
            found = load(checkpoint, AGAIN)
            learner.load_state_dict(found["learner"])
            curves, before = found["curves"], found["seconds"]
        started = saved = time.monotonic()
        while not _finished(recipe, curves):
            epoch = len(curves["train_loss"])
            met = learner.learn(epoch, *self.data.epoch(recipe, epoch))
            values = (*met, *learner.test(self.data.test_images, self.data.test_labels))
            for metric, value in zip(METRICS, values, strict=True):
                curves[metric].append(value)
            now = time.monotonic()
            if now - saved >= self.save_every:
                content = {"learner": learner.state_dict(), "curves": curves, "seconds": before + now - started}
                save(content, checkpoint)
                saved = now
            watch(epoch + 1)
        return Network(initial, _kept(learner.model), curves, before + time.monotonic() - started)


def untrained(recipe: Recipe) -> nn.Module:
    """The network with fresh weights of the recipe's seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator(recipe.seed, "weights").initial_seed())
        return recipe.model()


def _finished(recipe: Recipe, curves: dict[str, list[float]]) -> bool:
    losses, accuracies = curves["train_loss"], curves["train_accuracy"]
    if not losses:
        return False
    enough = recipe.enough is not None and accuracies[-1] >= recipe.enough
    return len(losses) >= recipe.epochs or enough or not math.isfinite(losses[-1])


def _kept(model: nn.Module) -> State:
    """A copy of the state in main memory."""
    return {name: x.detach().to("cpu", copy=True).contiguous() for name, x in model.state_dict().items()}
