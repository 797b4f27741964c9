"""Image transfer without a download: a residual network pre-trained on one set of images is fine-tuned on another.

MNIST and Fashion-MNIST stand for ImageNet and CIFAR-10 of thesis Fig. 5.4.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import update_bn

from ....data import ImageSet, fashion_mnist, mnist
from ....models import resnet18, resnet34, tiny_resnet
from ...run import Array, Run
from .comparison import Transfer
from .finetuning import Arm, Task, accuracy_on, check_split, half_precision
from .runs import Size, finetune_all, pretrained

CHUNK = 1000  # images at once
STATISTICS = 2048  # images that batch statistics are estimated from
MODELS = {"tiny": tiny_resnet, "resnet18": resnet18, "resnet34": resnet34}
SETS = {"mnist": mnist, "fashion-mnist": fashion_mnist}


def transfer(run: Run, settings: SimpleNamespace) -> Transfer:
    """Pre-train on ``source``; fine-tune on the first ``points`` images of ``target``, holding out the last ones.

    Batch statistics are estimated again before an evaluation (training does not read them): with a constant step,
    the running statistics belong to earlier weights.
    """
    source, target = (SETS[name](run.root) for name in (settings.source, settings.target))
    check_split(settings.points, settings.held_out, len(target.train_labels))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = MODELS[settings.model](10, 1)
    body = pretrained(run, model, lambda model: pretrain(run, settings, model, source))
    x, y = (part.to(run.device) for part in (target.train_images, target.train_labels))
    x_test, y_test = (part[: settings.tested].to(run.device) for part in (target.test_images, target.test_labels))

    def make() -> nn.Module:
        model = copy.deepcopy(body)
        model.head = nn.Linear(model.head.in_features, 10)
        return to_layout(model, run.device)

    def evaluation(images: Tensor, labels: Tensor) -> Callable[[nn.Module], float]:
        def chunks() -> Iterator[tuple[Tensor, Tensor]]:
            for start in range(0, len(labels), CHUNK):
                yield as_input(images[start : start + CHUNK]), labels[start : start + CHUNK]

        accuracy = accuracy_on(chunks, run.device, settings.autocast)

        def with_fresh_statistics(model: nn.Module) -> float:
            some = torch.split(x[: min(settings.points, STATISTICS)], settings.batch)
            with half_precision(run.device, settings.autocast):
                update_bn((as_input(images) for images in some), model)
            return accuracy(model)

        return with_fresh_statistics

    def take(index: Tensor) -> tuple[Tensor, Tensor]:
        where = index.to(run.device)
        return as_input(x[where]), y[where]

    on_test = evaluation(x_test, y_test)
    on_held_out = evaluation(x[-settings.held_out :], y[-settings.held_out :])

    size = Size(settings.points, settings.batch, settings.epochs)

    def train(task: Task, arm: Arm, name: str, held_out: bool) -> Array:
        evaluate = on_held_out if held_out else on_test
        return finetune_all(run, task, arm, name, size, evaluate, alone=held_out)

    last = f"stages.{len(body.stages) - 1}"
    task = Task(make, take, "head", last, settings.timed_batch, settings.rates[0], run.device, settings.autocast)
    return Transfer(task, train)


def pretrain(run: Run, settings: SimpleNamespace, model: nn.Module, source: ImageSet) -> None:
    """Adam at 1e-3."""
    to_layout(model.to(run.device), run.device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(run.seed)
    x, y = (part[: settings.pretrain_points].to(run.device) for part in (source.train_images, source.train_labels))
    with run.progress("pre-training", settings.pretrain_epochs, "epoch") as progress:
        for epoch in range(settings.pretrain_epochs):
            order = torch.randperm(len(y), generator=generator).to(run.device)
            for index in torch.split(order, settings.batch):
                optimizer.zero_grad()
                with half_precision(run.device, settings.autocast):
                    loss = cross_entropy(model(as_input(x[index])), y[index])
                torch.autograd.backward(loss)
                optimizer.step()
            progress(epoch + 1, settings.pretrain_epochs, None)


def to_layout(model: nn.Module, device: torch.device) -> nn.Module:
    """Channels last on a GPU, whose matrix units need that."""
    return model.to(memory_format=torch.channels_last) if device.type == "cuda" else model  # type: ignore[call-overload, no-any-return]


def as_input(images: Tensor) -> Tensor:
    """(N, 1, 28, 28) values from −1 to 1."""
    return images[:, None].float() / 127.5 - 1
