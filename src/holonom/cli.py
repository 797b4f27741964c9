"""The command line: ``holonom list | reproduce | report | label | data``.

Exit codes: 0 done, whatever the verdicts; 2 something asked for cannot be had; 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from . import __version__, arguments
from .errors import CheckpointError, DataError
from .experiments import ranks
from .experiments.base import SCALES, Experiment, catalogue, find
from .report.record import RecordError

if TYPE_CHECKING:
    from rich.console import Console

NEEDED = ("contourpy", "matplotlib", "rich", "scipy", "tqdm")
RESULTS = Path("results")
DONE, REFUSED, INTERRUPTED = 0, 2, 130


class Refusal(Exception):
    """What was asked for cannot be had; the message says why."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = sys.argv[1:] if words is None else list(words)
    options = _parser().parse_args(words)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except (Refusal, DataError, CheckpointError, RecordError, OSError) as error:
        _say(f"holonom: {error}")
        return REFUSED
    except KeyboardInterrupt:
        if ranks.rank() == 0:
            print(file=sys.stderr)  # behind the terminal's ^C
            _say(f"holonom: interrupted{_way_on(options, words) if command is _reproduce else ''}")
        return INTERRUPTED
    finally:
        ranks.stop()


def _way_on(options: argparse.Namespace, words: list[str]) -> str:
    """How to continue."""
    again = words if options.resume else [*words, "--resume"]
    command = "the same command and --resume" if ranks.size() > 1 else shlex.join(["holonom", *again])
    return f"; continue from the last checkpoint with: {command}"


def _say(text: str) -> None:
    """To the error stream; under torchrun with the name of the process, since any of them may be the one to fail."""
    print(f"[rank {ranks.rank()}] {text}" if ranks.size() > 1 else text, file=sys.stderr)


# ── the words ────────────────────────────────────────────────────────────────────────────────────


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "holonom", description="The papers' figures and tables as runs that end in a verdict."
    )
    parser.add_argument("--version", action="version", version=f"holonom {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="show the experiments")
    listing.set_defaults(command=_list)
    _takes_data(listing)
    _takes_a_run(commands.add_parser("reproduce", help="run experiments, one after another"))
    reporting = commands.add_parser("report", help="write DIR/report.html from the results in DIR")
    reporting.set_defaults(command=_report)
    reporting.add_argument("folder", type=Path, nargs="?", default=RESULTS, metavar="DIR", help="default: results")

    _takes_labels(commands.add_parser("label", help="let people label images on a page of this machine"))

    data = commands.add_parser("data", help="list, fetch and check data sets")
    actions = data.add_subparsers(required=True, metavar="ACTION")
    for name, command, purpose in (
        ("list", _data_list, "show the data sets and where they are"),
        ("get", _data_get, "download a data set from its public home"),
        ("check", _data_check, "compare files with what was published"),
    ):
        action = actions.add_parser(name, help=purpose)
        action.set_defaults(command=command)
        _takes_data(action)
        if name == "get":
            action.add_argument("name", metavar="NAME")
        if name == "check":
            action.add_argument("name", nargs="?", metavar="NAME", help="default: every set that is here")
    return parser


def _takes_a_run(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_reproduce)
    add = parser.add_argument
    add("ids", nargs="+", metavar="ID", help="as `holonom list` shows it")
    add("--scale", choices=SCALES, default="ci", help="seconds, minutes or the published size (default: ci)")
    add("--replicas", type=arguments.whole_number(1), metavar="R", help="runs of each arm (default: the scale's)")
    add("--device", type=arguments.device, help="cpu, cuda, … (default: the best there is)")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="folder of the run set (default: results)")
    add(
        "--seed",
        type=arguments.whole_number(0),
        default=0,
        metavar="S",
        help="of weights, data, order, noise (default: 0)",
    )
    add("--resume", action="store_true", help="continue an interrupted run")
    add("--tensorboard", action="store_true", help="also log the curves to DIR/ID/tensorboard")
    add("--quiet", action="store_true", help="no progress bars")
    add("--set", type=arguments.setting, action="append", default=[], metavar="NAME=VALUE",
        help="another value for a setting of the scale, e.g. epochs=50; may be repeated")  # fmt: skip
    _takes_data(parser)


def _takes_labels(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_label)
    add = parser.add_argument
    add("images", type=Path, metavar="IMAGES", help="an .npz file with an array `images`, or a folder of pictures")
    add("--out", type=Path, metavar="DIR", help="folder of the label files (default: labels, beside the images)")
    add("--labeller", type=arguments.person, metavar="NAME", help="who labels (default: the page asks)")
    add(
        "--port",
        type=arguments.whole_number(0, 65535),
        default=8765,
        metavar="P",
        help="default: 8765; 0 takes a free one",
    )
    add("--export", type=Path, metavar="FILE", help="write the labels as a table (CSV) and stop")


def _takes_data(parser: argparse.ArgumentParser) -> None:
    where = "where data sets lie (default: $HOLONOM_DATA, then the user's cache)"
    parser.add_argument("--data", type=Path, metavar="ROOT", help=where)


# ── experiments ──────────────────────────────────────────────────────────────────────────────────


def _list(options: argparse.Namespace) -> int:
    from .data import list_sets

    present = {status.name: status.present == status.files for status in list_sets(options.data)}
    rows = [
        (
            study.id,
            study.source,
            study.title,
            ", ".join(f"{name} ({'found' if present[name] else 'missing'})" for name in study.data) or "–",
            ", ".join(f"{scale} {study.scales[scale]['replicas']}" for scale in SCALES),
        )
        for study in catalogue().values()
    ]
    _table(("id", "source", "title", "data", "runs by scale"), rows)
    return DONE


def _reproduce(options: argparse.Namespace) -> int:
    from .experiments.reproduce import reproduce
    from .report.record import NAME, load
    from .report.terminal import show

    _require(*NEEDED, extra="experiments")
    if options.tensorboard:
        _require("tensorboard", extra="tensorboard")
    ranks.start()
    for study in _checked(options):
        reproduce(
            study.id,
            scale=options.scale,
            replicas=options.replicas,
            device=options.device,
            out=options.out,
            seed=options.seed,
            root=options.data,
            resume=options.resume,
            tensorboard=options.tensorboard,
            quiet=options.quiet,
            overrides=dict(options.set),
        )
        if ranks.rank() == 0:
            console, path = _console(), options.out / study.id / NAME
            show(load(path), console)
            console.print(str(path), style="bold", markup=False, highlight=False, soft_wrap=True)
    return DONE


def _checked(options: argparse.Namespace) -> list[Experiment]:
    """The experiments asked for, if nothing can be seen to be in the way of any of them."""
    from .data import registry, root

    if options.data is not None and not options.data.is_dir():
        raise Refusal(f"--data: there is no folder {options.data}")
    studies = []
    for id in dict.fromkeys(options.ids):
        try:
            study = find(id)
            ranks.share(options.replicas or study.scales[options.scale]["replicas"])
            study.settings(options.scale, dict(options.set))
        except (KeyError, ValueError) as error:
            raise Refusal(error.args[0]) from None
        for name in study.data:
            for file in registry.lookup(name).files:
                root.find(name, file.name, options.data)
        studies.append(study)
    return studies


def _report(options: argparse.Namespace) -> int:
    from .report import write_report

    _require("jinja2", extra="experiments")
    page, problems = write_report(options.folder)
    for problem in problems:
        _say(f"holonom: {problem}")
    print(page)
    return DONE


def _label(options: argparse.Namespace) -> int:
    from urllib.parse import quote

    from .labelling import load_pictures, make_server, read_people, write_csv

    folder = options.out or options.images.parent / "labels"
    if options.export is not None:
        people = read_people(folder)
        write_csv(people, options.export)
        for name in people.unfinished:
            _say(f"holonom: left out {name}, who has not labelled every image")
        print(options.export)
        return DONE
    with suppress(KeyboardInterrupt), make_server(load_pictures(options.images), folder, options.port) as server:
        print(f"{server.url}#{quote(options.labeller)}" if options.labeller else server.url, flush=True)
        _say(f"holonom: open this address to label; labels go to {folder}; stop with Ctrl-C")
        server.serve_forever()
    return DONE


# ── data ─────────────────────────────────────────────────────────────────────────────────────────


def _data_list(options: argparse.Namespace) -> int:
    from .data import list_sets

    statuses = list_sets(options.data)
    rows = [(s.name, s.title, s.source, f"{s.present} of {s.files}", str(s.folder or "–")) for s in statuses]
    _table(("name", "holds", "source", "files", "folder"), rows)
    return DONE


def _data_get(options: argparse.Namespace) -> int:
    from .data import get

    for path in get(options.name, options.data):
        print(path)
    return DONE


def _data_check(options: argparse.Namespace) -> int:
    """Every file of the set; without a name, of the sets that are here at least in part."""
    from .data import check, list_sets

    names = [options.name] if options.name else [s.name for s in list_sets(options.data) if s.present]
    if not names:
        raise Refusal("no data sets are here; `holonom data list` shows all, `holonom data get NAME` fetches one")
    problems = 0
    for name in names:
        for status in check(name, options.data):
            problems += bool(status.problem)
            print(f"{name}/{status.file}: {status.problem or 'intact'}")
    return REFUSED if problems else DONE


# ── output ───────────────────────────────────────────────────────────────────────────────────────


def _require(*modules: str, extra: str) -> None:
    """Before a long run, not after it."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise Refusal(f"{', '.join(missing)} not installed; this needs: pip install 'holonom[{extra}]'")


def _console() -> Console:
    """As wide as the terminal or $COLUMNS; where there is neither, wide enough for tables."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    _require("rich", extra="experiments")
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    _console().print(table)
