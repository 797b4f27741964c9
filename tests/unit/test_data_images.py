"""IDX and CIFAR files are parsed to the byte, and inconsistent ones are refused."""

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from holonom.data import ImageSet, cifar, cifar10, fashion_mnist, mnist
from holonom.data.idx import parse_idx
from holonom.data.registry import SETS, lookup
from holonom.errors import DataError


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(root: Path, train: int = 7, test: int = 4, labels: int | None = None, top: int = 10) -> ImageSet:
    """A set of random images in the published files' format."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (train, 28, 28), np.uint8),
        rng.integers(0, top, train if labels is None else labels, np.uint8),
        rng.integers(0, 256, (test, 28, 28), np.uint8),
        rng.integers(0, 10, test, np.uint8),
    ]
    (root / "mnist").mkdir(parents=True, exist_ok=True)
    for file, array in zip(lookup("mnist").files, arrays, strict=True):
        (root / "mnist" / file.name).write_bytes(idx(array))
    return ImageSet(*(torch.from_numpy(a) for a in arrays))


def test_idx_comes_back_as_it_was(tmp_path: Path) -> None:
    expected = write_mnist(tmp_path)
    got = mnist(tmp_path, verify=False)
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours, theirs.to(ours.dtype))
    assert got.train_images.dtype == torch.uint8
    assert got.train_labels.dtype == torch.int64


def test_unpublished_content_is_refused_unless_verify_is_off(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    with pytest.raises(DataError, match="train-images-idx3-ubyte is not mnist's"):
        mnist(tmp_path)


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, train=7, labels=6)
    with pytest.raises(DataError, match="7 training images but 6 labels"):
        mnist(tmp_path, verify=False)
    write_mnist(tmp_path, train=50, top=200)
    with pytest.raises(DataError, match="labels from 0 to 9"):
        mnist(tmp_path, verify=False)
    write_mnist(tmp_path)
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((4, 20, 20), np.uint8)))
    with pytest.raises(DataError, match=r"training images are \(28, 28\), its test images \(20, 20\)"):
        mnist(tmp_path, verify=False)


def test_swapped_and_truncated_idx_files_are_refused() -> None:
    images, labels = idx(np.ones((3, 4, 5), np.uint8)), idx(np.ones(3, np.uint8))
    assert parse_idx(images, 3, "x").shape == (3, 4, 5)
    with pytest.raises(DataError, match=r"no IDX file of bytes with 3 dimension"):
        parse_idx(labels, 3, "x")
    with pytest.raises(DataError, match=r"no IDX file"):
        parse_idx(images[:7], 3, "x")
    for content in (images[:-1], images + b"\0"):
        with pytest.raises(DataError, match=r"should have 76 bytes for an array of \(3, 4, 5\)"):
            parse_idx(content, 3, "x")
    # Sizes whose product overflows 64 bits must not pass for a small one.
    with pytest.raises(DataError, match="should have"):
        parse_idx(bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**31, 2**31, 4), 3, "x")


def test_a_missing_set_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLONOM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for load, name in ((mnist, "mnist"), (fashion_mnist, "fashion-mnist"), (cifar10, "cifar-10")):
        with pytest.raises(DataError, match=f"holonom data get {name}$"):
            load(tmp_path)


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bytes]:
    """Six files of three random records, registered as if they were the published ones; nothing is written."""
    monkeypatch.setenv("HOLONOM_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(1)
    contents = []
    for _ in range(6):
        records = rng.integers(0, 256, (3, 3073), np.uint8)
        records[:, 0] %= 10
        contents.append(records.tobytes())
    published = lookup("cifar-10")
    files = tuple(
        replace(file, sha256=hashlib.sha256(content).hexdigest())
        for file, content in zip(published.files, contents, strict=True)
    )
    monkeypatch.setitem(SETS, "cifar-10", replace(published, files=files))
    monkeypatch.setattr(cifar, "RECORDS_PER_FILE", 3)
    return contents


def write_binary(root: Path, contents: list[bytes]) -> None:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(exist_ok=True)
    for file, content in zip(lookup("cifar-10").files, contents, strict=True):
        (folder / file.name).write_bytes(content)


def write_png(root: Path, contents: list[bytes]) -> None:
    image = pytest.importorskip("PIL.Image")
    for part, records in (("train", b"".join(contents[:5])), ("test", contents[5])):
        folder = root / "cifar-10" / part
        folder.mkdir(parents=True)
        for index, record in enumerate(np.frombuffer(records, np.uint8).reshape(-1, 3073)):
            pixels = record[1:].reshape(3, 32, 32).transpose(1, 2, 0)
            image.fromarray(pixels).save(folder / f"{index}_{cifar.CLASSES[record[0]]}.png")


def test_cifar_from_binary_files(tmp_path: Path, small_cifar: list[bytes]) -> None:
    write_binary(tmp_path, small_cifar)
    got = cifar10(tmp_path)
    assert got.train_images.shape == (15, 3, 32, 32)
    assert got.test_images.shape == (3, 3, 32, 32)
    # Record 4 is the second of the second file: a label, then 1024 bytes of red, green and blue, row by row.
    record = small_cifar[1][3073 : 2 * 3073]
    assert got.train_labels[4] == record[0]
    assert got.train_images[4, 2, 5, 7] == record[1 + 2 * 1024 + 5 * 32 + 7]


def test_cifar_from_png_equals_cifar_from_binary(tmp_path: Path, small_cifar: list[bytes]) -> None:
    (tmp_path / "binary").mkdir()
    (tmp_path / "png").mkdir()
    write_binary(tmp_path / "binary", small_cifar)
    write_png(tmp_path / "png", small_cifar)
    for ours, theirs in zip(cifar10(tmp_path / "png"), cifar10(tmp_path / "binary"), strict=True):
        assert torch.equal(ours, theirs)


def test_damaged_cifar_is_refused(tmp_path: Path, small_cifar: list[bytes]) -> None:
    write_binary(tmp_path, [small_cifar[1], small_cifar[0], *small_cifar[2:]])
    with pytest.raises(DataError, match=r"data_batch_1.bin.* it holds cifar-10/data_batch_2.bin"):
        cifar10(tmp_path)
    write_binary(tmp_path, [*small_cifar[:4], small_cifar[4][:-1], small_cifar[5]])
    with pytest.raises(DataError, match="is no multiple of that"):
        cifar10(tmp_path, verify=False)


def test_damaged_png_folders_are_refused(tmp_path: Path, small_cifar: list[bytes]) -> None:
    write_png(tmp_path, small_cifar)
    train = tmp_path / "cifar-10" / "train"
    image = pytest.importorskip("PIL.Image")
    victim = next(train.glob("4_*.png"))
    whole = victim.read_bytes()
    image.new("RGB", (32, 32)).save(victim)
    with pytest.raises(DataError, match=r"makes up data_batch_2.bin"):
        cifar10(tmp_path)
    assert cifar10(tmp_path, verify=False).train_images[4].sum() == 0
    image.new("RGB", (16, 32)).save(victim)
    with pytest.raises(DataError, match="should be an image of 32×32, not 16×32"):
        cifar10(tmp_path, verify=False)
    victim.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"4_.*png is damaged"):
        cifar10(tmp_path, verify=False)
    victim.unlink()
    with pytest.raises(DataError, match="without gaps"):
        cifar10(tmp_path, verify=False)
    (train / "4_unicorn.png").write_bytes(whole)
    with pytest.raises(DataError, match=r"4_unicorn.png should be named"):
        cifar10(tmp_path, verify=False)
