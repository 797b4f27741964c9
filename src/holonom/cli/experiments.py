"""``holonom list | reproduce | report``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError
from ..experiments import ranks
from ..experiments.base import SCALES, Experiment, catalogue, find, natural
from . import arguments, output

GROUPS = ("icml", "chapter1", "chapter3", "chapter4", "chapter5", "chapter6")
NEEDED = ("contourpy", "matplotlib", "rich", "scipy", "tqdm")
RESULTS = Path("results")


def add_commands(commands: arguments.Commands) -> None:
    parser = commands.add_parser("list", help="show the experiments")
    parser.set_defaults(command=show)
    arguments.add_data_root(parser)
    _add_reproduce(commands.add_parser("reproduce", help="run experiments, one after another"))
    parser = commands.add_parser("report", help="write DIR/report.html from the results in DIR")
    parser.set_defaults(command=report)
    parser.add_argument("folder", type=Path, nargs="?", default=RESULTS, metavar="DIR", help="default: results")
    parser.add_argument("--markdown", action="store_true", help="print the claims as Markdown tables instead")


def _add_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=reproduce)
    whole_number, add = arguments.whole_number, parser.add_argument
    add("ids", nargs="*", metavar="ID", help="as `holonom list` shows it")
    add("--all", choices=GROUPS, metavar="PART", help=f"every experiment of a part: {', '.join(GROUPS)}")
    add("--scale", choices=SCALES, default="ci",
        help="seconds, minutes, less than published (some have it) or the published size (default: ci)")  # fmt: skip
    add("--plan", action="store_true", help="show steps, runs and estimated time, and start nothing")
    add("--replicas", type=whole_number(1), metavar="R", help="runs of each arm (default: the scale's)")
    add("--device", type=arguments.device, help="cpu, cuda, … (default: the best there is)")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="folder of the run set (default: results)")
    add("--seed", type=whole_number(0), default=0, metavar="S", help="of weights, data, order, noise (default: 0)")
    add("--resume", action="store_true", help="continue an interrupted run; of several, finished ones are kept")
    add("--piece", type=arguments.piece, metavar="K/N",
        help="make every N-th training only, for several machines or short sittings (lm, resnet)")  # fmt: skip
    add("--overwrite", action="store_true", help="replace results that are there")
    add("--tensorboard", action="store_true", help="also log the curves to DIR/ID/tensorboard")
    add("--quiet", action="store_true", help="no progress bars")
    add("--set", type=arguments.setting, action="append", default=[], metavar="NAME=VALUE",
        help="another value for a setting of the scale, e.g. epochs=50; may be repeated")  # fmt: skip
    arguments.add_data_root(parser)


def show(options: argparse.Namespace) -> int:
    from ..data import list_sets

    present = {status.name: status.present == status.files for status in list_sets(options.data)}
    rows = []
    for study in catalogue().values():
        data = ", ".join(f"{name} ({'found' if present[name] else 'missing'})" for name in study.data)
        what = [study.title, study.source, *([f"data: {data}"] if data else [])]
        runs = ", ".join(f"{scale} {study.scales[scale]['replicas']}" for scale in study.scales)
        rows.append((study.id, "\n".join(what), runs))
    output.table(("id", "experiment", "runs by scale"), rows)
    return output.DONE


def reproduce(options: argparse.Namespace) -> int:
    from ..experiments.pieces import WHOLE, Unfinished
    from ..experiments.reproduce import finished, prepare, refuse_overwriting, reproduce
    from ..report.record import NAME, load
    from ..report.terminal import show

    output.require(*NEEDED, extra="experiments")
    if options.tensorboard:
        output.require("tensorboard", extra="tensorboard")
    ranks.start()
    studies, left_out = _checked(options)
    chosen = {
        "scale": options.scale,
        "replicas": options.replicas,
        "device": options.device,
        "seed": options.seed,
        "root": options.data,
        "overrides": dict(options.set),
    }
    piece = options.piece or WHOLE
    if options.plan:
        return _plan(studies, left_out, {**chosen, "piece": piece})
    kept = set()
    for study in studies:
        _, run, settings, _ = prepare(study.id, out=options.out, **chosen)
        if options.resume and len(studies) > 1 and finished(run, settings):
            kept.add(study.id)
        else:
            refuse_overwriting(run.folder, options.resume, options.overwrite)
    for folder in (options.out, *(options.out / study.id for study in studies)):
        if folder == options.out or folder.exists():
            output.require_writable(folder, "give another with --out DIR, or change its permissions")
    if ranks.rank() == 0:
        for id, reason in left_out.items():
            output.say(f"holonom: {id} will not run: {reason.short}")
    for number, study in enumerate(studies, 1):
        if study.id not in kept:
            try:
                reproduce(
                    study.id,
                    **chosen,
                    out=options.out,
                    resume=options.resume,
                    overwrite=options.overwrite,
                    tensorboard=options.tensorboard,
                    quiet=options.quiet,
                    place=f"[{number}/{len(studies)}] " if len(studies) > 1 else "",
                    piece=piece,
                )
            except Unfinished as stopped:
                output.say(f"holonom: {study.id}: {stopped}")
                continue
        if ranks.rank() == 0:
            console, path = output.console(), options.out / study.id / NAME
            if study.id in kept:
                output.say(f"holonom: {study.id} is finished already and kept")
            else:
                show(load(path), console)
            console.print(str(path), style="bold", markup=False, highlight=False, soft_wrap=True)
    written = [path for path in (options.out / study.id / NAME for study in studies) if path.exists()]
    if len(studies) > 1 and written and ranks.rank() == 0:
        _summary(written)
    return _left_out(left_out)


def _plan(studies: list[Experiment], left_out: Mapping[str, Reason], chosen: dict[str, Any]) -> int:
    """Print what the experiments cost; the time is measured on this device."""
    from ..experiments.planning import AT_MOST, EXACT, MORE, TOO_LONG, plan
    from ..experiments.reproduce import device_name
    from ..report.wording import duration

    plans, rows = [], []
    for study in studies:
        output.say(f"holonom: measuring {study.id}")
        one = plan(study.id, **chosen)
        plans.append(one)
        for part in one.parts:
            unit = "" if part.unit == "step" else f" {part.unit}s"
            time = part.bound + duration(part.seconds) if math.isfinite(part.seconds) else "not measured"
            rows.append((study.id, part.title, f"{part.runs}", f"{part.steps:,}{unit}", time))
        if not one.parts:
            rows.append((study.id, "nothing to train", "–", "–", "–"))
        if not one.complete:
            rows.append((study.id, "what follows is not listed: it depends on this", "–", "–", "?"))
    rows += [(id, f"cannot run: {reason.short}", "–", "–", "?") for id, reason in left_out.items()]
    rows.sort(key=lambda row: natural(row[0]))
    output.table(("experiment", "part", "runs", "steps", "time"), rows)
    bounds = {part.bound for one in plans for part in one.parts}
    more = left_out or MORE in bounds or not all(one.complete for one in plans)
    total = duration(sum(one.seconds for one in plans))
    print(
        f"{MORE if more else AT_MOST if AT_MOST in bounds else EXACT}{total} of training on "
        f"{device_name(plans[0].device)}, by a few steps of each kind of training. Test data, lines, contours and "
        "figures come on top."
    )
    if AT_MOST in bounds:
        print("Steps with “at most” are compiled when they run and take less; compiling takes up to a minute a part.")
    if MORE in bounds:
        print(f"Steps with “more than” were given up after {TOO_LONG:g} s: another device suits them better.")
    return _left_out(left_out)


def _left_out(reasons: Mapping[str, Reason]) -> int:
    """Say which experiments did not run and why; returns the exit code."""
    if ranks.rank() == 0:
        for text in _by_reason(reasons):
            output.say(f"holonom: not run: {text}")
    return output.REFUSED if reasons else output.DONE


def _by_reason(reasons: Mapping[str, Reason]) -> list[str]:
    """A sentence for each reason, behind the experiments that have it."""
    ids: dict[str, list[str]] = {}
    for id, reason in reasons.items():
        ids.setdefault(reason.full, []).append(id)
    return [f"{', '.join(some)}: {text}" for text, some in ids.items()]


def _summary(paths: list[Path]) -> None:
    """One line for each of several experiments."""
    from ..report.record import load
    from ..report.wording import duration, size, tally

    records = [load(path) for path in paths]
    rows = [(one.id, size(one), tally(one.claims), duration(one.seconds)) for one in records]
    output.table(("experiment", "size", "claims", "time"), rows)


class Reason(NamedTuple):
    """Why an experiment cannot run: in a table's cell, and with everything that can be done about it."""

    short: str
    full: str


def _checked(options: argparse.Namespace) -> tuple[list[Experiment], dict[str, Reason]]:
    """The requested experiments that can run, and why the others cannot.

    One that is named must be able to run, or the request is refused before the first starts. Of ``--all``, and in a
    plan, which starts nothing, it is left out.
    """
    if options.data is not None and not options.data.is_dir():
        raise output.Refusal(f"--data: there is no folder {options.data}")
    group = [study.id for study in catalogue().values() if options.all in study.groups]
    if not (options.ids or group):
        raise output.Refusal("name the experiments (ID …; `holonom list` shows them) or give --all PART")
    if options.resume and options.overwrite:
        raise output.Refusal("--resume continues a run and --overwrite replaces it: give one of them")
    studies, left_out = [], {}
    for id in dict.fromkeys([*options.ids, *group]):
        try:
            study = find(id)
            if reason := _unfit(study, options) or _without_data(study, options.data):
                left_out[id] = reason
                continue
            study.settings(options.scale, dict(options.set))
            ranks.share(options.replicas or study.scales[options.scale]["replicas"])
        except (KeyError, ValueError) as error:
            raise output.Refusal(error.args[0]) from None
        studies.append(study)
    refused = {} if options.plan and studies else {id: left_out[id] for id in options.ids if id in left_out}
    if refused or not studies:
        raise output.Refusal("\n".join(_by_reason(refused or left_out)))
    return studies, left_out


def _unfit(study: Experiment, options: argparse.Namespace) -> Reason | None:
    """Whether the experiment lacks a scale or pieces, which not every one has."""
    text = ""
    if options.scale not in study.scales:
        text = f"there is no scale {options.scale}; there are {', '.join(study.scales)}"
    elif options.piece and not study.splits:
        text = "it does not run in pieces: leave out --piece"
    return Reason(text, text) if text else None


def _without_data(study: Experiment, folder: Path | None) -> Reason | None:
    """Whether one of its data sets is missing."""
    from ..data import registry, root

    name = ""
    try:
        for name in study.data:
            for file in registry.lookup(name).files:
                root.find(name, file.name, folder)
    except DataError as error:
        return Reason(f"{name} is missing; get it with: holonom data get {name}", str(error))
    return None


def report(options: argparse.Namespace) -> int:
    from ..report import write_report

    if options.markdown:
        from ..report.markdown import write_tables

        print(write_tables(options.folder), end="")
        return output.DONE
    output.require("jinja2", extra="experiments")
    if options.folder.is_dir():
        output.require_writable(options.folder, "change its permissions, or copy it and name the copy")
    page, problems = write_report(options.folder)
    for problem in problems:
        output.say(f"holonom: {problem}")
    print(page)
    return output.DONE
