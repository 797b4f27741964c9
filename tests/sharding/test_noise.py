"""Normals of a box of a tensor are those that the whole tensor has there."""

import math
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from holonom._random.philox import Layout, Part
from holonom._sharding.shards import Piece

BOXES = [
    ((7, 300), (3, 300), (2, 0)),  # one run of elements
    ((7, 300), (7, 100), (0, 200)),  # runs that start anywhere in a tile
    ((7, 256), (7, 128), (0, 128)),  # runs that start at the same place of a tile
    ((7, 256), (7, 64), (0, 70)),
    ((5, 6, 40), (2, 3, 40), (3, 2, 0)),
    ((5, 6, 40), (5, 6, 7), (0, 0, 33)),
    ((9,), (4,), (5,)),
    ((9,), (0,), (9,)),
    ((), (), ()),
]


@pytest.mark.parametrize("seeds", [torch.tensor(3), torch.tensor([3, 4])], ids=["one seed", "two seeds"])
def test_a_box_draws_what_the_whole_draws_there(seeds):
    step = torch.tensor(5)
    for whole, shape, offset in BOXES:
        everything = Layout([torch.Size(whole)], [6], torch.device("cpu")).draw(seeds, step, 2)[0]
        expected = everything
        for d, (n, first) in enumerate(zip(shape, offset, strict=True)):
            expected = expected.narrow(d + seeds.ndim, first, n)
        shapes = [torch.Size((200,)), torch.Size(shape)]
        found = Layout(shapes, [1, 6], torch.device("cpu"), [None, Part(whole, offset)]).draw(seeds, step, 2)
        assert torch.equal(found[1], expected), (whole, shape, offset)
        assert torch.equal(found[0], Layout(shapes[:1], [1], torch.device("cpu")).draw(seeds, step, 2)[0])


PLACED = {  # shape, mesh, the dimension of the tensor that each of the mesh cuts; whether elements follow each other
    "rows": ((7, 3), (4,), (0,), True),
    "a vector": ((9,), (2,), (0,), True),
    "copies": ((4, 3), (2,), (None,), True),
    "copies of rows": ((4, 3), (2, 2), (None, 0), True),
    "columns": ((4, 3), (2,), (1,), False),
    "columns of a row": ((1, 3), (2,), (1,), True),
    "rows and columns": ((3, 4), (2, 2), (0, 1), False),  # although one rank has a single row
}


@pytest.mark.parametrize("name", PLACED)
def test_ranks_agree_on_whether_elements_follow_each_other(name):
    """Kernels draw the noise of those that do, from the number of the first on."""
    tensor = pytest.importorskip("torch.distributed.tensor")
    shape, sizes, dims, runs = PLACED[name]
    mesh = SimpleNamespace(size=sizes.__getitem__, shape=sizes)
    placements = tuple(tensor.Replicate() if d is None else tensor.Shard(d) for d in dims)
    numbers = torch.arange(math.prod(shape)).reshape(shape)
    for coordinate in product(*map(range, sizes)):
        piece = Piece(mesh, placements, torch.Size(shape), coordinate)
        here = piece.narrow(numbers).flatten().tolist()
        assert (piece.start is not None) == runs
        assert not runs or here == list(range(piece.start, piece.start + len(here)))
