"""Docstrings hold plain formulas such as |w| ≤ r and shapes such as (R, *shape): neither is reStructuredText markup."""

import re
from typing import Any

from sphinx.application import Sphinx

QUOTED = re.compile(r"(``.*?``)")


def escape(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    if what in ("attribute", "property"):
        lines.insert(0, "")  # else napoleon takes what stands before a colon in the first line for a type
    literal: int | None = None  # the indentation of the line that begins a literal or mathematical block
    for i, line in enumerate(lines):
        indentation = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and indentation <= literal:
            literal = None
        if literal is None and line.lstrip()[:3] not in (">>>", "..."):
            parts = QUOTED.split(line)
            parts[::2] = [re.sub(r"(?<=[(, ])\*(?=\w+[,)])", r"\\*", part.replace("|", r"\|")) for part in parts[::2]]
            lines[i] = "".join(parts)
        if literal is None and (line.endswith("::") or line.lstrip().startswith(".. math::")):
            literal = indentation


def skip(app: Sphinx, what: str, name: str, thing: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out fields of named tuples whose text Python has written."""
    return True if (getattr(thing, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", escape, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
