"""Attention heads: which outputs or inputs of a projection belong to one head, by the modules around it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import nn

from .roles import MIXED, PACKED, Line, is_transposed_linear

_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
_KEY_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "kv_heads")
_SIZES = ("head_dim", "attention_head_size", "head_size", "dim_head", "d_head")
_INTO = re.compile(
    rf"{'|'.join(sorted(PACKED | MIXED))}|q_attn|inputs|in_proj(_weight)?|query|key|value|"
    r"(to_|w_?)?[qkv]s?(_(proj|linear|lin))?(_weight)?",
    re.IGNORECASE,
)
_KEYS = re.compile(r"key|value|(to_|w_?)?[kv]s?(_(proj|linear|lin))?(_weight)?", re.IGNORECASE)
_OUT = re.compile(
    r"(to_|fc_|w_?)?(o|out|output)(_(proj|linear|lin))?(_weight)?|c_proj|proj(_out)?|dense", re.IGNORECASE
)


def heads_of(
    line: Line, name: str, shape: Sequence[int], blocks: int, count: int | None = None
) -> tuple[int, int] | None:
    """The dimension of a matrix that counts heads, and how many; None if the modules do not say.

    Queries, keys and values count heads by their outputs, packed ones one after the other; the map that follows them
    counts them by its inputs. ``name`` is the tensor's, ``blocks`` how many matrices are packed (0: unknown), ``count``
    what the user says.
    """
    if len(shape) != 2:
        return None
    outputs = int(is_transposed_linear(line[-1].module))
    called = [name, *(step.name for step in reversed(line[-2:]))]
    into = next((one for one in called if _INTO.fullmatch(one)), None)
    out = into is None and any(_OUT.fullmatch(one) for one in called)
    dimension = 1 - outputs if out else outputs
    if count is not None:
        return dimension, count
    if into is None and not out:
        return None
    size, found = _number(line, _SIZES), _number(line, _COUNTS)
    if size and shape[dimension] % size == 0:
        return dimension, shape[dimension] // size
    if into is not None and _KEYS.fullmatch(into):
        found = _number(line, _KEY_COUNTS) or found
    found = (found or 0) * (1 if out else blocks)
    return (dimension, found) if found and shape[dimension] % found == 0 else None


def _number(line: Line, names: Sequence[str]) -> int | None:
    """The first of these attributes that a module around a parameter has, from the inside out."""
    for module in _around(line):
        for holder in (module, getattr(module, "config", None)):
            for name in names:
                value = getattr(holder, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None


def _around(line: Line) -> Iterator[nn.Module]:
    """The modules around a parameter; of one that is attention also those inside it, which may hold its numbers."""
    for step in reversed(line):
        yield step.module
        if step.implied_role() == "attention":
            yield from step.module.modules()
