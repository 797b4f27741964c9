"""A splitting word such as ``"BAOAB"``, compiled to a program of one gradient per step.

Every letter is the exact flow of one part of the dynamics (thesis, equations 2.53 and 2.59) and acts for
``lr`` divided by how often it stands in the word:

====== =========================================================================
``A``  drift along the manifold              dq = p dt
``B``  kick by the gradient                  dp = −∇L(q) dt
``O``  Ornstein–Uhlenbeck                    dp = −γp dt + √(2γτ) dW
``C``  friction by the thermostat variable   dp = −ξp dt
``D``  diffusion                             dp = σ_A dW
``E``  thermostat update                     dξ = ε(pᵀp − Nτ) dt
``F``  C and D in one                        dp = −ξp dt + σ_A dW          (2.61)
``L``  overdamped Euler–Maruyama step        dq = −∇L dt + √(2τ) dW        (2.51)
``M``  the same with averaged noise: the BAOAB limit                       (2.56)
====== =========================================================================

``torch.optim`` hands over the gradient *before* ``step()``, at the positions the user sees. The
word is therefore cut behind its last drift and the end is moved to the front: BAOAB becomes
``B·BAOA``, whose first ``B`` is the closing half kick of the step before. Only the letters behind
the last ``A`` move, and those leave the positions alone, so what the user sees between steps is
what the textbook's two-gradient form shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import groupby

from ._torch import cached
from .errors import SchemeError

MEANING = {
    "A": "drift",
    "B": "kick",
    "O": "Ornstein–Uhlenbeck",
    "C": "thermostat friction",
    "D": "diffusion",
    "E": "thermostat update",
    "F": "thermostat friction and diffusion",
    "L": "overdamped step",
    "M": "overdamped step, averaged noise",
}
OVERDAMPED = frozenset("LM")


@dataclass(frozen=True)
class Op:
    """One letter of the program: it acts for ``tail``·(last step's lr) + ``head``·(this step's lr).

    Only a kick ever has both: the closing half kick of the last step and the opening one of this
    step use the same gradient and are paid together.
    """

    letter: str
    head: float = 0.0
    tail: float = 0.0


@dataclass(frozen=True)
class Scheme:
    """A legal word and the program it compiles to."""

    word: str
    program: tuple[Op, ...]

    @cached_property
    def overdamped(self) -> bool:
        """Whether a step has no momenta: L or M."""
        return self.word in OVERDAMPED

    @cached_property
    def tail(self) -> tuple[Op, ...]:
        """What is owed between two steps: paid by the next step or by ``synchronize()``."""
        return tuple(Op(op.letter, tail=op.tail) for op in self.program if op.tail)

    @cached_property
    def starts_owing(self) -> bool:
        """Whether the first step already runs the moved letters.

        A word whose head kicks (BAOAB) starts with that kick alone. One that does not (ABO) would
        begin by drifting with zero momentum; it starts at its force instead.
        """
        return bool(self.tail) and not any(op.letter == "B" and op.head for op in self.program)

    @cached_property
    def thermostatted(self) -> bool:
        """Whether a thermostat acts: the word has an E."""
        return "E" in self.word

    def __str__(self) -> str:
        def show(op: Op) -> str:
            parts = []
            if op.tail:
                parts.append(f"{_fraction(op.tail)}h⁻")
            if op.head:
                parts.append(f"{_fraction(op.head)}h")
            return f"{op.letter}({'+'.join(parts)})"

        return " ".join(show(op) for op in self.program)


def _fraction(x: float) -> str:
    share = Fraction(x).limit_denominator(1000)
    return "" if share == 1 else f"{share}·"


@cached
def compile_word(word: str) -> Scheme:
    """Check a word and turn it into its program; raise :class:`SchemeError` with the reason."""
    _check_letters(word)
    if word in OVERDAMPED:
        return Scheme(word, (Op(word, head=1.0),))
    _check_balance(word)
    _check_forces(word)

    share = {letter: 1.0 / word.count(letter) for letter in set(word)}
    cut = word.rindex("A") + 1
    head, tail = word[:cut], word[cut:]
    if "B" not in tail:  # what follows the last drift needs no new gradient: nothing to move
        head, tail = word, ""

    program = [Op(letter, tail=share[letter]) for letter in tail]
    for letter in head:
        last = program[-1] if program else None
        if letter == "B" and last is not None and last.letter == "B":
            program[-1] = Op("B", head=last.head + share["B"], tail=last.tail)
        else:
            program.append(Op(letter, head=share[letter]))
    return Scheme(word, tuple(program))


def _check_letters(word: str) -> None:
    if not isinstance(word, str) or not word:
        raise SchemeError(f"scheme must be a word over {'/'.join(MEANING)}, such as 'BAOAB'; got {word!r}")
    unknown = sorted(set(word) - set(MEANING))
    if unknown:
        letters = ", ".join(f"{k} ({v})" for k, v in MEANING.items())
        raise SchemeError(f"scheme {word!r}: no letter {', '.join(unknown)}; the letters are {letters}")
    if set(word) & OVERDAMPED and len(word) > 1:
        raise SchemeError(
            f"scheme {word!r}: L and M are whole overdamped steps without momentum and stand alone; "
            f"write 'L', or a word over A B O C D E F"
        )


def _check_balance(word: str) -> None:
    letters = set(word)
    if "B" not in letters:
        raise SchemeError(f"scheme {word!r} has no B: it would never feel the gradient")
    if "A" not in letters:
        raise SchemeError(f"scheme {word!r} has no A: the parameters would never move")
    if letters & set("CF") and "E" not in letters:
        raise SchemeError(f"scheme {word!r}: C and F act by the thermostat variable, which only E updates; add E")
    if "E" in letters and not letters & set("CF"):
        raise SchemeError(f"scheme {word!r}: E updates a thermostat variable that no C or F applies; add C or F")
    if "D" in letters and not letters & set("CFO"):
        raise SchemeError(f"scheme {word!r}: D adds noise that nothing removes; add C, F or O")


def _check_forces(word: str) -> None:
    """The gradient must be wanted at one place only, and that place must be what the user sees."""
    if word[0] == "A" and word[-1] == "A":
        raise SchemeError(
            f"scheme {word!r} begins and ends inside its drift: its gradient is taken half way, at "
            f"positions between those you see, and rotating it would show you other positions; "
            f"use a word that ends at its force, such as BAOAB"
        )
    # Stretches of constant position; the last and the first are one, seen around the step's end.
    stretches = ["".join(run) for drifting, run in groupby(word, lambda c: c == "A") if not drifting]
    if word[0] != "A" and word[-1] != "A" and len(stretches) > 1:
        stretches[0] = stretches.pop() + stretches[0]
    visible = stretches[-1] if word[0] == "A" else stretches[0]
    gradients = sum("B" in stretch for stretch in stretches)
    if gradients > 1:
        raise SchemeError(
            f"scheme {word!r} needs {gradients} gradients per step (its kicks stand at {gradients} different "
            f"positions); step() has one. Use a word whose B's are parted by no A, around the end too"
        )
    if "B" not in visible:
        raise SchemeError(
            f"scheme {word!r} takes its gradient at positions you do not see between steps, and rotating "
            f"it would show you other positions; use a word that begins or ends at its force, such as BAOAB"
        )
