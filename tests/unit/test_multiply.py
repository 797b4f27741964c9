"""Large products by oneDNN: the same numbers, and only where it is known to be safe."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holonom import Langevin
from holonom.constraints import Orthogonal, multiply

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="this torch has no oneDNN",
)


class Calls(TorchDispatchMode):
    """Counts the products that oneDNN takes."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.namespace == "mkldnn"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def faster(monkeypatch):
    monkeypatch.setattr(multiply, "onednn_is_faster", lambda: True)


def matrix(rows, columns, by_columns=False, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(columns, rows, generator=g).mT if by_columns else torch.randn(rows, columns, generator=g)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (matrix(256, 300), matrix(300, 270, seed=2)),
        (matrix(300, 700), matrix(700, 300, by_columns=True, seed=2)),
        (matrix(257, 257, by_columns=True), matrix(257, 900, seed=2)),
        (torch.nn.Parameter(matrix(256, 256)), matrix(256, 256, seed=2)),
    ],
    ids=["rows rows", "rows columns", "small columns", "parameter"],
)
@torch.no_grad()
def test_the_same_product(a, b, faster):
    with Calls() as calls:
        taken = multiply.product(a, b)
    assert calls.count == 1
    assert taken.is_contiguous()
    assert not taken.requires_grad
    exact = a.double() @ b.double()
    assert float((taken - exact).abs().max() / exact.abs().max()) < 1e-6


@torch.no_grad()
def test_what_is_not_a_number_stays_in_its_row_and_column(faster):
    a = matrix(256, 256)
    a[7, 9] = torch.nan
    with Calls() as calls:
        taken = multiply.product(a, torch.eye(256))
    assert calls.count == 1
    assert taken[7].isnan().all()
    assert taken.isnan().sum() == 256


class Tagged(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (matrix(255, 300), matrix(300, 300)),
        (matrix(300, 300, by_columns=True), matrix(300, 300)),
        (matrix(300, 400)[:, :300], matrix(300, 300)),
        (matrix(300, 300), matrix(300, 400)[:, :300]),
        (matrix(300, 300).double(), matrix(300, 300).double()),
        (matrix(300, 300).bfloat16(), matrix(300, 300).bfloat16()),
        (matrix(300, 300).expand(2, 300, 300), matrix(300, 300)),
        (matrix(300, 300).as_subclass(Tagged), matrix(300, 300)),
    ],
    ids=["small", "against the grain", "gaps in a", "gaps in b", "double", "half", "stack", "subclass"],
)
@torch.no_grad()
def test_left_to_torch(a, b, faster):
    with Calls() as calls:
        taken = multiply.product(a, b)
    assert calls.count == 0
    assert type(taken) is type(a)
    exact = torch.Tensor(a).double() @ torch.Tensor(b).double()
    error = (torch.Tensor(taken) - exact).abs().max() / exact.abs().max()
    assert float(error) < 8 * torch.finfo(a.dtype).eps


def test_left_to_torch_where_there_may_be_gradients(faster):
    a = matrix(256, 256).requires_grad_()
    (gradient,) = torch.autograd.grad(multiply.product(a, a.detach()).sum(), a)
    torch.testing.assert_close(gradient, a.detach().sum(1).expand(256, 256))


@torch.no_grad()
def test_left_to_torch_where_onednn_is_turned_off(faster):
    a = matrix(256, 256)
    torch.backends.mkldnn.enabled = False
    try:
        with Calls() as calls:
            multiply.product(a, a)
    finally:
        torch.backends.mkldnn.enabled = True
    assert calls.count == 0


@pytest.mark.parametrize("scheme", ["L", "OBA", "BAOAB"])
@pytest.mark.parametrize("shape", [(256, 600), (600, 256), (260, 260)], ids=["wide", "tall", "square"])
def test_orthogonal_steps_are_those_of_double_precision(scheme, shape, faster):
    start = torch.nn.init.orthogonal_(matrix(*shape).double())
    force = matrix(*shape, seed=3).double() * 1e-2
    ends = []
    for dtype in (torch.float32, torch.float64):
        weight = torch.nn.Parameter(start.to(dtype, copy=True))
        opt = Langevin([weight], 0.05, scheme=scheme, constraint=Orthogonal())
        with Calls() as calls:
            for _ in range(15):
                weight.grad = force.to(dtype)
                opt.step()
        assert (calls.count > 0) == (dtype == torch.float32)
        assert max(opt.residuals()) < (1e-6 if dtype == torch.float32 else 1e-12)
        ends.append(weight.detach().double())
    assert float((ends[0] - ends[1]).abs().max()) < 1e-6
    assert float((ends[1] - start).abs().max()) > 1e-3
