"""Time and memory of a step against the number of replicas.

    python -m benchmarks.replicas --device cuda --out results/replicas

Flat as long as the machine has room, linear beyond. The network, data and methods are paper Table 1's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from holonom.experiments.reproduce import device_name

from .ensembles import METHODS, stepper


def measure(method: str, replicas: int, device: str, seconds: float) -> dict[str, Any]:
    """Median seconds of an epoch's step over repeated epochs, and the memory in use at the worst moment."""
    cuda = device == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    run, batches = stepper(method, replicas, device)

    def epoch(number: int) -> float:
        order = batches.order(number)
        if cuda:
            torch.cuda.synchronize()
        started = time.perf_counter()
        run.run(order)
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / len(order)

    for number in range(3):
        epoch(number)
    times, began = [], time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - began < seconds and len(times) < 200):
        times.append(epoch(3 + len(times)))
    memory = torch.cuda.max_memory_allocated() if cuda else None
    return {"method": method, "replicas": replicas, "seconds": statistics.median(times), "bytes": memory}


def draw(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Time of a step and, where it was measured, memory; grey: in proportion to the last point."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    units = {"seconds": (1e-6, "µs a step")}
    if all(row["bytes"] for row in rows):
        units["bytes"] = (2**20, "MiB")
    figure, panels = plt.subplots(1, len(units), figsize=(5.2 * len(units), 4.0), layout="constrained", squeeze=False)
    for panel, (quantity, (unit, label)) in zip(panels[0], units.items(), strict=True):
        for number, method in enumerate(sorted({row["method"] for row in rows}, key=list(METHODS).index)):
            counts = [row["replicas"] for row in rows if row["method"] == method]
            values = [row[quantity] / unit for row in rows if row["method"] == method]
            share = [values[-1] * count / counts[-1] for count in counts]
            panel.loglog(counts, share, color="0.8", lw=1, zorder=0)
            panel.loglog(counts, values, "o-", color=f"C{number}", label=method)
        panel.set(xlabel="replicas", ylabel=label, ylim=(min(r[quantity] for r in rows) / unit / 3, None))
        panel.legend(frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=140)


def earlier(file: Path, circumstances: dict[str, str]) -> list[dict[str, Any]]:
    """What an interrupted run on the same machine has measured."""
    record = json.loads(file.read_text()) if file.exists() else {}
    return record.get("rows", []) if all(record.get(k) == v for k, v in circumstances.items()) else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1024])
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=["SGD", "C-SGLD"])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each point")
    parser.add_argument("--out", type=Path, default=Path("results/replicas"), help="points that are there are kept")
    options = parser.parse_args()
    circumstances = {"device": device_name(torch.device(options.device)), "torch": torch.__version__}
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"replicas-{options.device}.json"
    rows = earlier(file, circumstances)
    for count in options.replicas:
        for method in options.methods:
            if any((row["method"], row["replicas"]) == (method, count) for row in rows):
                continue
            rows.append(measure(method, count, options.device, options.seconds))
            rows.sort(key=lambda row: row["replicas"])
            file.write_text(json.dumps({**circumstances, "rows": rows}, indent=2) + "\n")
            torch.compiler.reset()
    for row in rows:
        memory = f"{row['bytes'] / 2**20:10.1f} MiB" if row["bytes"] else ""
        print(f"{row['method']:>7} {row['replicas']:>6} replicas: {1e6 * row['seconds']:8.1f} µs a step {memory}")
    draw(rows, f"2-500-1 perceptrons, batch 2, {circumstances['device']}", file.with_suffix(".png"))


if __name__ == "__main__":
    main()
