"""What experiments share: made once, and by all processes or none."""

from pathlib import Path

import pytest
import torch

from holonom.experiments import ranks
from holonom.experiments.setups.shared.artifacts import Kept


def test_what_one_process_lacks_all_make_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making it may need them all: a process that read its own would leave the others waiting."""
    kept, made = Kept(tmp_path, {"seed": 0}), []

    def make() -> torch.Tensor:
        made.append(0)
        return torch.tensor(float(len(made)))

    assert kept.own("x", make) == kept.own("x", make) == 1
    assert kept.has("x")
    monkeypatch.setattr(ranks, "largest", lambda missing: 1.0)
    assert not kept.has("x")
    assert kept.own("x", make) == 2


def test_another_identity_is_another_place(tmp_path: Path) -> None:
    first, second = (Kept(tmp_path, {"seed": seed}) for seed in (0, 1))
    first.shared("x", lambda: torch.zeros(1))
    assert second.shared("x", lambda: torch.ones(1)) == 1
    assert first.shared("x", lambda: torch.ones(1)) == 0
