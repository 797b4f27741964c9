"""Paper Fig. 2: test loss and accuracy on the noisy spiral, averaged over a hundred runs."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, best
from ..run import Run
from ..setups.planar.spiral_circle import METHODS, PER_EPOCH, data, fit
from ..setups.shared.curves import HEADINGS


@experiment(
    "fig2",
    title="Constraints against weight decay on the noisy spiral",
    source="paper Fig. 2, thesis Fig. 4.2",
    says="Averaged over 100 runs, the constrained methods C-SGD and C-SGLD have a lower test loss and a higher test "
    "accuracy than SGD, with and without weight decay.",
    smoke={"replicas": 2, "epochs": 1},
    ci={"replicas": 8, "epochs": 1000},
    paper={"replicas": 100, "epochs": 10_000},
)
def fig2(run: Run, settings: SimpleNamespace) -> list[Claim]:
    sets = data(run)
    fits = {name: fit(run, name, sets, settings.epochs) for name in METHODS}
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    band = "mean and 10–90 % band over runs."
    run.curves(fits, "test_loss", "test loss", f"Test loss: {band}", PER_EPOCH)
    run.curves(fits, "test_accuracy", "test accuracy", f"Test accuracy: {band}", PER_EPOCH)
    rivals = ("SGD", "SGD+WD")
    claims = []
    for method in ("C-SGD", "C-SGLD"):
        arms = {name: fits[name] for name in (method, *rivals)}
        loss = {name: one.final("test_loss") for name, one in arms.items()}
        accuracy = {name: one.final("test_accuracy") for name, one in arms.items()}
        claims += [
            best(f"{method}'s test loss is below SGD's, with and without decay", "lower", loss, method, lowest=True),
            best(f"{method} is more accurate than SGD, with and without decay", "higher", accuracy, method),
        ]
    return claims
