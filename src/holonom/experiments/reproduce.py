"""Run an experiment from start to verdict and write its result."""

from __future__ import annotations

import json
import os
import platform
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
    tensorboard: bool = False,
    quiet: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run one experiment and write ``out/id/result.json``; returns what the file holds.

    Args:
        id: of the experiment, as ``holonom list`` shows it.
        scale: "smoke" (seconds), "ci" (about two minutes on two cores) or "paper" (the published size).
        replicas: runs of each arm, instead of the scale's own number.
        device: "cpu", "cuda", …; the best available one by default.
        out: folder of the run set.
        seed: of the replicas' initial weights, data, order and noise.
        root: where the data sets lie.
        resume: continue from the checkpoints an interrupted run left; without it the run starts afresh.
        tensorboard: also write event files to ``out/id/tensorboard``.
        quiet: no progress bars.
        overrides: other values for settings of the scale; the result says which.
    """
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    ranks.start()
    study = find(id)
    overrides = dict(overrides or {})
    settings = study.settings(scale, overrides)
    count = study.scales[scale]["replicas"] if replicas is None else replicas
    if count < 1:
        raise ValueError(f"replicas must be at least 1, got {count}")
    run = Run(id, scale, count, seed, ranks.device(device), Path(out) / id, root, resume, quiet)
    run.folder.mkdir(parents=True, exist_ok=True)
    resumed = checkpoints.prepare(run.folder, _settings(run, settings), resume)
    if not resumed:
        (run.folder / "result.json").unlink(missing_ok=True)
    if tensorboard and ranks.rank() == 0:
        run.log = _writer(run.folder)
    started = time.perf_counter()
    claims = study.body(run, SimpleNamespace(**settings))
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
