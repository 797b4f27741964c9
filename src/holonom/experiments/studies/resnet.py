"""Constraints around SGD and AdamW: ResNet-18 on CIFAR-10. Nothing of it is published."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim, greater
from ..run import Run
from ..setups.constrained.arms import IMAGE_ADAMW, IMAGE_ADAMW_HELD, IMAGE_ARMS, IMAGE_SGD, IMAGE_SGD_HELD
from ..setups.constrained.comparison import final, picture, search, table, trainings
from ..setups.constrained.pictures import CHANCE, Length, Pictures

NONE = "not published"


@experiment(
    "resnet",
    title="Constraints around SGD and AdamW: ResNet-18 on CIFAR-10",
    source="not published",
    says="Filters that keep the norms they start with take the place of weight decay: SGD and AdamW are as accurate "
    "with them as with their best decay, or more.",
    data=("cifar-10",),
    splits=True,
    smoke={
        "replicas": 2, "width": 2, "train": 48, "held_out": 16, "test": 32, "epochs": 2, "search_epochs": 1,
        "batch": 16, "settings": 2,
    },
    ci={
        "replicas": 2, "width": 4, "train": 2000, "held_out": 500, "test": 500, "epochs": 3, "search_epochs": 1,
        "batch": 64, "settings": 2,
    },
    paper={
        "replicas": 3, "width": 64, "train": 45_000, "held_out": 5000, "test": 10_000, "epochs": 30,
        "search_epochs": 8, "batch": 128, "settings": 6,
    },
)  # fmt: skip
def resnet(run: Run, settings: SimpleNamespace) -> list[Claim]:
    pictures, size = Pictures(run, settings), Length(settings.width, settings.epochs, settings.batch)
    tried = replace(size, epochs=settings.search_epochs)
    chosen = search(pictures, IMAGE_ARMS, tried, settings.settings, "validation error")
    errors = trainings(pictures, final(chosen, size))
    picture(run, errors, settings.epochs * (settings.train // settings.batch), "error %", 100)
    table(run, "Error in %", chosen, errors, 100)
    run.note(
        f"ResNet-18 of width {settings.width} with a 3×3 first convolution and no pooling behind it; {settings.epochs} "
        f"epochs of {settings.train:,} images, cropped and flipped, in batches of {settings.batch}; the rate rises "
        f"during a thirtieth of the steps and falls to 0 over the last two fifths. Spheres hold every filter of all "
        f"convolutions but the first. On a GPU products are in bfloat16, weights in float32."
    )
    run.note(
        f"Each optimizer has {settings.settings} settings of its rate and one more number, chosen by the error on "
        f"{settings.held_out:,} held-out training images after {settings.search_epochs} epochs of one run that is not "
        f"among those compared. The test images are seen once, by the chosen settings."
    )
    pairs = (IMAGE_SGD_HELD, IMAGE_SGD), (IMAGE_ADAMW_HELD, IMAGE_ADAMW), (IMAGE_SGD_HELD, IMAGE_ADAMW_HELD)
    return [
        greater(f"{one.name} beats {other.name}", NONE, errors[other][-1], errors[one][-1], diverged=CHANCE)
        for one, other in pairs
    ]
