"""Tensors without entries go through every space and word unharmed."""

import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal, Sphere

CASES = {
    "free": (None, (0, 3)),
    "circle": (Circle(1.0), (0,)),
    "sphere": (Sphere(1.0), (0, 3)),
    "sphere, equality": (Sphere(1.0, slack=False), (0, 3)),
    "no rows": (Orthogonal(), (0, 3)),
    "no columns": (Orthogonal(), (3, 0)),
    "K iterations": (Orthogonal(iterations=2), (0, 3)),
    "empty stack": (Orthogonal(view="batch"), (0, 3, 2)),
}


@pytest.mark.parametrize("word", ["BAOAB", "L", "BACDEDCAB"])
@pytest.mark.parametrize("case", CASES)
def test_empty_tensors(case, word):
    space, shape = CASES[case]
    empty, full = torch.nn.Parameter(torch.zeros(shape)), torch.nn.Parameter(torch.ones(2))
    groups = [{"params": [empty], "constraint": space}, {"params": [full]}]
    optimizer = Langevin(groups, lr=0.1, scheme=word, temperature=0.1)
    for _ in range(2):
        empty.grad, full.grad = torch.zeros(shape), torch.ones(2)
        optimizer.step()
        optimizer.synchronize()
    assert empty.shape == shape
    assert (full != 1).all()
    assert optimizer.residuals() == [0.0, 0.0]


def test_a_group_without_parameters_and_a_tensor_seed():
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = Langevin([{"params": [p]}, {"params": []}], 0.1, temperature=0.1, seed=torch.tensor(0))
    p.grad = torch.ones(2)
    optimizer.step()
    assert bool(p.ne(0).all())
