"""Thesis Fig. 6.10: deeper ResNets have higher barriers in their blocks."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.cifar.study import CI, LARGE, PAPER, SMOKE, STAGES, Study
from ..setups.shared.loss_lines import draw

DEPTHS = {"ResNet-18": "resnet18", "ResNet-34": "resnet34", "ResNet-50": "resnet50"}


@experiment(
    "fig6.10",
    title="ResNet-18, 34 and 50 on CIFAR-10: barriers of their blocks",
    source="thesis Fig. 6.10, Table 6.1",
    says="Deeper ResNets have more and higher barriers in their convolutional blocks, and are more accurate.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci=CI,
    large=LARGE,
    paper=PAPER,
)
def fig6_10(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    arms = {name: study.arm(name, blocks=STAGES, architecture=kind) for name, kind in DEPTHS.items()}
    study.report(arms)
    draw(
        run,
        "lines",
        {name: arm.lines for name, arm in arms.items()},
        "Test loss while one block, or all, move.",
        yscale="log",
    )
    shallow = arms["ResNet-18"]
    deeper = {name: arm for name, arm in arms.items() if arm is not shallow}
    return [
        *(
            greater(
                f"{name}: blocks' highest barrier is higher", "higher", arm.highest(), shallow.highest(), by="median"
            )
            for name, arm in deeper.items()
        ),
        *(
            greater(f"{name}: more accurate, %", "better", arm.accuracy, shallow.accuracy)
            for name, arm in deeper.items()
        ),
    ]
