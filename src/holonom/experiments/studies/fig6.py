"""Paper Fig. 6: orthogonal kernels against weight decay for a ResNet-34 with batch norm."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from ..base import experiment
from ..claims import Claim, greater
from ..run import Array, Run
from ..setups.cifar.optimizers import FRICTION, MOMENTUM, STEP, WEIGHT_DECAY
from ..setups.cifar.orthogonal_kernels import CI, PAPER, SMOKE, draw, setup_note, train

FREE, DECAYED, STARTED = "SGD-m", f"SGD-m, weight decay {WEIGHT_DECAY:g}", "SGD-m, orthogonal start"
HELD, DRIFTING = f"o-CoLA-ud, momentum {MOMENTUM:g}", f"o-CoLA-ud, γ = {FRICTION:g}"
ARMS: dict[str, dict[str, Any]] = {
    FREE: {"weight_decay": 0.0},
    DECAYED: {},
    STARTED: {"weight_decay": 0.0, "method": "SGD, orthogonal start"},
    HELD: {"weight_decay": 0.0, "method": "o-CoLA-ud, momentum held"},
    DRIFTING: {"weight_decay": 0.0, "method": "o-CoLA-ud"},
}


@experiment(
    "fig6",
    title="ResNet-34 on CIFAR-10 with orthogonal kernels and momentum",
    source="paper Fig. 6, thesis Fig. 4.6",
    says="A ResNet-34 with batch norm, 150 epochs, step 0.1 divided by ten every 50, momentum 0.9. o-CoLA-ud (γ = 0.5) "
    "without weight decay strongly outperforms SGD with momentum without weight decay.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci=CI,
    paper=PAPER,
)
def fig6(run: Run, settings: SimpleNamespace) -> list[Claim]:
    arms = train(run, settings, ARMS)
    draw(run, arms, "Train loss, test loss and test accuracy: mean and range over runs.")
    run.note(setup_note(settings))
    first, last = (math.exp(-FRICTION * math.sqrt(STEP * 0.1**drops)) for drops in (0, 2))
    run.note(
        f"SGD has lr {STEP:g}, divided by ten after one and two thirds of the epochs, and momentum {MOMENTUM:g}. The "
        "paper re-scales the step of o-CoLA-ud “to match the parameters of SGD-m”, with the same schedule, and gives "
        f"γ = {FRICTION:g}. With h² = lr at every time its momentum e^(−γh) drifts from {first:.2f} to {last:.2f}, "
        f"while SGD's stays at {MOMENTUM:g}. So there are two arms: γ as printed, and the momentum held as SGD's, as "
        "the authors' published code holds it. (That code also warms up for two epochs and constrains the last layer; "
        f"neither is done here.) The amount of weight decay is not in the paper; {WEIGHT_DECAY:g} is the thesis's in "
        "chapter 6."
    )
    return verdicts({name: (arm.accuracy, arm.final("test_loss")) for name, arm in arms.items()})


def verdicts(ends: dict[str, tuple[Array, Array]]) -> list[Claim]:
    """``ends`` are test accuracies in per cent, and test losses."""
    claims = []
    for name in (HELD, DRIFTING):
        for rival, published in ((FREE, "strongly"), (STARTED, "no such arm is published")):
            (higher, low), (lower, high) = ends[name], ends[rival]
            claims += [
                greater(f"{name}, is more accurate than {rival}, %", published, higher, lower),
                greater(f"{name}, has a lower test loss than {rival}", published, high, low, diverged=math.inf),
            ]
    worse = f"{STARTED}, is less accurate than from PyTorch's start, %"
    return [*claims, greater(worse, "worsened (thesis 4.7.3.1)", ends[FREE][0], ends[STARTED][0])]
