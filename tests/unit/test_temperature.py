"""Temperature: its definition against mean losses, its schedules, and simulated tempering."""

import math

import pytest
import torch
from torch import nn

import holonom
from holonom import Langevin, SimulatedTempering, TemperatureSchedule, annealing, cycling


def optimizer(temperature: float = 1e-3, **options: object) -> Langevin:
    return Langevin([nn.Parameter(torch.zeros(4))], 0.1, temperature=temperature, **options)


def test_posterior_temperature_and_prior() -> None:
    assert holonom.posterior_temperature(50) == 1 / 50
    assert holonom.posterior_temperature(50, cold=0.1) == pytest.approx(0.002)
    assert holonom.prior_weight_decay(50, std=2.0) == pytest.approx(1 / 200)
    for bad in (lambda: holonom.posterior_temperature(0), lambda: holonom.prior_weight_decay(10, 0.0)):
        with pytest.raises(ValueError, match="num_data must be"):
            bad()


def test_mean_loss_samples_the_bayes_posterior() -> None:
    """N observations of unit variance, prior N(0, s²): the posterior is N(Σy/(N + 1/s²), 1/(N + 1/s²)) exactly.

    The loss is the *mean* negative log-likelihood ½(q − y)². BAOAB samples Gaussians without bias, so
    20,000 chains after burn-in give mean and variance to about three standard errors of 1/√20000.
    """
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(10, generator=generator, dtype=torch.float64) + 1
    s = 0.7
    q = nn.Parameter(torch.zeros(20_000, dtype=torch.float64))
    opt = Langevin(
        [q], 0.5, temperature=holonom.posterior_temperature(10), weight_decay=holonom.prior_weight_decay(10, s)
    )
    for _ in range(60):
        q.grad = q.detach() - y.mean()
        opt.step()
    precision = 10 + 1 / s**2
    assert q.mean().item() == pytest.approx(y.sum().item() / precision, abs=4 / math.sqrt(precision * 20_000))
    assert q.var().item() == pytest.approx(1 / precision, rel=4 * math.sqrt(2 / 20_000))


@pytest.mark.parametrize(
    ("shape", "middle"), [("linear", 0.55), ("cosine", 0.55), ("exponential", math.sqrt(0.1))]
)  # fmt: skip
def test_annealing_shapes(shape: str, middle: float) -> None:
    factor = annealing(10, end=0.1, shape=shape)
    assert [factor(0), factor(5), factor(10), factor(25)] == pytest.approx([1.0, middle, 0.1, 0.1])


def test_schedule_sets_every_group_and_resumes() -> None:
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    opt = Langevin([{"params": [a], "temperature": 1e-2}, {"params": [b], "temperature": 1e-4}], 0.1)
    schedule = TemperatureSchedule(opt, annealing(4, shape="linear"))
    assert schedule.get_last_temperature() == [1e-2, 1e-4]
    for _ in range(2):
        schedule.step()
    assert schedule.get_last_temperature() == pytest.approx([5e-3, 5e-5])
    fresh = TemperatureSchedule(opt, annealing(4, shape="linear"))
    fresh.load_state_dict(schedule.state_dict())
    fresh.step()
    assert fresh.get_last_temperature() == pytest.approx([2.5e-3, 2.5e-5])
    for _ in range(9):
        fresh.step()
    assert fresh.get_last_temperature() == [0.0, 0.0]


def test_a_tensor_of_temperatures_is_written_in_place() -> None:
    """Programs and graphs hold that tensor: another one would be compiled anew."""
    given = torch.tensor([1e-2, 1e-3])
    opt = Langevin([nn.Parameter(torch.zeros(2, 3))], 0.1, temperature=given, seed=torch.arange(2))
    schedule = TemperatureSchedule(opt, annealing(4, shape="linear"))
    held, first = opt.param_groups[0]["temperature"], schedule.get_last_temperature()[0]
    schedule.step()
    saved = schedule.state_dict()
    for _ in range(2):
        schedule.step()
    assert opt.param_groups[0]["temperature"] is held
    torch.testing.assert_close(held, given / 4)
    assert torch.equal(given, torch.tensor([1e-2, 1e-3]))
    assert torch.equal(first, given)
    schedule.load_state_dict(saved)
    torch.testing.assert_close(held, given * 3 / 4)
    opt.param_groups[0]["temperature"] = torch.ones(2)
    schedule.step()
    torch.testing.assert_close(opt.param_groups[0]["temperature"], given / 2)


def test_cycles_return() -> None:
    factor = cycling(10, low=0.2)
    assert factor(0) == factor(10) == 1.0
    assert factor(9) < 0.25


def test_bad_schedules() -> None:
    with pytest.raises(TypeError, match="factor is a function of the step, such as annealing"):
        TemperatureSchedule(Langevin([nn.Parameter(torch.zeros(2))]), 0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="never reaches 0"):
        annealing(10, shape="exponential")
    with pytest.raises(ValueError, match="shape must be one of"):
        annealing(10, shape="cubic")
    with pytest.raises(ValueError, match="must be at least 0"):
        TemperatureSchedule(optimizer(), lambda step: -1.0)
    with pytest.raises(ValueError, match="rising temperatures"):
        SimulatedTempering(optimizer(), [1.0, 0.5])
    with pytest.raises(ValueError, match=r"every must be a whole number of at least 1, got 2\.5"):
        SimulatedTempering(optimizer(), [1.0, 2.0], every=2.5)  # type: ignore[arg-type]


def test_what_has_no_temperature_is_refused_and_zero_warned_about() -> None:
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.1)
    with pytest.raises(TypeError, match=r"TemperatureSchedule sets the temperature of a holonom\.Langevin.*got SGD"):
        TemperatureSchedule(sgd, annealing(10))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="SimulatedTempering sets the temperature"):
        SimulatedTempering(sgd, [1.0, 2.0])  # type: ignore[arg-type]
    assert "temperature" not in sgd.param_groups[0]
    with pytest.warns(UserWarning, match="which are all 0, so that nothing changes") as caught:
        TemperatureSchedule(Langevin([nn.Parameter(torch.zeros(2))]), annealing(10))
    assert caught[0].filename == __file__


def test_simulated_tempering_visits_both_wells_and_resumes() -> None:
    """A double well 8(x² − 1)² that a chain at τ = 0.4 never leaves; on the ladder it crosses."""

    def run(ladder: list[float], steps: int = 2500) -> tuple[set[bool], SimulatedTempering]:
        x = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
        opt = Langevin([x], 0.1, friction=1.0, temperature=ladder[0])
        tempering = SimulatedTempering(opt, ladder, every=5)
        seen = set()
        for _ in range(steps):
            value = x.item()
            x.grad = torch.tensor([32 * value * (value**2 - 1)], dtype=torch.float64)
            opt.step()
            if len(ladder) > 2:
                tempering.step(8 * (x.item() ** 2 - 1) ** 2)
            if tempering.rung == 0:
                seen.add(x.item() > 0)
        return seen, tempering

    assert run([0.4, 0.8])[0] == {True}
    seen, tempering = run([0.4, 1.0, 2.5, 6.0])
    assert seen == {True, False}
    assert all(visits > 30 for visits in tempering.visits)
    again = SimulatedTempering(optimizer(), tempering.ladder, every=5)
    again.load_state_dict(tempering.state_dict())
    assert again.rung == tempering.rung
    assert again.optimizer.param_groups[0]["temperature"] == tempering.ladder[tempering.rung]


def test_a_group_added_later_is_scheduled_from_its_own_temperature() -> None:
    optimizer = Langevin([torch.nn.Parameter(torch.zeros(2))], 0.1, temperature=1.0)
    schedule = TemperatureSchedule(optimizer, annealing(10, shape="linear"))
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "temperature": 4.0})
    schedule.step()
    assert schedule.get_last_temperature() == pytest.approx([0.9, 3.6])


def test_tempering_of_a_word_without_momentum_keeps_its_noise() -> None:
    """M adds its last normal to the next one; both are of size one, whatever the temperature."""
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = Langevin([p], 0.1, scheme="M", temperature=0.1)
    p.grad = torch.zeros(3)
    optimizer.step()
    before = optimizer.state[p]["last_noise"].clone()
    optimizer.scale_momenta_(3.0)
    assert torch.equal(optimizer.state[p]["last_noise"], before)


def test_momenta_are_not_scaled_by_what_is_no_number() -> None:
    opt = Langevin([nn.Parameter(torch.zeros(2))], 0.1)
    opt.param_groups[0]["params"][0].grad = torch.ones(2)
    opt.step()
    for factor in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="factor of the momenta must be finite"):
            opt.scale_momenta_(factor)


def test_tempering_stays_where_it_is_for_a_loss_that_is_no_number() -> None:
    optimizer = Langevin([torch.nn.Parameter(torch.zeros(2))], 0.1, temperature=0.1)
    tempering = SimulatedTempering(optimizer, [0.1, 0.2], every=1)
    snapshot = tempering.state_dict()
    assert not any(tempering.step(float("nan")) for _ in range(50))
    assert snapshot["visits"] == [0, 0], "a snapshot does not change"
    with pytest.raises(ValueError, match="every must be a whole number of at least 1"):
        SimulatedTempering(optimizer, [0.1, 0.2], every=0)


def test_tempering_says_which_loss_it_wants() -> None:
    tempering = SimulatedTempering(optimizer(), [0.1, 0.2], every=3)
    with pytest.raises(ValueError, match=r"loss of all data at the present weights.*shape \(4,\)"):
        tempering.step(torch.zeros(4))
    assert tempering.count == 0
    for documented in (SimulatedTempering.__doc__, SimulatedTempering.step.__doc__):
        assert documented is not None
        assert all(said in documented.replace("*", "") for said in ("all data", "weight_decay"))
    tempering.step(torch.zeros(1))
