"""Runs the Python blocks of a page and shows behind each what it prints, warns about and draws.

The blocks of a page share one namespace. A picture's caption is the name of its matplotlib figure:
``plt.subplots(num="Loss along training")``. Pictures are drawn once; a copy in light ink is for the dark theme.
"""

import contextlib
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

BLOCK = re.compile(r"^```python\b.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDTH = 88  # characters of a warning's lines
INK, LIGHT_INK = "#24292f", "#d3d8de"
COLOURS = ("#2f81c7", "#d9692b", "#3a9d5d", "#b05fc0", "#c2a12b", "#8a8f98")  # seen on white and on black
STYLE = {
    "axes.edgecolor": INK, "axes.facecolor": "none", "axes.labelcolor": INK,
    "axes.prop_cycle": mpl.cycler(color=COLOURS), "axes.spines.right": False, "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none", "figure.figsize": (6.4, 3.2), "font.size": 10, "legend.frameon": False,
    "savefig.facecolor": "none", "svg.fonttype": "none", "svg.hashsalt": "holonom", "text.color": INK,
    "xtick.color": INK, "ytick.color": INK,
}  # fmt: skip


def run(blocks: Sequence[str], page: str) -> Iterator[tuple[str, list[plt.Figure]]]:
    """What each block prints or warns about, and the figures it makes."""
    names: dict[str, Any] = {"__name__": page}
    for number, block in enumerate(blocks, 1):
        plt.close("all")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            try:
                exec(compile(block, f"{page}, block {number}", "exec"), names)
            except Exception as error:
                raise ExtensionError(f"{page}: block {number} of Python fails: {error!r}", error) from error
        warned = [f"{warning.category.__name__}: {warning.message}" for warning in said]
        lines = [textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for line in warned]
        yield "\n".join([*lines, printed.getvalue()]), [plt.figure(n) for n in plt.get_fignums()]


def picture(figure: plt.Figure, folder: Path, name: str) -> str:
    """Save a figure for both themes; returns the Markdown that shows it."""
    caption = figure.get_label()
    if not caption:
        raise ExtensionError(f"{name}: a figure has no caption; write plt.subplots(num='…')")
    folder.mkdir(parents=True, exist_ok=True)
    light, dark = folder / f"{name}-light.svg", folder / f"{name}-dark.svg"
    figure.savefig(light, metadata={"Date": None})
    dark.write_text(light.read_text().replace(INK, LIGHT_INK))
    files = ((light, "light"), (dark, "dark"))
    shown = (f"![{caption}](/_build/pictures/{path.name}){{.only-{theme}}}" for path, theme in files)
    return "\n".join(["", ":::{container} picture", *shown, "", f"*{caption}*", ":::", ""])


def show_outputs(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put what a page's blocks print and draw behind them."""
    if not any(fnmatch(docname, pattern) for pattern in app.config.executed_pages):
        return
    found = list(BLOCK.finditer(source[0]))
    folder, stem = Path(app.srcdir) / "_build" / "pictures", docname.replace("/", "-")
    with mpl.rc_context({**STYLE, "backend": "agg"}):
        parts, end = [], 0
        for number, (block, (printed, figures)) in enumerate(zip(found, run([b[1] for b in found], docname))):
            parts += [source[0][end : block.end()], "\n"]
            end = block.end()
            if printed.strip():
                parts += ["\n```{code-block} text\n:class: printed\n", printed.rstrip("\n"), "\n```\n"]
            parts += [picture(figure, folder, f"{stem}-{number}-{i}") for i, figure in enumerate(figures)]
    source[0] = "".join([*parts, source[0][end:]])


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("executed_pages", [], "env", types=(list,))
    app.connect("source-read", show_outputs)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
