"""Orthogonal steps as a device takes them, forced on a CPU: nothing is read, double precision corrects them or not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holonom import Langevin, _devices
from holonom._torch import few_digits, full_precision
from holonom.constraints import Orthogonal
from holonom.constraints.orthogonal import on_device, polar

SHAPES = [(30, 12), (12, 30), (16, 16), (3, 20, 8)]
STEPS = [("L", 1e-3), ("L", 3e-2), ("OBA", 1e-2), ("BAOAB", 0.1)]


@pytest.fixture(params=["corrected", "trusting"])
def device(request, monkeypatch):
    """A CPU that is treated like a device whose double precision is fast, or is not."""
    monkeypatch.setattr(_devices, "HOSTS", set())
    if request.param == "corrected":
        corrected(monkeypatch)
    return request.param


def corrected(monkeypatch):
    exact = {torch.float32: torch.float64}
    monkeypatch.setattr(on_device, "exact_dtype", lambda device, dtype: exact.get(dtype, dtype))


def orthogonal(*shape: int, dtype=torch.float64, seed=0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    tall = torch.randn(*shape[:-2], max(shape[-2:]), min(shape[-2:]), dtype=torch.float64, generator=generator)
    q = torch.linalg.qr(tall)[0]
    return (q if q.shape == torch.Size(shape) else q.mT).to(dtype).contiguous()


def error_of(w: Tensor) -> float:
    q = w.detach().double()
    q = q if q.shape[-2] >= q.shape[-1] else q.mT
    return float((q.mT @ q - torch.eye(q.shape[-1], dtype=q.dtype)).abs().max())


def space_for(shape: tuple[int, ...]) -> Orthogonal:
    return Orthogonal(view=None if len(shape) == 2 else "batch")


def descend(weights: list[Tensor], scheme: str, lr: float, steps: int, **settings) -> list[Tensor]:
    """Steps towards matrices that are not orthogonal: forces have normal parts."""
    params = [nn.Parameter(w.clone()) for w in weights]
    goals = [torch.randn(w.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) for w in weights]
    opt = Langevin(params, lr, scheme=scheme, constraint=space_for(weights[0].shape), seed=1, fuse=False, **settings)
    for _ in range(steps):
        for p, goal in zip(params, goals, strict=True):
            p.grad = p.detach() - goal.to(p.dtype)
        opt.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("scheme", "lr"), STEPS)
def test_steps_are_those_of_a_cpu(device, shape, scheme, lr, monkeypatch):
    start = orthogonal(*shape)
    found = descend([start.float()], scheme, lr, 40)[0]
    exact = descend([start], scheme, lr, 40)[0]
    monkeypatch.setattr(_devices, "HOSTS", {"cpu"})
    expected = descend([start], scheme, lr, 40)[0]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scheme", ["L", "OBA"])
def test_corrected_steps_hold_without_polishing(shape, scheme, monkeypatch):
    monkeypatch.setattr(_devices, "HOSTS", set())
    corrected(monkeypatch)
    monkeypatch.setattr("holonom.constraints.orthogonal.relative_gram_error", lambda *_: pytest.fail("polished"))
    found = descend([orthogonal(*shape, dtype=torch.float32)], scheme, 1e-2, 300, temperature=1e-3)
    assert error_of(found[0]) < 1e-7


def test_trusting_steps_are_polished(monkeypatch):
    monkeypatch.setattr(_devices, "HOSTS", set())
    found = descend([orthogonal(30, 12, dtype=torch.float32)], "OBA", 1e-2, 300, temperature=1e-3)
    assert error_of(found[0]) < 1e-6


@pytest.mark.parametrize("scheme", ["L", "BAOAB"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_matrices_of_different_heights_are_one_stack(device, scheme, dtype):
    weights = [orthogonal(*shape, dtype=dtype, seed=i) for i, shape in enumerate([(20, 8), (8, 31), (9, 8)])]
    opt = Langevin([nn.Parameter(w.clone()) for w in weights], constraint=Orthogonal(), seed=1)
    assert [len(bucket.params) for bucket in opt._buckets()[0]] == [3]
    together = descend(weights, scheme, 0.05, 10)
    for weight, found in zip(weights, together, strict=True):
        (alone,) = descend([weight], scheme, 0.05, 10)
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-12 if dtype == torch.float64 else 4e-3)


def test_square_and_large_matrices_stay_among_themselves(device, monkeypatch):
    monkeypatch.setattr("holonom._step.buckets.MAX_PADDED", 20 * 8)
    shapes = [(8, 8), (20, 8), (8, 8), (21, 8), (21, 8), (12, 8)]
    opt = Langevin([nn.Parameter(orthogonal(*shape)) for shape in shapes], constraint=Orthogonal(), seed=1)
    found = sorted([tuple(p.shape) for p in bucket.params] for bucket in opt._buckets()[0])
    assert found == [[(8, 8), (8, 8)], [(20, 8), (12, 8)], [(21, 8), (21, 8)]]


def test_noise_of_a_padded_stack_is_each_parameters_own(device):
    weights = [orthogonal(20, 8), orthogonal(11, 8, seed=1)]
    first = descend(weights, "BAOAB", 0.05, 10, temperature=0.1)
    (alone,) = descend(weights[:1], "BAOAB", 0.05, 10, temperature=0.1)
    torch.testing.assert_close(first[0], alone, rtol=0, atol=1e-12)


def test_edits_through_data_are_removed_in_a_few_steps(monkeypatch):
    monkeypatch.setattr(_devices, "HOSTS", set())
    corrected(monkeypatch)
    p = nn.Parameter(orthogonal(40, 12, dtype=torch.float32))
    opt = Langevin([p], 1e-3, scheme="OBA", constraint=Orthogonal(), seed=0)
    p.grad = torch.zeros_like(p)
    opt.step()
    p.data.add_(0.03 * torch.randn(40, 12, generator=torch.Generator().manual_seed(0)))
    assert error_of(p) > 0.05
    for _ in range(5):
        p.grad = torch.zeros_like(p)
        opt.step()
    assert error_of(p) < 1e-6


def test_corrections_stay_out_of_momenta_where_they_are_stripped(monkeypatch):
    corrected(monkeypatch)
    q = orthogonal(40, 12, dtype=torch.float32)
    rounded = q.bfloat16().float()
    p = 0.1 * torch.randn(40, 12, generator=torch.Generator().manual_seed(0))
    p -= q @ (q.mT @ p + p.mT @ q) / 2
    expected, kept, stripped = p.clone(), p.clone(), p.clone()
    on_device.rattle_(q.clone(), expected, 1e-2, strips=False)
    on_device.rattle_(rounded.clone(), kept, 1e-2, strips=False)
    on_device.rattle_(rounded.clone(), stripped, 1e-2, strips=True)
    assert (stripped - expected).abs().max() < 1e-3 < 1e-2 < (kept - expected).abs().max()


def test_every_replica_has_its_own_step(device):
    q, p = orthogonal(3, 20, 8, dtype=torch.float32), 0.1 * torch.randn(3, 20, 8)
    moved, momenta = q.clone(), p.clone()
    times = torch.tensor([0.1, 0.0, 0.02])[:, None, None]
    on_device.rattle_(moved, momenta, times, strips=False)
    assert torch.equal(momenta[1], p[1])
    for i in (0, 2):
        one, own = q[i].clone(), p[i].clone()
        on_device.rattle_(one, own, float(times[i]), strips=False)
        torch.testing.assert_close(moved[i], one, rtol=0, atol=1e-7)
        torch.testing.assert_close(momenta[i], own, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["tangent", "any"])
def test_products_of_eleven_bits_leave_what_the_next_step_removes(kind, monkeypatch):
    """TF32 is imitated by rounding the factors of the products that are said to need few digits."""
    corrected(monkeypatch)
    q = orthogonal(512, 256)
    z = torch.randn(512, 256, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if kind == "tangent":
        z -= q @ (q.mT @ z + z.mT @ q) / 2
    z = (0.1 * z / torch.linalg.matrix_norm(z, 2)).float()
    rounding: list[bool] = []

    def rounded(x: Tensor) -> Tensor:
        if not rounding or x.dtype != torch.float32:
            return x
        return (x.contiguous().view(torch.int32).add(0x1000) & ~0x1FFF).view(torch.float32)

    class Few:
        def __enter__(self):
            rounding.append(True)

        def __exit__(self, *_):
            rounding.clear()

    monkeypatch.setattr(on_device, "few_digits", Few)
    monkeypatch.setattr(on_device, "scaled_product", lambda a, b, scale: scale * (rounded(a) @ rounded(b)))
    found = q.float()
    for _ in range(3):
        on_device.move_(found, z, 1.0)
        assert error_of(found) < 3e-7
    exact = q.float()
    monkeypatch.setattr(on_device, "FEW_DIGITS", 1000)
    for _ in range(3):
        on_device.move_(exact, z, 1.0)
    assert 0 < (found - exact).abs().max() < 1e-6


def test_the_users_precision_comes_back():
    def present() -> str:
        return getattr(torch.backends.cuda.matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()

    before = present()
    with full_precision():
        inside = present()
        with few_digits():
            assert present() in ("tf32", "high")
        assert present() == inside
    assert present() == before


@pytest.mark.parametrize("shape", [(30, 12), (16, 16), (3, 20, 8)])
@pytest.mark.parametrize("size", [1e-3, 0.3, 3.0])
def test_the_nearest_matrix_is_the_polar_factor(device, shape, size):
    moved = orthogonal(*shape) + size * torch.randn(shape, generator=torch.Generator().manual_seed(2)).double() / 8
    expected, _ = polar.nearest(moved, "w")
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-9)):
        found = polar.approach(moved.to(dtype))
        assert error_of(found) < tolerance
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("scheme", ["L", "OBA"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_skipped_step_leaves_a_padded_stack_as_it_was(device, scheme, dtype, monkeypatch):
    weights = [orthogonal(*shape, dtype=dtype, seed=i) for i, shape in enumerate([(20, 8), (8, 31), (9, 8)])]
    ends = {}
    for flag in (None, False, True):
        skip = None if flag is None else torch.tensor(flag)
        params = [nn.Parameter(w.clone()) for w in weights]
        opt = Langevin(params, 0.05, scheme=scheme, constraint=Orthogonal(), seed=1, fuse=False)
        monkeypatch.setattr("holonom.optimizer.skip_non_finite", lambda _, skip=skip: skip)
        for p in params:
            p.grad = torch.ones_like(p)
        opt.step()
        momenta = [x for p in params for x in opt.state[p].values() if isinstance(x, Tensor) and x.shape == p.shape]
        ends[flag] = [p.detach() for p in params] + momenta
    assert all(map(torch.equal, ends[None], ends[False]))
    assert all(map(torch.equal, ends[True][:3], weights))
    assert not any(x.any() for x in ends[True][3:])
    assert (len(ends[True]) == 3) == (scheme == "L")


@pytest.mark.parametrize("scheme", ["L", "OBA"])
def test_a_step_without_a_projection_is_left_out(device, scheme, monkeypatch):
    monkeypatch.setattr("holonom.optimizer.skip_non_finite", lambda _: torch.tensor(False))
    weights = [orthogonal(20, 8, dtype=torch.float32), orthogonal(8, 31, dtype=torch.float32)]
    params = [nn.Parameter(w.clone()) for w in weights]
    opt = Langevin(params, 0.1, scheme=scheme, constraint=Orthogonal(), seed=1, fuse=False)
    for p in params:
        p.grad = torch.full_like(p, 1e30)
    opt.step()
    assert all(torch.equal(p, w) for p, w in zip(params, weights, strict=True))


@pytest.mark.parametrize("kind", ["tangent", "any"])
@pytest.mark.parametrize(("few", "left"), [(1, 0.1**6 / 2), (1000, 0.1**9 / 2)])
def test_what_iterations_leave(kind, few, left, monkeypatch):
    monkeypatch.setattr(on_device, "exact_dtype", lambda device, dtype: torch.float64)
    monkeypatch.setattr(on_device, "corrects", lambda q: True)
    monkeypatch.setattr(on_device, "FEW_DIGITS", few)
    q = orthogonal(60, 24)
    z = torch.randn(60, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if kind == "tangent":
        z -= q @ (q.mT @ z + z.mT @ q) / 2
    z *= 0.1 / torch.linalg.matrix_norm(z, 2)
    on_device.move_(q, z, 1.0)
    assert error_of(q) < left


@pytest.mark.parametrize(("scheme", "size"), [("L", 0.5), ("OBA", 0.3)])
def test_large_steps_of_few_digits_hold(scheme, size, monkeypatch):
    """Forces that turn weights by as much, as at the beginning of a training."""
    monkeypatch.setattr(_devices, "HOSTS", set())
    monkeypatch.setattr(on_device, "FEW_DIGITS", 1)
    corrected(monkeypatch)
    p = nn.Parameter(orthogonal(96, 64, dtype=torch.float32))
    opt = Langevin([p], 1.0, scheme=scheme, constraint=Orthogonal(), seed=0, fuse=False)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        turn = torch.randn(64, 64, dtype=torch.float64, generator=generator)
        turn -= turn.mT.clone()
        p.grad = (p.detach().double() @ turn * (size / torch.linalg.matrix_norm(turn, 2))).float()
        opt.step()
        assert error_of(p) < 2e-6
