"""Recipes: everything that determines a trained network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ....landscape import blocks_of
from ....models import resnet18, resnet34, resnet50, vgg11
from ....models.vgg import VGG11_WIDTHS
from .optimizers import BATCH, METHODS, MOMENTUM, STEP, WEIGHT_DECAY, make_optimizer

State = dict[str, Tensor]
RESNETS = {"resnet18": resnet18, "resnet34": resnet34, "resnet50": resnet50}
VGGS = {"vgg11": True, "vgg11 without norm": False}  # whether batch norm follows the convolutions


@dataclass(frozen=True)
class Start:
    """The state at ``alpha`` of the line from another network's initial to its trained state (6.1).

    Blocks named in ``reset`` are put back to that network's initial state.
    """

    network: Recipe
    alpha: float = 1.0
    reset: tuple[str, ...] = ()

    def state(self, model: nn.Module, initial: State, trained: State) -> State:
        """From the two states of :attr:`network`; ``model`` gives the names of a block's parameters."""
        back = {n for names in blocks_of(model, self.reset).values() for n in names} if self.reset else set()
        return {name: (initial[name] if name in back else _mix(initial[name], x, self.alpha)).clone()
                for name, x in trained.items()}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """One network and its training, by default SGD with momentum (thesis 6.1.3.1, 6.1.10.1).

    Attributes:
        architecture: one of ``RESNETS`` or ``VGGS``.
        width: channels of the first stage; 64 in the papers.
        pool: halve the resolution behind a ResNet's stem.
        narrowed: layers of VGG-11, counted from 1, with half their outputs (Table 6.4).
        images: how many of the training set.
        augmented: random crops of the padded image, and flips.
        brightness: with 0.05 pixels are also multiplied by a random factor from 0.95 to 1.05, one for each image.
        random_labels: train on labels drawn at random.
        epochs: at most.
        stop_accuracy: stop after an epoch with this training accuracy.
        method: one of ``METHODS``.
        step: SGD's initial learning rate.
        step_decay: divide the step by ten after one and two thirds of the epochs.
        special_blocks: name patterns of blocks that train with ``special_step`` and ``special_weight_decay``.
        start: a state of another network to start from; initial weights by default.
        seed: of initial weights, labels, order and augmentation.
    """

    architecture: str = "resnet18"
    width: int = 64
    pool: bool = False
    narrowed: tuple[int, ...] = ()
    images: int = 50_000
    augmented: bool = True
    brightness: float = 0.0
    random_labels: bool = False
    epochs: int = 100
    stop_accuracy: float | None = None
    batch: int = BATCH
    method: str = METHODS[0]
    momentum: float = MOMENTUM
    step: float = STEP
    step_decay: bool = True
    weight_decay: float = WEIGHT_DECAY
    special_blocks: tuple[str, ...] = ()
    special_step: float = STEP
    special_weight_decay: float = WEIGHT_DECAY
    start: Start | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.architecture not in {**RESNETS, **VGGS}:
            names = ", ".join({**RESNETS, **VGGS})
            raise ValueError(f"there is no architecture {self.architecture!r}; there are {names}")
        if self.method not in METHODS:
            raise ValueError(f"there is no method {self.method!r}; there are {', '.join(METHODS)}")
        if min(self.width, self.images, self.epochs, self.batch) < 1:
            raise ValueError(f"width, images, epochs and batch must be at least 1: {self}")

    @property
    def per_epoch(self) -> int:
        """Steps."""
        return max(1, self.images // self.batch)

    def seeded(self, seed: int) -> Recipe:
        """The same with another seed, also for the network that it starts from."""
        start = self.start and replace(self.start, network=self.start.network.seeded(seed))
        return replace(self, seed=seed, start=start)

    def model(self) -> nn.Module:
        """The untrained network; its weights come from torch's global generator."""
        if self.architecture in RESNETS:
            return RESNETS[self.architecture](width=self.width, pool=self.pool)
        widths = [max(1, outputs * self.width // VGG11_WIDTHS[0]) for outputs in VGG11_WIDTHS]
        for layer in self.narrowed:
            widths[layer - 1] = max(1, widths[layer - 1] // 2)
        return vgg11(batch_norm=VGGS[self.architecture], widths=widths)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The model's parameters with their steps and weight decays, for torch.optim."""
        patterns = self.special_blocks
        names = {name for block in blocks_of(model, patterns).values() for name in block} if patterns else set()
        sides: list[list[nn.Parameter]] = [[], []]
        for name, p in model.named_parameters():
            sides[name in names].append(p)
        options = ((self.step, self.weight_decay), (self.special_step, self.special_weight_decay))
        return [
            {"params": side, "lr": step, "weight_decay": decay}
            for side, (step, decay) in zip(sides, options, strict=True)
            if side
        ]

    def optimizer(self, model: nn.Module, fused: bool = False) -> Optimizer:
        return make_optimizer(self.method, model, self.groups(model), self.momentum, fused)

    @property
    def lr_is_root(self) -> bool:
        """Whether lr is a time step h, whose square is the step."""
        return self.method == "o-CoLA-ud"


def _mix(start: Tensor, end: Tensor, alpha: float) -> Tensor:
    """Counters cannot be interpolated and are the end's."""
    return start.lerp(end, alpha) if end.is_floating_point() else end
