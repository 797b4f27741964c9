"""A copy of a function does what the function does, and is none to the compiler."""

from holonom.compiling import own


def test_a_copy_has_code_of_its_own_and_everything_else():
    outside = 3

    def function(a, b=2, *, c=1):
        return a, b, c, outside

    copy = own(function, "other")
    assert copy(0) == function(0) == (0, 2, 1, 3)
    assert copy(0, c=5) == (0, 2, 5, 3)
    assert copy.__code__ is not function.__code__
    assert copy.__name__ == "other"
    assert own(function).__name__ == "function"
