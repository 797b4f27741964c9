"""Thesis Fig. 5.4: a residual network fine-tuned in half the time."""

from __future__ import annotations

from types import SimpleNamespace

from ..base import experiment
from ..claims import Claim
from ..image_transfer import task
from ..multirate_transfer import compare, usual_arms
from ..run import Run
from ..transfer_report import report, usual_claims


@experiment(
    "fig5.4",
    title="Fine-tuning a residual network in half the time",
    source="thesis Fig. 5.4",
    says="A pre-trained ResNet-34 fine-tuned on CIFAR-10 (h/k = 0.001, k = 5, μ = 0.9, 20 runs) reaches the highest "
    "test accuracy with multirate training in almost half the time; layer 4 + fc saves as much but ends much lower.",
    data=("mnist", "fashion-mnist"),
    smoke={
        "replicas": 2, "model": "tiny", "pretrain_points": 128, "pretrain_epochs": 1, "points": 64, "tested": 200,
        "batch": 32, "lr": 0.01, "epochs": 1, "rounds": 3,
    },
    ci={
        "replicas": 3, "model": "tiny", "pretrain_points": 5000, "pretrain_epochs": 1, "points": 2000, "tested": 1000,
        "batch": 16, "lr": 0.003, "epochs": 4, "rounds": 20,
    },
    paper={
        "replicas": 5, "model": "resnet18", "pretrain_points": 60_000, "pretrain_epochs": 2, "points": 60_000,
        "tested": 10_000, "batch": 128, "lr": 0.001, "epochs": 5, "rounds": 100,
    },
)  # fmt: skip
def fig5_4(run: Run, settings: SimpleNamespace) -> list[Claim]:
    images = task(run, settings)
    outcomes = compare(run, images, usual_arms(images), settings.epochs, settings.rounds)
    report(run, outcomes)
    run.note(
        f"No download: {settings.model} (3×3 stem) pre-trained on MNIST and fine-tuned on {settings.points} images of "
        f"Fashion-MNIST stands for ImageNet and CIFAR-10; batches of {settings.batch}, h/k = {settings.lr:g}. Times "
        "are ratios of cycles made right after each other."
    )
    return usual_claims(outcomes, "almost half")
