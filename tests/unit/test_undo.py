"""Undoing without asking: exactly what was there, or exactly what is."""

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from holonom.undo import Undo

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]


def odd_numbers(dtype):
    if not dtype.is_floating_point:
        return torch.tensor([0, 1, 1], dtype=dtype)
    return torch.tensor([0.0, -0.0, 1.5, -torch.inf, torch.nan, torch.finfo(dtype).tiny], dtype=dtype)


def bits(x):
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_or_the_other_bit_for_bit(bad, dtype):
    x, y = odd_numbers(dtype), odd_numbers(dtype).flip(0)
    now = x.clone()
    undo = Undo([now])
    now.copy_(y)
    undo.where_(torch.tensor(bad))
    assert torch.equal(bits(now), bits(x if bad else y))


@pytest.mark.parametrize("bad", [False, True])
def test_tensors_of_all_kinds_and_shapes(bad):
    start = [torch.randn(3, 4).mT, torch.randn(()), torch.randn(2, 3, dtype=torch.float64), torch.randn(5, 8)[:, ::2]]
    start += [torch.tensor(7), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.empty(0)]
    now = [x.clone() for x in start]
    now[3] = torch.randn(5, 8)[:, ::2].copy_(start[3])
    undo = Undo(now)
    for x in now:
        x.add_(1)
    moved = [x.clone() for x in now]
    undo.where_(torch.tensor(bad))
    for x, wanted in zip(now, start if bad else moved, strict=True):
        assert torch.equal(x, wanted)


@pytest.mark.parametrize("bad", [False, True])
def test_tensors_in_one_memory(bad):
    memory = torch.arange(6.0)
    undo = Undo([memory[:4], memory[2:], memory[:4]])
    memory.mul_(-3)
    undo.where_(torch.tensor(bad))
    assert torch.equal(memory, torch.arange(6.0) * (1 if bad else -3))


class Tagged(torch.Tensor):
    pass


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("make", [lambda x: x.as_subclass(Tagged), torch._neg_view], ids=["subclass", "negative"])
def test_tensors_that_stand_for_others(bad, make):
    x = make(torch.ones(3))
    before = x.sum().item()
    undo = Undo([x])
    x.mul_(2)
    undo.where_(torch.tensor(bad))
    assert x.sum().item() == before * (1 if bad else 2)


class Allocations(TorchDispatchMode):
    """Numbers of entries of everything that is newly made."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if not func._schema.is_mutable:
            self.sizes += [x.numel() for x in pytree.tree_leaves(made) if isinstance(x, torch.Tensor)]
        return made


def test_nothing_is_allocated_while_bad_numbers_are_there():
    undo = Undo([torch.randn(100), torch.randn(50, dtype=torch.float64)])
    with Allocations() as made:
        undo.where_(torch.tensor(True))
    assert made.sizes
    assert max(made.sizes) == 1


def test_everything():
    tensors = [torch.ones(3), torch.ones(2, dtype=torch.int64), torch.ones(2).as_subclass(Tagged)]
    undo = Undo(tensors)
    for x in tensors:
        x.zero_()
    undo.everything_()
    assert all(bool((x == 1).all()) for x in tensors)


def test_autograd_notices():
    weight = torch.nn.Parameter(torch.ones(3))
    squares = (weight**2).sum()
    with torch.no_grad():
        Undo([weight]).where_(torch.tensor(True))
    with pytest.raises(RuntimeError, match="inplace operation"):
        squares.backward()
