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

from .ensembles import stepper

METHODS = ("SGD", "C-SGLD")


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
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        panel.loglog([r["replicas"] for r in own], [1e6 * r["seconds"] for r in own], "o-", label=f"{method}: step")
        panel.loglog(
            [r["replicas"] for r in own], [1e6 * r["seconds"] / r["replicas"] for r in own], "o:", label="per replica"
        )
    panel.set(xlabel="replicas", ylabel="µs", title=title)
    panel.legend(frameon=False)
    figure.savefig(path, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most", type=int, default=1024, help="largest number of replicas")
    parser.add_argument("--factor", type=int, default=4, help="from one number of replicas to the next")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each point")
    parser.add_argument("--out", type=Path, default=Path("results/replicas"))
    options = parser.parse_args()
    counts = [options.factor**k for k in range(32) if options.factor**k <= options.most]
    name = device_name(torch.device(options.device))
    rows: list[dict[str, Any]] = []
    record = {"device": name, "torch": torch.__version__, "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    for count in counts:
        for method in METHODS:
            rows.append(measure(method, count, options.device, options.seconds))
            print(f"{method:>7} {count:>6} replicas: {1e6 * rows[-1]['seconds']:8.1f} µs a step", flush=True)
            (options.out / f"replicas-{options.device}.json").write_text(json.dumps(record, indent=2) + "\n")
            torch.compiler.reset()
    draw(rows, f"2-500-1 perceptrons, batch 2, {name}", options.out / f"replicas-{options.device}.png")


if __name__ == "__main__":
    main()
