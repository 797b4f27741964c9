"""The Makefile's test targets: together they run every test, each test once."""

import re
from pathlib import Path

from tests.conftest import TARGETS

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def test_every_marker_is_left_out_by_default_and_has_a_target(request):
    settings = (ROOT / "pyproject.toml").read_text()
    markers = re.findall(r'^    "([a-z]+): ', settings, re.MULTILINE)
    assert set(markers) == TARGETS
    assert f"not ({' or '.join(markers)})" in " ".join(request.config.getini("addopts"))
    targets = re.search(r"^\.PHONY: run test(.*)$", MAKEFILE, re.MULTILINE)[1].split()
    other_environments = ["test-kernels", "test-oldest"]
    assert sorted(targets) == sorted([*(f"test-{marker}" for marker in markers), *other_environments])
    for marker in markers:
        target = re.search(rf"^(?:.* )?test-{marker}(?: .*)?:.*\n\t(.*)$", MAKEFILE, re.MULTILINE)
        assert target[1].endswith((f" -m {marker}", " -m $*"))


def test_the_oldest_torch_runs_files_that_exist():
    files = re.findall(r"tests/\S+\.py", MAKEFILE)
    assert len(files) >= 8
    assert [file for file in files if not (ROOT / file).exists()] == []
