"""The published files, where they are present, hold what the loaders promise."""

from pathlib import Path

import pytest
import torch

from holonom.data import (
    check,
    chess,
    cifar10,
    classify_poker,
    fashion_mnist,
    find,
    mnist,
    penn_treebank,
    poker,
    solve_chess,
    sst2,
    wikitext2,
)
from holonom.data.registry import lookup
from holonom.errors import DataError

ROOT = Path(__file__).parents[3] / "shared" / "data"


def need(name: str) -> None:
    try:
        for file in lookup(name).files:
            find(name, file.name, ROOT)
    except DataError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("load", "name", "mean", "spread"),
    [(mnist, "mnist", 0.1307, 0.3081), (fashion_mnist, "fashion-mnist", 0.2860, 0.3530)],
)
def test_grey_images(load: object, name: str, mean: float, spread: float) -> None:
    need(name)
    images = load(ROOT)  # type: ignore[operator]
    assert images.train_images.shape == (60_000, 28, 28)
    assert images.test_images.shape == (10_000, 28, 28)
    assert len(images.train_labels.bincount()) == len(images.test_labels.bincount()) == 10
    pixels = images.train_images.float() / 255
    assert pixels.mean().item() == pytest.approx(mean, abs=5e-5)
    assert pixels.std().item() == pytest.approx(spread, abs=5e-5)


def test_cifar() -> None:
    need("cifar-10")
    images = cifar10(ROOT)
    assert images.train_images.shape == (50_000, 3, 32, 32)
    assert images.train_labels.bincount().tolist() == [5000] * 10
    assert images.test_labels.bincount().tolist() == [1000] * 10


@pytest.mark.parametrize(
    ("load", "name", "tokens", "words"),
    [
        (penn_treebank, "penn-treebank", (929_589, 73_760, 82_430), 10_000),
        (wikitext2, "wikitext-2", (2_088_628, 217_646, 245_569), 33_278),
    ],
)
def test_texts(load: object, name: str, tokens: tuple[int, ...], words: int) -> None:
    need(name)
    corpus = load(ROOT)  # type: ignore[operator]
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == tokens
    assert len(corpus.vocabulary) == len(set(corpus.vocabulary)) == words
    assert corpus.train.unique().numel() == words
    assert corpus.vocabulary[corpus.train[-1]] == "<eos>"


def test_sentences() -> None:
    need("sst-2")
    rows = sst2(ROOT)
    assert (len(rows.train), len(rows.dev)) == (67_349, 872)
    assert rows.train_labels.bincount().tolist() == [29_780, 37_569]
    assert rows.dev_labels.bincount().tolist() == [428, 444]


def test_the_solved_endgame_is_the_published_one() -> None:
    need("uci-krkopt")
    published, solved = chess(ROOT), solve_chess()
    both = [torch.cat([t.attributes, t.labels[:, None]], 1).tolist() for t in (published, solved)]
    assert len(both[0]) == 28_056
    assert sorted(both[0]) == both[1]


def test_every_published_hand_has_the_class_of_the_rules() -> None:
    need("uci-poker-hand")
    table = poker(ROOT)
    assert table.labels.bincount().tolist() == [12493, 10599, 1206, 513, 93, 54, 36, 6, 5, 5]
    assert torch.equal(classify_poker(table.attributes), table.labels)


def test_check_finds_nothing_wrong() -> None:
    need("uci-krkopt")
    assert [row.problem for row in check("uci-krkopt", ROOT)] == [""]
