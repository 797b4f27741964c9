"""On a GPU: state lives there, nothing is read back during a step, bad gradients are masked on the device."""

import warnings
from contextlib import contextmanager

import pytest
import torch

import holonom
from holonom import Langevin
from holonom.constraints import Circle, Orthogonal, Sphere, View
from holonom.errors import NonFiniteGradientError

from .cases import CASES, Case, Net, assert_equal, backward, build, every_case, few_cases, snapshot, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

QUIET = [Case(word, space) for space in ("free", "circle", "sphere", "orthogonal") for word in ("BAOAB", "L")]
QUIET += [case for case in CASES if case.thermostatted] + [Case("OBA", "circle-radii"), Case("M", "free")]


@contextmanager
def no_reading_back():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_device(case, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fixed sphere's rows are unit on the host, to another rounding
        return build(case, device="cuda", **options)


@every_case
def test_state_lives_where_the_parameters_live(case):
    net, opt = on_device(case)
    train(net, opt, 3)
    assert all(x.is_cuda and x.isfinite().all() for x in snapshot(net, opt).values())
    if case.space != "orthogonal-k1":  # one iteration leaves what it leaves
        assert opt.residuals()[0] < 1e-4


@pytest.mark.parametrize("lr", ["float", "tensor"])
@pytest.mark.parametrize("case", QUIET, ids=str)
def test_a_step_never_waits_for_the_device(case, lr):
    net, opt = on_device(case, lr=0.1 if lr == "float" else torch.tensor(0.1, device="cuda"))
    train(net, opt, 2)
    for _ in range(3):
        backward(net, opt)
        with no_reading_back():
            opt.step()
    opt.check()


HELD = {
    "spheres per row": (Sphere("initial"), ("plain", "tangent", "angular")),
    "spheres per matrix": (Sphere("initial", per="matrix"), ("plain", "tangent", "angular")),
    "circles": (Circle(0.2), ("plain", "tangent")),
    "circles, a radius on the host": (Circle(torch.tensor(0.2)), ("plain", "tangent")),
    "orthogonal": (Orthogonal(scale="initial"), ("plain", "tangent")),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "update"), [(name, update) for name, (_, known) in HELD.items() for update in known])
def test_constrained_steps_of_another_optimizer_never_wait_for_the_device(name, update, dtype):
    layers = (torch.nn.Linear(n, 64, bias=False, device="cuda", dtype=dtype) for n in (64, 300))
    model = torch.nn.Sequential(*layers)
    opt = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.0, fused=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weights that start elsewhere are moved
        held = holonom.constrain(opt, model, {"*": HELD[name][0]}, update)
    for number in range(5):
        for p in model.parameters():
            p.grad = torch.sin(number + 3 * p.detach())
        if number < 2:
            opt.step()
            continue
        with no_reading_back():
            opt.step()
    held.check()


@every_case
def test_a_gradient_that_is_not_finite_is_masked_on_the_device_and_reported(case):
    net, opt = on_device(case, lr=0.02)  # small: one iteration of K = 1 is then enough for check()
    train(net, opt, 2)
    before = snapshot(net, opt)
    for value in (float("nan"), float("inf")):
        backward(net, opt)
        net.down.grad[1, 2] = value
        opt.step()
        assert_equal(snapshot(net, opt), before)
    with pytest.raises(NonFiniteGradientError, match="2 step"):
        opt.check()
    opt.check()
    train(net, opt, 2)
    assert all(x.isfinite().all() for x in snapshot(net, opt).values())
    assert not torch.equal(net.up, before["up"])
    opt.check()


def test_the_thermostat_is_masked_too_when_its_parameter_has_no_gradient():
    net, opt = on_device(Case("BACDEDCAB", "free"))
    train(net, opt, 2)
    before = opt.state[net.up]["thermostat"].clone()
    backward(net, opt)
    net.up.grad = None
    net.mid.grad.fill_(float("nan"))
    opt.step()
    assert torch.equal(opt.state[net.up]["thermostat"], before)


@pytest.mark.parametrize("ask", [Langevin.state_dict, Langevin.residuals])
def test_saving_or_looking_says_what_was_masked(ask):
    net, opt = on_device(Case("BAOAB", "free"))
    backward(net, opt)
    net.up.grad.fill_(float("nan"))
    opt.step()
    with pytest.warns(UserWarning, match="1 step"):
        ask(opt)


@every_case
def test_a_rate_on_the_device_is_the_same_rate(case):
    net, opt = on_device(case, lr=0.125)
    other, other_opt = on_device(case, lr=torch.tensor(0.125, device="cuda"))
    for rate in (0.125, 0.0625, 0.03125):
        opt.param_groups[0]["lr"] = rate
        other_opt.param_groups[0]["lr"].fill_(rate)  # in place, as torch's schedulers do
        train(net, opt, 1)
        train(other, other_opt, 1)
    torch.testing.assert_close(snapshot(other, other_opt), snapshot(net, opt), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [c for c in CASES if c.space != "orthogonal-k1"], ids=str)
def test_a_rate_of_zero_on_the_device_changes_nothing_but_roundings(case):
    net, opt = on_device(case, lr=torch.tensor(0.1, device="cuda"))
    train(net, opt, 2)
    before = snapshot(net, opt)
    opt.param_groups[0]["lr"].zero_()
    backward(net, opt)
    opt.step()
    after = snapshot(net, opt)
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.detach(), before[name], rtol=1e-5, atol=1e-5)
    assert all(x.isfinite().all() for x in after.values())


@every_case
def test_a_run_resumed_on_the_device_equals_the_uninterrupted_one(case):
    net, opt = on_device(case)
    train(net, opt, 3)
    saved = {"net": net.state_dict(), "opt": opt.state_dict()}
    fresh, fresh_opt = on_device(case, init=1)
    fresh.load_state_dict(saved["net"])
    fresh_opt.load_state_dict(saved["opt"])
    train(net, opt, 3)
    train(fresh, fresh_opt, 3)
    assert_equal(snapshot(fresh, fresh_opt), snapshot(net, opt))


@few_cases
def test_a_checkpoint_from_the_host_goes_on_on_the_device(case):
    host, host_opt = build(case)
    train(host, host_opt, 2)
    net, opt = on_device(case, init=1)
    net.load_state_dict(host.state_dict())
    opt.load_state_dict(host_opt.state_dict())
    assert all(x.is_cuda for x in snapshot(net, opt).values())
    train(net, opt, 1)


@few_cases
def test_no_generator_of_the_device_is_moved(case):
    before = torch.cuda.get_rng_state()
    train(*on_device(case), 2)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_a_model_moved_to_the_device_under_the_optimizer_is_refused_by_name():
    net, opt = build(Case("BAOAB", "circle"))
    net.cuda()
    with pytest.raises((RuntimeError, TypeError), match=r"'up'.*cpu.*cuda"):
        train(net, opt, 1)


def test_empty_tensors_are_carried_along_on_the_device():
    params = [torch.nn.Parameter(torch.zeros(shape, device="cuda")) for shape in ((0, 3), (2, 3))]
    opt = Langevin(params, 0.1, constraint=Circle(1.0), temperature=0.01)
    for p in params:
        p.grad = torch.ones_like(p)
    opt.step()
    opt.check()
    assert params[1].isfinite().all()


@few_cases
def test_a_grad_scaler_skips_what_overflowed(case):
    net, opt = on_device(case)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    before = snapshot(net, opt)
    for bad in (True, False):
        opt.zero_grad()
        scaler.scale((net(torch.ones(2, 3, device="cuda")) - 1).square().mean()).backward()
        if bad:
            net.mid.grad[0, 0] = float("inf")
        scaler.step(opt)
        scaler.update()
        assert torch.equal(net.up, before["up"]) == bad
    opt.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("space", [None, Circle(1.0), Sphere(9.0)], ids=["free", "circle", "sphere"])
def test_the_compiled_step_is_the_same_step_on_the_device(dtype, space, monkeypatch):
    monkeypatch.setattr("holonom._backends.inductor.warn_uncompiled", lambda error: pytest.fail(str(error)))
    results = []
    for compiled in (True, False):
        q = torch.nn.Parameter(torch.linspace(-0.5, 0.5, 128 * 128, device="cuda", dtype=dtype).reshape(128, 128))
        opt = Langevin([q], 0.1, scheme="OBA", constraint=space, temperature=0.01, seed=0, fuse=compiled)
        for step in range(10):
            q.grad = q.detach().sin()
            if step > 1:
                with no_reading_back():
                    opt.step()
            else:
                opt.step()
        opt.check()
        results.append(q.detach())
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=5e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize(
    "space", [None, Circle(1.0), Sphere(9.0, view="conv"), Sphere(9.0, view=View(output=1))], ids=str
)
def test_weights_with_channels_last_are_compiled_and_masked(space, monkeypatch):
    monkeypatch.setattr("holonom._backends.inductor.warn_uncompiled", lambda error: pytest.fail(str(error)))
    runs = []
    for compiled in (True, False):
        start = torch.linspace(-0.5, 0.5, 8 * 4 * 9).view(8, 4, 3, 3)
        q = torch.nn.Parameter(start.to("cuda", memory_format=torch.channels_last))
        opt = Langevin([q], 0.1, constraint=space, fuse=compiled)
        for step in range(4):
            q.grad = torch.sin(7 * q.detach())
            if step == 2:
                q.grad[0, 0, 0, 0] = torch.nan
            opt.step()
        with pytest.raises(NonFiniteGradientError, match="1 step"):
            opt.check()
        assert q.is_contiguous(memory_format=torch.channels_last)
        runs.append(q.detach().clone())
    torch.testing.assert_close(*runs)


@pytest.mark.parametrize("slack", [True, False])
@pytest.mark.parametrize("word", ["L", "BAOAB"])
def test_rows_of_transposed_convolutions_are_their_outputs(word, slack):
    """Their weights are contiguous, (in, out, kh, kw), and their rows are no view of them."""
    runs = []
    for device in ("cuda", "cpu"):
        start = torch.linspace(-0.5, 0.5, 8 * 4 * 9).view(8, 4, 3, 3)
        space = Sphere(9.0, slack, view=View(output=1))
        space.land_(start, "start")
        q = torch.nn.Parameter(start.to(device))
        opt = Langevin([q], 0.1, scheme=word, constraint=space)
        for _ in range(3):
            q.grad = torch.sin(7 * q.detach())
            opt.step()
        assert opt.residuals()[0] < 1e-5
        runs.append(q.detach().cpu())
    torch.testing.assert_close(*runs)


def test_host_and_device_parameters_may_share_an_optimizer():
    host, device = Net(), Net().cuda()
    opt = Langevin([{"params": list(host.parameters())}, {"params": list(device.parameters())}], 0.1, temperature=0.01)
    for p in (*host.parameters(), *device.parameters()):
        p.grad = torch.ones_like(p)
    opt.step()
    opt.check()
    assert all(p.isfinite().all() for p in (*host.parameters(), *device.parameters()))


@pytest.mark.parametrize("word", ["L", "OBA", "BAOAB"])
@pytest.mark.parametrize("shape", [(6, 6), (6, 4), (4, 6)], ids=str)
def test_orthogonal_weights_go_the_same_way_on_the_device(shape, word):
    """There, iterations are not chosen but counted."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.nn.init.orthogonal_(torch.empty(shape, dtype=torch.float64), generator=generator) for _ in range(3)]
    results = []
    for device in ("cpu", "cuda"):
        params = [torch.nn.Parameter(w.to(device, copy=True)) for w in start]
        opt = Langevin(params, 0.05, scheme=word, constraint=Orthogonal())
        for _ in range(20):
            for p in params:
                p.grad = (3 * p.detach()).cos()
            opt.step()
        opt.check()
        results.append([p.detach().cpu() for p in params])
    torch.testing.assert_close(*results, rtol=0, atol=1e-11)


@pytest.mark.parametrize("word", ["BAOAB", "L"])
@pytest.mark.parametrize("space", ["circle", "circle-radii", "sphere", "sphere-fixed"])
def test_edits_through_data_are_taken_up_without_reading_back(space, word):
    ends = []
    for device in ("cpu", "cuda"):
        net, opt = (
            on_device(Case(word, space), temperature=0.0)
            if device == "cuda"
            else build(Case(word, space), temperature=0.0)
        )
        train(net, opt, 2)
        net.up.data.mul_(3.0)
        net.down.data.clamp_(-0.3, 0.3)
        backward(net, opt)
        with no_reading_back():
            opt.step()
        assert opt.residuals()[0] < 1e-5
        ends.append({name: x.cpu() for name, x in snapshot(net, opt).items()})
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-5)


def test_orthogonal_weights_are_taken_up_on_the_device():
    """Scaled through .data at once; anything in place at once; what .data leaves besides, by the steps that polish."""
    net, opt = on_device(Case("BAOAB", "orthogonal"), lr=1e-3)
    train(net, opt, 2)
    net.up.data.mul_(3.0)
    train(net, opt, 1)
    assert opt.residuals()[0] < 1e-4
    with torch.no_grad():
        net.up.normal_()
    train(net, opt, 1)
    assert opt.residuals()[0] < 1e-4
    net.up.data.clamp_(-0.4, 0.4)
    train(net, opt, 80)
    assert opt.residuals()[0] < 1e-4
