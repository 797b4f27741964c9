"""Words: what each compiles to, and why the illegal ones are refused."""

import re
from contextlib import suppress
from itertools import product

import pytest

from holonom.errors import SchemeError
from holonom.scheme import MEANING, Op, compile_word

PROGRAMS = {  # h⁻ is the stepsize of the step before
    "L": "L(h)",
    "M": "M(h)",
    "BA": "B(h) A(h)",
    "AB": "B(h⁻) A(h)",
    "OBA": "O(h) B(h) A(h)",
    "BAO": "B(h) A(h) O(h)",
    "BAB": "B(1/2·h⁻+1/2·h) A(h)",
    "ABO": "B(h⁻) O(h⁻) A(h)",
    "AOB": "O(h⁻) B(h⁻) A(h)",
    "OAB": "B(h⁻) O(h) A(h)",
    "BAOA": "B(h) A(1/2·h) O(h) A(1/2·h)",
    "OBOA": "O(1/2·h) B(h) O(1/2·h) A(h)",
    "BABO": "B(1/2·h⁻) O(h⁻) B(1/2·h) A(h)",
    "BAOAB": "B(1/2·h⁻+1/2·h) A(1/2·h) O(h) A(1/2·h)",
    "BOAOB": "O(1/2·h⁻) B(1/2·h⁻+1/2·h) O(1/2·h) A(h)",
    "OBABO": "B(1/2·h⁻) O(1/2·h⁻) O(1/2·h) B(1/2·h) A(h)",
    "BAAOAAB": "B(1/2·h⁻+1/2·h) A(1/4·h) A(1/4·h) O(h) A(1/4·h) A(1/4·h)",
    "BAFEFAB": "B(1/2·h⁻+1/2·h) A(1/2·h) F(1/2·h) E(h) F(1/2·h) A(1/2·h)",
    "BACDEDCAB": "B(1/2·h⁻+1/2·h) A(1/2·h) C(1/2·h) D(1/2·h) E(h) D(1/2·h) C(1/2·h) A(1/2·h)",
}

REFUSED = {
    "": "scheme must be a word",
    "X": "no letter X",
    "baoab": "no letter a, b, o",
    "BAO AB": "no letter  ",
    "BALAB": "L and M are whole overdamped steps",
    "LL": "stand alone",
    "ML": "stand alone",
    "OA": "has no B: it would never feel the gradient",
    "OB": "has no A: the parameters would never move",
    "B": "has no A",
    "A": "has no B",
    "BABAOABAB": "needs 3 gradients per step",
    "BABA": "needs 2 gradients per step",
    "ABAB": "needs 2 gradients per step",
    "ABOBA": "begins and ends inside its drift",
    "ABA": "begins and ends inside its drift",
    "OABAO": "positions you do not see",
    "OABA": "positions you do not see",
    "ABAO": "positions you do not see",
    "BACAB": "C and F act by the thermostat variable, which only E updates; add E",
    "BAFAB": "add E",
    "BAEAB": "no C or F applies; add C or F",
    "BADAB": "D adds noise that nothing removes",
}

# word: overdamped, thermostatted, starts owing, letters owed between steps
PROPERTIES = {
    "L": (True, False, False, ""),
    "M": (True, False, False, ""),
    "OBA": (False, False, False, ""),
    "BAO": (False, False, False, ""),
    "BAOAB": (False, False, False, "B"),
    "ABO": (False, False, True, "BO"),
    "OAB": (False, False, True, "B"),
    "OBABO": (False, False, False, "BO"),
    "BACDEDCAB": (False, True, False, "B"),
    "BABCE": (False, True, False, "BCE"),
    "ACEB": (False, True, True, "CEB"),
}


def words(longest):
    for length in range(1, longest + 1):
        yield from map("".join, product("ABCDEFO", repeat=length))


def legal(longest):
    for word in words(longest):
        with suppress(SchemeError):
            yield compile_word(word)


@pytest.mark.parametrize("word", PROGRAMS)
def test_programs(word):
    assert str(compile_word(word)) == PROGRAMS[word]


def test_fractions_are_printed_as_they_are():
    assert str(compile_word("BBAOAB")) == "B(1/3·h⁻+2/3·h) A(1/2·h) O(h) A(1/2·h)"


@pytest.mark.parametrize("word", REFUSED)
def test_refusals_say_why(word):
    with pytest.raises(SchemeError, match=re.escape(REFUSED[word])) as refusal:
        compile_word(word)
    assert repr(word) in str(refusal.value)


@pytest.mark.parametrize("word", [None, 3, ("B", "A"), ["BAOAB"]])
def test_what_is_not_text_is_refused(word):
    with pytest.raises((SchemeError, TypeError)):
        compile_word(word)


@pytest.mark.parametrize("word", PROPERTIES)
def test_properties(word):
    scheme = compile_word(word)
    owed = "".join(op.letter for op in scheme.tail)
    assert (scheme.overdamped, scheme.thermostatted, scheme.starts_owing, owed) == PROPERTIES[word]


def test_every_letter_acts_for_one_whole_step():
    """Heads and tails of a letter add up to h, in all legal words of up to five letters."""
    count = 0
    for scheme in legal(5):
        count += 1
        for letter in set(scheme.word):
            total = sum(op.head + op.tail for op in scheme.program if op.letter == letter)
            assert total == pytest.approx(1, abs=1e-15), scheme
    assert count > 1000


def test_programs_are_rotations_with_one_gradient():
    """Unmerged, a program is its word turned round; all its kicks stand before its first drift."""
    for scheme in legal(5):
        letters = "".join(op.letter * (2 if op.head and op.tail else 1) for op in scheme.program)
        cut = scheme.word.rindex("A") + 1
        tail = scheme.word[cut:] if "B" in scheme.word[cut:] else ""
        rotated = tail + scheme.word[: len(scheme.word) - len(tail)]
        for _ in range(scheme.word.count("B")):  # more than two kicks in a row are merged as well
            letters, rotated = letters.replace("BB", "B"), rotated.replace("BB", "B")
        assert letters == rotated
        assert "B" not in letters[letters.index("A") :]


def test_only_kicks_straddle_two_steps():
    for scheme in legal(5):
        assert all(op.letter == "B" for op in scheme.program if op.head and op.tail)


def test_compiling_is_cached_and_schemes_are_values():
    assert compile_word("BAOAB") is compile_word("BAOAB")
    assert compile_word("BA").program == (Op("B", head=1.0), Op("A", head=1.0))
    with pytest.raises(AttributeError):
        compile_word("BA").word = "OBA"


def test_every_letter_has_a_meaning_and_coefficients():
    from holonom._step.letters import LETTERS

    assert set(MEANING) == set(LETTERS) | {"E"}
