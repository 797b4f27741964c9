"""What a device does with bad gradients, done on the CPU: the step is masked and counted, never asked about."""

import pytest
import torch

from holonom import Langevin, guard
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from holonom.errors import NonFiniteGradientError, ProjectionError

SPACES = {
    "free": None,
    "circle": Circle(2.0),
    "sphere": Sphere(3.0),
    "orthogonal": Orthogonal(),
    "level set": LevelSet(lambda q: (q**2).sum() - 1),
}
WORDS = ["L", "OBA", "BAOAB"]
FUSIBLE = ["free", "circle", "sphere"]


@pytest.fixture(autouse=True)
def masked(monkeypatch):
    def as_on_a_device(active, state, step, skipped):
        return guard._masked([cell for cells in active for cell in cells], state, skipped)

    monkeypatch.setattr(guard, "guarded", as_on_a_device)


def build(space, word, **options):
    generator = torch.Generator().manual_seed(3)
    params = [torch.nn.Parameter(torch.linalg.qr(torch.randn(5, 3, generator=generator))[0].contiguous())]
    params += [torch.nn.Parameter(x.detach().roll(1, 0).clone()) for x in params]
    return params, Langevin(params, 0.1, scheme=word, constraint=SPACES[space], temperature=0.01, **options)


def step(params, opt, bad=False):
    for i, p in enumerate(params):
        p.grad = torch.sin(3 * p.detach() + i)
    if bad:
        params[1].grad[2, 1] = torch.nan
    opt.step()


def everything(params, opt):
    return [x.clone() for p in params for x in (p.detach(), *opt.state[p].values())]


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("space", FUSIBLE)
def test_a_bad_step_leaves_everything_bit_for_bit_and_is_counted(space, word, foreach):
    params, opt = build(space, word, foreach=foreach)
    step(params, opt)
    before = everything(params, opt)
    step(params, opt, bad=True)
    assert all(torch.equal(x, y) for x, y in zip(before, everything(params, opt), strict=True))
    with pytest.raises(NonFiniteGradientError, match=r"1 step\(s\)"):
        opt.check()
    step(params, opt)
    assert not any(torch.equal(x, y.detach()) for x, y in zip(before[:: len(before) // 2], params, strict=True))
    opt.check()


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("space", sorted(set(SPACES) - set(FUSIBLE)))
def test_an_exception_in_the_middle_of_a_step_leaves_everything_bit_for_bit(space, word):
    """On a CPU a projection of something that is not a number raises."""
    params, opt = build(space, word)
    step(params, opt)
    before = everything(params, opt)
    with pytest.raises(ProjectionError):
        step(params, opt, bad=True)
    assert all(torch.equal(x, y) for x, y in zip(before, everything(params, opt), strict=True))


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("space", SPACES)
def test_a_good_step_is_the_one_without_a_mask(space, word):
    masked, opt = build(space, word)
    plain, other = build(space, word)
    other.guard_gradients = False
    for _ in range(4):
        step(masked, opt)
        step(plain, other)
    assert all(torch.equal(x, y) for x, y in zip(everything(masked, opt), everything(plain, other), strict=True))
