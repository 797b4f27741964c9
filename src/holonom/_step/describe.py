"""The routing table: what a printed optimizer or partition shows."""

from __future__ import annotations

from typing import Any

from ..scheme import compile_word
from .hyper import summary


def routing_table(title: str, groups: list[dict[str, Any]]) -> str:
    """One paragraph a group: its word, the compiled program, the space, the numbers, the parameters."""
    lines = [f"{title} ("]
    for number, group in enumerate(groups):
        scheme = compile_word(group["scheme"])
        count = sum(p.numel() for p in group["params"])
        lines += [
            f"  group {number}{_name(group)}: {len(group['params'])} tensors, {count:,} parameters",
            f"    scheme      {scheme.word}  →  {scheme}",
            f"    constraint  {'none' if group['constraint'] == 'Free()' else group['constraint']}",
            f"    numbers     {summary(group)}",
            f"    parameters  {_parameters(group)}",
        ]
    return "\n".join([*lines, ")"])


def _name(group: dict[str, Any]) -> str:
    return f" ({group['name']})" if group.get("name") else ""


def _parameters(group: dict[str, Any], most: int = 6) -> str:
    names = group.get("param_names")
    shown = []
    for i, p in enumerate(group["params"][:most]):
        shape = "×".join(map(str, p.shape)) or "scalar"
        shown.append(f"{names[i]} {shape}" if names else shape)
    more = len(group["params"]) - most
    return ", ".join(shown) + (f", … {more} more" if more > 0 else "")
