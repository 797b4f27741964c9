"""Layers with barriers against layers without (thesis Fig. 6.9, Tables 6.2 and 6.4)."""

from __future__ import annotations

from .study import PUBLISHED_BARRIERS, Arm


def divided(arm: Arm, published: tuple[str, ...] = PUBLISHED_BARRIERS) -> tuple[tuple[str, ...], bool]:
    """The blocks with barriers, and whether they are our own: the published ones, if here all or none have any."""
    high = arm.with_barriers()
    own = 0 < len(high) < len(arm.blocks)
    return (high if own else published), own


def says_which(high: tuple[str, ...], found: bool, network: str = "ResNet-18") -> str:
    """A note for the reader."""
    why = "in the mean over runs" if found else "in the thesis; here none have, or all, in the mean over runs"
    return f"{network}: {', '.join(high)} are those with barriers {why}."
