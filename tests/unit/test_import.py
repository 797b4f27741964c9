"""Importing the library is cheap: no compiler, no figures, nothing that only experiments need."""

import subprocess
import sys

HEAVY = ("torch._dynamo", "torch._inductor", "matplotlib", "scipy", "rich", "jinja2", "arviz_stats")


def test_importing_brings_nothing_heavy():
    program = f"import sys, torch, holonom; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
