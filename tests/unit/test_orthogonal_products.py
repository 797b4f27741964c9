"""Products of orthogonal weights: exact, symmetric at half the work, in full precision, and as few as a step needs."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from holonom import Langevin
from holonom._step.integrate import Phase
from holonom.constraints import Orthogonal
from holonom.constraints.orthogonal import matmul
from holonom.constraints.orthogonal.multiplier import deviation
from holonom.errors import ProjectionError

PRODUCTS = (torch.matmul, torch.mm, torch.addmm, torch.baddbmm, torch.Tensor.addmm_, torch.Tensor.baddbmm_)


class Products(TorchFunctionMode):
    """Calls ``seen`` before every product of matrices."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in PRODUCTS:
            self.seen()
        return func(*args, **(kwargs or {}))


def skew(scale, shape=(3, 40, 40), dtype=torch.float32):
    k = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    k = k - k.mT
    return (scale * k / k.norm(dim=-1).max()).to(dtype)


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_product_within_the_tolerance_is_left_out(symmetric):
    a = torch.randn(5, 4)
    b = a.mT
    size = float(a.norm(dim=-1).max()) ** 2
    assert matmul.product_within(a, b, size, size, symmetric) is None
    assert float((a @ b).abs().max()) <= size
    torch.testing.assert_close(matmul.product_within(a, b, size, 0.99 * size, symmetric), a @ b)


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("stack", [(), (3,), (2, 3)], ids=str)
def test_joined_products_are_products_and_sums(stack, transposed):
    """In one call or in several, by the number of dimensions, and in the memory layout of the first argument."""
    z = torch.randn(*stack, 6, 4)
    z = z.mT.contiguous().mT if transposed else z
    a, b = torch.randn(*stack, 6, 5), torch.randn(*stack, 5, 4)
    product = a @ b
    close = torch.testing.assert_close
    close(matmul.gram(z, a), z.mT @ a)
    close(matmul.scaled_product(a, b, 0.3), 0.3 * product)
    close(matmul.plus_product(z, a, b, -0.5), z - 0.5 * product)
    close(matmul.skew_gram(a, a @ b @ b.mT, 2.0), a.mT @ a @ b @ b.mT - (a.mT @ a @ b @ b.mT).mT)
    less = matmul.scaled_less_product(z, 0.7, a, b)
    close(less, 0.7 * z - product)
    assert less.stride() == z.stride()
    matmul.subtract_product_(less, a, b, 2.0)
    close(less, 0.7 * z - 3 * product)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("side", [40, 256, 257, 514])
@pytest.mark.parametrize("wide", [False, True], ids=["tall", "wide"])
def test_symmetric_products_of_blocks_are_products(side, wide, dtype):
    z = torch.randn((side, 70) if wide else (70, side), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    z = (z.mT if wide else z).to(dtype)
    product = matmul.symmetric_product(z.mT, z)
    exact = z.double().mT @ z.double()
    assert float((product.double() - exact).abs().max() / exact.abs().max()) < 4 * torch.finfo(dtype).eps


def test_symmetric_products_keep_nan():
    z = torch.ones(300, 300)
    z[7, 290] = torch.nan
    assert matmul.symmetric_product(z.mT, z).isnan().sum() == 2 * 300 - 1


def test_large_skew_parts_are_skew_parts():
    y = torch.randn(520, 520)
    torch.testing.assert_close(matmul.skew_part(y), (y - y.mT) / 2)


def test_residuals_are_summed_in_double_precision():
    """A thousand equal entries a column: a sum in float32 would be off by more than the weights are."""
    q = torch.full((1000, 1), 1000**-0.5)
    exact = abs(float(q.double().square().sum()) - 1)
    assert float(Orthogonal().residual(Phase(q))) == pytest.approx(exact, rel=1e-3)


def test_the_residual_of_a_large_weight_has_a_gradient():
    q = (1.1 * torch.eye(300)).requires_grad_()
    Orthogonal().residual(Phase(q)).backward()
    assert float(q.grad.sum()) == pytest.approx(2 * 1.1)


@pytest.mark.parametrize("turn", [1e-5, 1e-4, 3e-4, 1e-3, 1e-2, 3e-2, 0.1])
def test_a_turn_stays_orthogonal_whatever_its_length(turn):
    """From those that need no correction to those that need several iterations."""
    k, tolerance = skew(turn), 3e-8
    d = deviation(k.clone(), None, True, tolerance)
    assert (d is None) == (turn <= 1e-4)
    moved = torch.eye(40, dtype=torch.float64) + k.double() + (0 if d is None else d.double())
    error = float((moved.mT @ moved - torch.eye(40)).abs().max())
    assert error <= tolerance + 4 * torch.finfo(torch.float32).eps * turn**2


@pytest.mark.parametrize(("shape", "wanted"), [((50, 50), 2), ((50, 20), 2)], ids=["square", "tall"])
@pytest.mark.parametrize("word", ["L", "OBA"])
def test_a_short_step_takes_two_products(word, shape, wanted):
    q = torch.nn.Parameter(torch.linalg.qr(torch.randn(shape, generator=torch.Generator().manual_seed(0))).Q)
    opt = Langevin([q], 1e-3, scheme=word, constraint=Orthogonal())
    q.grad = torch.full_like(q, 1e-3)
    opt.step()  # the first one polishes
    taken = []
    with Products(lambda: taken.append(1)):
        opt.step()
    assert len(taken) == wanted


# ── precision ────────────────────────────────────────────────────────────────────────────────────

NEW = hasattr(torch.backends.cuda.matmul, "fp32_precision")  # torch 2.9


def precision():
    if NEW:
        return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    return torch.get_float32_matmul_precision()


@pytest.fixture(params=["medium", "high", "fp32_precision"])
def low_precision(request):
    """Products that may lose digits, set by the old and by the new interface of torch."""
    if request.param != "fp32_precision":
        torch.set_float32_matmul_precision(request.param)
    elif NEW:
        torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = "tf32", "bf16"
    else:
        pytest.skip("this torch has no fp32_precision")
    yield precision()
    torch.set_float32_matmul_precision("highest")


def run(word, shape, seen=lambda: None, scale=1.0, steps=3):
    q = torch.nn.Parameter(torch.linalg.qr(torch.randn(shape, generator=torch.Generator().manual_seed(0))).Q)
    opt = Langevin([q], 0.1, scheme=word, temperature=0.01, constraint=Orthogonal(), seed=0)
    with Products(seen):
        for _ in range(steps):
            q.grad = scale * torch.sin(3 * q.detach())
            opt.step()
        opt.residuals(), opt.cotangencies(), opt.temperatures(), opt.synchronize(), opt.project_()
    return q.detach()


@pytest.mark.parametrize("shape", [(20, 20), (20, 5)], ids=str)
@pytest.mark.parametrize("word", ["L", "BAOAB"])
def test_every_product_has_all_digits_whatever_the_setting(low_precision, word, shape):
    seen = []
    q = run(word, shape, lambda: seen.append(precision()))
    assert set(seen) == {("ieee", "ieee") if NEW else "highest"}
    assert precision() == low_precision
    torch.set_float32_matmul_precision("highest")
    assert torch.equal(q, run(word, shape))


def test_the_setting_is_restored_after_an_exception(low_precision):
    with pytest.raises(ProjectionError):
        run("L", (20, 20), scale=1e3)
    assert precision() == low_precision
