"""Paper Fig. 6: orthogonal kernels against weight decay for a ResNet-34 with batch norm."""

from __future__ import annotations

import math
from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.cifar.optimizers import FRICTION, MOMENTUM, STEP, WEIGHT_DECAY
from ..setups.cifar.orthogonal_kernels import CI, PAPER, SMOKE, draw, setup_note, train

FREE, DECAYED, ORTHOGONAL = "SGD-m", f"SGD-m, weight decay {WEIGHT_DECAY:g}", "o-CoLA-ud"


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
    arms = train(
        run,
        settings,
        {FREE: {"weight_decay": 0.0}, DECAYED: {}, ORTHOGONAL: {"weight_decay": 0.0, "method": "o-CoLA-ud"}},
    )
    draw(run, arms, "Train loss, test loss and test accuracy: mean and range over runs.")
    run.note(setup_note(settings))
    run.note(
        f"SGD has lr {STEP:g}, divided by ten after one and two thirds of the epochs, and momentum {MOMENTUM:g}. The "
        "paper re-scales the step of o-CoLA-ud “to match the parameters of SGD-m”, with the same schedule; here "
        f"h² is SGD's lr at every time and γ = {FRICTION:g}. The amount of weight decay is not in the paper; "
        f"{WEIGHT_DECAY:g} is the thesis's in chapter 6."
    )
    loss = {name: arm.final("test_loss") for name, arm in arms.items()}
    accuracy = {name: arm.accuracy for name, arm in arms.items()}
    return [
        greater("o-CoLA-ud is more accurate than SGD-m, %", "strongly", accuracy[ORTHOGONAL], accuracy[FREE]),
        greater(
            "o-CoLA-ud has a lower test loss than SGD-m", "strongly", loss[FREE], loss[ORTHOGONAL], diverged=math.inf
        ),
    ]
