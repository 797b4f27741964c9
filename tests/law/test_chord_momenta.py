"""A drift that solves for its constraint takes any normal part of the momenta along: no letter of a step projects.

The state is then the last chord, whose tangent part is the momentum. What is compared with projects after every letter,
as the textbook does.
"""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from holonom import Langevin
from holonom.constraints import Orthogonal
from holonom.errors import ProjectionError

STEPS = 12


class Projected(Orthogonal):
    """Every letter ends with a tangent momentum."""

    def project_(self, x, p, slack_p=None):
        self.project_step_(x, p)

    def kick_(self, x, force, h):
        super().kick_(x, force, h)
        self.project_step_(x, x.p)

    def drift_(self, x, h):
        short = super().drift_(x, h)
        self.project_step_(x, x.p)
        return short


def weight(rows, columns):
    draw = torch.Generator().manual_seed(0)
    return torch.linalg.qr(torch.randn(rows, columns, generator=draw, dtype=torch.float64)).Q


def trained(word, shape, lr=0.2, space=None, **options):
    q = torch.nn.Parameter(weight(*shape))
    opt = Langevin([q], lr, scheme=word, constraint=space or Orthogonal(), **{"friction": 0.8, "seed": 0, **options})
    for _ in range(STEPS):
        q.grad = (3 * q.detach()).cos()
        opt.step()
    return q.detach(), opt.state[q]["chord"], opt


def off_tangent(q, p):
    y = q.mT @ p
    return float((y + y.mT).abs().max())


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
def test_the_same_motion(word, shape, temperature):
    options = {"coupling": 0.1, "driving_noise": 0.1} if "E" in word else {"temperature": temperature}
    q, p, opt = trained(word, shape, **options)
    assert off_tangent(q, p) > 1e-3
    assert opt.cotangencies()[0] < 1e-13
    warmth = opt.temperatures()[0]
    opt.synchronize()
    assert off_tangent(q, p) < 1e-13

    expected, momentum, strict = trained(word, shape, space=Projected(), **options)
    assert off_tangent(expected, momentum) < 1e-13
    assert warmth == pytest.approx(strict.temperatures()[0], rel=1e-12)
    strict.synchronize()
    torch.testing.assert_close(q, expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(p, momentum, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("lr", "count"), [(0.02, 3), (1e-6, 2)], ids=["long", "short"])
def test_products_of_a_step(lr, count, monkeypatch):
    monkeypatch.setattr(Orthogonal, "finish_", lambda *args: None)  # polishing has products of its own now and then
    with Products() as products:
        trained("OBA", (9, 4), lr)
    assert products.count == count * STEPS


def test_a_step_of_no_length_leaves_the_momentum():
    """A tensor lr may be zero, and then the drift does nothing."""
    lr = torch.tensor(0.2, dtype=torch.float64)
    _, _, opt = trained("BAOAB", (9, 4), lr)
    opt.synchronize()
    warmth = opt.temperatures()[0]
    lr.zero_()
    opt.step()
    assert opt.temperatures()[0] == pytest.approx(warmth, rel=1e-14)


def test_a_drift_that_fails_leaves_the_momenta_as_they_were():
    q, chord, opt = trained("OBA", (9, 4))
    before = q.clone(), chord.clone()
    opt.param_groups[0]["params"][0].grad *= 1000
    with pytest.raises(ProjectionError, match="did not converge"):
        opt.step()
    assert torch.equal(q, before[0])
    assert torch.equal(chord, before[1])
