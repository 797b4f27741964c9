"""Measure everything.

python -m benchmarks.run [--only SECTION] [--targets] [--back-to-back] [--device cuda] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from .report import Row, machine, print_section, write
from .sections import SECTIONS, Section
from .tensors import Problem
from .timing import Contender, Effort, Measurement, MissingPeer, Timed, UnsuitedPeer, interleave

QUICK = Effort(block_seconds=1e-3, most_steps=3, most_rounds=2, least_rounds=2, seconds=0.01, patience=1)


def measure(section: Section, quick: bool) -> list[Row]:
    """Build, warm up and time the contenders of a section; one that cannot run says so in its row."""
    effort = QUICK if quick else section.effort
    baseline = Timed(section.baseline.build(), effort)
    rows, built = [], []
    for contender in section.contenders:
        row = Row(section.title, contender.name, contender.role, target=contender.target)
        row.error_limit = contender.error_limit
        rows.append(row)
        try:
            built.append((contender, row, Timed(contender.build(), effort)))
        except MissingPeer:
            row.status = "not installed"
        except UnsuitedPeer as reason:
            row.status = f"left out: {reason}"
        except Exception as error:  # a peer's failure is a result too
            row.status = f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    measurements = interleave(baseline, [timed for _, _, timed in built], effort)
    for (contender, row, timed), measurement in zip(built, measurements):
        _fill(row, contender, timed, measurement, quick)
    _count_products(rows)
    first = Row(section.title, section.baseline.name, "baseline", ratio=1.0, ratio_quartiles=(1.0, 1.0))
    if measurements:
        first.milliseconds = 1e3 * Measurement(rounds=[r for m in measurements for r in m.rounds]).baseline_seconds
    return [first, *rows]


def _fill(row: Row, contender: Contender, timed: Timed, measurement: Measurement, quick: bool) -> None:
    row.milliseconds = 1e3 * measurement.seconds
    row.ratio = measurement.ratio
    row.fastest_ratio = measurement.fastest_ratio
    row.quiet_share = measurement.quiet_share
    row.ratio_quartiles = measurement.ratio_quartiles
    row.first_step_seconds = measurement.first_step
    row.error = timed.runnable.error()
    row.note = timed.runnable.note()
    if contender.target is None or quick or Problem.device != "cpu":
        return
    if not measurement.trusted:
        row.note = "; ".join(filter(None, (row.note, "machine too busy to judge")))
        return
    accurate = contender.error_limit is None or (row.error is not None and row.error <= contender.error_limit)
    row.met = row.ratio <= contender.target and accurate


def _count_products(rows: list[Row]) -> None:
    unit = next((row.milliseconds for row in rows if row.name.endswith("product")), None)
    for row in rows:
        if unit and row.milliseconds:
            row.products = row.milliseconds / unit


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="Measure everything.")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run, not how fast")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a section; may be repeated")
    parser.add_argument("--targets", action="store_true", help="only what has a target: no peers, a few minutes")
    parser.add_argument("--threads", type=int, help="torch's threads (default: as torch chooses)")
    parser.add_argument("--device", default="cpu", help="where the weights of circle … guard live (targets: cpu)")
    parser.add_argument(
        "--back-to-back", action="store_true", help="steps alone, without a forward and a backward pass before each"
    )
    options = parser.parse_args(arguments)

    Problem.device, Problem.training = options.device, not options.back_to_back
    if options.threads:
        torch.set_num_threads(options.threads)
    elif options.quick:
        torch.set_num_threads(1)  # tiny products gain nothing from a second thread and may wait long for it
    console = Console(width=max(Console().width, 130))  # a narrow terminal would fold every name
    facts = machine()
    console.print(", ".join(f"{key} {value}" for key, value in facts.items()))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # empty, so that first steps show what compiling costs
        for name in options.only or SECTIONS:
            for section in SECTIONS[name](options.quick):
                if options.targets:
                    section.contenders = [c for c in section.contenders if c.target is not None]
                    if not section.contenders:
                        continue
                section_rows = measure(section, options.quick)
                print_section(console, section.title, section_rows)
                rows += section_rows
                write(options.out, rows, facts)  # now: sections take minutes, and a run may not reach its end
                if not options.quick:
                    torch.compiler.reset()  # compiled code of one section must not be looked through by the next
    console.print(f"written to {options.out}/bench.json and bench.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
