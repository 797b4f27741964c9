"""Products that are only as exact as they need to be, and what orthogonal weights make of them."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from holonom import Langevin
from holonom.constraints import Orthogonal, products
from holonom.constraints.base import Phase
from holonom.constraints.deviation import deviation

PRODUCTS = (torch.matmul, torch.addmm, torch.baddbmm, torch.Tensor.addmm_, torch.Tensor.baddbmm_)


class Products(TorchFunctionMode):
    """Lists the dtypes of those that are taken."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in PRODUCTS:
            self.taken.append(args[1].dtype)
        return func(*args, **(kwargs or {}))


def skew(scale, shape=(3, 40, 40), dtype=torch.float32):
    k = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    k = k - k.mT
    return (scale * k / k.norm(dim=-1).max()).to(dtype)


@pytest.mark.parametrize(
    ("tolerance", "dtype"), [(1e-3, None), (1e-4, torch.bfloat16), (1e-6, torch.float32), (1e-9, torch.float32)]
)
def test_as_exact_as_asked_for(tolerance, dtype, monkeypatch):
    """Factors in one direction, where every rounding counts."""
    monkeypatch.setattr(products, "coarse_is_faster", lambda a, b: a.dtype == torch.float32)
    a = 0.03 * torch.nn.functional.normalize(torch.rand(50, 30) + 1, dim=-1)
    exact = a.double() @ a.double().mT
    product = products.product_within(a, a.mT, 0.03**2, tolerance)
    assert (None if product is None else product.dtype) == dtype
    error = (0 if product is None else product.double()) - exact
    assert float(error.abs().max()) <= max(tolerance, 1e-9)


@pytest.mark.parametrize("entry", [1.06640546875, 1.00390625001, 1.99])
def test_the_bound_holds_where_all_roundings_have_one_sign(entry, monkeypatch):
    monkeypatch.setattr(products, "coarse_is_faster", lambda a, b: True)
    a = torch.full((300, 300), entry)
    size = 300 * entry**2
    tolerance = size / 64
    product = products.product_within(a, a, size, tolerance)
    assert product.dtype == torch.bfloat16
    assert float((product.double() - size).abs().max()) <= tolerance


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("side", [40, 256, 257, 301, 514])
@pytest.mark.parametrize("wide", [False, True], ids=["tall", "wide"])
def test_symmetric_products_of_blocks_are_products(side, wide, dtype):
    z = torch.randn((side, 70) if wide else (70, side), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    z = (z.mT if wide else z).to(dtype)
    with torch.no_grad():
        product = products.symmetric_product(z.mT, z)
    exact = z.double().mT @ z.double()
    error = (product.double() - exact).abs().max() / exact.abs().max()
    assert float(error) < 4 * torch.finfo(dtype).eps


@torch.no_grad()
def test_symmetric_products_keep_what_is_not_a_number():
    z = torch.ones(300, 300)
    z[7, 290] = torch.nan
    assert products.symmetric_product(z.mT, z).isnan().sum() == 2 * 300 - 1


def test_the_residual_of_a_large_weight_has_a_gradient():
    q = (1.1 * torch.eye(300)).requires_grad_()
    Orthogonal().residual(Phase([q], [], [], [])).backward()
    assert float(q.grad.sum()) == pytest.approx(2 * 1.1)


def test_double_precision_and_small_matrices_are_never_coarse(monkeypatch):
    monkeypatch.setattr(products, "has_coarse_instructions", lambda: True)
    for a in (skew(1e-2, (200, 200), torch.float64), skew(1e-2, (100, 100))):
        assert products.product_within(a, a, 1e-4, 1e-5).dtype == a.dtype
    a = skew(1e-2, (200, 200))
    assert products.product_within(a, a, 1e-4, 1e-5).dtype == torch.bfloat16


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("turn", [1e-5, 1e-4, 3e-4, 1e-3, 1e-2, 3e-2, 0.1])
def test_a_turn_stays_orthogonal_whatever_its_length(turn, coarse, monkeypatch):
    """From those that need no correction to those that need several iterations."""
    monkeypatch.setattr(products, "coarse_is_faster", lambda a, b: coarse and a.dtype == torch.float32)
    k, tolerance = skew(turn), 3e-8
    d = deviation(k.clone(), None, True, tolerance)
    moved = torch.eye(40, dtype=torch.float64) + k.double() + (0 if d is None else d.double())
    error = float((moved.mT @ moved - torch.eye(40)).abs().max())
    assert error <= tolerance + 4 * torch.finfo(torch.float32).eps * turn**2


@pytest.mark.parametrize(("word", "wanted"), [("L", 2), ("OBA", 2)])
def test_a_short_step_of_a_square_weight_takes_two_products(word, wanted):
    q = torch.nn.Parameter(torch.linalg.qr(torch.randn(50, 50, generator=torch.Generator().manual_seed(0))).Q)
    opt = Langevin([q], 1e-3, scheme=word, constraint=Orthogonal())
    q.grad = torch.full_like(q, 1e-3)
    opt.step()  # the first one polishes
    with Products() as products_taken:
        opt.step()
    assert products_taken.taken == [torch.float32] * wanted
