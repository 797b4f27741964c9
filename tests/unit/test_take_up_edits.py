"""How an edit is taken up, space by space: where it lands, once, and not at all if the values are those there were."""

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere

from .harness import array, close, parameter, slope


def ellipse(q):
    return (torch.tensor([1.0, 4.0], dtype=torch.float64) * q.reshape(-1)[:2] ** 2).sum() - 1


SWAP = [[0.0, 1.0], [1.0, 0.0]]
CASES = {  # space, start, on the manifold, off it, where that lands
    "free": (None, [[1.0, 2.0]], [[5.0, 6.0]], [[7.0, 8.0]], [[7.0, 8.0]]),
    "circle": (Circle(1.0), [[0.1, 0.2]], [[-0.5, 0.6]], [[3.0, 0.2]], [[0.999, 0.2]]),
    "sphere": (Sphere(1.0), [[0.1, 0.2]], [[-0.5, 0.6]], [[0.0, 3.0]], [[0.0, 0.999]]),
    "sphere, equality": (Sphere(1.0, slack=False), [[1.0, 0.0]], [[0.6, 0.8]], [[0.0, 3.0]], [[0.0, 1.0]]),
    "orthogonal": (Orthogonal(), np.eye(2), SWAP, np.array(SWAP) * 1.7, SWAP),
    "level set": (LevelSet(ellipse), [1.0, 0.0], [0.0, 0.5], [0.0, 2.0], [0.0, 0.5]),
    "level set, slack": (LevelSet(ellipse, slack=True), [0.1, 0.1], [0.3, -0.2], [0.3, 0.3], [0.3, 0.3]),
}


def run(case, word, steps, temperature=0.1):
    space, start, *_ = CASES[case]
    p = parameter(start)
    optimizer = Langevin([p], lr=0.05, scheme=word, constraint=space, temperature=temperature, seed=0)
    for _ in range(steps):
        p.grad = torch.from_numpy(slope(array(p)))
        optimizer.step()
    return p, optimizer


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("kind", ["on", "off"])
@pytest.mark.parametrize("word", ["BAOAB", "L"])
@pytest.mark.parametrize("case", CASES)
def test_a_step_starts_from_the_edited_weights(case, word, kind, steps):
    """With a step too short to matter, what is left is the edit, landed."""
    _, _, on, off, landed = CASES[case]
    p, optimizer = run(case, word, steps)
    with torch.no_grad():
        p.copy_(torch.as_tensor(on if kind == "on" else off, dtype=torch.float64))
    p.grad = torch.from_numpy(slope(array(p)))
    optimizer.param_groups[0].update(lr=1e-12, temperature=0.0)
    optimizer.step()
    close(array(p), on if kind == "on" else landed, 1e-9)
    assert optimizer.residuals()[0] < 1e-14
    assert optimizer.cotangencies()[0] < 1e-14


@pytest.mark.parametrize("case", [name for name in CASES if name != "free"])
def test_project_lands_what_left_the_manifold(case):
    _, _, _, off, landed = CASES[case]
    p, optimizer = run(case, "BAOAB", 2)
    with torch.no_grad():
        p.copy_(torch.as_tensor(off, dtype=torch.float64))
    optimizer.project_()
    close(array(p), landed)
    assert optimizer.residuals()[0] < 1e-14
    assert optimizer.cotangencies()[0] < 1e-14


@pytest.mark.parametrize("case", CASES)
def test_rewriting_the_same_values_changes_nothing(case):
    """Loading a model's own weights, say: slack, angle and momenta are kept."""
    outcomes = []
    for rewrite in (False, True):
        p, optimizer = run(case, "BAOAB", 3)
        if rewrite:
            with torch.no_grad():
                p.copy_(p.clone())
        p.grad = torch.from_numpy(slope(array(p)))
        optimizer.step()
        outcomes.append(array(p))
    np.testing.assert_array_equal(*outcomes)


@pytest.mark.parametrize("case", ["circle", "sphere", "level set, slack"])
def test_an_edit_is_taken_up_once(case):
    """synchronize() takes it up; the step behind it starts from the momenta that left."""
    on = CASES[case][2]
    outcomes = []
    for synchronize in (False, True):
        p, optimizer = run(case, "BAOAB", 3, temperature=0.0)
        with torch.no_grad():
            p.copy_(torch.as_tensor(on, dtype=torch.float64))
        p.grad = torch.from_numpy(slope(array(p)))
        if synchronize:
            optimizer.synchronize()
        optimizer.step()
        outcomes.append(array(p))
    close(*outcomes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_edits_of_half_precision_weights_are_taken_up(dtype):
    w = torch.nn.Parameter(torch.tensor([0.5, 0.02, -0.01], dtype=dtype))
    optimizer = Langevin([w], 0.1, constraint=Circle(1.0))
    row = torch.nn.Parameter(torch.tensor([[0.6, 0.8]], dtype=dtype))
    fixed = Langevin([row], 0.1, constraint=Sphere(1.0, slack=False))
    for p, opt in ((w, optimizer), (row, fixed)):
        p.grad = torch.zeros_like(p)
        opt.step()
    with torch.no_grad():
        w[1:] = 0  # pruned
        row.mul_(1.1)
    optimizer.step()
    fixed.step()
    assert w[1:].tolist() == [0, 0]
    assert abs(float(row.double().norm()) - 1) < 2 * torch.finfo(dtype).eps
