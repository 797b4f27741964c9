"""Labels of people: files that survive a kill, a server that refuses what is wrong, tables that come back equal."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch

from holonom.cli import main
from holonom.errors import DataError
from holonom.labelling import Journal, People, Pictures, load_pictures, make_server, read_people, write_csv
from holonom.labelling.journal import Conflict, order
from holonom.labelling.pictures import encode
from holonom.labelling.server import Server
from holonom.metrics import agreement

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 5, 7), dtype=np.uint8)


def write_images(folder: Path, images: Any = IMAGES) -> Path:
    np.savez(folder / "images.npz", images=images)
    return folder / "images.npz"


def open_journal(folder: Path, person: str = "Ann", images: int = 6, fingerprint: str = "f") -> Journal:
    return Journal(folder, person, images, fingerprint)


def label_all(journal: Journal, labels: list[int]) -> None:
    for image in journal.order:
        journal.label(image, labels[image])


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
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images"):
        load_pictures(tmp_path / "empty")


# ── one person's file ────────────────────────────────────────────────────────────────────────────


def test_everyone_has_an_order_of_their_own() -> None:
    orders = [order(name, 165) for name in ("Ann", "Bob", "Cleo")]
    assert all(sorted(one) == list(range(165)) for one in orders)
    assert len({tuple(one) for one in orders}) == 3
    assert order("ANN", 165) == orders[0]


def test_labels_are_there_when_the_person_comes_back(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    first, second, third = journal.order[:3]
    assert not list(tmp_path.iterdir())  # whoever labelled nothing leaves nothing
    journal.label(first, 3)
    journal.label(second, 0)
    journal.undo(second)
    journal.label(second, 9)
    back = open_journal(tmp_path, " ann ")
    assert list(back.given.items()) == [(first, 3), (second, 9)]
    assert back.next(back.given) == third


def test_asking_twice_is_asking_once(tmp_path: Path) -> None:
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
def test_damage_is_named(tmp_path: Path, line: str) -> None:
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
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
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
def test_labels_that_are_none(tmp_path: Path, label: Any) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(ValueError, match="a label is a whole number from 0 to 9"):
        journal.label(journal.order[0], label)
    with pytest.raises(ValueError, match="there is no image"):
        journal.label(label if label not in (1.0, "1") else 6, 1)


def test_a_killed_process_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from holonom.labelling import Journal\n"
        "journal = Journal(Path(sys.argv[1]), 'Ann', 10_000, 'f')\n"
        "for image in journal.order:\n"
        "    journal.label(image, image % 10)\n"
        "    print(image, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    answered = [int(process.stdout.readline()) for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    answered += [int(line) for line in process.stdout.read().splitlines()]
    process.wait()
    given = open_journal(tmp_path, images=10_000).given
    assert len(given) - len(answered) in (0, 1)
    assert {image: image % 10 for image in answered}.items() <= given.items()


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


def test_tables_come_back_equal(tmp_path: Path) -> None:
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


# ── the server ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with make_server(load_pictures(write_images(tmp_path)), tmp_path / "labels") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def send(
    server: Server, path: str, body: Any = None, *, headers: dict[str, str] | None = None, token: str | None = None
) -> tuple[int, Any]:
    """Status and content of one request to a path behind the token; a body is posted, as JSON unless it is bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(
        "GET" if body is None else "POST",
        f"/{server.task.token if token is None else token}/{path}",
        content,
        {"Content-Type": "application/json", **(headers or {})},
    )
    answer = connection.getresponse()
    read = answer.read()
    kind = answer.headers.get_content_type()
    connection.close()
    return answer.status, json.loads(read) if kind == "application/json" else read


def test_a_session(server: Server, tmp_path: Path) -> None:
    images = order("Zoë", 6)
    status, state = send(server, f"state?person={quote('Zoë')}")
    assert status == 200
    assert state == {"person": "Zoë", "total": 6, "done": 0, "image": images[0], "last": None}
    assert send(server, f"image/{images[0]}") == (200, encode(IMAGES[images[0]]))
    status, state = send(server, "label", {"person": "Zoë", "image": images[0], "label": 7})
    assert (status, state["done"], state["image"], state["last"]) == (
        200,
        1,
        images[1],
        {"image": images[0], "label": 7},
    )
    status, state = send(server, "undo", {"person": "zoë", "image": images[0]})
    assert (status, state["done"], state["image"], state["last"]) == (200, 0, images[0], None)
    for image in images:
        status, state = send(server, "label", {"person": "Zoë", "image": image, "label": image})
    assert (state["done"], state["image"]) == (6, None)
    assert read_people(tmp_path / "labels").labels.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_the_page_and_its_parts(server: Server) -> None:
    for name, start in (("", b"<!doctype html>"), ("page.css", b":root"), ("page.js", b"//")):
        status, content = send(server, name)
        assert status == 200
        assert content.startswith(start)
        assert b"http" not in content  # nothing from elsewhere


FIRST = order("Ann", 6)[0]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("label", {"person": "Ann", "image": FIRST, "label": 10}, 400, "0 to 9"),
        ("label", {"person": "Ann", "image": FIRST, "label": "3"}, 400, "0 to 9"),
        ("label", {"person": "Ann", "image": FIRST}, 400, "0 to 9"),
        ("label", {"person": "Ann", "image": 6, "label": 3}, 400, "there is no image 6"),
        ("label", {"person": "Ann", "image": [1], "label": 3}, 400, "there is no image"),
        ("label", {"person": "../ann", "image": FIRST, "label": 3}, 400, "a name has"),
        ("label", {"image": FIRST, "label": 3}, 400, "say who"),
        ("label", {"person": "Ann", "image": (FIRST + 1) % 6, "label": 3}, 409, "not the one to label now"),
        ("label", b"{", 400, "not JSON"),
        ("label", b"[" * 1900, 400, "not JSON"),
        ("label", [1], 400, "object"),
        ("label", b"x" * 2001, 413, "at most"),
        ("state", {"person": "Ann"}, 404, "no such page"),
        ("state", None, 400, "say who"),
        ("image/6", None, 404, "no image 6"),
        ("image/-1", None, 404, "no such page"),
        ("image/../token", None, 404, "no such page"),
        ("../labels/token", None, 404, "no such page"),
        ("%2e%2e/token", None, 404, "no such page"),
        ("token", None, 404, "no such page"),
        ("page.html", None, 404, "no such page"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused(
    server: Server, tmp_path: Path, path: str, body: Any, status: int, message: str
) -> None:
    found, answer = send(server, path, body)
    assert found == status
    assert message in answer["error"]
    assert os.listdir(tmp_path / "labels") == ["token"]


def test_only_whoever_has_the_address_gets_in(server: Server) -> None:
    for token in ("", "x" * 32, server.task.token[:-1], server.task.token.upper() + "x", "%00", ".."):
        for path, body in (("", None), ("state?person=Ann", None), ("label", {"person": "Ann"})):
            assert send(server, path, body, token=token)[0] == 403
    assert send(server, "", headers={"Host": "elsewhere.example"})[0] == 403
    assert send(server, "label", b"person=Ann", headers={"Content-Type": "text/plain"})[0] == 415
    assert send(server, "label", b"{}", headers={"Content-Length": "many"})[0] == 411
    assert server.server_address[0] == "127.0.0.1"
    assert (server.task.folder / "token").stat().st_mode & 0o077 == 0


def test_the_address_stays_when_the_server_is_started_again(tmp_path: Path) -> None:
    pictures = Pictures((b"",), ("image/png",), "f")
    with make_server(pictures, tmp_path) as first:
        url, port = first.url, first.server_address[1]
        with pytest.raises(OSError, match=f"port {port} .* choose another"):
            make_server(pictures, tmp_path, port)
    with make_server(pictures, tmp_path, port) as second:
        assert second.url == url
    (tmp_path / "token").write_text("../x")
    with pytest.raises(DataError, match="token is damaged"):
        make_server(pictures, tmp_path)


def test_damaged_labels_are_said_to_be(server: Server, tmp_path: Path) -> None:
    (tmp_path / "labels" / "ann.labels").write_text("nothing\n")
    status, answer = send(server, "state?person=Ann")
    assert status == 500
    assert "damaged" in answer["error"]


# ── the command ──────────────────────────────────────────────────────────────────────────────────


def test_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_images(tmp_path)
    fingerprint = load_pictures(images).fingerprint
    label_all(open_journal(tmp_path / "labels", "Ann", fingerprint=fingerprint), [5, 4, 3, 2, 1, 0])
    unfinished = open_journal(tmp_path / "labels", "Bob", fingerprint=fingerprint)
    unfinished.label(unfinished.order[0], 1)
    assert main(["label", str(images), "--export", str(tmp_path / "labels.csv")]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'labels.csv'}\n"
    assert "left out Bob" in said.err
    assert read_people(tmp_path / "labels.csv").labels.tolist() == [[5, 4, 3, 2, 1, 0]]


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["label", str(tmp_path / "nothing.npz")]) == 2
    assert "there are no images" in capsys.readouterr().err
    assert main(["label", str(write_images(tmp_path)), "--export", str(tmp_path / "out.csv")]) == 2
    assert "there are no labels" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["label", str(tmp_path), "--labeller", "../ann"])
    assert "a name has" in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holonom", "label", str(write_images(tmp_path)), "--port", "0",
               "--labeller", "Ann Lee"]  # fmt: skip
    # A background job of a shell ignores SIGINT, and its children inherit that.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    try:
        assert process.stdout is not None
        url = process.stdout.readline()
        token = (tmp_path / "labels" / "token").read_text().strip()
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith(f"/{token}/#Ann%20Lee\n")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in said
