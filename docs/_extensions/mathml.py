"""Equations as MathML, which browsers draw themselves: no script, no request."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

RELATIONS = {"←": r"\leftarrow ", "≤": r"\le ", "≥": r"\ge ", "⟨": r"\langle ", "⟩": r"\rangle ", "‖": r"\| "}
# A minus sign after an operator that is no closing bracket.
SIGN = re.compile(r"(<mo[^>]*>(?!&#x00029;|&#x0005D;|\)|\]|&#x02016;)[^<]*</mo>)<mo>(&#x02212;</mo>)")


def mathml(formula: str, display: str = "inline") -> str:
    """Unicode operators become LaTeX's, so that they get the spaces of operators. Signs have no space; ∇ is upright."""
    found = convert(formula.translate(str.maketrans(RELATIONS)), display=display)
    return SIGN.sub(r'\1<mo form="prefix">\2', found).replace("<mi>∇</mi>", '<mi mathvariant="normal">∇</mi>')


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    number = f'<span class="eqno">({node["number"]})</span>' if node["number"] else ""
    identity = f' id="{node["ids"][0]}"' if node["ids"] else ""
    self.body.append(f'<div class="equation"{identity}>{mathml(node.astext(), "block")}{number}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
