"""Importing the library is cheap, and every public module can be reached from it."""

import subprocess
import sys

import pytest

HEAVY = ("torch._dynamo", "torch._inductor", "matplotlib", "scipy", "rich", "jinja2", "arviz_stats", "holonom.training")
LAZY = ("holonom.batches.Shuffled", "holonom.experiments", "holonom.gan.train_gan", "holonom.labelling.read_people",
        "holonom.report.write_report", "holonom.sampling.sample", "holonom.training.train")  # fmt: skip


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_brings_nothing_heavy():
    program = f"import sys, torch, holonom; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert printed(program) == "[]"


def test_public_modules_are_imported_on_first_use():
    """In a fresh process: here other tests have imported them already."""
    assert printed(f"import holonom; {'; '.join(LAZY)}; print('all found')") == "all found"


def test_an_unknown_name_is_an_attribute_error():
    import holonom

    assert {"labelling", "training", "Langevin"} <= set(dir(holonom))
    with pytest.raises(AttributeError, match=r"'holonom' has no attribute 'labeling'"):
        _ = holonom.labeling
