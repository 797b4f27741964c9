"""Thesis Fig. 5.7: random subsets as a regulariser of a perceptron on MNIST."""

from __future__ import annotations

from types import SimpleNamespace

from torch.nn.functional import cross_entropy

from ...batches import Shuffled
from ...data import ImageSet, mnist
from ..base import experiment
from ..claims import Claim, best, greater
from ..random_subsets import STEPS_OFF, Make, Perceptron, pixels, sgd, subsets
from ..run import Fit, Run, accuracy_and_loss, both
from ..spiral_depth import settled

BATCH = 128
PROBABILITY = {"1.weight": 0.8, "4.weight": 0.5}
DROPOUT = (0.2, 0.5)
SGD, OURS, ZEROS, DROPPED = "SGD", "multirate subsets", "zeros without multirate", "SGD, dropout"
HEADINGS = {"train_loss": "train loss", "test_loss": "test loss", "test_accuracy": "test accuracy %"}


@experiment(
    "fig5.7",
    title="Random slow subsets on MNIST",
    source="thesis Fig. 5.7",
    says="A perceptron with one hidden layer on MNIST (h = 0.1): switching input and hidden weights off with "
    "probability 0.8 and 0.5 for k steps and letting them catch up gives a higher test accuracy than SGD; setting "
    "another part of the weights to zero at every step, without the multirate component, does not do as well.",
    data=("mnist",),
    smoke={"replicas": 2, "hidden": 10, "train": 512, "test": 200, "epochs": 1},
    ci={"replicas": 3, "hidden": 100, "train": 5000, "test": 5000, "epochs": 30},
    paper={"replicas": 10, "hidden": 100, "train": 60_000, "test": 10_000, "epochs": 100},
)
def fig5_7(run: Run, settings: SimpleNamespace) -> list[Claim]:
    digits = mnist(run.root)
    fits = {
        SGD: train(run, settings, digits, SGD, sgd),
        OURS: train(run, settings, digits, OURS, subsets(PROBABILITY)),
        ZEROS: train(run, settings, digits, ZEROS, subsets(PROBABILITY, multirate=False)),
        DROPPED: train(run, settings, digits, DROPPED, sgd, DROPOUT),
    }
    run.save_curves(fits)
    run.summary(fits, HEADINGS)
    per_epoch = settings.train // BATCH
    run.curves(fits, "test_accuracy", "test accuracy", "Test accuracy: mean and 10–90 % band over runs.", per_epoch)
    run.curves(fits, "train_loss", "train loss", "Training loss, all weights on.", per_epoch, yscale="log")
    run.note(
        f"Unsaid in the thesis and chosen here: {settings.hidden} hidden nodes, batches of {BATCH}, k = {STEPS_OFF}, "
        f"{settings.train} training images, {settings.epochs} epochs. Dropout (0.2 of the pixels, 0.5 of the hidden "
        "nodes) is not in the figure. Accuracies are means over the last tenth of training."
    )
    accuracy = {name: settled(fit) for name, fit in fits.items()}
    return [
        greater("multirate subsets beat SGD", "higher (figure)", accuracy[OURS], accuracy[SGD]),
        greater("the multirate component matters", "not as well (figure)", accuracy[OURS], accuracy[ZEROS]),
        best("multirate subsets have the highest accuracy, dropout included", "beats dropout", accuracy, OURS),
    ]


def train(
    run: Run,
    settings: SimpleNamespace,
    digits: ImageSet,
    arm: str,
    make: Make,
    dropout: tuple[float, float] = (0.0, 0.0),
) -> Fit:
    x, y = pixels(digits.train_images[: settings.train]), digits.train_labels[: settings.train]
    x_test, y_test = pixels(digits.test_images[: settings.test]), digits.test_labels[: settings.test]
    x, y, x_test, y_test = (part.to(run.device) for part in (x, y, x_test, y_test))
    ensemble = run.ensemble(lambda: Perceptron(settings.hidden, dropout))
    batches = Shuffled(x, y, BATCH, ensemble.seeds)
    test = accuracy_and_loss(cross_entropy, x_test, y_test, "test", shared=True)
    evaluate = both(accuracy_and_loss(cross_entropy, x, y, "train", shared=True), test)
    steps = settings.epochs * batches.per_epoch
    return run.fit(arm, ensemble, make(ensemble), cross_entropy, batches, steps, evaluate, min(40, settings.epochs))
