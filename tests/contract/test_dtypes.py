"""Half and double precision: what is kept in which dtype, before and after loading."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal, Sphere

from .cases import CASES, Case, assert_equal, build, counters, every_case, snapshot, train

HALVES = [torch.bfloat16, torch.float16]
every_half = pytest.mark.parametrize("dtype", HALVES, ids=["bf16", "fp16"])


def converted(case, dtype, **options):
    """In another precision the weights are landed once more, with a warning that is not the point here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build(case, dtype=dtype, **options)


def precisions(net, opt, part=""):
    """The floating-point dtypes of weights and state, or of entries with ``part`` in their names; the clock counts."""
    return {x.dtype for name, x in snapshot(net, opt).items() if part in name and x.is_floating_point()}


@every_case
@every_half
def test_half_precision_weights_have_single_precision_state(case, dtype):
    net, opt = converted(case, dtype)

    assert precisions(net, opt, ".") <= {torch.float32}
    before = net.up.detach().clone()
    train(net, opt, 3)
    assert precisions(net, opt, ".") <= {torch.float32}
    assert all(p.dtype == dtype and p.isfinite().all() for p in net.parameters())
    assert not torch.equal(net.up, before)
    if case.space != "orthogonal-k1":  # one iteration leaves what it leaves
        assert opt.residuals()[0] < 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("case", [c for c in CASES if c.scheme in ("BAOAB", "L")], ids=str)
@every_half
def test_a_resumed_half_precision_run_equals_the_uninterrupted_one(case, dtype):
    net, opt = converted(case, dtype)
    train(net, opt, 2)
    fresh, fresh_opt = converted(case, dtype, init=1)
    fresh.load_state_dict(net.state_dict())
    fresh_opt.load_state_dict(opt.state_dict())
    assert precisions(fresh, fresh_opt, ".") <= {torch.float32}
    train(net, opt, 3)
    train(fresh, fresh_opt, 3)
    assert_equal(snapshot(fresh, fresh_opt), snapshot(net, opt))
    assert counters(fresh_opt) == counters(opt)


@every_case
def test_double_precision_is_double_throughout(case):
    net, opt = converted(case, torch.float64)
    train(net, opt, 3)
    assert precisions(net, opt) == {torch.float64}


@pytest.mark.parametrize("space", ["free", "circle", "sphere", "orthogonal"])
def test_a_checkpoint_of_another_precision_becomes_this_ones(space):
    """As torch.optim does: state follows the parameters it is loaded for."""
    double, double_opt = converted(Case("BAOAB", space), torch.float64)
    train(double, double_opt, 2)
    net, opt = build(Case("BAOAB", space))
    net.load_state_dict(double.state_dict())
    opt.load_state_dict(double_opt.state_dict())
    assert precisions(net, opt) == {torch.float32}
    train(net, opt, 2)
    train(double, double_opt, 2)
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.double(), double.get_parameter(name), rtol=0, atol=1e-4)


@pytest.mark.parametrize("space", ["free", "circle", "sphere", "orthogonal"])
@pytest.mark.parametrize("started", [False, True], ids=["before any step", "after a step"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_model_converted_under_the_optimizer_is_refused_by_name(space, started, dtype):
    net, opt = build(Case("BAOAB", space))
    train(net, opt, int(started))
    net.to(dtype)
    with pytest.raises((RuntimeError, TypeError), match=rf"'up'.*float32.*{str(dtype).removeprefix('torch.')}"):
        train(net, opt, 1)


@pytest.mark.parametrize("space", ["free", "circle", "sphere", "orthogonal"])
def test_a_converted_model_goes_on_with_a_new_optimizer(space):
    net, opt = build(Case("BAOAB", space))
    train(net, opt, 2)
    name = "chord" if space == "orthogonal" else "momentum"
    momentum = opt.state[net.up][name].clone()
    net.double()
    saved = opt.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new = Langevin(net.named_parameters(), 0.1, temperature=0.01, constraint=Case("BAOAB", space).constraint)
    new.load_state_dict(saved)
    assert torch.equal(new.state[net.up][name], momentum.double())
    train(net, new, 2)
    assert precisions(net, new) == {torch.float64}


def test_a_model_laid_out_anew_under_the_optimizer_still_moves():
    """A flattened view of a channels_last weight is a copy: steps into it must not be lost."""
    net = nn.Conv2d(2, 3, 2, bias=False)
    nn.init.orthogonal_(net.weight)
    opt = Langevin(net.named_parameters(), 0.1, constraint=Orthogonal("conv"))
    net.to(memory_format=torch.channels_last)
    before = net.weight.detach().clone()
    net.weight.grad = torch.ones_like(net.weight)
    opt.step()
    assert not torch.equal(net.weight, before)
    assert net.weight.is_contiguous(memory_format=torch.channels_last)


def test_one_group_may_mix_dtypes():
    params = [nn.Parameter(torch.full((3,), 0.5, dtype=d)) for d in (torch.float32, torch.float64, torch.bfloat16)]
    opt = Langevin(params, 0.1, scheme="BACDEDCAB", temperature=0.01)
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        opt.step()
    assert [opt.state[p]["momentum"].dtype for p in params] == [torch.float32, torch.float64, torch.float32]
    assert all((p < 0.5).all() for p in params)


@pytest.mark.parametrize("scheme", ["BAOAB", "ABO", "L", "BACDEDCAB"])
@pytest.mark.parametrize("space", [None, Circle(1.5), Sphere(2.0, view="batch"), Orthogonal("batch")], ids=str)
def test_rates_of_replicas_are_as_exact_as_a_float_in_double_precision(scheme, space):
    runs = []
    for rate in (0.1, torch.tensor([0.1, 0.1], dtype=torch.float64)):
        start = nn.init.orthogonal_(torch.empty(4, 3).double(), generator=torch.Generator().manual_seed(0))
        weight = nn.Parameter(start.repeat(2, 1, 1))
        opt = Langevin([weight], rate, scheme=scheme, constraint=space, temperature=0.01, seed=torch.tensor([1, 1]))
        for _ in range(5):
            weight.grad = weight.detach().sin()
            opt.step()
        runs.append(weight.detach())
    torch.testing.assert_close(*runs, rtol=1e-12, atol=1e-12)


@pytest.fixture
def matmul():
    """torch's setting for products on a GPU, by the user set to the fastest."""
    setting = torch.backends.cuda.matmul
    if not hasattr(setting, "fp32_precision"):
        pytest.skip("this torch has one setting for all devices")
    before = setting.fp32_precision
    setting.fp32_precision = "tf32"
    yield setting
    setting.fp32_precision = before


@pytest.mark.parametrize("scheme", ["BAOAB", "L"])
@pytest.mark.parametrize("fails", [False, True])
def test_products_of_orthogonal_weights_have_all_digits_whatever_the_user_set(scheme, fails, matmul, monkeypatch):
    """TF32 or bfloat16 products would leave the manifold. Afterwards the setting is the user's again."""
    seen = []
    net, opt = build(Case(scheme, "orthogonal"))
    finish = Orthogonal.finish_

    def watched(*args):
        seen.append(matmul.fp32_precision)
        if fails:
            raise ZeroDivisionError
        return finish(*args)

    monkeypatch.setattr(Orthogonal, "finish_", watched)
    try:
        train(net, opt, 1)
    except ZeroDivisionError:
        assert fails
    assert set(seen) == {"ieee"}
    assert matmul.fp32_precision == "tf32"


def test_threads_draw_what_each_would_draw_alone():
    def run(seed):
        net, opt = build(Case("BAOAB", "circle"), seed=seed)
        for _ in range(40):
            for p in net.parameters():
                p.grad = p.detach().sin()
            opt.step()
        return snapshot(net, opt)

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(8)))
    for seed, found in enumerate(together):
        assert_equal(found, run(seed))
