"""Normals of a box of a tensor are those that the whole tensor has there."""

import pytest
import torch

from holonom._random.philox import Layout, Part

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
