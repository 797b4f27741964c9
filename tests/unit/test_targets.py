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
    other_machines = ["test-cuda", "test-kernels", "test-oldest"]
    assert sorted(targets) == sorted([*(f"test-{marker}" for marker in markers), *other_machines])
    for marker in markers:
        target = re.search(rf"^(?:.* )?test-{marker}(?: .*)?:.*\n\t(.*)$", MAKEFILE, re.MULTILINE)
        assert target[1].endswith((f" -m {marker}", " -m $*"))


def test_targets_run_files_that_exist():
    files = re.findall(r"tests/\S+\.py", MAKEFILE)
    assert len(files) >= 8
    assert [file for file in files if not list(ROOT.glob(file))] == []


def test_all_files_with_tests_for_a_gpu_are_run_by_its_target():
    named = re.search(r"^CUDA := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)[1]
    run = {file for name in re.findall(r"tests/\S+\.py", named) for file in ROOT.glob(name)}
    needs_one = re.compile(r"skipif\([^)]*not \(?torch\.cuda\.is_available")
    assert run == {file for file in (ROOT / "tests").rglob("test_*.py") if needs_one.search(file.read_text())}
