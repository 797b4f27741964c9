"""A drift that solves for its constraint takes any normal part of the momenta along: no projection is needed before."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from holonom import Langevin
from holonom.constraints import Constraint, Orthogonal
from holonom.errors import ProjectionError

STEPS = 12


def weight(rows, columns):
    draw = torch.Generator().manual_seed(0)
    return torch.linalg.qr(torch.randn(rows, columns, generator=draw, dtype=torch.float64)).Q


def trained(word, shape, lr=0.2, **options):
    q = torch.nn.Parameter(weight(*shape))
    opt = Langevin([q], lr, scheme=word, constraint=Orthogonal(), **{"friction": 0.8, **options})
    for _ in range(STEPS):
        q.grad = (3 * q.detach()).cos()
        opt.step()
    return q.detach(), opt.state[q]["momentum"], opt


class Products(TorchFunctionMode):
    """Counts those with a tall matrix."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.matmul, torch.addmm, torch.Tensor.addmm_):
            self.count += any(isinstance(x, torch.Tensor) and max(x.shape) == 9 for x in args)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("temperature", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(9, 4), (6, 5)])
@pytest.mark.parametrize("word", ["OBA", "ABO", "BAOAB", "BAAOAAB", "BACDEDCAB"])
def test_the_same_motion(word, shape, temperature, monkeypatch):
    options = {"coupling": 0.1, "driving_noise": 0.1} if "E" in word else {"temperature": temperature}
    q, p, opt = trained(word, shape, **options)
    assert float(opt._spaces[0].cotangency(opt._phases()[0][0][1])) < 1e-13
    monkeypatch.setattr(Orthogonal, "loose", Constraint.loose)
    expected, momentum, _ = trained(word, shape, **options)
    torch.testing.assert_close(q, expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(p, momentum, rtol=1e-12, atol=1e-12)


def test_four_products_instead_of_six(monkeypatch):
    counts = []
    for _ in range(2):
        with Products() as products:
            trained("OBA", (9, 4), lr=0.02)  # a short step: a long one across the manifold is projected first
        counts.append(products.count / STEPS)
        monkeypatch.setattr(Orthogonal, "loose", Constraint.loose)
    assert counts[1] - counts[0] == 2


def test_a_step_of_no_length_leaves_tangent_momenta():
    """A tensor lr may be zero, and then the drift does nothing."""
    lr = torch.tensor(0.2, dtype=torch.float64)
    _, _, opt = trained("BAOAB", (9, 4), lr)
    lr.zero_()
    opt.step()
    assert float(opt._spaces[0].cotangency(opt._phases()[0][0][1])) < 1e-13


def test_a_drift_that_fails_leaves_tangent_momenta():
    q = torch.nn.Parameter(weight(9, 4))
    opt = Langevin([q], 0.2, scheme="OBA", constraint=Orthogonal())
    q.grad = 1000 * (3 * q.detach()).cos()
    with pytest.raises(ProjectionError, match="did not converge"):
        opt.step()
    p = opt.state[q]["momentum"]
    y = q.detach().mT @ p
    assert float(p.abs().max()) > 1
    assert float((y + y.mT).abs().max()) < 1e-10
