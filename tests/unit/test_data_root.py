"""Files are found in the right place, and missing, damaged or swapped ones are refused."""

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from holonom.data import check, find, list_sets
from holonom.data.registry import SETS, DataSet, File, lookup
from holonom.data.root import read, roots
from holonom.errors import DataError

CONTENT = {"one.txt": b"the first\n" * 50, "two.txt": b"the second\n" * 50}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registered set "tiny" of two files, whose roots are all below tmp_path; the one returned is empty."""
    files = tuple(File(n, hashlib.sha256(c).hexdigest(), f"https://example.org/{n}") for n, c in CONTENT.items())
    monkeypatch.setitem(SETS, "tiny", DataSet("tiny", "two texts", "nobody", "tiny", files))
    monkeypatch.setenv("HOLONOM_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "argument"


def put(root: Path, name: str, content: bytes) -> Path:
    path = root / "tiny" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_argument_comes_before_the_variable_before_the_cache(root: Path) -> None:
    variable, cache = root.parent / "variable", root.parent / "cache" / "holonom"
    assert roots(root) == [root, variable, cache]
    assert roots() == [variable, cache]
    for place in (cache, variable, root):
        path = put(place, "one.txt", CONTENT["one.txt"])
        assert find("tiny", "one.txt", root) == path
        assert read("tiny", "one.txt", root) == CONTENT["one.txt"]


def test_without_variables_data_lives_in_the_home_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOLONOM_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert roots() == [tmp_path / ".cache" / "holonom"]
    assert roots("~/mine")[0] == tmp_path / "mine"


def test_a_missing_file_says_what_and_where(root: Path) -> None:
    with pytest.raises(DataError) as caught:
        find("tiny", "two.txt", root)
    message = str(caught.value)
    for part in ("two.txt", str(root / "tiny"), str(root.parent / "variable" / "tiny"), "HOLONOM_DATA"):
        assert part in message
    assert message.endswith("holonom data get tiny")


def test_unknown_names_are_refused(root: Path) -> None:
    with pytest.raises(DataError, match=r"no data set is called 'mnsit'.*mnist"):
        find("mnsit", "x")
    with pytest.raises(DataError, match=r"tiny has no file 'three.txt'; its files are one.txt, two.txt"):
        find("tiny", "three.txt", root)


def test_compressed_files_are_checked_by_content(root: Path) -> None:
    for level in (1, 9):
        put(root, "one.txt.gz", gzip.compress(CONTENT["one.txt"], level))
        assert read("tiny", "one.txt", root) == CONTENT["one.txt"]


def test_damage_of_every_kind_is_refused(root: Path) -> None:
    whole = gzip.compress(CONTENT["one.txt"])
    for broken in (whole[:-9], whole[:-4] + b"abcd", whole[:12] + b"\xff" + whole[13:], b"not gzip", b""):
        path = put(root, "one.txt.gz", broken)
        with pytest.raises(DataError, match=re.escape(str(path))):
            read("tiny", "one.txt", root)
        # An empty file is valid gzip of nothing; every other one cannot even be unpacked.
        if broken:
            with pytest.raises(DataError, match="damaged or unreadable"):
                read("tiny", "one.txt", root, verify=False)
    put(root, "one.txt", CONTENT["one.txt"][:-1])
    with pytest.raises(DataError, match=r"one.txt is not tiny's one.txt: its sha256 is [0-9a-f]{12}….*verify=False"):
        read("tiny", "one.txt", root)
    assert read("tiny", "one.txt", root, verify=False) == CONTENT["one.txt"][:-1]


def test_swapped_files_are_named(root: Path) -> None:
    put(root, "one.txt", CONTENT["two.txt"])
    with pytest.raises(DataError, match=r"one.txt is not tiny's one.txt: it holds tiny/two.txt"):
        read("tiny", "one.txt", root)


def test_check_and_list(root: Path) -> None:
    status = {row.name: row for row in list_sets(root)}["tiny"]
    assert (status.title, status.files, status.present, status.folder) == ("two texts", 2, 0, None)
    good = put(root, "one.txt", CONTENT["one.txt"])
    bad = put(root, "two.txt", b"else")
    status = {row.name: row for row in list_sets(root)}["tiny"]
    assert (status.present, status.folder) == (2, root / "tiny")
    first, second = check("tiny", root)
    assert first == ("one.txt", good, "")
    assert (second.file, second.path) == ("two.txt", bad)
    assert "is not tiny's two.txt" in second.problem
    bad.unlink()
    assert check("tiny", root)[1].path is None
    assert "holonom data get tiny" in check("tiny", root)[1].problem


def test_the_registry_is_sound() -> None:
    files = [file for dataset in SETS.values() for file in dataset.files]
    assert len({file.sha256 for file in files}) == len(files)
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in files)
    assert all(file.url.startswith("https://") for file in files)
    assert all(name == lookup(name).name for name in SETS)
