"""Run an experiment from start to verdict and write its result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from .._torch import release
from . import checkpoints, ranks
from .artifacts import write_text
from .base import SCALES, Experiment, find
from .pieces import WHOLE, Piece
from .run import Run


def reproduce(
    id: str,
    *,
    scale: str = "ci",
    replicas: int | None = None,
    device: str | None = None,
    out: Path = Path("results"),
    seed: int = 0,
    root: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: bool = False,
    quiet: bool = False,
    overrides: Mapping[str, Any] | None = None,
    place: str = "",
    piece: Piece = WHOLE,
) -> dict[str, Any]:
    """Run one experiment and write ``out/id/result.json``; returns what the file holds.

    Args:
        id: of the experiment, as ``holonom list`` shows it.
        scale: "smoke" (seconds), "ci" (about two minutes on two cores), "paper" (the published size) or, where an
            experiment has it, "large" (less than that). Nothing is judged at smoke scale.
        replicas: runs of each arm, instead of the scale's own number.
        device: "cpu", "cuda", …; the best available one by default.
        out: folder of the run set.
        seed: of the replicas' initial weights, data, order and noise.
        root: where the data sets lie.
        resume: continue from the checkpoints that an interrupted run left.
        overwrite: replace what lies in ``out/id``; without this or ``resume`` a run that is there is refused.
        tensorboard: also write event files to ``out/id/tensorboard``.
        quiet: no progress bars.
        overrides: other values for settings of the scale; the result says which.
        place: of this experiment among several, shown in progress bars.
        piece: of an experiment that ``splits``: which trainings are made here. The result is written by whichever
            piece finds those of all others.

    Raises:
        Unfinished: if some of the others' are not there.
    """
    study, run, settings, overrides = prepare(id, scale, replicas, device, Path(out), seed, root, overrides)
    run.resume, run.quiet, run.place, run.piece = resume, quiet, place, piece
    if piece != WHOLE and not study.splits:
        raise ValueError(f"{id} does not run in pieces")
    refuse_overwriting(run.folder, resume, overwrite)
    ranks.wait()  # no rank may write before all have looked
    run.folder.mkdir(parents=True, exist_ok=True)
    resumed = checkpoints.prepare(run.folder, _settings(run, settings), resume)
    if not resumed:
        (run.folder / "result.json").unlink(missing_ok=True)
    if tensorboard and ranks.rank() == 0:
        run.log = _writer(run.folder)
    started = time.perf_counter()
    claims = study.body(run, SimpleNamespace(**settings))
    if scale == "smoke":
        claims = [claim.unjudged() for claim in claims]
    record = {
        **_identity(study, run, settings, overrides),
        "seconds": round(time.perf_counter() - started, 1),
        "training_seconds": run.seconds,
        "resumed": resumed,
        "claims": [claim.as_json() for claim in claims],
        "tables": run.tables,
        "figures": run.figures,
        "notes": run.notes,
    }
    if run.log is not None:
        run.log.close()
    if ranks.rank() == 0:
        text = json.dumps(record, indent=2, ensure_ascii=False, default=_plain)
        write_text(text + "\n", run.folder / "result.json")
    return record


def prepare(
    id: str,
    scale: str,
    replicas: int | None,
    device: str | None,
    out: Path,
    seed: int,
    root: Path | None,
    overrides: Mapping[str, Any] | None,
) -> tuple[Experiment, Run, dict[str, Any], dict[str, Any]]:
    """The experiment, its run, its settings and which of them are not the scale's own."""
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    ranks.start()
    study = find(id)
    changed = dict(overrides or {})
    settings = study.settings(scale, changed)
    count = study.scales[scale]["replicas"] if replicas is None else replicas
    if count < 1:
        raise ValueError(f"replicas must be at least 1, got {count}")
    return study, Run(id, scale, count, seed, ranks.device(device), out / id, root), settings, changed


def refuse_overwriting(folder: Path, resume: bool, overwrite: bool) -> None:
    """Raises if a run lies in the folder that would be lost."""
    result, started = folder / "result.json", folder / checkpoints.FOLDER / checkpoints.NAME
    if overwrite or not (result.exists() or started.exists()) or (resume and started.exists()):
        return
    what = result if result.exists() else started.parent
    ways = "--overwrite to replace it" if resume else "--resume to continue that run, --overwrite to replace it"
    why = "is there, without checkpoints to resume" if resume else "is there already"
    raise FileExistsError(f"{what} {why}: give {ways}, or another --out")


def finished(run: Run, settings: dict[str, Any]) -> bool:
    """Whether the folder holds the result of this very run."""
    try:
        record = json.loads((run.folder / "result.json").read_text(encoding="utf-8"))
        found = {name: record[name] for name in ("id", "scale", "replicas", "seed", "settings")}
        version = record["versions"]["holonom"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    wanted = json.loads(json.dumps(_settings(run, settings), default=_plain))
    return version == wanted["holonom"] and all(found[name] == wanted[name] for name in found)


def _settings(run: Run, settings: dict[str, Any]) -> dict[str, Any]:
    """Everything that the numbers depend on."""
    from .. import __version__

    return {
        "id": run.id,
        "scale": run.scale,
        "replicas": run.replicas,
        "seed": run.seed,
        "settings": settings,
        "device": run.device.type,
        "processes": ranks.size(),
        "holonom": __version__,
    }


def _identity(study: Experiment, run: Run, settings: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    from .. import __version__

    return {
        "id": study.id,
        "title": study.title,
        "source": study.source,
        "says": study.says,
        "scale": run.scale,
        "replicas": run.replicas,
        "seed": run.seed,
        "device": device_name(run.device),
        "settings": settings,
        "command": _command(study.id, run, overrides),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": {
            "holonom": __version__,
            "torch": release,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "hardware": f"{device_name(run.device)}; {ranks.size()} process(es), {os.cpu_count()} cores",
    }


def _command(id: str, run: Run, overrides: dict[str, Any]) -> str:
    """The shell command that repeats this result."""
    command = f"holonom reproduce {id} --scale {run.scale} --seed {run.seed} --replicas {run.replicas}"
    command += f" --device {run.device.type}"
    command += "".join(f" --set '{name}={value!r}'" for name, value in overrides.items())
    return f"torchrun --nproc-per-node {ranks.size()} -m {command}" if ranks.size() > 1 else command


def commit() -> str:
    """The revision of the source this package runs from, with a + if it was changed; else the package's version."""
    from .. import __version__

    package = Path(__file__).resolve().parents[1]

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(package), *words], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # not some other repository around an installed package
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return f"holonom {__version__}"


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def _writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"))  # type: ignore[no-untyped-call]


def _plain(value: Any) -> Any:
    """NumPy's and torch's numbers as plain ones, for JSON."""
    if isinstance(value, (np.generic, torch.Tensor)) or hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written to result.json")
