"""Formulas in plain text as HTML: subscripts, superscripts and powers of ten, without anything from outside."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape

_GROUP = r"(?:\{([^{}]*)\}|([A-Za-z0-9]+))"
_SUBSCRIPT = re.compile(rf"(?<![\w/])(\w)_{_GROUP}")  # one letter: σ_A, r_L, N_{in}; not test_loss
_SUPERSCRIPT = re.compile(r"(?<=\S)\^(?:\{([^{}]*)\}|([-−+]?[A-Za-z0-9]+))")
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([-+−]?)0*(\d+)(?![\w.]*\w)")


def typeset(text: Any) -> Markup:
    """Escaped, with σ_A, e^{−γh} and 5e-5 as they are written by hand."""
    safe = str(escape(text))
    safe = _POWER.sub(_power, safe)
    safe = _SUBSCRIPT.sub(lambda m: f"<i>{m[1]}</i><sub>{m[2] or m[3]}</sub>", safe)
    return Markup(_SUPERSCRIPT.sub(lambda m: f"<sup>{m[1] or m[2]}</sup>", safe))


def _power(found: re.Match[str]) -> str:
    front, sign, digits = found.groups()
    power = f"10<sup>{'−' if sign in ('-', '−') else ''}{digits}</sup>"
    return power if front == "1" else f"{front}·{power}"
