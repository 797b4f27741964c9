"""`make dist`: the wheel and the sdist are complete, and the wheel works in an environment of its own without extras.

    python tests/check_dist.py DIST [PYTHON]

PYTHON has torch and not holonom; without it an environment is made. `python -m build` makes the wheel from the sdist,
so what is found of the wheel holds for both.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BESIDE = ("CHANGELOG.md", "CITATION.cff", "LICENSE", "Makefile", "README.md", "pyproject.toml")
PAGES = ("labelling/page/index.html", "playground/page/index.html", "playground/page/style.css", "report/page.html",
         "report/page.css", "py.typed")  # fmt: skip
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
EXTRAS = (  # command, the extra it must name
    (["list"], "experiments"),
    (["reproduce", "headline"], "experiments"),
    (["play"], "playground"),
    (["label", "."], "playground"),
)


def main(dist: Path, python: Path | None) -> None:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    check_contents(wheel, sdist)
    with tempfile.TemporaryDirectory() as folder:
        if python is None:
            python = environment(Path(folder) / "venv")
        run(python, *PIP, "uninstall", "--yes", "holonom")  # an older build
        run(python, *PIP, "install", str(wheel.resolve()))
        check_installed(python, Path(folder))
    print(f"{wheel.name} and {sdist.name} are complete, and import without extras")


def check_contents(wheel: Path, sdist: Path) -> None:
    """Every file of the package that git knows is in both, and nothing else of it."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "src"], capture_output=True, text=True, check=True)
    package = {name.removeprefix("src/") for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    assert {f"holonom/{name}" for name in PAGES} <= package
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(about).decode()
    held = {name for name in names if name.startswith("holonom/")}
    assert held == package, f"{wheel.name}: {sorted(held ^ package)}"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names), f"{wheel.name} has no licence"
    assert "# holonom" in metadata, f"{wheel.name} has no description"
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers()}
    missing = {*BESIDE, *(f"src/{name}" for name in package)} - files
    assert not missing, f"{sdist.name} lacks {sorted(missing)}"


def environment(folder: Path) -> Path:
    """A fresh environment with torch alone."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    run(python, *PIP, "install", "-c", str(ROOT / "constraints.txt"), "torch")
    return python


def check_installed(python: Path, folder: Path) -> None:
    """It imports, trains, and names the extra that a command needs."""
    assert run(python, "-c", "import holonom; print(holonom.__file__)", cwd=folder).startswith(str(python.parents[1]))
    step = (
        "import torch, holonom; model = holonom.models.mlp([2, 8, 8, 1]); opt = holonom.presets.o_cola_ud(model); "
        "model(torch.ones(4, 2)).sum().backward(); opt.step(); print(max(opt.residuals()) < 1e-6)"
    )
    assert run(python, "-c", step, cwd=folder) == "True"
    assert run(python, "-m", "holonom", "--version", cwd=folder).startswith("holonom ")
    for words, extra in EXTRAS:
        done = subprocess.run([python, "-m", "holonom", *words], capture_output=True, text=True, cwd=folder)
        assert done.returncode == 2, (words, done.stderr)
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.endswith(f"pip install 'holonom[{extra}]'\n"), (words, done.stderr)


def run(python: Path, *words: str, cwd: Path | None = None) -> str:
    """What a program prints; fails with what it wrote to its error stream."""
    done = subprocess.run([python, *words], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]).absolute() if len(sys.argv) > 2 else None)
