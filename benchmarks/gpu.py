"""Steps on a GPU against torch's fused optimizers, on the parameters of three networks.

    python -m benchmarks.gpu --processes 3 --out results/gpu.json

Gradients are in place and the finite check is on. Steps follow each other without waiting for the device, as in
training. ``device`` is the time of the kernels alone; where a step takes longer, the host is what it waits for.
Orthogonal arms constrain all kernels and matrices but embeddings, start on the manifold and take steps that turn
weights by about 0.01; their error is that after 1000 steps, of the first process. Muon moves the same matrices, and SGD
the rest. The first step of a word and a space is also timed by itself, in a process that finds no compiled kernels.

The file is written after every process, and again at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.profiler import ProfilerActivity, profile

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal, Sphere
from holonom.experiments.reproduce import device_name

from .tensors import gpt2_shapes, orthogonality_error, perceptron_shapes, resnet50_shapes

NETWORKS = {
    "MLP": perceptron_shapes(784, 1024, 1024, 10),
    "ResNet-50": resnet50_shapes(),
    "GPT-2": gpt2_shapes(),
}
PEER = "SGD fused"


def langevin(space: Any, temperature: float) -> Callable[[list[nn.Parameter]], Optimizer]:
    """BAOAB of all parameters; on spheres, rows of matrices and kernels, and vectors free."""

    def make(params: list[nn.Parameter]) -> Optimizer:
        groups: Any = params
        constraint = space
        if isinstance(space, Sphere):
            kernels = Sphere(space.radius, view="conv")
            by_kind = {None: lambda p: p.ndim < 2, space: lambda p: p.ndim == 2, kernels: lambda p: p.ndim > 2}
            parts = [([p for p in params if chosen(p)], own) for own, chosen in by_kind.items()]
            groups, constraint = [{"params": own, "constraint": kind} for own, kind in parts if own], None
        return Langevin(groups, 1e-2, constraint=constraint, temperature=temperature, seed=0)

    return make


EMBEDDING = 20_000  # rows of a matrix that is none of the hidden ones
STEPS_OF_ERROR = 1000
Groups = tuple[list[nn.Parameter], list[nn.Parameter]]


def matrices_of(params: list[nn.Parameter]) -> Groups:
    """Hidden matrices and kernels, and everything else: position embeddings are the second parameter of GPT-2."""
    embedded = params[0].shape[0] > EMBEDDING
    hidden = [p for i, p in enumerate(params) if p.ndim > 1 and not (embedded and i < 2)]
    chosen = set(map(id, hidden))
    return hidden, [p for p in params if id(p) not in chosen]


def orthogonal(word: str) -> Callable[[list[nn.Parameter]], Optimizer]:
    def make(params: list[nn.Parameter]) -> Optimizer:
        hidden, rest = matrices_of(params)
        by_rank = {None: [p for p in hidden if p.ndim == 2], "conv": [p for p in hidden if p.ndim == 4]}
        groups: Any = [{"params": own, "constraint": Orthogonal(view)} for view, own in by_rank.items() if own]
        for p in hidden:
            nn.init.orthogonal_(p)
        lr = 0.1 if word == "L" else 0.1**0.5
        return Langevin([*groups, {"params": rest}], lr, scheme=word, seed=0)

    return make


class MuonAndSGD:
    """torch's Muon on matrices and SGD on the rest, as one step."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        hidden, rest = matrices_of(params)
        matrices = [p for p in hidden if p.ndim == 2]  # it takes no others
        self.parts = [torch.optim.Muon(matrices, lr=1e-2), SGD([*rest], 1e-3, momentum=0.9, fused=True)]

    def step(self) -> None:
        for part in self.parts:
            part.step()


ARMS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    PEER: lambda params: SGD(params, 1e-3, momentum=0.9, fused=True),
    "AdamW fused": lambda params: AdamW(params, 1e-3, fused=True),
    **{
        f"{name}, {'τ > 0' if temperature else 'τ = 0'}": langevin(space, temperature)
        for name, space in (("free", None), ("circle", Circle(1.0)), ("sphere", Sphere(30.0)))
        for temperature in (0.0, 1e-6)
    },
    "orthogonal, L": orthogonal("L"),
    "orthogonal, OBA": orthogonal("OBA"),
    "Muon": MuonAndSGD,
}


NOISY = [f"{name}, τ > 0" for name in ("free", "circle", "sphere")]  # their kernels take longest to compile


def start(network: str, arm: str) -> tuple[list[nn.Parameter], Any, float]:
    """Parameters with gradients, their optimizer, and the seconds that its first step took."""
    params = [nn.Parameter(0.02 * torch.randn(shape, device="cuda")) for shape in NETWORKS[network]]
    for p in params:
        p.grad = 1e-3 * torch.randn_like(p)
    optimizer = ARMS[arm](params)
    torch.cuda.synchronize()
    first = time.perf_counter()
    optimizer.step()
    torch.cuda.synchronize()
    return params, optimizer, time.perf_counter() - first


def measure(network: str, arm: str, rounds: int = 5, steps: int = 40, errors: bool = True) -> dict[str, Any]:
    """Milliseconds of a step: from start to end, of the host's calls, and of kernels; and what it needs of memory."""
    params, optimizer, first = start(network, arm)
    for _ in range(steps):
        optimizer.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times, calls = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(steps):
            optimizer.step()
        calls.append((time.perf_counter() - started) / steps)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / steps)
    peak = torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(5):
            optimizer.step()
        torch.cuda.synchronize()
    kernels = sum(event.self_device_time_total for event in found.key_averages()) / 5
    error = {}
    if errors and arm.startswith("orthogonal"):
        for _ in range(STEPS_OF_ERROR - steps * (rounds + 1) - 6):
            optimizer.step()
        error = {"error": orthogonality_error(matrices_of(params)[0])}
    return {
        **error,
        "network": network, "arm": arm, "step_ms": 1e3 * statistics.median(times),
        "host_ms": 1e3 * statistics.median(calls), "device_ms": 1e-3 * kernels, "first_s": first, "peak_bytes": peak,
        "weight_bytes": sum(p.nbytes for p in params),
    }  # fmt: skip


def medians(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of the same rows of several processes; of those that have a number."""
    return [
        {key: statistics.median(row[key] for row in rows if key in row) if isinstance(value, float | int) else value
         for key, value in rows[0].items()}
        for rows in zip(*runs, strict=True)
    ]  # fmt: skip


def in_a_process(file: Path, *arguments: str) -> Any:
    """What this program writes to a file when it is called with these arguments; no kernel is compiled before."""
    with tempfile.TemporaryDirectory() as cache:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu", "--out", str(file), *arguments],
            check=True, env={**os.environ, "TRITON_CACHE_DIR": cache},
        )  # fmt: skip
    found = json.loads(file.read_text())["rows"]
    file.unlink()
    return found


def line(row: dict[str, Any], peer: dict[str, Any]) -> str:
    times, kernels = (row[key] / peer[key] for key in ("step_ms", "device_ms"))
    return (
        f"{row['network']:>10} {row['arm']:<14} {row['step_ms']:7.3f} ms, {times:5.2f} × SGD; host "
        f"{row['host_ms']:.3f}, kernels {row['device_ms']:6.3f} ({kernels:4.2f} ×); first {row['first_s']:5.2f} s, "
        f"memory {row['peak_bytes'] / 2**20:6.1f} MiB ({row['peak_bytes'] / row['weight_bytes']:.1%} of the weights)"
        + (f", max|QᵀQ − I| {row['error']:.1e}" if "error" in row else "")
        + (f", first step on an empty cache {row['first_empty_s']:.1f} s" if "first_empty_s" in row else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=3, help="medians of so many")
    parser.add_argument("--only", choices=list(ARMS), help="one arm on ResNet-50, its first step alone")
    parser.add_argument("--no-errors", action="store_true", help="leave out the 1000 steps of orthogonal arms")
    parser.add_argument("--out", type=Path, default=Path("results/gpu.json"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.gpu needs a CUDA device; python -m benchmarks.run measures on a CPU")
    warnings.filterwarnings("ignore", message="weights that did not satisfy")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"device": device_name(torch.device("cuda")), "torch": torch.__version__, "processes": options.processes}

    def write(rows: list[dict[str, Any]]) -> None:
        options.out.write_text(json.dumps({**record, "rows": rows}, indent=2) + "\n")

    if options.only:
        write([{"first_empty_s": start("ResNet-50", options.only)[2]}])
        return
    rows: list[dict[str, Any]] = []
    if options.processes == 1:
        for network, arm in [(n, a) for n in NETWORKS for a in ARMS if (n, a) != ("ResNet-50", "Muon")]:
            rows.append(measure(network, arm, errors=not options.no_errors))
            print(line(rows[-1], next(row for row in rows if row["network"] == network)), flush=True)
        write(rows)
        return
    part, runs = options.out.with_suffix(".part.json"), []
    for number in range(options.processes):
        print(f"process {number + 1} of {options.processes}", flush=True)
        runs.append(in_a_process(part, "--processes", "1", *(["--no-errors"] if number else [])))
        rows = medians(runs)
        write(rows)
    for row in rows:
        if row["network"] == "ResNet-50" and row["arm"] in NOISY:
            row |= in_a_process(part, "--only", row["arm"])[0]
    write(rows)
    print("medians", flush=True)
    for row in rows:
        print(line(row, next(r for r in rows if r["arm"] == PEER and r["network"] == row["network"])))


if __name__ == "__main__":
    main()
