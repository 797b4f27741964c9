"""``holonom data list | get | check``."""

from __future__ import annotations

import argparse

from . import arguments, output


def add_commands(commands: arguments.Commands) -> None:
    data = commands.add_parser("data", help="list, fetch and check data sets")
    actions = data.add_subparsers(required=True, metavar="ACTION")
    for name, command, purpose in (
        ("list", show, "show the data sets and where they are"),
        ("get", get, "download a data set from its public home"),
        ("check", check, "compare files with what was published"),
    ):
        action = actions.add_parser(name, help=purpose)
        action.set_defaults(command=command)
        arguments.add_data_root(action)
        if name == "get":
            action.add_argument("name", metavar="NAME")
        if name == "check":
            action.add_argument("name", nargs="?", metavar="NAME", help="default: every set that is here")


def show(options: argparse.Namespace) -> int:
    from ..data import list_sets

    statuses = list_sets(options.data)
    rows = [(s.name, s.title, s.source, f"{s.present} of {s.files}", str(s.folder or "–")) for s in statuses]
    output.table(("name", "holds", "source", "files", "folder"), rows)
    return output.DONE


def get(options: argparse.Namespace) -> int:
    from ..data import get

    for path in get(options.name, options.data):
        print(path)
    return output.DONE


def check(options: argparse.Namespace) -> int:
    """Check every file of the named set; without a name, of every set that is at least partly here."""
    from ..data import check, list_sets

    names = [options.name] if options.name else [s.name for s in list_sets(options.data) if s.present]
    if not names:
        raise output.Refusal(
            "no data sets are here; `holonom data list` shows all, `holonom data get NAME` fetches one"
        )
    problems = 0
    for name in names:
        for status in check(name, options.data):
            problems += bool(status.problem)
            print(f"{name}/{status.file}: {status.problem or 'intact'}")
    return output.REFUSED if problems else output.DONE
