"""Thesis Fig. 5.7: random subsets as a regulariser of a perceptron on MNIST."""

from __future__ import annotations

from types import SimpleNamespace

from torch import Tensor
from torch.nn.functional import cross_entropy

from ...batches import Shuffled
from ...data import ImageSet, mnist
from ..base import experiment
from ..claims import Claim, greater
from ..run import Fit, Run, accuracy_and_loss, both
from ..setups.mts.random_subsets import Make, Perceptron, pixels, sgd, subsets
from ..setups.shared.curves import late_mean
from ..setups.transfer.finetuning import check_split

BATCH = 128
DROPOUT = (0.2, 0.5)
HEADINGS = {
    "train_loss": "train loss", "valid_accuracy": "held-out accuracy %", "test_loss": "test loss",
    "test_accuracy": "test accuracy %",
}  # fmt: skip


@experiment(
    "fig5.7",
    title="Random slow subsets on MNIST",
    source="thesis Fig. 5.7",
    says="A perceptron with one hidden layer on MNIST (h = 0.1): switching input and hidden weights off with "
    "probability 0.8 and 0.5 for k steps and letting them catch up gives a higher test accuracy than SGD; setting "
    "another part of the weights to zero at every step, without the multirate component, does not do as well.",
    data=("mnist",),
    smoke={
        "replicas": 2, "hidden": 10, "train": 512, "held_out": 200, "test": 200, "epochs": 1, "off": (0.8, 0.5),
        "periods": (2, 5), "momenta": (0.0,),
    },
    ci={
        "replicas": 3, "hidden": 100, "train": 2048, "held_out": 2000, "test": 5000, "epochs": 150, "off": (0.8, 0.5),
        "periods": (2, 5, 10), "momenta": (0.0,),
    },
    paper={
        "replicas": 10, "hidden": 100, "train": 50_000, "held_out": 10_000, "test": 10_000, "epochs": 100,
        "off": (0.8, 0.5), "periods": (2, 5, 10), "momenta": (0.0, 0.9),
    },
)  # fmt: skip
def fig5_7(run: Run, settings: SimpleNamespace) -> list[Claim]:
    digits = mnist(run.root)
    check_split(settings.train, settings.held_out, len(digits.train_labels))
    fits: dict[str, Fit] = {}
    claims: list[Claim] = []
    for momentum in settings.momenta:
        claims += compare(run, settings, digits, momentum, fits)
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    per_epoch = settings.train // BATCH
    run.curves(fits, "test_accuracy", "test accuracy", "Test accuracy: mean and 10–90 % band over runs.", per_epoch)
    run.curves(fits, "train_loss", "train loss", "Training loss, all weights on.", per_epoch, yscale="log")
    run.note(
        f"Not in the thesis and chosen here: {settings.hidden} hidden nodes, batches of {BATCH}, "
        f"{settings.train} training images, {settings.epochs} epochs. k is the one of {settings.periods} with the "
        f"highest accuracy on {settings.held_out} held-out training images. The caption says SGD, section 5.9.3 "
        f"μ = 0.9 unless indicated otherwise: all arms are trained with μ of {settings.momenta}. The caption's 0.8 and "
        "0.5 are read as it says, as probabilities of being off (dropout's custom is to give those of being kept: "
        f"--set 'off=(0.2,0.5)'). Dropout, {DROPOUT[0]:g} of the pixels and {DROPOUT[1]:g} of the hidden nodes, is "
        "not in the figure. Accuracies are means over the last tenth of training."
    )
    return claims


def compare(
    run: Run, settings: SimpleNamespace, digits: ImageSet, momentum: float, fits: dict[str, Fit]
) -> list[Claim]:
    """Train all arms with one momentum, and choose k on held-out images."""
    off = dict(zip(("1.weight", "4.weight"), settings.off, strict=True))

    def add(name: str, make: Make, dropout: tuple[float, float] = (0.0, 0.0)) -> Fit:
        arm = f"{name}, μ = {momentum:g}"
        fits[arm] = train(run, settings, digits, arm, make, dropout)
        return fits[arm]

    plain = late_mean(add("SGD", sgd(momentum)))
    ours = {k: add(f"multirate subsets, k = {k}", subsets(off, momentum, k)) for k in settings.periods}
    zeros = late_mean(add("zeros without multirate", subsets(off, momentum)))
    add("SGD with dropout", sgd(momentum), DROPOUT)
    k = max(ours, key=lambda k: float(late_mean(ours[k], "valid_accuracy").mean()))
    best, which = late_mean(ours[k]), f"μ = {momentum:g} (k = {k})"
    return [
        greater(f"multirate subsets beat SGD, {which}", "higher (figure)", best, plain),
        greater(f"the multirate component matters, {which}", "not as well (figure)", best, zeros),
    ]


def train(
    run: Run, settings: SimpleNamespace, digits: ImageSet, arm: str, make: Make, dropout: tuple[float, float]
) -> Fit:
    def part(images: Tensor, labels: Tensor, which: slice) -> tuple[Tensor, Tensor]:
        return pixels(images[which].to(run.device)), labels[which].to(run.device)

    x, y = part(digits.train_images, digits.train_labels, slice(settings.train))
    held_out = part(digits.train_images, digits.train_labels, slice(-settings.held_out, None))
    test = part(digits.test_images, digits.test_labels, slice(settings.test))
    ensemble = run.ensemble(lambda: Perceptron(settings.hidden, dropout))
    batches = Shuffled(x, y, BATCH, ensemble.seeds)
    evaluate = both(
        accuracy_and_loss(cross_entropy, x, y, "train", shared=True),
        accuracy_and_loss(cross_entropy, *held_out, "valid", shared=True),
        accuracy_and_loss(cross_entropy, *test, "test", shared=True),
    )
    steps = settings.epochs * batches.per_epoch
    evaluations = min(40, settings.epochs)
    return run.fit(arm, ensemble, make(ensemble), cross_entropy, batches, steps, evaluate, evaluations, compiled=False)
