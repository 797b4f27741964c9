"""Downloads are stored only when their content is right, and leave nothing behind otherwise."""

import gzip
import hashlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from holonom.data import check, get
from holonom.data.registry import SETS, DataSet, File
from holonom.errors import DataError

CONTENT = {"one.txt": b"the first\n" * 9000, "two.txt": b"the second\n" * 9000}


def register(monkeypatch: pytest.MonkeyPatch, urls: dict[str, str], member: str = "") -> None:
    files = tuple(
        File(n, hashlib.sha256(c).hexdigest(), urls[n], f"{member}/{n}" if member else "") for n, c in CONTENT.items()
    )
    monkeypatch.setitem(SETS, "tiny", DataSet("tiny", "two texts", "nobody", "tiny", files))


def publish(tmp_path: Path, kind: str) -> dict[str, str]:
    """Write the set as its publisher would; returns the url of each file."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    if kind == "zip":
        with zipfile.ZipFile(home / "tiny.zip", "w") as box:
            for name, content in CONTENT.items():
                box.writestr(f"packed/{name}", content)
    elif kind == "tar.gz":
        with tarfile.open(home / "tiny.tar.gz", "w:gz") as tape:
            for name, content in CONTENT.items():
                entry = tarfile.TarInfo(f"packed/{name}")
                entry.size = len(content)
                tape.addfile(entry, io.BytesIO(content))
    else:
        for name, content in CONTENT.items():
            (home / f"{name}{kind}").write_bytes(gzip.compress(content) if kind else content)
        return {name: (home / f"{name}{kind}").as_uri() for name in CONTENT}
    return dict.fromkeys(CONTENT, (home / f"tiny.{kind}").as_uri())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["", ".gz", "zip", "tar.gz"])
def test_every_kind_of_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    register(monkeypatch, publish(tmp_path, kind), "packed" if kind in ("zip", "tar.gz") else "")
    suffix = ".gz" if kind == ".gz" else ""
    paths = get("tiny", tmp_path / "root", progress=False)
    assert paths == [tmp_path / "root" / "tiny" / f"{name}{suffix}" for name in CONTENT]
    assert names(tmp_path / "root" / "tiny") == [f"{name}{suffix}" for name in CONTENT]
    assert not any(row.problem for row in check("tiny", tmp_path / "root"))


def test_without_an_argument_the_variable_is_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, publish(tmp_path, ""))
    monkeypatch.setenv("HOLONOM_DATA", str(tmp_path / "variable"))
    assert get("tiny", progress=False)[0] == tmp_path / "variable" / "tiny" / "one.txt"


def test_what_is_intact_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = publish(tmp_path, "")
    register(monkeypatch, urls)
    first = get("tiny", tmp_path, progress=False)
    first[1].write_bytes(b"damaged")
    (tmp_path / "home" / "one.txt").unlink()
    assert get("tiny", tmp_path, progress=False) == first
    assert first[1].read_bytes() == CONTENT["two.txt"]


def test_a_damaged_file_of_the_other_kind_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, publish(tmp_path, ".gz"))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "one.txt").write_bytes(b"damaged")
    get("tiny", tmp_path, progress=False)
    assert names(tmp_path / "tiny") == ["one.txt.gz", "two.txt.gz"]


@pytest.mark.parametrize("kind", ["", ".gz", "zip", "tar.gz"])
def test_wrong_content_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    urls = publish(tmp_path, kind)
    register(monkeypatch, urls, "packed" if kind in ("zip", "tar.gz") else "")
    for path in (tmp_path / "home").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=r"one\.txt|tiny\.(zip|tar\.gz)"):
        get("tiny", tmp_path / "root", progress=False)
    assert names(tmp_path / "root" / "tiny") == []


def test_an_archive_without_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("zip", "tar.gz"):
        register(monkeypatch, publish(tmp_path, kind), "elsewhere")
        with pytest.raises(DataError, match=r"lacks elsewhere/one.txt"):
            get("tiny", tmp_path / "root", progress=False)


def test_failed_downloads_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, dict.fromkeys(CONTENT, (tmp_path / "nowhere").as_uri()))
    with pytest.raises(DataError, match=r"nowhere could not be downloaded.*put one.txt, two.txt there by hand"):
        get("tiny", tmp_path, progress=False)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="could not be downloaded"):
        get("tiny", tmp_path / "file", progress=False)
    with pytest.raises(DataError, match="no data set is called 'unknown'"):
        get("unknown", tmp_path)


def test_the_bar_needs_tqdm_and_goes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register(monkeypatch, publish(tmp_path, ""))
    pytest.importorskip("tqdm")
    get("tiny", tmp_path / "with")
    assert "one.txt" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert len(get("tiny", tmp_path / "without")) == 2
    assert capsys.readouterr().err == ""
