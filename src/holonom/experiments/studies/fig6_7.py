"""Thesis Fig. 6.7: weight decay decides the shape of the line."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, best, some
from ..run import Run
from ..setups.cifar.optimizers import WEIGHT_DECAY
from ..setups.cifar.study import CI, LARGE, PAPER, SMOKE, Study, as_published
from ..setups.shared.loss_lines import draw, mostly

LITTLE, SOME, MUCH = (0.0, 1e-5), 1e-4, 1e-3


def decayed(decay: float) -> str:
    return f"weight decay {decay:g}"


@experiment(
    "fig6.7",
    title="ResNet-18 on CIFAR-10 with more and less weight decay",
    source="thesis Fig. 6.7",
    says="With little or no weight decay some runs cross a barrier and others fall monotonically; at 1e-4 all fall. "
    "The highest accuracy is at 5e-4, where the line is a plateau with a sudden drop; more weight decay lowers the "
    "accuracy and keeps the plateau.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci=CI,
    large=LARGE,
    paper=PAPER,
)
def fig6_7(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    decays = (*LITTLE, SOME, WEIGHT_DECAY, MUCH)
    arms = {decayed(decay): study.arm(decayed(decay), weight_decay=decay) for decay in decays}
    study.report(arms, "The thesis names 0, 1e-4 and 5e-4; 1e-5 and 1e-3 stand for its “little” and “more”.")
    shown = {"weight decay": {name.split()[-1]: arm.whole for name, arm in arms.items()}}
    draw(run, "lines", shown, "Test loss from initial to trained weights.")
    accuracies = {name: arm.accuracy for name, arm in arms.items()}
    free = arms[decayed(0.0)]
    return [
        best("5e-4 is the most accurate, %", "5e-4", accuracies, decayed(WEIGHT_DECAY)),
        *(
            some(f"{decay:g}: some runs cross a barrier, not all", "some do", one.whole.barriers(), most=0.95)
            for decay, one in ((decay, arms[decayed(decay)]) for decay in LITTLE)
        ),
        mostly("1e-4: the line falls", "monotone decay", arms[decayed(SOME)].whole, "no barrier"),
        mostly("5e-4: a plateau", "plateau, sudden drop", arms[decayed(WEIGHT_DECAY)].whole, "plateau"),
        mostly("1e-3: a plateau", "plateau", arms[decayed(MUCH)].whole, "plateau"),
        *as_published(free, "no weight decay: test accuracy, %", "90.1 %", free.accuracy, 90.1, 1.0),
    ]
