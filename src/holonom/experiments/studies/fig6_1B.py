"""Thesis Fig. 6.1B: a ResNet-18's line is a plateau, its blocks' lines have barriers or fall."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, fact, most
from ..run import Run
from ..setups.cifar.study import BLOCKS, CI, PAPER, SMOKE, Study, as_published, mean_profile
from ..setups.shared.loss_lines import draw, mostly, mostly_none


@experiment(
    "fig6.1B",
    title="ResNet-18 on CIFAR-10: lines of the whole network and of its blocks",
    source="thesis Fig. 6.1B, 6.11",
    says="From initial to trained weights the test loss of a ResNet-18 (92.2 % test accuracy, 10 runs) stays flat "
    "until close to the end. Blocks that move alone behave differently from it and from each other: some cross "
    "barriers, others fall monotonically.",
    data=("cifar-10",),
    smoke=SMOKE,
    ci={**CI, "epochs": 8},
    paper=PAPER,
)
def fig6_1b(run: Run, settings: SimpleNamespace) -> list[Claim]:
    study = Study(run, settings)
    arm = study.arm("base", blocks=BLOCKS)
    study.report({"base": arm})
    draw(
        run,
        "lines",
        {"ResNet-18": arm.lines},
        "Test loss while one block, or all, move from initial to trained.",
        yscale="log",
    )
    shapes = [str(mean_profile(one)) for one in arm.blocks.values()]
    return [
        mostly("the whole network's line is a plateau", "plateau, then a drop", arm.whole, "plateau"),
        most("some block has a barrier", "B2, B3 and B4.0", arm.crossing()),
        fact(
            "some blocks have barriers, others fall",
            "a variety of behaviours",
            shapes.count("barrier"),
            0 < shapes.count("barrier") < len(shapes),
            detail=", ".join(f"{name}: {shape}" for name, shape in zip(arm.blocks, shapes, strict=True)),
        ),
        mostly_none("the last layer only falls", "monotone decay", arm.blocks["fc"]),
        *as_published(arm, "test accuracy, %", "92.2 %", arm.accuracy, 92.2, 1.0),
    ]
