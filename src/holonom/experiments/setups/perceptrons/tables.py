"""Perceptrons on tables of categories (thesis 3.8): chess endgames and poker hands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ....batches import Shuffled
from ....data import Table
from ....models import mlp
from ...claims import Claim, best
from ...run import Fit, Run, accuracy_and_loss, both
from ..planar.problem import Method
from ..shared.curves import HEADINGS

TEST_SHARE = 0.2


def split(run: Run, table: Table, rows: int | None) -> list[Tensor]:
    """x, y, x_test, y_test: every run holds out another fifth; ``rows`` limits the rows."""
    inputs, labels = table.numbers(), table.labels
    sets = []
    for generator in run.generators():
        order = torch.randperm(len(labels), generator=generator)[:rows]
        test, train = order.tensor_split([round(len(order) * TEST_SHARE)])
        sets.append((inputs[train], labels[train], inputs[test], labels[test]))
    return [torch.stack(parts).to(run.device) for parts in zip(*sets, strict=True)]


def compare(
    run: Run,
    table: Table,
    methods: Mapping[str, Method],
    hidden: Sequence[int],
    batch: int,
    epochs: int,
    rows: int | None = None,
) -> list[Claim]:
    """Train every method; claims that AdLaLa ends ahead in test accuracy and test loss."""
    x, y, x_test, y_test = split(run, table, rows)
    sizes = [x.shape[-1], *hidden, int(table.labels.max()) + 1]
    on_train = accuracy_and_loss(cross_entropy, x, y, "train", shared=False)
    on_test = accuracy_and_loss(cross_entropy, x_test, y_test, "test", shared=False)
    fits: dict[str, Fit] = {}
    for name, make in methods.items():
        ensemble = run.ensemble(lambda: mlp(sizes))
        batches = Shuffled(x, y, min(batch, x.shape[1]), ensemble.seeds, own_data=True)
        steps = epochs * batches.per_epoch
        fits[name] = run.fit(
            name, ensemble, make(ensemble), cross_entropy, batches, steps, both(on_train, on_test), min(40, epochs)
        )
    run.save_curves(fits)
    run.summary(fits, {**HEADINGS, "train_accuracy": "train accuracy %"})
    for metric, heading in (("test_accuracy", "test accuracy"), ("test_loss", "test loss")):
        run.curves(fits, metric, heading, f"{heading.capitalize()}: mean and 10–90 % band.", batches.per_epoch)
    run.note(
        "The thesis does not say how attributes are scaled, what is held out and how long it trains: here each "
        f"attribute is one number from −1 to 1, every run holds out its own fifth of the rows, and trains {epochs} "
        "epochs. AdLaLa's two parts are the output layer and all before it."
    )
    accuracy = {name: fit.final("test_accuracy") for name, fit in fits.items()}
    losses = {name: fit.final("test_loss") for name, fit in fits.items()}
    return [
        best("AdLaLa ends with the highest test accuracy", "ahead of Adam and SGD (figure)", accuracy, "AdLaLa"),
        best("AdLaLa ends with the lowest test loss", "ahead of Adam and SGD (figure)", losses, "AdLaLa", lowest=True),
    ]
