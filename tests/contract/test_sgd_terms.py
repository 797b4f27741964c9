"""``like_sgd`` has SGD's lr and momentum: at τ = 0 it is torch.optim.SGD under every schedule of the two."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR

from holonom import Ensemble, Langevin
from holonom.batches import Shuffled
from holonom.constraints import Circle
from holonom.errors import CheckpointError, SchemeError
from holonom.multirate import MultirateLangevin
from holonom.training import train

SCHEDULES = {
    "OneCycleLR": lambda opt: schedulers.OneCycleLR(opt, [0.2, 0.3], total_steps=60),
    "CyclicLR": lambda opt: schedulers.CyclicLR(opt, 0.01, 0.2, step_size_up=5),
    "CosineAnnealingLR": lambda opt: schedulers.CosineAnnealingLR(opt, 10, eta_min=1e-3),
    "down to zero": lambda opt: schedulers.CosineAnnealingLR(opt, 8),
    "SWALR": lambda opt: SWALR(opt, swa_lr=0.01, anneal_epochs=8),
    "warm-up from zero": lambda opt: schedulers.LambdaLR(opt, lambda epoch: min(1.0, epoch / 7)),
    "MultiplicativeLR": lambda opt: schedulers.MultiplicativeLR(opt, lambda epoch: 0.9),
}
OPTIONS = [{}, {"weight_decay": 0.1}, {"maximize": True}]


def parameters():
    return [
        nn.Parameter(torch.linspace(-1, 1, 5, dtype=torch.float64)),
        nn.Parameter(torch.ones(3, dtype=torch.float64)),
    ]


def groups(params):
    return [{"params": params[:1]}, {"params": params[1:], "lr": 0.02, "momentum": 0.5}]


def advance(params, opt, number):
    for i, p in enumerate(params):
        p.grad = torch.sin(3 * p.detach() + 0.3 * number + i)
    opt.step()


def run(params, opt, schedule=None, steps=40, first=0):
    for number in range(first, first + steps):
        advance(params, opt, number)
        if schedule is not None:
            schedule.step()


def assert_close(ours, theirs):
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "options", "fuse"),
    [(name, options, None) for name in SCHEDULES for options in OPTIONS] + [("OneCycleLR", {}, True)],
)
def test_a_schedule_does_what_it_does_to_sgd(name, options, fuse):
    ours, theirs = parameters(), parameters()
    one = Langevin.like_sgd(groups(ours), 0.1, 0.9, fuse=fuse, **options)
    other = torch.optim.SGD(groups(theirs), 0.1, 0.9, **options)
    run(ours, one, SCHEDULES[name](one))
    run(theirs, other, SCHEDULES[name](other))
    assert [(g["lr"], g["momentum"]) for g in one.param_groups] == [
        (g["lr"], g["momentum"]) for g in other.param_groups
    ]
    assert_close(ours, theirs)


@pytest.mark.parametrize("word", ["OBA", "BAO"])
@pytest.mark.parametrize("tensor", [False, True])
def test_rates_of_zero_keep_the_velocity(word, tensor):
    ours, theirs = parameters(), parameters()
    one, other = Langevin.like_sgd(groups(ours), 0.1, 0.9, scheme=word), torch.optim.SGD(groups(theirs), 0.1, 0.9)
    for number in range(30):
        for opt in (one, other):
            for group in opt.param_groups:
                lr = 0.0 if number in (0, 1, 7, 8, 20) else 0.05 + 0.01 * (number % 4)
                group["lr"] = torch.tensor(lr, dtype=torch.float64) if tensor else lr
        advance(ours, one, number)
        advance(theirs, other, number)
    assert_close(ours, theirs)


def test_groups_added_later_are_in_sgds_terms():
    ours, theirs = parameters(), parameters()
    for params, make in ((ours, Langevin.like_sgd), (theirs, torch.optim.SGD)):
        opt = make(params[:1], 0.1, 0.9)
        opt.add_param_group({"params": params[1:], "momentum": 0.3})
        run(params, opt, schedulers.StepLR(opt, 3, 0.5))
    assert_close(ours, theirs)


@pytest.mark.parametrize("word", ["OBA", "BAOAB", "ABO"])
def test_one_rate_and_momentum_a_replica(word):
    """In tensors of shape (R,), written in place, with and without noise: as every replica alone."""
    lr, momentum = torch.tensor([[0.1, 0.02, 0.3], [0.9, 0.5, 0.2]], dtype=torch.float64)
    seeds = torch.tensor([3, 4, 5])
    q = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4))
    alone = [nn.Parameter(q.detach()[i].clone()) for i in range(3)]
    options = {"scheme": word, "temperature": 0.01}
    opt = Langevin.like_sgd([q], lr.clone(), momentum.clone(), seed=seeds, **options)
    each = [Langevin.like_sgd([p], float(lr[i]), float(momentum[i]), seed=int(seeds[i]), **options)
            for i, p in enumerate(alone)]  # fmt: skip
    for number in range(12):
        factor = [1.0, 0.0, 0.5, 0.8][number % 4]
        opt.param_groups[0]["lr"].copy_(lr * factor)
        opt.param_groups[0]["momentum"].copy_(momentum * (1 - 0.1 * factor))
        advance([q], opt, number)
        for i, p in enumerate(alone):
            each[i].param_groups[0].update(lr=float(lr[i]) * factor, momentum=float(momentum[i]) * (1 - 0.1 * factor))
            advance([p], each[i], number)
    torch.testing.assert_close(q, torch.stack(alone), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["number", "tensor", "replicas"])
def test_a_compiled_run_is_sgd_under_a_schedule(kind):
    """The whole step as one program: nothing of the schedule is a constant of it."""
    ensemble, twin = (Ensemble(lambda: nn.Linear(3, 2), 2, seed=0).double() for _ in range(2))
    x = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(16, 3)
    batches = Shuffled(x, torch.sin(x[:, :2] * 3), 4, ensemble.seeds)
    lr = 0.1 if kind == "number" else torch.full((2,) if kind == "replicas" else (), 0.1, dtype=torch.float64)
    one = Langevin.like_sgd(ensemble.parameters(), lr, 0.9, seed=ensemble.seeds)
    other = torch.optim.SGD(twin.parameters(), 0.1, 0.9)

    def schedule(opt):
        def after_epoch(epochs):
            for group in opt.param_groups:
                rate = 0.1 / (1 + epochs)
                group["lr"].fill_(rate) if isinstance(group["lr"], torch.Tensor) else group.update(lr=rate)
                group["momentum"] = 0.9 - 0.1 * epochs

        return after_epoch

    for model, opt, compiled in ((ensemble, one, True), (twin, other, False)):
        train(model, opt, nn.functional.mse_loss, batches, 16, evaluate=lambda _: {}, compiled=compiled,
              after_epoch=schedule(opt))  # fmt: skip
    assert one.param_groups[0]["momentum"] == pytest.approx(0.5)
    assert_close(list(ensemble.parameters()), list(twin.parameters()))


@pytest.mark.parametrize("word", ["OBA", "BAOAB"])
def test_a_run_resumes_in_the_middle_of_a_schedule(word):
    def build():
        params = parameters()
        opt = Langevin.like_sgd(groups(params), 0.1, 0.9, scheme=word, temperature=0.01, seed=7, constraint=Circle(2.0))
        return params, opt, SCHEDULES["OneCycleLR"](opt)

    params, opt, schedule = build()
    run(params, opt, schedule, 10)
    saved = copy.deepcopy((opt.state_dict(), schedule.state_dict(), [p.detach() for p in params]))
    run(params, opt, schedule, 10, first=10)
    again, resumed, continued = build()
    with torch.no_grad():
        for p, q in zip(again, saved[2], strict=True):
            p.copy_(q)
    resumed.load_state_dict(saved[0])
    continued.load_state_dict(saved[1])
    run(again, resumed, continued, 10, first=10)
    for p, q in zip(params, again, strict=True):
        assert torch.equal(p, q)


def test_the_temperature_of_the_momenta_counts_as_that_of_the_positions():
    q = nn.Parameter(torch.zeros(20_000, dtype=torch.float64))
    opt = Langevin.like_sgd([q], 1e-4, 0.6, temperature=0.5, seed=1)
    for _ in range(15):
        q.grad = torch.zeros_like(q)
        opt.step()
    assert opt.temperatures()[0] == pytest.approx(0.5, rel=0.05)
    momentum = opt.state[q]["momentum"]
    assert momentum.square().mean().item() == pytest.approx(2 / 1.6 * opt.temperatures()[0], rel=1e-12)


def test_noise_is_continuous_in_the_temperature():
    """A vanishing temperature is none."""
    ends = []
    for temperature in (0.0, 1e-30):
        params = parameters()
        run(params, Langevin.like_sgd(groups(params), 0.1, 0.9, temperature=temperature, seed=1), steps=20)
        ends.append(params)
    assert_close(*ends)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


def test_a_printed_group_shows_its_momentum():
    text = repr(Langevin.like_sgd(parameters(), 0.1, 0.9, temperature=0.01))
    assert "lr=0.1, temperature=0.01, momentum=0.9" in text
    assert "friction" not in text


@pytest.mark.parametrize("where", ["option", "group"])
def test_friction_and_momentum_are_one_number(where):
    group = {"params": parameters(), **({"friction": 2.0} if where == "group" else {})}
    with pytest.raises(ValueError, match="friction and momentum are two names for one number"):
        Langevin.like_sgd([group], 0.1, 0.9, **({"friction": 2.0} if where == "option" else {}))


def test_numbers_of_the_other_terms_are_refused_when_assigned():
    ours, plain = parameters(), parameters()
    one, other = Langevin.like_sgd(ours, 0.1, 0.9), Langevin(plain, 0.1)
    before = [p.detach().clone() for p in (*ours, *plain)]
    one.param_groups[0]["friction"] = 2.0
    other.param_groups[0]["momentum"] = 0.9
    for params, opt in ((ours, one), (plain, other)):
        with pytest.raises(ValueError, match="two names for one"):
            advance(params, opt, 0)
    one.param_groups[0].update(friction=None, momentum=1.5)
    with pytest.raises(ValueError, match=r"momentum .* must lie in \[0, 1\), got 1.5"):
        advance(ours, one, 0)
    assert all(map(torch.equal, before, (*ours, *plain)))


def test_where_lr_is_a_time_step_momentum_is_refused():
    params = parameters()
    with pytest.raises(ValueError, match=r"momentum=0.9 of a group .* Langevin.like_sgd"):
        Langevin([{"params": params, "momentum": 0.9}], 0.1)
    opt = Langevin(params[:1], 0.1)
    with pytest.raises(ValueError, match=r"momentum=0.5 of a group"):
        opt.add_param_group({"params": params[1:], "momentum": 0.5})
    with pytest.raises(ValueError, match="must support momentum"):
        schedulers.OneCycleLR(opt, 0.2, total_steps=10)


@pytest.mark.parametrize("word", ["L", "BAB", "BACDEDCAB"])
def test_words_without_a_momentum_are_refused(word):
    with pytest.raises(SchemeError, match=f"momentum is what the letter O leaves of p: scheme '{word}'"):
        Langevin.like_sgd(parameters(), 0.1, 0.9, scheme=word, coupling=0.1, driving_noise=0.1)


def test_several_time_scales_have_their_own_class():
    with pytest.raises(TypeError, match=r"holonom\.Multirate"):
        MultirateLangevin.like_sgd(parameters(), 0.1, 0.9)


def test_a_checkpoint_in_sgds_terms_needs_an_optimizer_in_sgds_terms():
    saved = Langevin.like_sgd(parameters(), 0.1, 0.9).state_dict()
    with pytest.raises(CheckpointError, match="group 0 of the checkpoint has SGD's lr and momentum"):
        Langevin(parameters(), 0.1, scheme="OBA").load_state_dict(saved)


def test_a_checkpoint_of_time_steps_is_converted():
    """As versions up to 0.1.0 wrote those of like_sgd."""
    params = parameters()
    old = Langevin(params, math.sqrt(0.1), scheme="OBA", friction=-math.log(0.9) / math.sqrt(0.1))
    old.param_groups[0]["initial_lr"] = 0.2
    run(params, old, steps=5)
    saved = copy.deepcopy(old.state_dict())
    for group in saved["param_groups"]:
        group["format"] = 2
    again = [nn.Parameter(p.detach().clone()) for p in params]
    new = Langevin.like_sgd(again, 0.5, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new.load_state_dict(saved)
    group = new.param_groups[0]
    assert (group["lr"], group["momentum"]) == pytest.approx((0.1, 0.9))
    assert (group["initial_lr"], group["friction"]) == (pytest.approx(0.04), None)
    run(params, old, first=5)
    run(again, new, first=5)
    assert_close(params, again)
