"""Steps of a constrained AdamW against the bare one, on the parameters of GPT-2 (124M).

    python -m benchmarks.constrain --device cuda --out results/constrain.json

Gradients are in place. Steps follow each other without waiting for the device, as in training. ``host`` is the time of
the calls alone, ``kernels`` (on a GPU) that of the device alone: whichever is longer is what a step takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.profiler import ProfilerActivity, profile

import holonom
from holonom.constraints import Circle, Constraint, Orthogonal, Sphere
from holonom.experiments.reproduce import device_name

from .tensors import Shape, gpt2_shapes

BARE = "AdamW"
TARGETS = {"plain": 1.3, "tangent": 1.8, "angular": 1.8}  # of spheres, as a multiple of the bare step on a GPU


class Weights(nn.Module):
    """Parameters alone: embeddings (the first two), matrices and vectors."""

    def __init__(self, shapes: list[Shape], device: str) -> None:
        super().__init__()
        matrices, vectors = ([shape for shape in shapes if len(shape) == count] for count in (2, 1))
        for kind, own in (("embeddings", matrices[:2]), ("matrices", matrices[2:]), ("vectors", vectors)):
            made = [nn.Parameter(0.02 * torch.randn(shape, device=device)) for shape in own]
            self.register_module(kind, nn.ParameterList(made))


def everywhere(space: Callable[[], Constraint]) -> Callable[[], dict[str, Constraint]]:
    return lambda: {"embeddings.*": space(), "matrices.*": space()}


def hidden_only(space: Callable[[], Constraint]) -> Callable[[], dict[str, Constraint]]:
    return lambda: {"matrices.*": space()}


ARMS: dict[str, tuple[Callable[[], dict[str, Constraint]] | None, str]] = {
    BARE: (None, ""),
    **{
        f"spheres per {per}, {update}": (everywhere(lambda per=per: Sphere("initial", per=per)), update)  # type: ignore[misc]
        for per in ("row", "matrix") for update in ("plain", "tangent", "angular")
    },
    "circles, plain": (everywhere(lambda: Circle(0.1)), "plain"),
    "orthogonal, plain": (hidden_only(lambda: Orthogonal(scale="initial")), "plain"),
    "orthogonal, tangent": (hidden_only(lambda: Orthogonal(scale="initial")), "tangent"),
}  # fmt: skip


def build(arm: str, shapes: list[Shape], device: str) -> Optimizer:
    torch.manual_seed(0)
    model = Weights(shapes, device)
    opt = AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    rules, update = ARMS[arm]
    if rules is not None:
        holonom.constrain(opt, model, rules(), update)
    for p in model.parameters():
        p.grad = 1e-3 * torch.randn_like(p)
    return opt


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def waits(opt: Optimizer, device: str) -> bool:
    """Whether a step waits for the GPU."""
    if device != "cuda":
        return False
    torch.cuda.set_sync_debug_mode("error")
    try:
        opt.step()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def measure(arm: str, shapes: list[Shape], device: str, rounds: int, steps: int) -> dict[str, Any]:
    """Milliseconds of a step: from start to end, of the host's calls, and of kernels; launches and memory."""
    opt = build(arm, shapes, device)
    for _ in range(2):
        opt.step()
    waiting = waits(opt, device)
    times, calls = [], []
    for _ in range(rounds):
        synchronise(device)
        started = time.perf_counter()
        for _ in range(steps):
            opt.step()
        calls.append((time.perf_counter() - started) / steps)
        synchronise(device)
        times.append((time.perf_counter() - started) / steps)
    row = {"arm": arm, "step_ms": 1e3 * statistics.median(times), "host_ms": 1e3 * statistics.median(calls)}
    if device == "cuda":
        row["waits"] = waiting
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            opt.step()
            synchronise(device)
        events = [event for event in found.key_averages() if event.self_device_time_total > 0]
        row["kernels_ms"] = 1e-3 * sum(event.self_device_time_total for event in events)
        row["launches"] = sum(event.count for event in events)
        row["peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="in a round; 40 on a GPU, 2 on a CPU")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS), metavar="ARM")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device; --device cpu measures without one")
    warnings.filterwarnings("ignore", message="weights that did not satisfy")
    shapes = gpt2_shapes(options.layers, options.width)
    steps = options.steps or (40 if options.device == "cuda" else 2)
    rows = []
    for arm in [BARE, *(arm for arm in options.arms if arm != BARE)]:
        row = measure(arm, shapes, options.device, options.rounds, steps)
        row["ratio"] = row["step_ms"] / (rows[0] if rows else row)["step_ms"]
        rows.append(row)
        print(line(row), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "device": device_name(torch.device(options.device)), "torch": torch.__version__, "layers": options.layers,
            "width": options.width, "rows": rows,
        }  # fmt: skip
        options.out.write_text(json.dumps(record, indent=2) + "\n")


def line(row: dict[str, Any]) -> str:
    text = f"{row['arm']:<28} {row['step_ms']:9.3f} ms  {row['ratio']:6.2f} × AdamW; host {row['host_ms']:.3f} ms"
    if "launches" in row:
        text += f", kernels {row['kernels_ms']:.3f} ms, {row['launches']} launches, {row['peak_mib']:.0f} MiB"
        text += ", waits for the GPU" if row["waits"] else ""
    target = TARGETS.get(row["arm"].rpartition(", ")[2]) if row["arm"].startswith("spheres") else None
    return text + (f"  (target {target} ×)" if target else "")


if __name__ == "__main__":
    main()
