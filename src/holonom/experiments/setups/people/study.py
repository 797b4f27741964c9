"""The set-up of thesis Tables 6.5 to 6.9: networks and ten people classify images between digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...._torch import release
from ....ensemble import Ensemble
from ....errors import DataError
from ....labelling import read_people
from ....labelling.pictures import fingerprint, read_array
from ....metrics import Agreement, agreement
from ... import ranks
from ...artifacts import ArtifactCache
from ...run import Array, Run
from .classifiers import NETWORKS, Digits, load, probabilities
from .committee import train_committee, untrained_committee
from .gan_images import PAIRS, POINTS, as_input, images_between, train_generator
from .train_to_accuracy import predictions_at

FOLDER = "between-digits"  # the cache of what the tables share, beside their folders
STAND_IN = "stand-ins for people"
UNSHARED = ("images", "labels", "seeds", "more_targets", "look_every")  # settings without effect on the shared parts

SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "replicas": 2, "train": 300, "test": 100, "targets": (0.2, 0.35, 0.5), "epochs": 2, "look_every": 2,
        "mlp_width": 20, "cnn_width": 2, "vit_blocks": 1, "lr_factor": 4,
        "gan_depth": 3, "gan_width": 4, "gan_lr": 2e-4, "gan_batch": 64, "gan_steps": 3, "candidates": 40,
        "voter": "MLP", "voters": 3, "voter_epochs": 2, "images": "", "labels": "",
    },
    "ci": {
        "replicas": 3, "train": 20_000, "test": 1000, "targets": (0.86, 0.89, 0.92), "epochs": 4, "look_every": 10,
        "mlp_width": 100, "cnn_width": 4, "vit_blocks": 1, "lr_factor": 4,
        "gan_depth": 3, "gan_width": 16, "gan_lr": 5e-4, "gan_batch": 32, "gan_steps": 1000, "candidates": 1000,
        "voter": "MLP", "voters": 10, "voter_epochs": 6, "images": "", "labels": "",
    },
    "paper": {
        "replicas": 5, "train": None, "test": None, "targets": (0.975, 0.98, 0.985), "epochs": 40, "look_every": 10,
        "mlp_width": 500, "cnn_width": 32, "vit_blocks": 6, "lr_factor": 1,
        "gan_depth": 5, "gan_width": 64, "gan_lr": 2e-4, "gan_batch": 128, "gan_steps": 12_000, "candidates": 5000,
        "voter": "CNN", "voters": 10, "voter_epochs": 5, "images": "", "labels": "",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Study:
    """Predictions of networks and labels of people for the images.

    ``probabilities`` are (targets, sets, 9, N, 10), with nine networks in a set. ``people`` (H, N) are the reference
    labels, and ``who`` is the name of their source in a result.
    """

    targets: tuple[float, ...]
    probabilities: Tensor
    people: Tensor
    who: str = "people"

    def agreements(self, target: int) -> list[Agreement]:
        """One comparison for each set of networks."""
        return [agreement(one.argmax(-1), self.people) for one in self.probabilities[target]]

    def over_sets(self, statistic: Any) -> dict[str, Array]:
        """A statistic of an :class:`Agreement`, in percent: {target: (sets,)}."""
        return {
            percent(target): np.array([100 * statistic(one) for one in self.agreements(number)])
            for number, target in enumerate(self.targets)
        }


def percent(accuracy: float) -> str:
    return f"{100 * accuracy:g} %"


@dataclass(frozen=True)
class Inputs:
    """Training data, the images to classify, and their labels by people."""

    digits: Digits
    cache: ArtifactCache
    images: Tensor
    people: Tensor
    who: str


def prepare(run: Run, settings: SimpleNamespace) -> Inputs:
    """Images and labels, made or read; experiments of the same settings share them."""
    digits = load(run, settings.train, settings.test)
    cache = ArtifactCache(run.folder.parent / FOLDER, _identity(run, settings, digits))
    committee = None if settings.images and settings.labels else _committee(run, settings, digits, cache)
    images = _images(run, settings, digits, cache, committee)
    people = _people(run, settings, images, committee)
    who = "people" if settings.labels else STAND_IN
    _draw(run, images, people, who)
    return Inputs(digits, cache, images, people, who)


def study(run: Run, settings: SimpleNamespace) -> Study:
    """The nine networks' predictions, trained or read from the cache."""
    if len(settings.targets) != 3:
        raise ValueError(f"the tables have three test accuracies, got {len(settings.targets)} targets")
    inputs = prepare(run, settings)
    predictions = {name: predict(run, settings, name, inputs, settings.targets) for name in NETWORKS}
    report_accuracies(run, settings, predictions, settings.targets)
    run.note(
        "Networks of a set differ in their seeds. Not in the thesis, and chosen here: CNN3's augmentation shifts "
        "images by up to 2 pixels; MLP3 and ViT3 use AdamW, as MLP2 and ViT2 do. The thesis has one set "
        f"of nine networks; here there are {run.replicas}, and intervals are over sets."
    )
    probabilities = torch.stack([one["probabilities"] for one in predictions.values()], 2)
    return Study(tuple(settings.targets), probabilities, inputs.people, inputs.who)


def predict(
    run: Run, settings: SimpleNamespace, name: str, inputs: Inputs, targets: Sequence[float], seeds: int = 1
) -> dict[str, Tensor]:
    """What :func:`predictions_at` returns, gathered from all ranks."""
    x = as_input(inputs.images).to(run.device)
    shown = fingerprint(inputs.images.numpy())[:12]  # images made again on a GPU may differ
    file = f"{name}-{run.replicas}x{seeds}-every-{settings.look_every}-until-{'-'.join(map(str, targets))}-{shown}"
    checkpoint = inputs.cache.path(f"{file}-training-{ranks.rank()}of{ranks.size()}")
    local = inputs.cache.per_rank(
        file, lambda: predictions_at(run, settings, name, inputs.digits, x, targets, seeds, checkpoint)
    )
    checkpoint.unlink(missing_ok=True)
    gathered = {}
    for key, values in local.items():
        table = values.movedim(1, -1).reshape(-1, values.shape[1])  # (everything else, runs)
        everyone = torch.from_numpy(ranks.gather(table.numpy()))
        rest = (values.shape[0], *values.shape[2:])
        gathered[key] = everyone.reshape(*rest, -1).movedim(-1, 1)
    return gathered


def report_accuracies(
    run: Run, settings: SimpleNamespace, predictions: Mapping[str, dict[str, Tensor]], targets: Sequence[float]
) -> None:
    """At which accuracies predictions were taken; some networks may have fewer targets."""
    rows = []
    for name, one in predictions.items():
        pairs = zip(one["accuracy"], one["step"].double(), strict=True)
        cells = [f"{100 * a.mean():.2f} ({s.mean():.0f})" for a, s in pairs]
        rows.append([name, *cells, *["–"] * (len(targets) - len(cells))])
    columns = [f"target {percent(target)}" for target in targets]
    run.table("Test accuracy at which predictions were taken, % (steps)", ["network", *columns], rows)
    run.note(
        "One training of a network passes all targets. Predictions are taken at the first evaluation (every "
        f"{settings.look_every} steps) within 0.05 % of a target, or at the closest one before it is 1 % above. "
        "Sizes of CNN and ViT beyond those given are our choice."
    )


def _committee(run: Run, settings: SimpleNamespace, digits: Digits, cache: ArtifactCache) -> Ensemble:
    committee = untrained_committee(run, settings)
    committee.load_state_dict(cache.shared("committee", lambda: train_committee(run, settings, digits)))
    return committee


def _people(run: Run, settings: SimpleNamespace, images: Tensor, committee: Ensemble | None) -> Tensor:
    """(H, N) labels of people, or the votes of the committee in their place."""
    if settings.labels:
        people = _labels(Path(settings.labels), images)
        run.note(f"Labels of {len(people)} people, from {settings.labels}.")
        return people
    assert committee is not None
    run.note(_stand_in_note(settings))
    return probabilities(committee, as_input(images).to(run.device)).argmax(-1).cpu()


def _identity(run: Run, settings: SimpleNamespace, digits: Digits) -> dict[str, Any]:
    from .... import __version__

    shared = {name: value for name, value in vars(settings).items() if name not in UNSHARED}
    given = fingerprint(read_array(Path(settings.images))) if settings.images else ""
    return {
        "settings": shared, "images": given, "data": digits.fingerprint, "seed": run.seed,
        "device": run.device.type, "holonom": __version__, "torch": release,
    }  # fmt: skip


def _images(
    run: Run, settings: SimpleNamespace, digits: Digits, cache: ArtifactCache, committee: Ensemble | None
) -> Tensor:
    """(N, 28, 28) bytes, also written to images.npz for people to label."""
    if settings.images:
        given = torch.from_numpy(read_array(Path(settings.images)))
        if given.shape[1:] != digits.x.shape[2:]:
            raise DataError(f"{settings.images} holds images of {tuple(given.shape[1:])}; networks read 28×28")
        return given
    assert committee is not None
    checkpoint = cache.path("dcgan-training")
    state = cache.shared("generator", lambda: train_generator(run, settings, digits, checkpoint))
    made = cache.shared("images", lambda: images_between(run, settings, digits, state, committee))
    if ranks.rank() == 0:
        np.savez_compressed(
            run.folder / "images.npz",
            images=made["images"].numpy(), latents=made["latents"].numpy(), pairs=np.array(PAIRS),
        )  # fmt: skip
    rows = [[digit, f"{100 * sure:.4g}"] for digit, sure in enumerate(made["certainty"].tolist())]
    run.table("The ends of the lines", ["digit", "committee's mean probability %"], rows)
    run.note(
        f"{len(PAIRS)} pairs × {POINTS} points; the thesis does not list its pairs. Here: "
        f"{', '.join(f'{i}–{j}' for i, j in PAIRS)}. Their ends, chosen by eye there, are of {settings.candidates} "
        "generated images those nearest to a real digit among the ones that the whole committee classifies as it. How "
        "long the DCGAN is trained, and how its layers come to 28×28 pixels, is not in the thesis either."
    )
    return torch.as_tensor(made["images"])


def _stand_in_note(settings: SimpleNamespace) -> str:
    return (
        "NO PEOPLE HAVE LABELLED THESE IMAGES. A stand-in takes their place: the votes of "
        f"{settings.voters} {settings.voter}s, each trained for {settings.voter_epochs} epochs on a bootstrap half of "
        "MNIST. What is said here about people applies to this committee, which favours networks of its own kind. "
        "To put people in its place, let them label with `holonom label images.npz` and run this again with "
        "--set 'images=\"…/images.npz\"' and --set 'labels=\"…/labels\"'."
    )


def _labels(path: Path, images: Tensor) -> Tensor:
    people = read_people(path)
    if people.labels.shape[1] != len(images) or people.fingerprint not in ("", fingerprint(images.numpy())):
        raise DataError(
            f"{path} holds labels of other images; say which with --set 'images=\"…/images.npz\"', the file that was "
            "labelled"
        )
    return people.labels


def _draw(run: Run, images: Tensor, people: Tensor, who: str) -> None:
    """Fig. 6.22: every image under its labels."""
    columns = POINTS if len(images) % POINTS == 0 else 1
    rows, side, gap = len(images) // columns, images.shape[1], 10
    tiles = torch.nn.functional.pad(images.float() / 255, (1, 1, gap, 0), value=1.0)
    sheet = tiles.reshape(rows, columns, side + gap, side + 2).permute(0, 2, 1, 3).flatten(0, 1).flatten(1)
    caption = f"All images, a pair in each row; above each the labels that {who} gave, ✓ where all are the same."
    with run.figure("images", caption, figsize=(0.7 * columns, 0.88 * rows)) as axes:
        panel = axes[0, 0]
        panel.imshow(sheet.numpy(), cmap="gray", vmin=0, vmax=1)
        for number, given in enumerate(people.T):
            labels = torch.unique(given).tolist()
            row, column = divmod(number, columns)
            place = ((column + 0.5) * (side + 2), row * (side + gap) + gap / 2)
            panel.text(*place, "✓" if len(labels) == 1 else " ".join(map(str, labels)), ha="center", va="center")
        panel.axis("off")
