"""Every study at its smallest size: it ends in claims, tables and figures. Studies are discovered, not listed.

Studies with data that is not here, or slow to read, run on made-up data; all share the caches of one run set.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holonom.data import Corpus, Sentences
from holonom.errors import DataError
from holonom.experiments import base, studies
from holonom.experiments.reproduce import reproduce
from holonom.experiments.setups.cifar import training
from holonom.experiments.setups.constrained import pictures
from holonom.experiments.setups.people import classifiers
from holonom.experiments.setups.transfer import text
from holonom.experiments.verdicts import HOLDS

from ..random_images import image_set
from .small import bars_as_digits, check_smoke, need_data, small_run

# One of each kind of setup, and what `make run` starts.
REPRESENTATIVE = {"cor4.2", "fig1", "fig3.4", "fig5.10", "fig6", "headline", "lm", "table5.1", "table6.7"}
EXACT = {"fig1.9", "fig1.11", "fig1.12", "fig1.13", "fig1.14"}  # nothing random: every claim holds at every scale
MIXED = {"fig1.10", "headline"}  # some claims without sampling error


@pytest.fixture(scope="module")
def run_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(autouse=True)
def made_up_data(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"w{i}" for i in range(40)]
    vocabulary = ["<eos>", "<unk>", *words]
    tokens = torch.randint(len(vocabulary), (2000,), generator=torch.Generator().manual_seed(0))
    phrases = [" ".join(words[i % 37 : i % 37 + 3]) for i in range(64)]
    labels = torch.arange(64) % 2
    monkeypatch.setattr(text, "wikitext2", lambda root: Corpus(tokens, tokens, tokens, vocabulary))
    monkeypatch.setattr(text, "sst2", lambda root: Sentences(phrases, labels, phrases, labels))
    monkeypatch.setattr(training, "cifar10", lambda root: image_set(64, 32))
    monkeypatch.setattr(pictures, "cifar10", lambda root: image_set(64, 32))
    monkeypatch.setattr(classifiers, "mnist", lambda root: bars_as_digits())


def cases() -> Iterator[Any]:
    for id in base.catalogue():
        yield pytest.param(id, marks=() if id in REPRESENTATIVE | EXACT else pytest.mark.studies)


@pytest.mark.parametrize("id", list(cases()))
def test_smoke(id: str, run_set: Path) -> None:
    try:
        result = check_smoke(id, run_set)
    except DataError:
        need_data(id)
        raise
    if id in EXACT:
        study = base.find(id)
        claims = study.body(small_run(run_set / id), SimpleNamespace(**study.settings("smoke", {})))
        assert {claim.verdict for claim in claims} == {HOLDS}
    assert all(claim["exact"] == id.startswith("fig1.") or id in MIXED for claim in result["claims"])


def test_a_resumed_study_reads_its_checkpoints(run_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = check_smoke("table5.1", run_set)
    monkeypatch.setattr(text, "pretrain", lambda *_: pytest.fail("the body is in the cache"))
    again = reproduce("table5.1", scale="smoke", device="cpu", out=run_set, resume=True, quiet=True)
    assert again["resumed"]
    assert again["tables"] == first["tables"]


def test_a_copy_of_the_template_is_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One new file is enough: it is listed and it runs. The template itself is not listed."""
    assert "template" not in base.catalogue()
    source = Path(studies.__path__[0]) / "_template.py"
    (tmp_path / "fig99.py").write_text(source.read_text(encoding="utf-8").replace('"template"', '"fig99"'), "utf-8")
    monkeypatch.setattr(studies, "__path__", [*studies.__path__, str(tmp_path)])
    monkeypatch.setattr(base, "_registered", dict(base._registered))
    monkeypatch.delitem(sys.modules, f"{studies.__name__}.fig99", raising=False)
    check_smoke("fig99", tmp_path / "out")
    assert "template" not in base.catalogue()
    (tmp_path / "fig98.py").write_text(source.read_text(encoding="utf-8").replace('"template"', '"fig99"'), "utf-8")
    with pytest.raises(ValueError, match=r"fig99 is registered in .*studies\.fig99 already"):
        base.catalogue()


def test_every_kind_of_setup_has_a_study_in_the_default_tests() -> None:
    def used(ids: Iterable[str]) -> set[str]:
        texts = [Path(inspect.getfile(base.find(id).body)).read_text(encoding="utf-8") for id in ids]
        return {folder for text in texts for folder in re.findall(r"setups(?:\.| import )([a-z_]+)", text)}

    assert used(REPRESENTATIVE | EXACT) == used(base.catalogue())


def test_settings_of_all_scales_have_the_same_names() -> None:
    for id, study in base.catalogue().items():
        assert len({frozenset(scale) for scale in study.scales.values()}) == 1, id
