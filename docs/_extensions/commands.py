"""``commands``: the help texts of the command line, one section a command."""

import argparse
from collections.abc import Iterator
from functools import partial

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from holonom.cli import make_parser


def subparsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of a parser's commands, and of theirs, that have no commands of their own."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not actions:
        yield parser
    for action in actions:
        for inner in action.choices.values():
            yield from subparsers(inner)


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        lines = []
        for parser in subparsers(make_parser()):
            parser.formatter_class = partial(argparse.HelpFormatter, width=88)
            lines += [f"## {parser.prog}", "", "```text", *parser.format_help().splitlines(), "```", ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
