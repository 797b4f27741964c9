"""How far the positions of a word are off the temperature of its noise, for a small h²·curvature.

Where the loss is nearly flat over a step, positions diffuse with D and drift with the mobility m, the mean displacement
per step under a constant unit force; their temperature is Einstein's D/m. Both follow from the reach of an impulse: how
far a unit of momentum carries from its place in the word on. Kicks add their shares of it, O adds its normals':

    D/m = τ Σ_O (1 − c²) W² / (2 Σ_B share·W),    c = e^{−γh share}

    BAOAB, OBABO  τ        OBA  τ(1 + e^{−γh})/2        ABO  τ(1 + e^{γh})/2

Plain arithmetic: numbers in, numbers out; tensors in (one value a replica, say), tensors out.
"""

from __future__ import annotations

import math
from typing import Any

from ..scheme import OVERDAMPED


def position_temperature(word: str, damping: Any) -> Any:
    """The temperature of the positions over that of the noise, ``damping`` being e^{−γh}; ∞ where no kick arrives.

    NaN for words that are not claimed: those with a thermostat or a diffusion, and those without noise.
    """
    if word in OVERDAMPED:
        return 1.0
    if "O" not in word or set(word) - set("ABO"):
        return math.nan
    count = word.count("O")
    c = damping ** (1 / count)
    # Reaches are taken times 1 − c^n, so that nothing is divided by 0 at γ = 0.
    normals = (1 + c) / sum(c**k for k in range(count))
    reached = list(zip(word, _reaches(word, damping), strict=True))
    diffusion = normals * sum(reach * reach for letter, reach in reached if letter == "O") / 2
    mobility = sum(reach for letter, reach in reached if letter == "B") / word.count("B")
    if isinstance(mobility, float) and not mobility:
        return math.inf
    return diffusion / mobility


def loses_its_kick(word: str) -> bool:
    """Whether with infinite friction the momentum is drawn anew between every kick and the drift behind it."""
    if word in OVERDAMPED or "O" not in word:
        return False
    return not any(reach for letter, reach in zip(word, _reaches(word, 0.0), strict=True) if letter == "B")


def _reaches(word: str, damping: Any) -> list[Any]:
    """How far a unit of momentum carries from behind every letter on, times 1 − ``damping``, in units of h."""
    share, c = 1 / word.count("A"), damping ** (1 / max(1, word.count("O")))
    reach, momentum = 0.0, 1.0
    for letter in word:  # of the word's first place: what carries on from there, over 1 − damping
        if letter == "A":
            reach = reach + share * momentum
        elif letter == "O":
            momentum = momentum * c
    reaches = []
    for letter in reversed(word):
        reaches.append(reach)
        if letter == "A":
            reach = reach + share * (1 - damping)
        elif letter == "O":
            reach = reach * c
    return reaches[::-1]
