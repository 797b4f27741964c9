"""Image transfer without a download: a residual network that can read digits learns to tell clothes apart.

MNIST stands for ImageNet and Fashion-MNIST for CIFAR-10 of thesis Fig. 5.4.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..data import ImageSet, fashion_mnist, mnist
from ..models import ResNet, resnet18, resnet34, tiny_resnet
from .multirate_transfer import Task, accuracy_on
from .run import Run

CHUNK, MODELS = 1000, {"tiny": tiny_resnet, "resnet18": resnet18, "resnet34": resnet34}


def task(run: Run, settings: SimpleNamespace) -> Task:
    """Pre-train on MNIST; fine-tune on the first ``points`` images of Fashion-MNIST."""
    source, target = mnist(run.root), fashion_mnist(run.root)
    pretrained = pretrain(run, settings, source)
    x, y = (part[: settings.points].to(run.device) for part in (target.train_images, target.train_labels))
    x_test, y_test = (part[: settings.tested].to(run.device) for part in (target.test_images, target.test_labels))

    def make() -> nn.Module:
        model = copy.deepcopy(pretrained)
        model.head = nn.Linear(model.head.in_features, 10)
        return model

    def test() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(y_test), CHUNK):
            yield as_input(x_test[start : start + CHUNK]), y_test[start : start + CHUNK]

    def take(index: Tensor) -> tuple[Tensor, Tensor]:
        where = index.to(run.device)
        return as_input(x[where]), y[where]

    last = f"stages.{len(pretrained.stages) - 1}"
    return Task(make, take, len(y), accuracy_on(test), "head", last, settings.batch, settings.lr)


def pretrain(run: Run, settings: SimpleNamespace, source: ImageSet) -> ResNet:
    """Adam at 1e-3 on digits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = MODELS[settings.model](10, 1).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(run.seed)
    x, y = (part[: settings.pretrain_points].to(run.device) for part in (source.train_images, source.train_labels))
    with run.progress("pre-training", settings.pretrain_epochs, "epoch") as progress:
        for epoch in range(settings.pretrain_epochs):
            order = torch.randperm(len(y), generator=generator).to(run.device)
            for start in range(0, len(y), 128):
                index = order[start : start + 128]
                optimizer.zero_grad()
                torch.autograd.backward(cross_entropy(model(as_input(x[index])), y[index]))
                optimizer.step()
            progress(epoch + 1, settings.pretrain_epochs, None)
    return model.cpu()


def as_input(images: Tensor) -> Tensor:
    """(N, 1, 28, 28) numbers from −1 to 1."""
    return images[:, None].float() / 127.5 - 1
