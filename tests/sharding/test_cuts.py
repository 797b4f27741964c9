"""Sums over blocks from the parts of shards are those of the whole tensor, wherever blocks are cut."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch

from holonom._constrain.cuts import Cut
from holonom._constrain.exchange import owners_of
from holonom._sharding.spheres import Blocks
from holonom.constraints import Circle, Orthogonal, Sphere
from holonom.constraints.views import View

from .alone import Calls


@dataclass
class Box:
    """A part of a tensor, as a record of a shard tells it."""

    offset: Any
    local_shape: Any
    shape: Any
    holders: Any = ()

    def of(self, x):
        return x[tuple(slice(a, a + n) for a, n in zip(self.offset, self.local_shape, strict=True))]


CASES = {
    "rows": (Sphere(1.0), (6, 4)), "columns": (Sphere(1.0, per="column"), (6, 4)),
    "matrix": (Sphere(1.0, per="matrix"), (6, 4)), "stack": (Sphere(1.0, per="matrix"), (3, 6, 4)),
    "vector": (Sphere(1.0), (9,)), "kernel": (Sphere(1.0, view="conv"), (6, 2, 3, 3)),
    "heads out": (Sphere(1.0, view=View(blocks=3), per="head"), (9, 4)),
    "heads in": (Sphere(1.0, view=View(output=1, blocks=2), per="head"), (5, 8)),
    "transposed": (Sphere(1.0, view=View(output=1)), (4, 6, 2)),
    "batch": (Sphere(1.0, view=View(batch=1, output=1, blocks=2), per="block"), (2, 3, 8, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sums_of_parts_are_sums_of_blocks(name):
    space, shape = CASES[name]
    x = torch.randn(shape, dtype=torch.float64)
    reach = space.reach(shape)
    expected = space.view(x).square().sum(-1).reshape(-1)
    for dim in range(len(shape)):
        for ends in ([0, 1, shape[dim]], [0, shape[dim] // 2, shape[dim] // 2 + 1, shape[dim]], [0, 0, shape[dim]]):
            total = None
            for start, stop in pairwise(ends):
                offset, local = [0] * len(shape), list(shape)
                offset[dim], local[dim] = start, stop - start
                cut = Cut(Box(tuple(offset), tuple(local), shape), reach)
                total = x.new_zeros(cut.grid) if total is None else total
                for section in cut.all_sections:
                    total[section.blocks] += section.sums(cut.piece.of(x), cut.piece.of(x))
            torch.testing.assert_close(space.by_block(total), expected)
            torch.testing.assert_close(space.by_dimension(space.by_block(total), cut.grid), total)


@pytest.mark.parametrize("name", CASES)
def test_flat_sums_of_parts_are_sums_of_blocks(name):
    """Of several parameters, by operations that add in one order on a GPU, too."""
    space, shape = CASES[name]
    xs = [torch.randn(shape, dtype=torch.float64) for _ in range(2)]
    expected = torch.cat([space.view(x).square().sum(-1).reshape(-1) for x in xs])
    for dim in range(len(shape)):
        for ends in ([0, 1, shape[dim]], [0, shape[dim] // 2, shape[dim] // 2 + 1, shape[dim]], [0, 0, shape[dim]]):
            total = torch.zeros_like(expected)
            for start, stop in pairwise(ends):
                offset, local = [0] * len(shape), list(shape)
                offset[dim], local[dim] = start, stop - start
                part = Box(tuple(offset), torch.Size(local), torch.Size(shape))
                flat = torch.cat([part.of(x).reshape(-1) for x in xs])
                blocks = Blocks(space, [part, part], torch.device("cpu"))
                with Calls() as calls:
                    total += blocks.here(flat, flat)
                assert calls.names.isdisjoint({"index_add", "index_add_", "index_put_", "scatter_add_"})
            torch.testing.assert_close(total, expected)


def test_a_space_on_a_shard_has_the_radii_of_its_blocks():
    radii = torch.arange(1.0, 7.0)
    assert Sphere(radii, slack=False).on_shard((6, 4), (2, 0), (3, 4)).radius.tolist() == [3.0, 4.0, 5.0]
    circle = Circle(torch.arange(1.0, 25.0).reshape(6, 4)).on_shard((6, 4), (2, 1), (1, 2))
    assert circle.radius.tolist() == [[10.0, 11.0]]
    heads = Sphere(torch.tensor([1.0, 2.0, 3.0]), slack=False, view=View(blocks=3), per="head")
    own = heads.on_shard((9, 4), (3, 0), (6, 4))
    assert own.radius.tolist() == [2.0, 3.0]
    assert own.view(torch.ones(6, 4)).shape == (2, 12)
    assert Orthogonal(view=View(blocks=2)).on_shard((12, 3), (6, 0), (6, 3)).view(torch.ones(6, 3)).shape == (6, 3)
    stack = Orthogonal(view="batch", scale="initial").held_at(torch.tensor([1.0, 2.0]))
    assert stack.on_shard((2, 4, 3), (1, 0, 0), (1, 4, 3)).scale.tolist() == [2.0]


def test_owners_share_the_cost():
    costs = [8.0, 1.0, 7.0, 2.0, 2.0, 4.0]
    owners = owners_of(costs, 3)
    load = [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(3)]
    assert sorted(load) == [8.0, 8.0, 8.0]
    assert owners_of([1.0], 4) == [0]
