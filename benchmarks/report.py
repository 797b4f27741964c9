"""Rows to tables, JSON and a figure."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from . import peers
from .tensors import Problem

COLOURS = {"holonom": "#2a6f97", "peer": "#b0b7bf", "floor": "#dcc48e", "baseline": "#6c757d"}


@dataclass
class Row:
    """One contender's result; ``status`` is "measured" or says why there is none."""

    section: str
    name: str
    role: str
    status: str = "measured"
    milliseconds: float | None = None
    ratio: float | None = None
    fastest_ratio: float | None = None
    quiet_share: float | None = None
    ratio_quartiles: tuple[float, float] | None = None
    first_step_seconds: float | None = None
    error: float | None = None
    target: float | None = None
    error_limit: float | None = None
    met: bool | None = None
    note: str = ""
    products: float | None = None
    """The step's time in matrix products, where a section times one."""


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "cpu": _cpu_model(),
        "device": torch.cuda.get_device_name() if Problem.device != "cpu" else "cpu",
        "before a step": "a forward and a backward pass" if Problem.training else "another step",
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load_at_start": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "peers": peers.versions(),
    }


def _cpu_model() -> str:
    try:
        listing = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in listing.splitlines() if line.startswith("Model name")]
    return names[0] if names else platform.machine()


def print_section(console: Console, title: str, rows: list[Row]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for heading in ("ms/step", "× SGD", "quartiles", "fastest", "quiet", "first step", "error", "target"):
        table.add_column(heading, justify="right")
    counted = any(row.products for row in rows)
    if counted:
        table.add_column("products", justify="right")
    for row in rows:
        style = {"holonom": "cyan", "baseline": "bold", "floor": "dim"}.get(row.role, "")
        if row.milliseconds is None:
            table.add_row(row.name, row.status, style=style)
            continue
        low, high = row.ratio_quartiles or (1.0, 1.0)
        cells = [
            f"{row.name} ({row.note})" if row.note else row.name,
            f"{row.milliseconds:.3g}",
            f"{row.ratio:.2f}",
            f"{low:.2f}–{high:.2f}",
            f"{row.fastest_ratio:.2f}" if row.fastest_ratio is not None else "",
            f"{row.quiet_share:.0%}" if row.quiet_share is not None else "",
            f"{row.first_step_seconds:.2f} s" if row.first_step_seconds is not None else "",
            f"{row.error:.1e}" if row.error is not None else "",
            _verdict(row),
        ]
        if counted:
            cells.append(f"{row.products:.1f}" if row.products else "")
        table.add_row(*cells, style=style)
    console.print(table)


def _verdict(row: Row) -> str:
    if row.target is None:
        return ""
    limit = f", {row.error_limit:.0e}" if row.error_limit is not None else ""
    verdict = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[row.met]
    return f"≤ {row.target:g}{limit} {verdict}".rstrip()


def write(out: Path, rows: list[Row], facts: dict[str, Any]) -> None:
    """``bench.json`` and ``bench.png`` in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    content = {"machine": facts, "rows": [asdict(row) for row in rows]}
    (out / "bench.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _figure(out / "bench.png", rows)


def _figure(path: Path, rows: list[Row]) -> None:
    """One panel of bars per section, on a logarithmic axis, with targets as ticks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    measured = [row for row in rows if row.ratio is not None and row.role != "baseline"]
    titles = list(dict.fromkeys(row.section for row in measured))
    panels = [[row for row in measured if row.section == title] for title in titles]
    heights = [len(panel) + 1.5 for panel in panels]
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(9, 0.26 * sum(heights) + 0.6), squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for ax, title, panel in zip(axes[:, 0], titles, panels):
        places = range(len(panel))
        ratios = [float(row.ratio or 0.0) for row in panel]
        ax.barh(places, ratios, color=[COLOURS[row.role] for row in panel], height=0.7)
        for y, row, ratio in zip(places, panel, ratios):
            ax.text(ratio, y, f" {ratio:.3g}", va="center", fontsize=7)
            if row.target is not None:
                ax.plot([row.target] * 2, [y - 0.42, y + 0.42], color="#c1121f", linewidth=1.5)
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlim(min(0.5, *ratios) * 0.8, max([*ratios, *(row.target or 0.0 for row in panel)]) * 2)
        ax.axvline(1.0, color="#6c757d", linewidth=0.8)
        ax.set_yticks(list(places), [row.name for row in panel], fontsize=7)
        ax.tick_params(axis="x", labelsize=7)
        ax.invert_yaxis()
        ax.set_title(title, fontsize=9, loc="left")
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("time per step ÷ SGD with momentum (red: target)", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
