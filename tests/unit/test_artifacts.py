"""The artifact cache: one folder per identity, made once, by all ranks or none."""

import json
from pathlib import Path

import pytest
import torch

from holonom.errors import CheckpointError
from holonom.experiments import ranks
from holonom.experiments.artifacts import ArtifactCache


class Counter:
    """Makes 1, 2, …"""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> torch.Tensor:
        self.made += 1
        return torch.tensor(float(self.made))


@pytest.mark.parametrize("method", ["shared", "per_rank"])
def test_an_artifact_is_made_once_per_identity(tmp_path: Path, method: str) -> None:
    make = Counter()
    first, again, other = (ArtifactCache(tmp_path, {"seed": seed}) for seed in (0, 0, 1))
    values = [getattr(cache, method)("x", make) for cache in (first, again, other, first)]
    assert values == [1, 1, 2, 1]
    assert json.loads((other.folder / "identity.json").read_text()) == {"seed": 1}


def test_the_order_of_an_identity_does_not_matter(tmp_path: Path) -> None:
    one, two = ArtifactCache(tmp_path, {"a": 1, "b": (2, 3)}), ArtifactCache(tmp_path, {"b": (2, 3), "a": 1})
    assert one.folder == two.folder


def test_what_one_rank_lacks_all_make_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making it may need all ranks, so none may read while another makes."""
    cache, make = ArtifactCache(tmp_path, {"seed": 0}), Counter()
    assert cache.per_rank("x", make) == 1
    assert cache.has_per_rank("x")
    monkeypatch.setattr(ranks, "largest", lambda missing: 1.0)
    assert not cache.has_per_rank("x")
    assert cache.per_rank("x", make) == 2


def test_a_fresh_cache_ignores_what_it_did_not_write(tmp_path: Path) -> None:
    ArtifactCache(tmp_path).write("x, 1", torch.ones(1))
    fresh = ArtifactCache(tmp_path, fresh=True)
    assert fresh.read("x, 1") is None
    assert fresh.per_rank("y", Counter()) == 1
    fresh.write("x, 1", torch.zeros(1))
    assert fresh.read("x, 1") == 0
    assert ArtifactCache(tmp_path).read("x, 1") == 0
    fresh.remove("x, 1", "never written")
    assert "x, 1" not in ArtifactCache(tmp_path)


def test_a_damaged_file_is_named_with_a_remedy(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, {"seed": 0}, "delete it to train again")
    cache.shared("x", Counter())
    cache.path("x").write_bytes(b"nothing")
    for read in (lambda: cache.shared("x", Counter()), lambda: cache.read("x")):
        with pytest.raises(
            CheckpointError, match=rf"{cache.folder.name}.x\.pt cannot be read .*; delete it to train again"
        ):
            read()
