"""What determines a trained network: a recipe, whose key names its file."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ....landscape import blocks_of
from ....models import resnet18, resnet34, resnet50, vgg11
from ....models.vgg import VGG11_WIDTHS
from .optimizers import BATCH, METHODS, MOMENTUM, STEP, WEIGHT_DECAY, descent

State = dict[str, Tensor]
RESNETS = {"resnet18": resnet18, "resnet34": resnet34, "resnet50": resnet50}
VGGS = {"vgg11": True, "vgg11 without norm": False}  # whether batch norm follows the convolutions


@dataclass(frozen=True)
class Start:
    """The state at ``alpha`` of the line from another network's initial to its trained state (6.1).

    Blocks named in ``forgotten`` are put back to that network's initial state.
    """

    network: Recipe
    alpha: float = 1.0
    forgotten: tuple[str, ...] = ()

    def state(self, model: nn.Module, initial: State, trained: State) -> State:
        """From the two states of :attr:`network`; ``model`` knows which names a block has."""
        back = {n for names in blocks_of(model, self.forgotten).values() for n in names} if self.forgotten else set()
        return {name: (initial[name] if name in back else _mix(initial[name], x, self.alpha)).clone()
                for name, x in trained.items()}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """One network and its training: SGD with momentum (thesis 6.1.3.1, 6.1.10.1) unless said otherwise.

    Attributes:
        architecture: one of ``RESNETS`` or ``VGGS``.
        width: channels of the first stage; 64 in the papers.
        pool: halve the resolution behind a ResNet's stem.
        narrowed: layers of VGG-11, counted from 1, with half their outputs (Table 6.4).
        images: how many of the training set.
        augmented: random crops of the padded image, and flips.
        random_labels: train on labels drawn at random.
        epochs: at most so many.
        enough: stop after an epoch whose training accuracy was this high.
        method: one of ``METHODS``.
        step: SGD's learning rate, at first.
        falling: divide the step by ten after one and two thirds of the epochs.
        apart: name patterns of blocks with a step and a weight decay of their own.
        start: another network's states to begin with; fresh weights by default.
        seed: of initial weights, labels, order and augmentation.
    """

    architecture: str = "resnet18"
    width: int = 64
    pool: bool = False
    narrowed: tuple[int, ...] = ()
    images: int = 50_000
    augmented: bool = True
    random_labels: bool = False
    epochs: int = 100
    enough: float | None = None
    batch: int = BATCH
    method: str = METHODS[0]
    momentum: float = MOMENTUM
    step: float = STEP
    falling: bool = True
    weight_decay: float = WEIGHT_DECAY
    apart: tuple[str, ...] = ()
    apart_step: float = STEP
    apart_weight_decay: float = WEIGHT_DECAY
    start: Start | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.architecture not in {**RESNETS, **VGGS}:
            known = ", ".join({**RESNETS, **VGGS})
            raise ValueError(f"there is no architecture {self.architecture!r}; there are {known}")
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

    def key(self, *circumstances: Any) -> str:
        """A name for the network: equal if and only if the recipe and the circumstances are."""
        text = repr((sorted(asdict(self).items()), circumstances))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

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
        names = {name for own in blocks_of(model, self.apart).values() for name in own} if self.apart else set()
        sides: list[list[nn.Parameter]] = [[], []]
        for name, p in model.named_parameters():
            sides[name in names].append(p)
        options = ((self.step, self.weight_decay), (self.apart_step, self.apart_weight_decay))
        return [
            {"params": side, "lr": step, "weight_decay": decay}
            for side, (step, decay) in zip(sides, options, strict=True)
            if side
        ]

    def optimizer(self, model: nn.Module, fused: bool = False) -> Optimizer:
        return descent(self.method, model, self.groups(model), self.momentum, fused)

    @property
    def rooted(self) -> bool:
        """Whether lr is a time step h, whose square is the step."""
        return self.method == "o-CoLA-ud"


def _mix(start: Tensor, end: Tensor, alpha: float) -> Tensor:
    """Counters cannot be mixed and are the end's."""
    return start.lerp(end, alpha) if end.is_floating_point() else end
