"""Bad gradients on a device, simulated on the CPU: the step is skipped there and counted; the host never reads why."""

import pytest
import torch

from holonom import Langevin
from holonom import optimizer as module
from holonom._step.finite import any_non_finite
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from holonom.errors import NonFiniteGradientError, ProjectionError

SPACES = {
    "free": None,
    "circle": Circle(2.0),
    "sphere": Sphere(3.0),
    "orthogonal": Orthogonal(),
    "level set": LevelSet(lambda q: (q**2).sum() - 3),
    "level set with slack": LevelSet(lambda q: (q**2).sum() - 4, slack=True),
    "joint level set": LevelSet(
        lambda a, b: (a**2).sum() + (b**2).sum() - 6, inequalities=lambda a, b: (a**2).sum() - 4, joint=True
    ),
}
WORDS = ["L", "OBA", "BAOAB", "BACDEDCAB"]
CASES = [(word, space) for space in ("free", "circle", "sphere") for word in WORDS] + [("M", "free")]
FAILING = ["orthogonal", "level set", "level set with slack", "joint level set"]  # a projection may have no root


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch):
    def skip_non_finite(work):
        gradients = [g for one in work for found in one.gradients or () for g in found]
        return any_non_finite(gradients)

    monkeypatch.setattr(module, "skip_non_finite", skip_non_finite)


@pytest.fixture
def silent_failures(monkeypatch):
    """A device's projection gives NaN where a CPU's raises."""
    for space in (Orthogonal, LevelSet):
        for verb in ("drift_", "retract_", "descend_"):
            monkeypatch.setattr(space, verb, _spoiling(getattr(space, verb)))


def _spoiling(verb):
    def spoil(self, x, *args):
        try:
            return verb(self, x, *args)
        except ProjectionError:
            x.q.fill_(torch.nan)

    return spoil


def build(space, word, **options):
    generator = torch.Generator().manual_seed(3)
    params = [torch.nn.Parameter(torch.linalg.qr(torch.randn(5, 3, generator=generator))[0].contiguous())]
    params += [torch.nn.Parameter(x.detach().roll(1, 0).clone()) for x in params]
    return params, Langevin(
        params, 0.1, scheme=word, constraint=SPACES[space], **{"temperature": 0.01, "seed": 0, **options}
    )


def step(params, opt, bad=None):
    for i, p in enumerate(params):
        p.grad = torch.sin(3 * p.detach() + i)
    if bad is not None:
        params[1].grad[2, 1] = bad
    opt.step()


def everything(params, opt):
    tensors = {f"{i}.{name}": x for i, p in enumerate(params) for name, x in opt.state[p].items()}
    weights = {str(i): p.detach() for i, p in enumerate(params)}
    return {name: torch.as_tensor(x).clone() for name, x in (weights | tensors).items()}


def assert_equal(before, after):
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def skips_one(params, opt, bad):
    step(params, opt)
    before = everything(params, opt)
    step(params, opt, bad)
    assert_equal(before, everything(params, opt))  # the clock among them
    with pytest.raises(NonFiniteGradientError, match=r"1 step\(s\)"):
        opt.check()
    step(params, opt)
    after = everything(params, opt)
    assert not any(torch.equal(before[name], after[name]) for name in ("0", "1"))
    assert int(after["0.clock"]) == 2
    opt.check()


@pytest.mark.parametrize(("word", "space"), CASES)
def test_a_bad_step_leaves_everything_bit_for_bit_and_is_counted_once(space, word):
    skips_one(*build(space, word), torch.nan)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf])
def test_infinity_is_as_bad(bad):
    skips_one(*build("circle", "BAOAB"), bad)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("space", FAILING)
def test_spaces_whose_projection_fails_skip_too(silent_failures, space, word):
    skips_one(*build(space, word), torch.nan)


@pytest.mark.parametrize("word", ["L", "BAOAB"])
@pytest.mark.parametrize("space", ["orthogonal", "level set"])
def test_a_step_without_a_projection_is_skipped_and_counted(silent_failures, space, word):
    """Its gradient is finite: only the positions show it."""
    params, opt = build(space, word)
    step(params, opt)
    before = everything(params, opt)
    for p in params:
        p.grad = 1e3 * torch.sin(3 * p.detach()).roll(1, 1)
    opt.step()
    assert_equal(before, everything(params, opt))
    with pytest.raises(NonFiniteGradientError, match=r"1 step\(s\).*without a root"):
        opt.check()


@pytest.mark.parametrize("word", ["L", "OBA"])
@pytest.mark.parametrize("space", FAILING)
def test_an_exception_in_the_middle_of_a_step_leaves_everything_bit_for_bit(space, word):
    """On a CPU a projection of NaN raises."""
    params, opt = build(space, word)
    step(params, opt)
    before = everything(params, opt)
    with pytest.raises(ProjectionError):
        step(params, opt, torch.nan)
    assert_equal(before, everything(params, opt))


@pytest.mark.parametrize("word", ["L", "BAOAB", "BACDEDCAB"])
@pytest.mark.parametrize("space", SPACES)
def test_a_good_step_is_the_one_without_a_check(space, word):
    checked, opt = build(space, word)
    plain, other = build(space, word)
    other.guard_gradients = False
    for _ in range(4):
        step(checked, opt)
        step(plain, other)
    assert_equal(everything(plain, other), everything(checked, opt))


def test_one_bad_group_skips_all_groups():
    good, bad = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    opt = Langevin([{"params": [good]}, {"params": [bad], "scheme": "L"}], 0.1)
    good.grad, bad.grad = torch.ones(3), torch.full((3,), torch.nan)
    opt.step()
    assert torch.equal(good, torch.ones(3))
    assert torch.equal(bad, torch.ones(3))
    with pytest.raises(NonFiniteGradientError, match=r"1 step\(s\)"):
        opt.check()


# ── what a skipped step must not leave behind ────────────────────────────────────────────────────


def skipping(word, skipped, steps=3, **options):
    """A double well with a bad gradient before the good steps of these numbers."""
    p = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    opt = Langevin([p], 0.3, scheme=word, **{"seed": 0, **options})
    for number in range(steps):
        if number in skipped:
            p.grad = torch.full_like(p, torch.nan)
            opt.step()
        p.grad = p.detach().clone()
        opt.step()
    return p.item(), opt


def test_a_skipped_first_step_owes_nothing():
    """BAOAB's first step pays half a kick; the one after a skipped first step is still the first."""
    (plain, _), (skipped, _) = skipping("BAOAB", ()), skipping("BAOAB", (0,))
    assert skipped == pytest.approx(plain, abs=1e-15)
    assert skipped == pytest.approx(0.712191, abs=1e-6)  # a kick that is owed for the skipped step would make it 0.633


@pytest.mark.parametrize("skipped", [(0,), (1,), (0, 2)])
@pytest.mark.parametrize("word", ["BAOAB", "ABO", "OBABO", "L", "M", "BACDEDCAB"])
def test_a_run_with_skipped_steps_is_the_run_without_them(word, skipped):
    """The owed kick, the thermostat and the noise, which the clock keys, are those of the steps that were taken."""
    for options in ({"coupling": 0.1, "driving_noise": 0.01}, {"temperature": 0.5}):
        plain, one = skipping(word, (), **options)
        found, other = skipping(word, skipped, **options)
        assert found == pytest.approx(plain, abs=1e-14)
        for optimizer in (one, other):
            optimizer.param_groups[0]["params"][0].grad.fill_(0.7)
            optimizer.synchronize()
        for x, y in zip(one.state.values(), other.state.values(), strict=True):
            torch.testing.assert_close(y, x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("skipped", [(), (0,), (1, 2)])
def test_int_and_tensor_seeds_draw_the_same_noise_after_a_skipped_step(skipped):
    whole, _ = skipping("BAOAB", skipped, temperature=0.5, seed=17)
    tensor, _ = skipping("BAOAB", skipped, temperature=0.5, seed=torch.tensor(17))
    assert whole == tensor
    assert whole != skipping("BAOAB", skipped, temperature=0.5, seed=18)[0]


def test_synchronize_with_a_bad_gradient_still_owes():
    plain, one = skipping("BAOAB", ())
    _, other = skipping("BAOAB", ())
    p = other.param_groups[0]["params"][0]
    p.grad = torch.full_like(p, torch.nan)
    other.synchronize()
    for optimizer in (one, other):
        (p,) = optimizer.param_groups[0]["params"]
        p.grad = torch.ones_like(p)
        optimizer.synchronize()
        assert p.item() == plain
    momenta = [next(iter(optimizer.state.values()))["momentum"] for optimizer in (one, other)]
    torch.testing.assert_close(*momenta, rtol=0, atol=1e-15)


@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("word", ["OBA", "BAOAB"])
def test_in_sgds_terms_a_skipped_steps_rate_is_forgotten(word, bad):
    """The momentum is rescaled from the rate of the last step that was taken."""
    ends = []
    for skipping in (True, False):
        p = torch.nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64))
        opt = Langevin.like_sgd([p], 0.1, 0.9, scheme=word, temperature=0.01, seed=3)
        for number, lr in enumerate([0.1, 0.2, 0.05, 0.3, 0.1]):
            opt.param_groups[0]["lr"] = lr
            p.grad = torch.full_like(p, torch.nan) if number == bad else torch.sin(3 * p.detach() + number)
            if skipping or number != bad:
                opt.step()
        ends.append(p)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-14)


def test_empty_gradients_are_finite():
    """Those of empty tensors in a joint group, and of a rank that holds no part of a tensor."""
    empty, good, bad = torch.empty(0, 3), torch.ones(2), torch.tensor([1.0, torch.nan])
    assert not any_non_finite([empty])
    assert not any_non_finite([empty, good])
    assert any_non_finite([empty, good, bad])
