"""Recipes identify networks; images are shuffled, cropped and flipped by their seeds."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holonom.experiments.setups.cifar.images import DEVIATION, MEAN, PADDING, CifarImages, generator
from holonom.experiments.setups.cifar.networks import Networks
from holonom.experiments.setups.cifar.recipes import RESNETS, VGGS, Recipe, Start

from ..random_images import CPU, SMALL, image_set


@pytest.fixture(scope="module")
def data() -> CifarImages:
    return CifarImages(image_set(), CPU)


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────

OTHER: dict[str, Any] = {
    "architecture": "resnet34", "width": 3, "pool": False, "narrowed": (2,), "images": 23, "augmented": False,
    "brightness": 0.05, "random_labels": True, "epochs": 4, "stop_accuracy": 0.5, "batch": 7, "step": 0.2,
    "step_decay": False, "weight_decay": 0.0, "special_blocks": ("head",), "special_step": 0.2,
    "special_weight_decay": 0.0, "start": Start(SMALL), "seed": 6, "method": "o-CoLA-od", "momentum": 0.5,
}  # fmt: skip


def folder(recipe: Recipe, data: CifarImages, compiled: bool = False) -> str:
    """Of its artifacts."""
    return Networks(Path(), data, compiled=compiled).cache(recipe).folder.name


@pytest.mark.parametrize("name", [one.name for one in fields(Recipe)])
def test_every_field_is_part_of_the_identity(name: str, data: CifarImages) -> None:
    assert folder(replace(SMALL, **{name: OTHER[name]}), data) != folder(SMALL, data)


def test_the_identity_depends_on_the_start_and_the_circumstances(data: CifarImages) -> None:
    starts = [Start(SMALL), Start(replace(SMALL, seed=6)), Start(SMALL, 0.5), Start(SMALL, reset=("stem",))]
    folders = [folder(replace(SMALL, start=start), data) for start in starts]
    other = CifarImages(image_set(seed=1), CPU)
    assert len({*folders, folder(SMALL, data), folder(SMALL, data, compiled=True), folder(SMALL, other)}) == 7
    assert folder(replace(SMALL, start=Start(replace(SMALL, epochs=3))), data) == folders[0]


def test_a_seed_reaches_the_network_one_starts_from() -> None:
    recipe = replace(SMALL, start=Start(SMALL)).seeded(11)
    assert recipe.seed == 11
    assert recipe.start is not None
    assert recipe.start.network.seed == 11


@pytest.mark.parametrize("architecture", [*RESNETS, *VGGS])
def test_architectures_take_cifar_images(architecture: str) -> None:
    model = replace(SMALL, architecture=architecture).model().eval()
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_narrowed_layers_have_half_their_outputs() -> None:
    recipe = replace(SMALL, architecture="vgg11", width=8)
    wide, narrow = recipe.model(), replace(recipe, narrowed=(2, 10)).model()
    outputs = [[m.weight.shape[0] for m in one.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
               for one in (wide, narrow)]  # fmt: skip
    expected = list(outputs[0])
    for layer in (2, 10):
        expected[layer - 1] //= 2
    assert outputs[1] == expected


def test_groups_have_their_own_step_and_weight_decay() -> None:
    recipe = replace(SMALL, special_blocks=("head", "stages.1"), special_step=0.3, special_weight_decay=0.0)
    model = recipe.model()
    rest, special = recipe.groups(model)
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(names[id(p)].startswith(("head.", "stages.1.")) for p in special["params"])
    assert len(rest["params"]) + len(special["params"]) == len(names)
    assert (special["lr"], special["weight_decay"]) == (0.3, 0.0)
    assert (rest["lr"], rest["weight_decay"]) == (recipe.step, recipe.weight_decay)


def test_a_start_is_a_point_of_the_line_with_blocks_reset() -> None:
    model = SMALL.model()
    initial = {name: torch.zeros_like(x) for name, x in model.state_dict().items()}
    trained = {name: torch.full_like(x, 4) for name, x in model.state_dict().items()}
    state = Start(SMALL, 0.75, ("head", "stages.2")).state(model, initial, trained)
    for name, x in state.items():
        forgotten = name.startswith(("head.", "stages.2."))
        expected = 0 if forgotten else 3 if x.is_floating_point() else 4
        assert bool((x == expected).all()), name
    whole = Start(SMALL).state(model, initial, trained)
    assert all(torch.equal(whole[name], x) for name, x in trained.items())


@pytest.mark.parametrize("wrong", [{"architecture": "resnet19"}, {"epochs": 0}, {"width": 0}])
def test_impossible_recipes(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"architecture|at least 1"):
        replace(SMALL, **wrong)


# ── images ───────────────────────────────────────────────────────────────────────────────────────


def test_an_augmented_image_is_a_crop_of_the_padded_one_or_its_mirror_image(data: CifarImages) -> None:
    raw = image_set()
    images, labels = data.epoch(SMALL, 0)
    assert images.shape == (3, 8, 3, 32, 32)
    assert images.dtype == torch.uint8
    padded = np.pad(raw.train_images.numpy(), ((0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    crops: dict[bytes, tuple[int, bool]] = {}
    for number, picture in enumerate(padded):
        for top in range(2 * PADDING + 1):
            for left in range(2 * PADDING + 1):
                cut = picture[:, top : top + 32, left : left + 32]
                crops[cut.tobytes()] = number, False
                crops[cut[:, :, ::-1].tobytes()] = number, True
    found = [crops[image.numpy().tobytes()] for image in images.flatten(0, 1)]
    assert sorted(number for number, _ in found) == list(range(24)), "every image once an epoch"
    assert {mirrored for _, mirrored in found} == {True, False}
    assert labels.flatten().tolist() == [int(raw.train_labels[number]) for number, _ in found]


def test_without_augmentation_images_are_only_shuffled(data: CifarImages) -> None:
    raw = image_set()
    images, labels = data.epoch(replace(SMALL, augmented=False, images=20), 0)
    assert images.shape[:2] == (2, 8), "20 images fill two batches of 8"
    labelled = {image.numpy().tobytes(): int(label) for image, label in zip(raw.train_images[:20], raw.train_labels)}
    assert [labelled[x.numpy().tobytes()] for x in images.flatten(0, 1)] == labels.flatten().tolist()


def test_epochs_depend_on_seed_and_number_alone(data: CifarImages) -> None:
    before = torch.get_rng_state()
    first = data.epoch(SMALL, 0)[0]
    torch.rand(3)
    assert torch.equal(first, data.epoch(SMALL, 0)[0])
    assert not torch.equal(first, data.epoch(SMALL, 1)[0])
    assert not torch.equal(first, data.epoch(replace(SMALL, seed=6), 0)[0])
    torch.set_rng_state(before)


def test_random_labels_are_fixed_fair_and_their_own(data: CifarImages) -> None:
    recipe = replace(SMALL, random_labels=True)
    labels = data.labels(recipe)
    assert torch.equal(labels, data.labels(replace(recipe, epochs=9)))
    assert not torch.equal(labels, data.labels(replace(recipe, seed=6)))
    assert not torch.equal(labels, data.labels(SMALL))
    many = CifarImages(image_set(5000, 1), CPU).labels(replace(recipe, images=5000))
    counts = torch.bincount(many, minlength=10)
    assert len(counts) == 10
    assert float(((counts - 500) ** 2).sum() / 500) < 27.9, "χ² with 9 degrees of freedom at 0.1 %"


def test_inputs_are_centred_and_scaled(data: CifarImages) -> None:
    expected = (data.test_images.numpy() / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(DEVIATION, (3, 1, 1))
    np.testing.assert_allclose(data.as_input(data.test_images).numpy(), expected, atol=1e-5)


def test_fingerprints_tell_sets_apart(data: CifarImages) -> None:
    assert data.fingerprint == CifarImages(image_set(), CPU).fingerprint
    assert data.fingerprint != CifarImages(image_set(seed=1), CPU).fingerprint
    assert data.fingerprint != CifarImages(image_set(), CPU, test=9).fingerprint


def test_streams_are_apart() -> None:
    draws = [float(torch.rand(1, generator=generator(*words))) for words in ((0, "a"), (0, "b"), (1, "a"), (0, "a", 1))]
    assert len(set(draws)) == 4
