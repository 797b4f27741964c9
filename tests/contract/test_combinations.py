"""Options that meet: SGD's terms, thermostats, recorded temperatures, checkpoints, copies and groups that change."""

import copy
import math
import pickle
import warnings

import pytest
import torch
from torch import nn

from holonom import CheckpointError, Ensemble, Langevin, SimulatedTempering, TemperatureSchedule, optimizer
from holonom._training import stepper
from holonom._training.stepper import Stepper
from holonom.batches import Shuffled
from holonom.constraints import Circle, Orthogonal, Sphere
from holonom.heun import HeunLangevin
from holonom.multirate import MultirateLangevin
from holonom.training import train

ADAPTIVE = {"scheme": "BACDEDCAB", "temperature": 1.0}


def parameters(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def step(opt, count=1):
    for _ in range(count):
        for p in (p for group in opt.param_groups for p in group["params"]):
            p.grad = p.detach().clone()
        opt.step()


# ── SGD's terms ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", [{}, {"tensor": True}], ids=["number", "tensor"])
def test_a_parameter_without_a_gradient_keeps_sgds_velocity_under_a_schedule(options):
    ends = []
    for build in (Langevin.like_sgd, torch.optim.SGD):
        a, b = parameters(3, 3)
        lr = torch.tensor(0.1, dtype=torch.float64) if options else 0.1
        opt = build([a, b], lr=lr, momentum=0.9)
        for count in range(8):
            if options:
                lr.fill_(0.1 / (1 + count))
            else:
                opt.param_groups[0]["lr"] = 0.1 / (1 + count)
            a.grad = a.detach().clone()
            b.grad = None if 2 <= count < 5 else 2 * b.detach()
            opt.step()
        ends.append(torch.cat([a.detach(), b.detach()]))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-14)


def test_a_step_that_a_device_skips_leaves_the_momenta_of_resting_parameters(monkeypatch):
    ends = []
    for bad in (True, False):
        a, b = parameters(3, 3)
        opt = Langevin.like_sgd([a, b], lr=0.1, momentum=0.9)
        with monkeypatch.context() as patch:
            patch.setattr(optimizer, "skip_non_finite", lambda work: work[0].gradients[0][0].isnan().any())
            step(opt)
            opt.param_groups[0]["lr"] = 0.02
            b.grad = None
            if bad:
                a.grad = torch.full_like(a, math.nan)
                opt.step()
            a.grad = a.detach().clone()
            opt.step()
            step(opt)
        ends.append(torch.cat([a.detach(), b.detach()]))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-14)


# ── groups that are put together anew ────────────────────────────────────────────────────────────────


def split(opt, a, b):
    opt.param_groups[:] = [{**opt.param_groups[0], "params": [a]}, {**opt.param_groups[0], "params": [b]}]


def split_bare(opt, a, b):
    opt.param_groups[:] = [{"params": [a]}, {"params": [b]}]


def turn_round(opt, a, b):
    opt.param_groups[0]["params"].reverse()


def drop_first(opt, a, b):
    del opt.param_groups[0]["params"][0]


def insert_at_the_front(opt, a, b):
    opt.param_groups[0]["params"].insert(0, nn.Parameter(torch.ones(3, dtype=torch.float64)))


@pytest.mark.parametrize("change", [split, split_bare, turn_round, drop_first, insert_at_the_front])
@pytest.mark.parametrize("options", [{"temperature": 1.0}, ADAPTIVE], ids=["BAOAB", "adaptive"])
def test_groups_may_be_put_together_anew_and_draw_no_noise_twice(change, options):
    a, b = parameters(3, 3)
    opt = Langevin([a, b], 0.1, seed=0, **options)
    step(opt, 4)
    change(opt, a, b)
    step(opt)
    for group in opt.param_groups:
        first, *others = group["params"]
        assert int(opt.state[first]["clock"]) == 5
        assert not any("clock" in opt.state[p] for p in others)
    again = Langevin(copy.deepcopy([{"params": list(group["params"])} for group in opt.param_groups]), 0.1, **options)
    again.load_state_dict(opt.state_dict())


def test_merged_groups_go_on_at_the_later_clock():
    a, b = parameters(3, 3)
    opt = Langevin([a], 0.1, **ADAPTIVE)
    step(opt, 3)
    opt.add_param_group({"params": [b]})
    step(opt)
    opt.param_groups[:] = [{**opt.param_groups[1], "params": [b, a]}]
    step(opt)
    assert int(opt.state[b]["clock"]) == 5
    assert "thermostat" in opt.state[b]
    assert not {"clock", "thermostat"} & set(opt.state[a])


def test_a_group_cannot_be_put_together_from_two_constraints():
    a, b = (nn.Parameter(torch.full((3,), 0.5)) for _ in range(2))
    opt = Langevin([{"params": [a], "constraint": Circle(1.0)}, {"params": [b]}], 0.1)
    opt.param_groups[:] = [{**opt.param_groups[0], "params": [a, b]}]
    with pytest.raises(ValueError, match=r"group 0 .*Circle.*Free"):
        step(opt)


def test_a_recorded_group_may_grow_at_the_front():
    a, b = parameters(3, 3)
    opt = Langevin([a], 0.1, temperature=1.0)
    opt.record_temperatures()
    step(opt)
    opt.param_groups[0]["params"].insert(0, b)
    step(opt)
    assert math.isfinite(opt.temperatures("configurational")[0])


# ── nothing is half-done ─────────────────────────────────────────────────────────────────────────────


def refuse_group(a, b, c):
    Langevin([a, b], 0.1, constraint=Sphere(1.0))


def refuse_later_group(a, b, c):
    Langevin([{"params": [a]}, {"params": [c], "fricton": 1.0}], 0.1, constraint=Sphere(1.0))


def refuse_added_group(a, b, c):
    Langevin([c], 0.1).add_param_group({"params": [a, b], "constraint": Sphere(1.0)})


def refuse_model(a, b, c):
    MultirateLangevin([{"params": [a]}], 0.1, constraint=Sphere(1.0), model=nn.ParameterList([a, c]))


@pytest.mark.filterwarnings("error:weights that did not satisfy")
def test_weights_are_as_they_came_if_the_warning_is_an_error():
    (a,) = parameters(3)
    before = a.detach().clone()
    with pytest.raises(UserWarning, match="did not satisfy"):
        Langevin([a], 0.1, constraint=Sphere(1.0))
    assert torch.equal(a, before)


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("build", [refuse_group, refuse_later_group, refuse_added_group, refuse_model])
def test_weights_are_as_they_came_if_an_optimizer_cannot_be_built(build):
    a, b, c = parameters(3, 3, 3)
    before = a.detach().clone()
    with torch.no_grad():
        b[0] = math.nan
    with pytest.raises((ValueError, TypeError), match=r"NaN|fricton|no group has"):
        build(a, b, c)
    assert torch.equal(a, before)


# ── recorded temperatures ────────────────────────────────────────────────────────────────────────────


def test_a_recorded_temperature_finds_its_group_in_another_order():
    a, b = parameters(3, 3)
    opt = Langevin([("a", a), ("b", b)], 0.1, temperature=1.0, seed=0)
    opt.record_temperatures()
    step(opt, 3)
    other = Langevin([("b", b), ("a", a)], 0.1, temperature=1.0, seed=0)
    other.load_state_dict(opt.state_dict())
    assert other.temperatures("configurational") == opt.temperatures("configurational")


def test_recording_may_begin_between_two_compiled_epochs(monkeypatch):
    monkeypatch.setattr(stepper, "compile_step", lambda function, options: function)
    data = torch.ones(40, 2)
    ensemble = Ensemble(lambda: nn.Linear(2, 2), 2, seed=0)
    opt = Langevin(ensemble.parameters(), 0.05, temperature=0.1, seed=ensemble.seeds)
    batches = Shuffled(data, data, 10, ensemble.seeds)
    runner = Stepper(ensemble, opt, nn.functional.mse_loss, batches, True)
    programs = []
    for epoch, change in enumerate((None, True, None, False)):
        if change is not None:
            opt.record_temperatures(change)
        runner.run(batches.order(epoch))
        programs.append(runner._whole.made)
    assert programs == [1, 2, 2, 3]


# ── thermostats ──────────────────────────────────────────────────────────────────────────────────────


def test_a_thermostat_of_what_cannot_move_stays_a_number():
    p = nn.Parameter(torch.ones(1, 1, dtype=torch.float64))
    opt = Langevin([p], 0.1, constraint=Orthogonal(), **ADAPTIVE)
    step(opt, 3)
    assert torch.equal(p.detach(), torch.ones(1, 1, dtype=torch.float64))
    assert opt.state[p]["thermostat"].isfinite().all()


def test_saving_says_nothing_of_thermostats_that_are_cooling_or_annealed():
    (p,) = parameters(100)
    with torch.no_grad():
        p.mul_(100)
    opt = Langevin([p], 0.1, **ADAPTIVE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(opt, 30)
        assert float(opt.state[p]["thermostat"]) * 0.1 > 0.5
        opt.state_dict()
        opt.param_groups[0]["temperature"] = 0.0
        step(opt, 2000)
        opt.state_dict()
        opt.check()
    assert float(opt.state[p]["thermostat"]) == pytest.approx(10.0)


def test_tempering_takes_the_loss_that_was_differentiated():
    (p,) = parameters(3)
    opt = Langevin([p], 0.1, temperature=1.0)
    tempering = SimulatedTempering(opt, [1.0, 2.0], every=1, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            step(opt)
            tempering.step(p.square().sum())
    assert tempering.count == 5


# ── checkpoints and copies ───────────────────────────────────────────────────────────────────────────


def test_a_pickled_optimizer_has_rates_that_schedulers_can_write():
    (p,) = parameters((2, 3))
    opt = Langevin([p], torch.tensor([0.1, 0.2]), seed=torch.tensor([1, 2]))
    again = pickle.loads(pickle.dumps(opt))
    schedule = torch.optim.lr_scheduler.LambdaLR(again, lambda count: 0.5)
    assert schedule.last_epoch == 0
    torch.testing.assert_close(torch.as_tensor(again.param_groups[0]["lr"]), torch.tensor([0.05, 0.1]))


def test_one_seed_in_a_vector_is_the_same_seed():
    (p,) = parameters((1, 3))
    saved = Langevin([p], 0.1, temperature=1.0, seed=torch.tensor([5])).state_dict()
    opt = Langevin([p], 0.1, temperature=1.0, seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a seed that differs would be warned about
        opt.load_state_dict(saved)
    assert opt.param_groups[0]["seed"] == 5


def test_a_checkpoint_with_periods_is_refused_where_there_are_none():
    (p,) = parameters(3)
    saved = MultirateLangevin([p], 0.1).state_dict()
    opt = Langevin([p], 0.1)
    with pytest.raises(CheckpointError, match=r"group 0 .*every 1 .*MultirateLangevin"):
        opt.load_state_dict(saved)
    assert "every" not in opt.param_groups[0]


# ── warnings and errors of Heun's step ───────────────────────────────────────────────────────────────


def test_warnings_name_the_users_line():
    (p,) = parameters(3)
    heun = HeunLangevin([p], 0.1, scheme="L")
    opt = Langevin([p], 0.1)
    opt._skipped[p.device] = torch.tensor(2)
    with pytest.warns(UserWarning, match="has a gradient") as idle:
        heun.step(lambda: None)
    with pytest.warns(UserWarning, match="skipped") as skipped:
        opt.residuals()
    assert [one.filename for one in (*idle, *skipped)] == [__file__] * 2


def test_a_closure_that_leaves_no_second_gradient_is_refused():
    (p,) = parameters(3)
    opt = HeunLangevin([p], 0.1, scheme="L")
    gradients = iter([torch.ones_like(p), None])

    def closure():
        p.grad = next(gradients)

    with pytest.raises(RuntimeError, match="none in the second"):
        opt.step(closure)


# ── groups that a library put into param_groups, and numbers that it assigned ────────────────────────

FIRST_CALLS = {
    "step": step,
    "state_dict": Langevin.state_dict,
    "check": Langevin.check,
    "residuals": Langevin.residuals,
    "record_temperatures": Langevin.record_temperatures,
    "temperatures": Langevin.temperatures,
    "reseed_": lambda opt: opt.reseed_(1),
    "load_state_dict": lambda opt: opt.load_state_dict(
        Langevin([{"params": list(group["params"])} for group in opt.param_groups], 0.1, **ADAPTIVE).state_dict()
    ),
}


@pytest.mark.parametrize("name", FIRST_CALLS)
def test_a_group_put_into_param_groups_is_complete_whatever_is_called_first(name):
    a, b = parameters(3, 3)
    opt = Langevin([a], 0.1, **ADAPTIVE)
    opt.param_groups.append({"params": [b]})
    assert "group 1: 1 tensors" in repr(opt)
    FIRST_CALLS[name](opt)
    assert opt.param_groups[1].keys() == opt.param_groups[0].keys()
    assert opt.param_groups[1]["seed"] == opt.param_groups[0]["seed"]
    step(opt)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": None}, "temperature of group 0 is None; it needs a number$"),
        ({"friction": None}, "like_sgd"),
        ({"thermostat_time": 0.0}, "thermostat_time .*positive"),
        ({"seed": None}, "seed must be"),
    ],
)
def test_assigned_numbers_that_no_step_can_use_are_refused(change, words):
    (p,) = parameters(3)
    opt = Langevin([p], 0.1, **ADAPTIVE)
    step(opt)
    before = p.detach().clone()
    opt.param_groups[0].update(change)
    with pytest.raises((ValueError, TypeError), match=words):
        step(opt)
    assert torch.equal(p, before)


# ── schedules, ladders and runs that are not those that were saved ───────────────────────────────────


def test_a_schedule_that_refuses_a_factor_stays_where_it_is():
    (p,) = parameters(3)
    opt = Langevin([p], 0.1, temperature=1.0)
    schedule = TemperatureSchedule(opt, lambda count: 1.0 if count < 2 else -1.0)
    schedule.step()
    for _ in range(2):
        with pytest.raises(ValueError, match="step 2"):
            schedule.step()
    assert schedule.count == 1


def test_a_schedule_loads_a_state_from_before_a_group_was_added():
    a, b, c = parameters(3, 3, 3)
    opt = Langevin([a], 0.1, temperature=1.0)
    schedule = TemperatureSchedule(opt, lambda count: 0.5**count)
    saved = schedule.state_dict()
    opt.add_param_group({"params": [b], "temperature": 4.0})
    schedule.load_state_dict({**saved, "count": 1})
    assert [group["temperature"] for group in opt.param_groups] == [0.5, 2.0]
    with pytest.raises(ValueError, match="2 groups"):
        TemperatureSchedule(Langevin([c], 0.1), lambda count: 1.0).load_state_dict(schedule.state_dict())


def test_tempering_refuses_the_state_of_another_ladder():
    (p,) = parameters(3)
    saved = SimulatedTempering(Langevin([p], 0.1), [1.0, 2.0, 4.0], seed=0).state_dict()
    tempering = SimulatedTempering(Langevin([p], 0.1), [1.0, 2.0], seed=0)
    with pytest.raises(ValueError, match="3 temperatures, this one has 2"):
        tempering.load_state_dict({**saved, "rung": 2})
    assert tempering.rung == 0


def test_a_run_that_cannot_be_resumed_leaves_the_ensemble_as_it_was(tmp_path):
    data = torch.ones(20, 2)

    def prepare(scheme):
        ensemble = Ensemble(lambda: nn.Linear(2, 2), 2)
        opt = Langevin(ensemble.parameters(), 0.05, scheme=scheme, seed=ensemble.seeds)
        return ensemble, opt, nn.functional.mse_loss, Shuffled(data, data, 10, ensemble.seeds), 2

    options = {"evaluate": lambda ensemble: {}, "checkpoint": tmp_path / "run", "compiled": False}
    train(*prepare("BAOAB"), **options)
    other = prepare("L")
    before = {**copy.deepcopy(other[0].state_dict()), "seeds": other[0].seeds.clone()}
    with pytest.raises(CheckpointError, match="scheme"):
        train(*other, **options)
    after = {**other[0].state_dict(), "seeds": other[0].seeds}
    assert all(torch.equal(x, after[name]) for name, x in before.items())
