"""The solved endgame obeys the rules of chess, played out by an independent move generator."""

import random
from functools import cache
from pathlib import Path

import pytest
import torch

from holonom.data import Table, chess, solve_chess
from holonom.errors import DataError

Square = tuple[int, int]
Position = tuple[Square, Square, Square]
COMPASS = [(1, 0), (-1, 0), (0, 1), (0, -1)]


@pytest.fixture(scope="module")
def table() -> Table:
    return solve_chess()


@pytest.fixture(scope="module")
def depths(table: Table) -> dict[Position, int]:
    rows = zip(table.attributes.tolist(), table.labels.tolist(), strict=True)
    return {((a, b), (c, d), (e, f)): label for (a, b, c, d, e, f), label in rows}


def neighbours(square: Square) -> list[Square]:
    around = [(square[0] + i, square[1] + j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
    return [(f, r) for f, r in around if 0 <= f < 8 and 0 <= r < 8]


@cache
def slides(rook: Square, blockers: frozenset[Square]) -> list[Square]:
    """Squares a rook sees, the first blocker of each line included."""
    seen = []
    for i, j in COMPASS:
        f, r = rook[0] + i, rook[1] + j
        while 0 <= f < 8 and 0 <= r < 8:
            seen.append((f, r))
            if (f, r) in blockers:
                break
            f, r = f + i, r + j
    return seen


def black_moves(king: Square, rook: Square, black: Square) -> list[Square]:
    def allowed(square: Square) -> bool:
        if square == king or square in neighbours(king):
            return False
        return square == rook or square not in slides(rook, frozenset({king}))

    return [square for square in neighbours(black) if allowed(square)]


def white_moves(king: Square, rook: Square, black: Square) -> list[Position]:
    kings = [s for s in neighbours(king) if s != rook and s != black and s not in neighbours(black)]
    rooks = [s for s in slides(rook, frozenset({king, black})) if s not in (king, black)]
    return [(s, rook, black) for s in kings] + [(king, s, black) for s in rooks]


def canonical(position: Position) -> list[Position]:
    """The eight images of a position under the board's symmetries."""
    images = []
    for flip_file in (False, True):
        for flip_rank in (False, True):
            for swap in (False, True):
                image = []
                for f, r in position:
                    f, r = 7 - f if flip_file else f, 7 - r if flip_rank else r
                    image.append((r, f) if swap else (f, r))
                images.append(tuple(image))
    return images


def depth_of(position: Position, depths: dict[Position, int]) -> int:
    return next(depths[image] for image in canonical(position) if image in depths)


def played_out(position: Position, depths: dict[Position, int]) -> int:
    """One move of each side: Black picks the longest defence, White the shortest win; 17 is a draw."""
    king, rook, black = position
    moves = black_moves(*position)
    if not moves:
        return 0 if black in slides(rook, frozenset({king})) else 17
    if rook in moves:
        return 17
    replies = [min(depth_of(p, depths) for p in white_moves(king, rook, move)) for move in moves]
    return 17 if max(replies) == 17 else max(replies) + 1


def test_every_depth_follows_from_those_one_move_later(depths: dict[Position, int]) -> None:
    sample = random.Random(0).sample(sorted(depths), 300)
    rare = [p for p, depth in depths.items() if depth <= 1 or depth == 16][::4]
    for position in sample + rare:
        assert played_out(position, depths) == depths[position], position


def test_each_position_occurs_once_up_to_symmetry(depths: dict[Position, int]) -> None:
    assert len(depths) == 28_056
    assert all(sum(image in depths for image in set(canonical(p))) == 1 for p in list(depths)[::7])
    # Every legal position has an image in the set.
    rng = random.Random(1)
    squares = [(f, r) for f in range(8) for r in range(8)]
    for _ in range(500):
        king, rook, black = rng.sample(squares, 3)
        if black not in neighbours(king):
            assert depth_of((king, rook, black), depths) <= 17


def test_known_counts(table: Table) -> None:
    counts = table.labels.bincount()
    assert (counts[0], counts[16], counts[17]) == (27, 390, 2796)


def test_inputs(table: Table) -> None:
    numbers, units = table.numbers(), table.one_hot()
    assert numbers.shape == (28_056, 6)
    assert units.shape == (28_056, 48)
    assert (numbers.min(), numbers.max()) == (-1.0, 1.0)
    assert torch.equal(units.view(-1, 6, 8).argmax(2), table.attributes)
    assert torch.equal(units.sum(1), torch.full((28_056,), 6.0))
    assert torch.allclose((numbers + 1) * 3.5, table.attributes.float())


def test_rows_are_parsed_and_bad_ones_refused(tmp_path: Path) -> None:
    file = tmp_path / "uci-krkopt" / "krkopt.data"
    file.parent.mkdir()
    file.write_text("a,1,b,3,c,2,draw\nd,4,h,8,a,1,sixteen\n")
    rows = chess(tmp_path, verify=False)
    assert rows.attributes.tolist() == [[0, 0, 1, 2, 2, 1], [3, 3, 7, 7, 0, 0]]
    assert rows.labels.tolist() == [17, 16]
    with pytest.raises(DataError, match=r"krkopt.data is not uci-krkopt's"):
        chess(tmp_path)
    for bad in ("a,1,b,3,c,draw", "a,1,b,3,c,9,draw", "a,1,b,3,c,2,eighteen", "a1,b3,c2,draw", "1,a,3,b,2,c,draw"):
        file.write_text(f"a,1,b,3,c,2,draw\n{bad}\n")
        with pytest.raises(DataError, match=r"line 2 should be three squares and a class"):
            chess(tmp_path, verify=False)
    file.write_text("\n")
    with pytest.raises(DataError, match="is empty"):
        chess(tmp_path, verify=False)
