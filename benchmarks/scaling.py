"""What constraints send per step on many GPUs: computed from counted collectives and published link speeds.

    python -m benchmarks.scaling              # the table of docs/scaling.md
    python -m benchmarks.scaling --write      # writes it there, and the figure beside it

Nothing here is measured. Collectives and their bytes are those that tests count on two and four processes
(tests/sharding/test_constrain.py compares them with these functions); owners are chosen by the code that training runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holonom._constrain.exchange import owners_of

NODE = 8  # GPUs
NVLINK, NETWORK = 450e9, 50e9  # bytes/s of a GPU in one direction: NVLink 4, and one 400 Gb/s adapter for each GPU
HOP_INSIDE, HOP_OUTSIDE, MESSAGE = 2e-6, 5e-6, 1e-6  # assumed: a hop of a tree, and starting to send to one more GPU
GPUS = (8, 64, 256, 1024)
DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- computed: python -m benchmarks.scaling --write -->", "<!-- end -->"

Shape = tuple[int, int]


class Model(NamedTuple):
    """The hidden matrices of a layer, (out, in), how many layers there are, and embeddings and heads."""

    name: str
    layer: tuple[Shape, ...]
    layers: int
    others: tuple[Shape, ...]

    @property
    def hidden(self) -> list[Shape]:
        return list(self.layer) * self.layers

    @property
    def matrices(self) -> list[Shape]:
        return [*self.hidden, *self.others]


def llama(name: str, width: int, keys: int, inner: int, layers: int) -> Model:
    attention = ((width, width), (keys, width), (keys, width), (width, width))
    return Model(name, (*attention, (inner, width), (inner, width), (width, inner)), layers, ((128_256, width),) * 2)


MODELS = (
    Model("GPT-2", ((2304, 768), (768, 768), (3072, 768), (768, 3072)), 12, ((50_257, 768),)),
    llama("8B", 4096, 1024, 14_336, 32),
    llama("70B", 8192, 1024, 28_672, 80),
)


class Sent(NamedTuple):
    """What a step makes the busiest GPU receive (or send, if that is more), in bytes, and how long that takes."""

    bytes: float
    seconds: float


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────


def sum_bytes(blocks: int, update: str) -> int:
    """The one vector that is summed over ranks: Σw'² in double precision, or Σw², Σw·Δ and ΣΔ², for every block."""
    return blocks * 8 * (1 if update == "plain" else 3)


def exchange_bytes(entries: int, matrices: int, ranks: int, update: str, size: int = 4) -> int:
    """What all ranks together put into the all-to-all there and back: weights, and where they come from, to owners;
    weights, and a flag for each matrix, to all ranks. Parts for oneself are counted."""
    there = entries if update == "plain" else 2 * entries
    return size * (there + entries + ranks * matrices)


def owned(shapes: Sequence[Shape], gpus: int) -> int:
    """The entries of the matrices of the GPU that owns most."""
    load = [0] * gpus
    for (rows, columns), owner in zip(shapes, owners_of([r * c * min(r, c) for r, c in shapes], gpus), strict=True):
        load[owner] += rows * columns
    return max(load)


# ── how long that takes ──────────────────────────────────────────────────────────────────────────


def summed(size: int, gpus: int) -> Sent:
    """An all-reduce of few bytes: up and down a tree."""
    inside, outside = math.log2(min(gpus, NODE)), math.log2(max(1, gpus / NODE))
    speed = NVLINK if gpus <= NODE else NETWORK
    return Sent(2 * size, 2 * (inside * HOP_INSIDE + outside * HOP_OUTSIDE) + 2 * size / speed)


def exchanged(most: float, gpus: int) -> Sent:
    """An all-to-all in which the busiest GPU gets or gives so many bytes, evenly from or to all."""
    away = most * max(0, gpus - NODE) / gpus
    near = most * (min(gpus, NODE) - 1) / gpus
    return Sent(near + away, max(near / NVLINK, away / NETWORK) + (gpus - 1) * MESSAGE)


def gathered(total: float, gpus: int) -> Sent:
    """An all-gather after which every GPU has so many bytes; a node's adapters fetch each of them once."""
    seconds = total * (gpus - 1) / gpus / NVLINK + math.log2(gpus) * HOP_INSIDE
    if gpus > NODE:
        seconds = max(seconds, total * (gpus - NODE) / gpus / NODE / NETWORK) + gpus / NODE * HOP_OUTSIDE
    return Sent(total * (gpus - 1) / gpus, seconds)


def both(*parts: Sent) -> Sent:
    return Sent(sum(part.bytes for part in parts), sum(part.seconds for part in parts))


METHODS = (
    "spheres, rows", "spheres, matrices", "Orthogonal, plain", "Orthogonal, tangent", "Muon, gathered",
    "Muon, all-to-all", "FSDP2 itself",
)  # fmt: skip


def cost(model: Model, method: str, gpus: int) -> Sent:
    """A step under ``fully_shard`` over all GPUs. Weights are float32; Muon's momenta and FSDP2 travel in bfloat16."""
    entries = sum(rows * columns for rows, columns in model.hidden)
    everything = sum(rows * columns for rows, columns in model.matrices)
    if method == "spheres, rows":
        return Sent(0, 0)
    if method == "spheres, matrices":
        return summed(sum_bytes(len(model.matrices), "tangent"), gpus)
    if method == "Muon, gathered":
        return gathered(2 * entries, gpus)
    if method == "FSDP2 itself":
        return both(*(gathered(2 * everything, gpus) for _ in range(3)))
    size, times = (2, 1) if method.startswith("Muon") else (4, 2 if method.endswith("tangent") else 1)
    most = max(owned(model.hidden, gpus), entries / gpus)
    return both(exchanged(size * times * most, gpus), exchanged(size * most, gpus))


# ── table and figure ─────────────────────────────────────────────────────────────────────────────


def table() -> str:
    return "\n".join(_rows())


def _rows() -> Iterator[str]:
    yield "| model | GPUs | " + " | ".join(METHODS) + " |"
    yield "|---" * (len(METHODS) + 2) + "|"
    for model in MODELS:
        for gpus in GPUS:
            found = [_shown(cost(model, method, gpus)) for method in METHODS]
            yield f"| {model.name} | {gpus} | " + " | ".join(found) + " |"


def _shown(sent: Sent) -> str:
    if not sent.bytes:
        return "nothing"
    power = min(3, int(math.log10(max(sent.bytes, 1)) // 3))
    unit = ("B", "kB", "MB", "GB")[power]
    return f"{sent.bytes / 1000**power:.3g} {unit}, {_time(sent.seconds)}"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.2g} µs" if seconds < 99.5e-6 else f"{seconds * 1e3:.2g} ms"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def draw(path: Path) -> None:
    """Seconds of communication per step over the number of GPUs, a panel for each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    panels = figure.subplots(1, len(MODELS), sharey=True)
    counts = [2**n for n in range(3, 11)]
    for axes, model in zip(panels, MODELS, strict=True):
        for method in METHODS[1:]:
            style = "--" if method.startswith("Muon") else ":" if method.startswith("FSDP2") else "-"
            times = [1e3 * cost(model, method, gpus).seconds for gpus in counts]
            axes.loglog(counts, times, style, label=method, base=10)
        axes.set(title=model.name, xlabel="GPUs")
        axes.set_xticks([8, 64, 256, 1024], ["8", "64", "256", "1024"])
        axes.minorticks_off()
    panels[0].set_ylabel("ms per step, computed")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize="small")
    figure.savefig(path, dpi=110)


def written(text: str) -> str:
    """The page with the table as it is now."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END, 1)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/scaling.md, and the figure beside it")
    if parser.parse_args().write:
        page = DOCS / "scaling.md"
        page.write_text(written(page.read_text()))
        draw(DOCS / "scaling.png")
    else:
        print(table())


if __name__ == "__main__":
    main()
