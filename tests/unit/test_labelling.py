"""People's labels: files that survive a kill, pictures that are the array, tables that are read back equal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holonom.errors import DataError
from holonom.labelling import People, load_pictures, read_people, write_csv
from holonom.labelling.journal import Conflict, order
from holonom.labelling.pictures import encode
from holonom.metrics import agreement

from .labels import IMAGES, label_all, open_journal, write_images

# ── pictures ─────────────────────────────────────────────────────────────────────────────────────


def test_pictures_are_the_array(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    found = load_pictures(write_images(tmp_path))
    assert len(found) == 6
    for number, (content, kind) in enumerate(zip(found.contents, found.kinds, strict=True)):
        (tmp_path / "one.png").write_bytes(content)
        assert kind == "image/png"
        np.testing.assert_array_equal(np.asarray(image.open(tmp_path / "one.png")), IMAGES[number])
    for same in (IMAGES[:, None], IMAGES / 255, (IMAGES / 255).astype(np.float32)):
        assert load_pictures(write_images(tmp_path, same)) == found
        assert load_pictures(write_images(tmp_path, same)).fingerprint == found.fingerprint
    assert load_pictures(write_images(tmp_path, IMAGES[::-1])).fingerprint != found.fingerprint


def test_pictures_of_a_folder(tmp_path: Path) -> None:
    for number, name in enumerate(("b.png", "a.PNG", "notes.txt")):
        (tmp_path / name).write_bytes(encode(IMAGES[number]))
    assert load_pictures(tmp_path).contents == (encode(IMAGES[1]), encode(IMAGES[0]))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES[0], r"\(N, height, width\)"),
        (IMAGES[:0], "no images"),
        (IMAGES.astype(float), "floats from 0 to 1"),
        (IMAGES.astype(int), "must be bytes"),
        (np.full((1, 2, 2), np.nan), "floats from 0 to 1"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, images: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_pictures(write_images(tmp_path, images))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no images at"):
        load_pictures(tmp_path / "nothing.npz")
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", pictures=IMAGES)
    np.savez(tmp_path / "objects.npz", images=np.array([object()]))
    for name in ("text", "other", "objects"):
        with pytest.raises(DataError, match=r"no .npz file with an array 'images'"):
            load_pictures(tmp_path / f"{name}.npz")
    with pytest.raises(DataError, match=r"'images'$"):  # without NumPy's advice to load pickles
        load_pictures(tmp_path / "text.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images"):
        load_pictures(tmp_path / "empty")


# ── one person's file ────────────────────────────────────────────────────────────────────────────


def test_every_person_has_a_different_order() -> None:
    orders = [order(name, 165) for name in ("Ann", "Bob", "Cleo")]
    assert all(sorted(one) == list(range(165)) for one in orders)
    assert len({tuple(one) for one in orders}) == 3
    assert order("ANN", 165) == orders[0]


def test_labels_are_read_back(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    first, second, third = journal.order[:3]
    assert not list(tmp_path.iterdir())  # no file before the first label
    journal.label(first, 3)
    journal.label(second, 0)
    journal.undo(second)
    journal.label(second, 9)
    back = open_journal(tmp_path, " ann ")
    assert list(back.given.items()) == [(first, 3), (second, 9)]
    assert back.next(back.given) == third


def test_a_repeated_request_changes_nothing(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    first, second = journal.order[:2]
    journal.undo(first)
    journal.label(first, 3)
    size = journal.path.stat().st_size
    journal.label(first, 3)
    assert journal.path.stat().st_size == size
    with pytest.raises(Conflict, match="not the one to label now"):
        journal.label(first, 4)
    with pytest.raises(Conflict, match="not the one to label now"):
        journal.label(journal.order[2], 4)
    journal.label(second, 1)
    with pytest.raises(Conflict, match="labelled last"):
        journal.undo(first)
    assert journal.given == {first: 3, second: 1}


def test_two_servers_on_one_file_see_each_other(tmp_path: Path) -> None:
    one, other = open_journal(tmp_path), open_journal(tmp_path)
    one.label(one.order[0], 1)
    other.label(one.order[1], 2)
    one.label(one.order[2], 3)
    assert list(one.given.values()) == list(other.given.values()) == [1, 2, 3]


@pytest.mark.parametrize("lost", range(1, 25))
def test_a_line_cut_off_by_a_crash_is_dropped(tmp_path: Path, lost: int) -> None:
    journal = open_journal(tmp_path)
    first, second = journal.order[:2]
    journal.label(first, 3)
    journal.label(second, 5)
    content = journal.path.read_bytes()
    assert content.endswith(b"}\n")
    journal.path.write_bytes(content[:-lost])
    assert journal.given == {first: 3}
    journal.label(second, 7)
    assert open_journal(tmp_path).given == {first: 3, second: 7}


@pytest.mark.parametrize(
    "line", ["x", "3", '{"image": 6, "label": 1}', '{"image": 1, "label": 10}', '{"undo": []}', ""]
)
def test_damaged_lines_are_named(tmp_path: Path, line: str) -> None:
    journal = open_journal(tmp_path)
    journal.label(journal.order[0], 3)
    with open(journal.path, "a") as file:
        file.write(f"{line}\n")
    with pytest.raises(DataError, match=r"ann.labels is damaged: line 3"):
        _ = journal.given


def test_labels_of_other_images_are_refused(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.label(journal.order[0], 3)
    for images, fingerprint in ((6, "g"), (7, "f")):
        with pytest.raises(DataError, match="other images"):
            open_journal(tmp_path, images=images, fingerprint=fingerprint)
    journal.path.write_text("{}\n")
    with pytest.raises(DataError, match="no label file"):
        open_journal(tmp_path)


@pytest.mark.parametrize("name", ["", " ", "../ann", "a/b", "a\\b", ".ann", "a" * 41, "a\0b", "<b>"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a name has"):
        open_journal(tmp_path, name)


def test_a_name_fits_into_a_file_name(tmp_path: Path) -> None:
    label_all(open_journal(tmp_path, "李" * 26), [0] * 6)
    with pytest.raises(ValueError, match="too long for a file name"):
        open_journal(tmp_path, "李" * 27)


def test_names_stay_in_their_folder(tmp_path: Path) -> None:
    for name in ("Zoë", "e.e. cummings", "O'Hara", "李"):
        journal = open_journal(tmp_path / "labels", name)
        journal.label(journal.order[0], 1)
        assert journal.path.parent == tmp_path / "labels"
        assert journal.path.exists()
    assert len(list((tmp_path / "labels").iterdir())) == 4
    assert open_journal(tmp_path / "labels", "Zoe\u0308").given  # the same name, spelled with two characters


@pytest.mark.parametrize("label", [-1, 10, 1.0, True, "1", None])
def test_bad_labels_are_refused(tmp_path: Path, label: Any) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(ValueError, match="a label is a whole number from 0 to 9"):
        journal.label(journal.order[0], label)
    with pytest.raises(ValueError, match="there is no image"):
        journal.label(label if label not in (1.0, "1") else 6, 1)


def test_a_killed_process_loses_no_acknowledged_label(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from holonom.labelling import Journal\n"
        "journal = Journal(Path(sys.argv[1]), 'Ann', 10_000, 'f')\n"
        "for image in journal.order:\n"
        "    journal.label(image, image % 10)\n"
        "    print(image, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in process.stdout.read().splitlines()]
    process.wait()
    given = open_journal(tmp_path, images=10_000).given
    assert len(given) - len(acknowledged) in (0, 1)
    assert {image: image % 10 for image in acknowledged}.items() <= given.items()


# ── several people ───────────────────────────────────────────────────────────────────────────────


def test_people_become_the_references_of_agreement(tmp_path: Path) -> None:
    label_all(open_journal(tmp_path, "Bob"), [1, 2, 3, 4, 5, 6])
    label_all(open_journal(tmp_path, "Ann"), [1, 2, 3, 4, 5, 0])
    unfinished = open_journal(tmp_path, "Cleo")
    unfinished.label(unfinished.order[0], 1)
    people = read_people(tmp_path)
    assert people.names == ("Ann", "Bob")
    assert people.unfinished == ("Cleo",)
    assert people.fingerprint == "f"
    assert people.labels.tolist() == [[1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 6]]
    found = agreement(torch.tensor([[1, 2, 3, 4, 5, 6]]), people.labels)
    assert found.types == ["B", "B", "B", "B", "B", "C"]


def test_tables_are_read_back_equal(tmp_path: Path) -> None:
    people = People(("Ann", "Zoë, the elder"), torch.tensor([[1, 2, 3], [3, 2, 9]]))
    write_csv(people, tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_text(encoding="utf-8").splitlines()[0] == 'image,Ann,"Zoë, the elder"'
    back = read_people(tmp_path / "labels.csv")
    assert back.names == people.names
    assert torch.equal(back.labels, people.labels)


@pytest.mark.parametrize(
    "text", ["", "image\n0\n", "picture,Ann\n0,1\n", "image,Ann\n1,1\n", "image,Ann\n0\n", "image,Ann\n0,10\n",
             "image,Ann\n0,x\n", "image,Ann\n"],
)  # fmt: skip
def test_other_tables_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DataError, match="no table of labels"):
        read_people(tmp_path / "labels.csv")


def test_folders_without_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no labels at"):
        read_people(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no label files"):
        read_people(tmp_path)
    journal = open_journal(tmp_path)
    journal.label(journal.order[0], 1)
    with pytest.raises(DataError, match="Ann did not finish"):
        read_people(tmp_path)
    label_all(journal, [journal.given.get(image, 5) for image in range(6)])
    other = open_journal(tmp_path, "Bob", fingerprint="g")
    other.label(other.order[0], 1)
    with pytest.raises(DataError, match="several sets"):
        read_people(tmp_path)
