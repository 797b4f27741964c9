"""A run: one or two arms on the same data, from the same seed, and what was changed while they trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..batches import Shuffled
from . import methods, recipe
from .series import Series
from .settings import ACTIVATIONS, ARM_CONTROLS, CONTROLS, ArmSettings, Settings, draw

NUMBERS = ("train_loss", "test_loss", "train_accuracy", "test_accuracy", "residual")
"""What is measured of an arm, in the order of the columns of :class:`Series`; of replicas the mean."""


@dataclass(frozen=True)
class Change:
    """A setting that acts from ``step`` on; ``arm`` is None for what the arms share."""

    step: int
    arm: int | None
    name: str
    value: Any


def changes_between(old: Settings, new: Settings, step: int) -> list[Change] | None:
    """What a run takes up at once; None where a new run must begin."""
    for name, control in CONTROLS.items():
        if getattr(old, name) != getattr(new, name) and not control.live:
            return None
    if [arm.method for arm in old.arms] != [arm.method for arm in new.arms]:
        return None
    found = []
    if new.painted != old.painted and new.data == "painted":
        if new.painted[: len(old.painted)] != old.painted or len(old.painted) < 2:
            return None
        found.append(Change(step, None, "painted", len(new.painted)))
    if new.batch != old.batch:
        found.append(Change(step, None, "batch", new.batch))
    for number, (before, after) in enumerate(zip(old.arms, new.arms, strict=True)):
        for name, value in after.values.items():
            if value != before.values[name] and name not in methods.unused(after.method, after.values):
                if not ARM_CONTROLS[name].live:
                    return None
                found.append(Change(step, number, name, value))
    return found


def make_arm(settings: Settings, arm: ArmSettings) -> tuple[recipe.Arm, list[str]]:
    """An arm at its beginning, and what holonom warned about."""
    activation = ACTIVATIONS[settings.activation]
    model, seed = recipe.networks(settings.sizes, activation, settings.start, settings.replicas, settings.seed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        optimizer, radii = methods.make(arm.method, arm.values, model, seed)
    return recipe.Arm(model, optimizer, methods.places(arm.method), radii), [str(warning.message) for warning in said]


class Run:
    """Settings at the beginning, the changes since, and the arms as they are now.

    ``number`` tells runs apart: a page draws nothing of an older one.
    """

    def __init__(self, settings: Settings, number: int = 0) -> None:
        self.first = self.settings = settings
        self.number = number
        self.changes: list[Change] = []
        self.step = 0
        self.arms: list[recipe.Arm] = []
        self.notes: list[list[str]] = []
        for arm in settings.arms:
            made, notes = make_arm(settings, arm)
            self.arms.append(made)
            self.notes.append(notes)
        self.starts = [{name: x.clone() for name, x in arm.model.state_dict().items()} for arm in self.arms]
        self.series = [Series(NUMBERS) for _ in self.arms]
        self.bends = [Series(("curvature",)) for _ in self.arms]
        self.has_data = settings.data != "painted" or len(settings.painted) >= 2
        if self.has_data:
            self._take_data(settings)

    def _take_data(self, settings: Settings) -> None:
        self.x, self.y, self.x_test, self.y_test = draw(settings)
        self._make_batches()

    def _make_batches(self) -> None:
        size = min(self.settings.batch, len(self.x))
        self.batches = Shuffled(self.x, self.y, size, torch.tensor(self.settings.seed))

    @property
    def going(self) -> bool:
        """Whether a step would move anything."""
        return self.has_data and not all(arm.stopped for arm in self.arms)

    def change(self, settings: Settings) -> bool:
        """Take up settings; returns whether that was possible. False: begin a new run with them."""
        changes = changes_between(self.settings, settings, self.step)
        if changes is None:
            return False
        self.settings = settings
        for change in changes:
            self._apply(change)
        self.changes += changes
        return True

    def _apply(self, change: Change) -> None:
        if change.arm is not None:
            with self._noting(change.arm):
                self.arms[change.arm].change(change.name, change.value)
        elif change.name == "batch":
            if self.has_data:
                self._make_batches()
        else:
            self._take_data(self.settings)

    def advance(self) -> None:
        """One step of every arm."""
        for number, arm in enumerate(self.arms):
            with self._noting(number):
                arm.advance(self.batches)
        self.step += 1

    @contextmanager
    def _noting(self, number: int) -> Iterator[None]:
        """What holonom warns about goes to the arm's notes: the page shows them, the terminal does not."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            yield
        if said:
            self.notes[number] = [*self.notes[number], *(str(warning.message) for warning in said)][-4:]

    def numbers(self, arm: recipe.Arm) -> dict[str, Tensor]:
        """Every replica's numbers now."""
        train, test = recipe.evaluate(arm.model, self.x, self.y), recipe.evaluate(arm.model, self.x_test, self.y_test)
        with self._noting(self.arms.index(arm)):  # optimizers say here what they found since the last look
            residual = arm.residual()
        found = (train[0], test[0], train[1], test[1], torch.tensor(residual))
        return dict(zip(NUMBERS, found, strict=True))

    def again(self, **changes: Any) -> Run:
        """A new run with the present settings, those given replaced."""
        return Run(replace(self.settings, **changes), self.number + 1)
