"""Thesis Fig. 5.4: a residual network fine-tuned in half the time."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim
from ..run import Run
from ..setups.transfer.comparison import arms_at_best_rates, compare
from ..setups.transfer.images import transfer
from ..setups.transfer.report import report, usual_claims


@experiment(
    "fig5.4",
    title="Fine-tuning a residual network in half the time",
    source="thesis Fig. 5.4",
    says="A pre-trained ResNet-34 fine-tuned on CIFAR-10 (h/k = 0.001, k = 5, μ = 0.9, 20 runs) reaches the highest "
    "test accuracy with multirate training in almost half the time; layer 4 + fc saves as much but ends much lower.",
    data=("mnist", "fashion-mnist"),
    smoke={
        "replicas": 2, "model": "tiny", "source": "mnist", "target": "fashion-mnist", "pretrain_points": 128,
        "pretrain_epochs": 1, "points": 64, "held_out": 100, "tested": 200, "batch": 32, "rates": (0.01, 0.03),
        "epochs": 1, "rounds": 3, "timed_batch": 32, "autocast": False,
    },
    ci={
        "replicas": 3, "model": "tiny", "source": "mnist", "target": "fashion-mnist", "pretrain_points": 5000,
        "pretrain_epochs": 1, "points": 4096, "held_out": 1000, "tested": 2000, "batch": 64, "rates": (0.01, 0.03, 0.1),
        "epochs": 2, "rounds": 10, "timed_batch": 64, "autocast": False,
    },
    large={
        "replicas": 5, "model": "resnet34", "source": "mnist", "target": "fashion-mnist", "pretrain_points": 60_000,
        "pretrain_epochs": 2, "points": 25_000, "held_out": 5000, "tested": 10_000, "batch": 128,
        "rates": (0.001, 0.003, 0.01, 0.03), "epochs": 4, "rounds": 30, "timed_batch": 256, "autocast": True,
    },
    paper={
        "replicas": 20, "model": "resnet34", "source": "mnist", "target": "fashion-mnist", "pretrain_points": 60_000,
        "pretrain_epochs": 2, "points": 50_000, "held_out": 5000, "tested": 10_000, "batch": 128,
        "rates": (0.001, 0.003, 0.01, 0.03), "epochs": 4, "rounds": 30, "timed_batch": 256, "autocast": True,
    },
)  # fmt: skip
def fig5_4(run: Run, settings: SimpleNamespace) -> list[Claim]:
    images, arms = arms_at_best_rates(run, transfer(run, settings), settings)
    outcomes = compare(run, images, arms, settings)
    report(run, outcomes)
    run.note(
        f"No download: {settings.model} (3×3 stem) pre-trained on {settings.source} and fine-tuned on "
        f"{settings.points} images of {settings.target} stands for ImageNet and CIFAR-10; batches of {settings.batch}, "
        f"h/k = {images.task.lr:g}, of {', '.join(f'{rate:g}' for rate in settings.rates)}. Batch statistics follow "
        "the new images in all arms and are estimated again before a network is evaluated. Times are ratios of cycles "
        f"made right after each other, with batches of {settings.timed_batch}."
    )
    return usual_claims(outcomes, "almost half")
