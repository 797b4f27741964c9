"""holonom.constrain around every kind of optimizer, with torch's schedulers, scaler, hooks and closures."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler

import holonom
from holonom.constraints import Circle, Orthogonal, Spectral, Sphere
from holonom.partitions import weights

pytestmark = pytest.mark.filterwarnings("ignore:weights that did not satisfy")


class SignDescent(torch.optim.Optimizer):
    """A class of the user's own, whose step assigns new memory to its parameters."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = p.data - group["lr"] * p.grad.sign()


def muon_and_adamw(params):
    params = list(params)
    matrices, others = [p for p in params if p.ndim == 2], [p for p in params if p.ndim != 2]
    return holonom.together(torch.optim.Muon(matrices, lr=0.02, weight_decay=0.0), AdamW(others, lr=1e-2))


OPTIMIZERS = {
    "SGD": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "SGD fused": lambda params: SGD(params, lr=0.1, momentum=0.9, fused=True),
    "AdamW": lambda params: AdamW(params, lr=1e-2, weight_decay=0.0, foreach=False),
    "AdamW fused": lambda params: AdamW(params, lr=1e-2, weight_decay=0.0, fused=True),
    "AdamW foreach": lambda params: AdamW(params, lr=1e-2, weight_decay=0.0, foreach=True),
    "AdamW, lr a tensor": lambda params: AdamW(params, lr=torch.tensor(1e-2), weight_decay=0.0),
    "AdamW, lr of shape (1, 1)": lambda params: AdamW(params, lr=torch.full((1, 1), 1e-2), weight_decay=0.0),
    "AdamW, maximize": lambda params: AdamW(params, lr=1e-3, weight_decay=0.0, maximize=True),
    "Adam": lambda params: torch.optim.Adam(params, lr=1e-2, amsgrad=True),
    "NAdam": lambda params: torch.optim.NAdam(params, lr=1e-2),
    "RAdam": lambda params: torch.optim.RAdam(params, lr=1e-2),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=1e-3, momentum=0.9),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2),
    "Adamax": lambda params: torch.optim.Adamax(params, lr=1e-2),
    "Rprop": lambda params: torch.optim.Rprop(params, lr=1e-3),
    "Adafactor": lambda params: torch.optim.Adafactor(params, lr=1e-2),
    "Muon and AdamW": muon_and_adamw,
    "LBFGS": lambda params: torch.optim.LBFGS(params, lr=0.1, max_iter=4),
    "a user's own": SignDescent,
}
UPDATES = {
    "plain": {"0.weight": Sphere("initial"), "2.weight": Orthogonal(), "4.weight": Circle(0.2)},
    "tangent": {"0.weight": Sphere(1.0), "2.weight": Orthogonal(scale="initial"), "4.weight": Sphere("initial")},
    "angular": {weights: Sphere("initial", per="matrix")},
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def closure_of(model, opt, generator):
    x, y = torch.randn(16, 5, generator=generator), torch.randint(3, (16,), generator=generator)

    def closure():
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def train(model, opt, steps=4, seed=1, scheduler=None):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        closure = closure_of(model, opt, generator)
        if isinstance(opt, torch.optim.LBFGS):
            opt.step(closure)
        else:
            closure()
            opt.step()
        if scheduler is not None:
            scheduler.step()


def snapshot(model):
    return [p.detach().clone() for p in model.parameters()]


def equal(model, before):
    return all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_keeps_the_constraints_and_resumes_bit_for_bit(name, update):
    make = OPTIMIZERS[name]
    model = network()
    opt = make(model.parameters())
    kind, groups = type(opt), [set(group) for group in opt.param_groups]
    held = holonom.constrain(opt, model, UPDATES[update], update)
    start = snapshot(model)
    train(model, opt)
    held.check(opt)
    assert max(held.residuals().values()) < 2e-6
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), start, strict=True))
    assert type(opt) is kind
    assert [set(group) for group in opt.param_groups] == groups
    saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    train(model, opt, seed=2)
    other = network()
    again = make(other.parameters())
    handle = holonom.constrain(again, other, UPDATES[update], update)
    other.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    train(other, again, seed=2)
    assert equal(other, snapshot(model))
    handle.check(again)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("name", ["SGD", "AdamW fused", "Muon and AdamW", "a user's own"])
def test_a_step_that_does_not_move_leaves_every_bit(name, update):
    model = network()
    opt = OPTIMIZERS[name](model.parameters())
    holonom.constrain(opt, model, UPDATES[update], update)
    train(model, opt)
    before = snapshot(model)
    opt.zero_grad()
    opt.step()  # no gradients
    assert equal(model, before)
    for group in opt.param_groups:
        group["lr"] = 0.0
    train(model, opt)
    assert equal(model, before)


@pytest.mark.parametrize(
    "spaces", [{weights: Sphere("initial")}, {"2.weight": Spectral(0.9)}, {"2.weight": Orthogonal()}]
)
@pytest.mark.parametrize("name", ["SGD", "AdamW fused", "Muon and AdamW"])
def test_a_step_that_a_scaler_skips_leaves_every_bit(name, spaces):
    model = network()
    opt = OPTIMIZERS[name](model.parameters())
    held = holonom.constrain(opt, model, spaces)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    generator = torch.Generator().manual_seed(1)
    for step in range(4):
        x, y = torch.randn(16, 5, generator=generator), torch.randint(3, (16,), generator=generator)
        opt.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if step == 2:
            model[2].weight.grad[0, 0] = math.inf
        before = snapshot(model)
        scaler.step(opt)
        scaler.update()
        assert equal(model, before) == (step == 2)
    assert scaler.get_scale() == 2.0**9
    held.check(opt)


SCHEDULERS = {
    "cosine": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 6),
    "warm-up": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1, total_iters=2), lr_scheduler.ExponentialLR(opt, 0.5)], [2]
    ),
    "one cycle": lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=20, cycle_momentum=False),
    "by group": lambda opt: lr_scheduler.LambdaLR(
        opt, [lambda n, k=k: 0.5 ** (n * k) for k in range(len(opt.param_groups))]
    ),
}


@pytest.mark.parametrize("name", ["AdamW", "Muon and AdamW"])
@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_schedulers_set_the_angle(schedule, name):
    model = network()
    opt = OPTIMIZERS[name](model.parameters())
    held = holonom.constrain(opt, model, {weights: Sphere("initial", per="matrix")}, "angular")
    scheduler = SCHEDULERS[schedule](opt)
    for seed in range(5):
        rate = opt.param_groups[0]["lr"]
        train(model, opt, steps=1, seed=seed)
        assert held.angles()["weights"].largest == pytest.approx(math.atan(rate), rel=0.05)
        scheduler.step()
        assert opt.param_groups[0]["lr"] == scheduler.get_last_lr()[0]


def test_a_closure_runs_inside_the_step():
    model, twin = network(), network()
    pair = []
    for net, with_closure in ((model, True), (twin, False)):
        opt = OPTIMIZERS["Muon and AdamW"](net.parameters())
        held = holonom.constrain(opt, net, UPDATES["tangent"], "tangent")
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            closure = closure_of(net, opt, generator)
            if with_closure:
                loss = opt.step(closure)
                assert float(loss.detach()) > 0
            else:
                closure()
                opt.step()
        held.check()
        pair.append(snapshot(net))
    assert all(torch.equal(p, q) for p, q in zip(*pair, strict=True))


def test_hooks_of_others_see_constrained_weights():
    model = network()
    opt = OPTIMIZERS["AdamW"](model.parameters())
    held = holonom.constrain(opt, model, {weights: Sphere("initial")})
    seen = []
    opt.register_step_post_hook(lambda *_: seen.append(max(held.residuals().values())))
    train(model, opt)
    assert len(seen) == 4
    assert max(seen) < 1e-6


def test_groups_may_be_reordered_and_grow():
    model, extra = network(), nn.Linear(3, 3)
    groups = [{"params": [p], "lr": 0.01 * (i + 1)} for i, p in enumerate(model.parameters())]
    opt = SGD(groups)
    held = holonom.constrain(opt, model, {weights: Sphere("initial", per="matrix")}, "angular")
    train(model, opt, steps=1)
    opt.param_groups.reverse()
    opt.add_param_group({"params": extra.parameters(), "lr": 0.1})
    train(model, opt, steps=1)
    held.check(opt)
    assert held.angles()["weights"].largest == pytest.approx(math.atan(0.05), rel=0.15)
    opt.param_groups = [group for group in opt.param_groups if group["params"][0] is not model[2].weight]
    with pytest.raises(RuntimeError, match=r"no longer owns '2.weight'"):
        train(model, opt, steps=1)


def test_a_model_that_is_converted_stays_constrained():
    model = network()
    opt = SGD(model.parameters(), lr=0.1)
    held = holonom.constrain(opt, model, {weights: Sphere("initial")}, "tangent")
    train(model, opt, steps=1)
    model.double()
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        opt.zero_grad()
        model(torch.randn(16, 5, generator=generator).double()).square().sum().backward()
        opt.step()
    assert max(held.residuals().values()) < 1e-6  # the radii are single-precision numbers
    held.check()
