"""``holonom list | reproduce | report``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..experiments import ranks
from ..experiments.base import SCALES, Experiment, catalogue, find
from . import arguments, output

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


def _add_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=reproduce)
    whole_number, add = arguments.whole_number, parser.add_argument
    add("ids", nargs="+", metavar="ID", help="as `holonom list` shows it")
    add("--scale", choices=SCALES, default="ci", help="seconds, minutes or the published size (default: ci)")
    add("--replicas", type=whole_number(1), metavar="R", help="runs of each arm (default: the scale's)")
    add("--device", type=arguments.device, help="cpu, cuda, … (default: the best there is)")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="folder of the run set (default: results)")
    add("--seed", type=whole_number(0), default=0, metavar="S", help="of weights, data, order, noise (default: 0)")
    add("--resume", action="store_true", help="continue an interrupted run")
    add("--tensorboard", action="store_true", help="also log the curves to DIR/ID/tensorboard")
    add("--quiet", action="store_true", help="no progress bars")
    add("--set", type=arguments.setting, action="append", default=[], metavar="NAME=VALUE",
        help="another value for a setting of the scale, e.g. epochs=50; may be repeated")  # fmt: skip
    arguments.add_data_root(parser)


def show(options: argparse.Namespace) -> int:
    from ..data import list_sets

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
    output.table(("id", "source", "title", "data", "runs by scale"), rows)
    return output.DONE


def reproduce(options: argparse.Namespace) -> int:
    from ..experiments.reproduce import reproduce
    from ..report.record import NAME, load
    from ..report.terminal import show

    output.require(*NEEDED, extra="experiments")
    if options.tensorboard:
        output.require("tensorboard", extra="tensorboard")
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
            console, path = output.console(), options.out / study.id / NAME
            show(load(path), console)
            console.print(str(path), style="bold", markup=False, highlight=False, soft_wrap=True)
    return output.DONE


def _checked(options: argparse.Namespace) -> list[Experiment]:
    """The requested experiments; refuses before the first one starts if any of them cannot run."""
    from ..data import registry, root

    if options.data is not None and not options.data.is_dir():
        raise output.Refusal(f"--data: there is no folder {options.data}")
    studies = []
    for id in dict.fromkeys(options.ids):
        try:
            study = find(id)
            ranks.share(options.replicas or study.scales[options.scale]["replicas"])
            study.settings(options.scale, dict(options.set))
        except (KeyError, ValueError) as error:
            raise output.Refusal(error.args[0]) from None
        for name in study.data:
            for file in registry.lookup(name).files:
                root.find(name, file.name, options.data)
        studies.append(study)
    return studies


def report(options: argparse.Namespace) -> int:
    from ..report import write_report

    output.require("jinja2", extra="experiments")
    page, problems = write_report(options.folder)
    for problem in problems:
        output.say(f"holonom: {problem}")
    print(page)
    return output.DONE
