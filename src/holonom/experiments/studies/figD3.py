"""Paper Fig. D3: orthogonal kernels without momentum for a ResNet-34 with batch norm."""

from __future__ import annotations

import math
from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.cifar.optimizers import STEP
from ..setups.cifar.orthogonal_kernels import CI, PAPER, SMOKE, draw, setup_note, train

FREE, STARTED, ORTHOGONAL = "SGD", "SGD, orthogonal start", "o-CoLA-od"


@experiment(
    "figD3",
    title="ResNet-34 on CIFAR-10 with orthogonal kernels, overdamped",
    source="paper Fig. D3, thesis Fig. 4.9",
    says="A ResNet-34 with batch norm, h = 0.1. o-CoLA-od has a lower test loss than SGD throughout training, a "
    "modestly higher test accuracy, and overfits less.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci=CI,
    paper=PAPER,
)
def figD3(run: Run, settings: SimpleNamespace) -> list[Claim]:
    plain = {"weight_decay": 0.0, "momentum": 0.0, "step_decay": False}
    arms = train(run, settings, {name: {**plain, "method": name} for name in (FREE, STARTED, ORTHOGONAL)})
    draw(run, arms, "Train loss, test loss and test accuracy: mean and range over runs.")
    run.note(setup_note(settings))
    run.note(
        f"Both take steps of {STEP:g} without momentum, weight decay or a schedule, which the paper does not mention. "
        "“Throughout training” is tested on the mean of the test loss over all epochs."
    )
    free, started, orthogonal = arms.values()
    along = {arm.arm: arm.curves["test_loss"].mean(0) for arm in arms.values()}
    return [
        greater("o-CoLA-od is more accurate, %", "modestly", orthogonal.accuracy, free.accuracy),
        greater(
            "o-CoLA-od is more accurate than SGD from its start, %",
            "no such arm is published",
            orthogonal.accuracy,
            started.accuracy,
        ),
        greater(
            "o-CoLA-od has a lower test loss throughout training",
            "lower",
            along[FREE],
            along[ORTHOGONAL],
            diverged=math.inf,
        ),
        greater(
            "o-CoLA-od has a lower test loss at the end",
            "inhibits overfitting",
            free.final("test_loss"),
            orthogonal.final("test_loss"),
            diverged=math.inf,
        ),
    ]
