"""Trained networks of a run set, cached by recipe: what one experiment trained, others read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from ...artifacts import ArtifactCache
from .images import CifarImages, generator
from .recipes import Recipe, State
from .trainer import Trainer

METRICS = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
FOLDER = "networks"
NETWORK, CHECKPOINT, LINES = "network", "checkpoint", "lines"  # artifacts of one recipe
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Network:
    """States before and after training, on the CPU, the metrics of every epoch, and the seconds of training."""

    initial: State
    trained: State
    curves: dict[str, list[float]]
    seconds: float = 0.0

    @property
    def diverged(self) -> bool:
        finite = all(bool(x.isfinite().all()) for x in self.trained.values() if x.is_floating_point())
        return not finite or not all(math.isfinite(x) for x in self.curves.get("train_loss", ())[-1:])


class Networks:
    """Trains a network or reads it from the cache; an interrupted training continues at its last checkpoint.

    Attributes:
        trained, read: how many, so far.

    Args:
        save_every: seconds between two checkpoints of a training.
        compiled: see :class:`Trainer`.
    """

    def __init__(self, folder: Path, data: CifarImages, save_every: float = 30.0, compiled: bool = False) -> None:
        self.folder = folder
        self.data = data
        self.save_every = save_every
        self.compiled = compiled
        self.trained, self.read = 0, 0

    def cache(self, recipe: Recipe) -> ArtifactCache:
        """Of a network: other data, devices or versions train another one."""
        from .... import __version__

        circumstances = {"data": self.data.fingerprint, "device": self.data.device.type, "compiled": self.compiled}
        identity = {"recipe": asdict(recipe), **circumstances, "holonom": __version__}
        return ArtifactCache(self.folder, identity, "delete it to train this network again")

    def get(self, recipe: Recipe, progress: Progress = lambda epoch: None) -> Network:
        """``progress`` is called with the number of epochs done."""
        cache = self.cache(recipe)
        if NETWORK in cache:
            self.read += 1
            progress(recipe.epochs)
            return Network(**cache.read(NETWORK))
        network = self._train(recipe, cache, progress)
        self.trained += 1
        cache.remove(LINES)  # of a deleted network, whose weights may have differed
        cache.write(NETWORK, vars(network))
        cache.remove(CHECKPOINT)
        return network

    def _train(self, recipe: Recipe, cache: ArtifactCache, progress: Progress) -> Network:
        model = untrained(recipe)
        if recipe.start is not None:
            other = self.get(recipe.start.network)
            model.load_state_dict(recipe.start.state(model, other.initial, other.trained))
        initial = _copy_of_state(model)
        trainer = Trainer(recipe, model, self.data.as_input, self.data.device, self.compiled)
        curves: dict[str, list[float]] = {metric: [] for metric in METRICS}
        before = 0.0
        if checkpoint := cache.read(CHECKPOINT):
            trainer.load_state_dict(checkpoint["trainer"])
            curves, before = checkpoint["curves"], checkpoint["seconds"]
        started = saved = time.monotonic()
        while not _finished(recipe, curves):
            epoch = len(curves["train_loss"])
            on_train = trainer.train_epoch(epoch, *self.data.epoch(recipe, epoch))
            on_test = trainer.evaluate(self.data.test_images, self.data.test_labels)
            for metric, value in zip(METRICS, (*on_train, *on_test), strict=True):
                curves[metric].append(value)
            now = time.monotonic()
            if now - saved >= self.save_every:
                seconds = before + now - started
                cache.write(CHECKPOINT, {"trainer": trainer.state_dict(), "curves": curves, "seconds": seconds})
                saved = now
            progress(epoch + 1)
        return Network(initial, _copy_of_state(trainer.model), curves, before + time.monotonic() - started)


def untrained(recipe: Recipe) -> nn.Module:
    """The network with initial weights of the recipe's seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator(recipe.seed, "weights").initial_seed())
        return recipe.model()


def _finished(recipe: Recipe, curves: dict[str, list[float]]) -> bool:
    losses, accuracies = curves["train_loss"], curves["train_accuracy"]
    if not losses:
        return False
    reached = recipe.stop_accuracy is not None and accuracies[-1] >= recipe.stop_accuracy
    return len(losses) >= recipe.epochs or reached or not math.isfinite(losses[-1])


def _copy_of_state(model: nn.Module) -> State:
    """On the CPU."""
    return {name: x.detach().to("cpu", copy=True).contiguous() for name, x in model.state_dict().items()}
