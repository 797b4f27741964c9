"""The command line: ``holonom list | reproduce | report | play | label | data``.

Exit codes: 0 the command finished, whatever the verdicts; 2 the request, or a part of it, cannot be met;
130 interrupted.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence

from .. import __version__
from ..errors import CheckpointError, DataError
from ..experiments import ranks
from ..report.record import RecordError
from . import data, experiments, labelling, playground
from .output import INTERRUPTED, REFUSED, Refusal, say


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = sys.argv[1:] if words is None else list(words)
    parser = make_parser()
    options = parser.parse_args(words)
    if options.command is None:
        parser.print_help(sys.stderr)
        return REFUSED
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except (Refusal, DataError, CheckpointError, RecordError, OSError) as error:
        say(f"holonom: {error}")
        return REFUSED
    except KeyboardInterrupt:
        if ranks.rank() == 0:
            print(file=sys.stderr)  # the terminal has already printed ^C on this line
            say(f"holonom: interrupted{_how_to_continue(options, words)}")
        return INTERRUPTED
    finally:
        ranks.stop()


def _how_to_continue(options: argparse.Namespace, words: list[str]) -> str:
    if options.command is not experiments.reproduce or options.plan:
        return ""
    words = [word for word in words if word != "--overwrite"]
    again = words if options.resume else [*words, "--resume"]
    command = "the same command and --resume" if ranks.size() > 1 else shlex.join(["holonom", *again])
    return f"; continue from the last checkpoint with: {command}"


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        "holonom", description="The papers' figures and tables as runs that end in a verdict."
    )
    parser.add_argument("--version", action="version", version=f"holonom {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for group in (experiments, playground, labelling, data):
        group.add_commands(commands)
    return parser
