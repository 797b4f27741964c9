"""Radii and scales of the initial weights: kept in state and checkpoints, and used by all that moves weights."""

import copy
import io
import warnings

import pytest
import torch
from torch import nn

from holonom import Ensemble, Langevin, init_, partition, project_
from holonom.constraints import Orthogonal, Sphere, View
from holonom.errors import ConstraintError
from holonom.partitions import weights
from holonom.sampling import sample

SPACES = {
    "rows": Sphere("initial"),
    "matrix": Sphere("initial", per="matrix", factor=2.0),
    "bounded columns": Sphere("initial", slack=True, per="column", factor=1.5),
    "orthogonal": Orthogonal(scale="initial"),
}
TOLERANCES = {torch.float64: 1e-14, torch.float32: 2e-6, torch.bfloat16: 3e-2}


def numbers(*shape, key=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(key), dtype=torch.float64).to(dtype)


def build(start, space, **options):
    """An optimizer of one parameter; landing orthogonal weights is warned about, scaling spheres is not."""
    w = nn.Parameter(start.clone())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not isinstance(space, Orthogonal):
            warnings.filterwarnings("error", "weights that did not satisfy")
        return w, Langevin([w], **{"lr": 0.1, "temperature": 0.01, "constraint": space, "seed": 3, **options})


def steps(w, opt, count):
    for _ in range(count):
        w.grad = torch.sin(3 * w.detach())
        opt.step()


def radii(space, w):
    """By hand, without the factor."""
    w = w.double()
    norms = {"row": w.norm(dim=1), "column": w.norm(dim=0), "matrix": w.norm(), "block": w.norm() / 3**0.5}
    return norms[space.per]


@pytest.mark.filterwarnings("ignore:.* weights are rounded to themselves")
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", SPACES)
def test_they_are_kept_through_steps_and_checkpoints(name, dtype):
    space, start = SPACES[name], numbers(5, 3, dtype=dtype)
    w, opt = build(start, space)
    kept = opt.state[w]["radius"].clone()
    assert kept.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    torch.testing.assert_close(kept.double(), radii(space, start) * space.factor, rtol=1e-6, atol=0)
    steps(w, opt, 3)
    file = io.BytesIO()
    torch.save({"w": w.detach(), "opt": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    twin, twin_opt = copy.deepcopy((w, opt))
    steps(w, opt, 15)
    v, again = build(saved["w"], space, seed=None)
    again.load_state_dict(saved["opt"])
    for p, o in ((v, again), (twin, twin_opt)):
        steps(p, o, 15)
        assert torch.equal(p, w)
        assert torch.equal(o.state[p]["radius"], kept)
    assert opt.residuals()[0] < TOLERANCES[dtype]
    assert "'initial'" in repr(again)
    if not space.is_bound:
        torch.testing.assert_close(
            radii(space, w.detach()), kept.double(), rtol=TOLERANCES[dtype], atol=0, check_dtype=False
        )


def test_weights_are_scaled_once():
    start = numbers(4, 3)
    w, _ = build(start, Sphere("initial", factor=2.0))
    torch.testing.assert_close(w.detach(), 2 * start, rtol=1e-14, atol=0)
    w, _ = build(start, Sphere("initial"))
    assert torch.equal(w, start)
    inside, _ = build(start, Sphere("initial", slack=True, factor=2.0))
    assert torch.equal(inside, start)
    on = torch.linalg.qr(start).Q * 3
    w, opt = build(on, Orthogonal(scale="initial"))
    assert torch.equal(w, on)
    assert float(opt.state[w]["radius"]) == pytest.approx(3, abs=1e-14)


@pytest.mark.parametrize("name", SPACES)
def test_edits_and_averages_come_back_to_them(name):
    space = SPACES[name]
    w, opt = build(numbers(5, 3), space)
    steps(w, opt, 2)
    w.data.mul_(3.0)
    steps(w, opt, 1)
    assert opt.residuals()[0] < 1e-13
    assert opt.cotangencies()[0] < 1e-13
    with torch.no_grad():
        w.mul_(3.0).add_(0.1)
    opt.project_()
    assert opt.residuals()[0] < 1e-13

    module = nn.ParameterDict({"w": w})
    opt = Langevin(module.named_parameters(), constraint=Sphere("initial", per="matrix", factor=1.5))
    average = copy.deepcopy(module)
    with torch.no_grad():
        average["w"].mul_(0.3)
    project_(average, like=opt)
    torch.testing.assert_close(average["w"].norm(), opt.state[w]["radius"])


@pytest.mark.parametrize("name", SPACES)
def test_a_failed_constructor_leaves_weights_as_they_came(name):
    start, other = numbers(5, 3), numbers(5, 3)
    w, zero = nn.Parameter(start.clone()), nn.Parameter(torch.zeros_like(other))
    with pytest.raises(ConstraintError, match=r"parameter 1: .* blocks are zero and have no norm to keep"):
        Langevin([w, zero], constraint=SPACES[name])
    assert torch.equal(w, start)


@pytest.mark.parametrize("name", SPACES)
def test_init_draws_at_the_norms_that_are_there(name):
    space, start = SPACES[name], numbers(5, 3)
    w, opt = build(start, space)
    kept = opt.state[w]["radius"].clone()
    before = w.detach().clone()
    init_(opt, torch.Generator().manual_seed(5))
    assert not torch.equal(w, before)
    steps(w, opt, 1)
    assert torch.equal(opt.state[w]["radius"], kept)
    assert opt.residuals()[0] < 1e-13
    v = nn.Parameter(start.clone())
    groups = [{"params": [v], "constraint": space}]
    if space.is_bound:
        with pytest.raises(ConstraintError, match=r"no radius before an optimizer is built.*init_\(optimizer\)"):
            init_(groups)
        return
    init_(groups, torch.Generator().manual_seed(5))
    torch.testing.assert_close(radii(space, v.detach()), radii(space, start), rtol=1e-14, atol=0)
    opt = Langevin(groups)
    torch.testing.assert_close(opt.state[v]["radius"], kept, rtol=1e-13, atol=0)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = nn.Parameter(torch.randn(3, 4, 5, dtype=torch.float64))
        self.map = nn.Linear(5, 4, dtype=torch.float64)

    def forward(self, x):
        return torch.tanh(torch.einsum("bi,eoi->bo", x, self.stack) + self.map(x)).square().mean()


REPLICATED = [
    Sphere("initial", per="matrix", factor=1.3),
    Sphere("initial", per="column"),
    Sphere(0.8, per="matrix"),
    Orthogonal(scale="initial", per="matrix"),
]


@pytest.mark.parametrize("space", REPLICATED, ids=repr)
@pytest.mark.parametrize("word", ["L", "BAOAB"])
@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_a_replica_equals_the_model_alone(space, word):
    """Biases, too: in an ensemble a vector is a row of a matrix, and no block reaches over replicas."""
    ensemble = Ensemble(Experts, 2, seed=1)
    models = ensemble.unstack()
    x = numbers(4, 6, 5)
    options = {"lr": 0.1, "temperature": 0.01, "scheme": word}

    def build(model, seed):
        rules = {weights: {"constraint": space}, "rest": {}}
        if space.per == "matrix" and isinstance(space, Sphere):
            rules = {"*": {"constraint": space}}
        return Langevin(partition(model, rules, verbose=False), seed=seed, **options)

    several = build(ensemble, ensemble.seeds)
    for batch in x:
        several.zero_grad()
        ensemble(batch).sum().backward()
        several.step()
    for i, model in enumerate(models):
        alone = build(model, ensemble.seeds[i])
        for batch in x:
            alone.zero_grad()
            model(batch).backward()
            alone.step()
        for p, q in zip(model.parameters(), ensemble.parameters(), strict=True):
            torch.testing.assert_close(q[i], p, rtol=0, atol=1e-12)
            for name in alone.state[p].keys() & {"radius"}:
                torch.testing.assert_close(several.state[q][name][i], alone.state[p][name], rtol=1e-14, atol=0)


def test_drawing_and_landing_replicas_by_themselves():
    ensemble = Ensemble(lambda: nn.Linear(3, 4), 2, seed=0)
    groups = partition(ensemble, {"*": {"constraint": Sphere(0.8, slack=False, per="matrix")}}, verbose=False)
    for act in (init_, project_):
        for p in ensemble.parameters():
            p.data.mul_(3.0)
        act(groups)
        norms = [p.detach().flatten(1).norm(dim=1) for p in ensemble.parameters()]
        torch.testing.assert_close(torch.stack(norms), torch.full((2, 2), 0.8))


def test_what_would_need_radii_that_nobody_keeps_is_refused():
    w = nn.Parameter(numbers(4, 3))
    for space in SPACES.values():
        with pytest.raises(ConstraintError, match=r"radii that an optimizer keeps.*project_\(copy, like=optimizer\)"):
            project_([{"params": [w], "constraint": space}])
    data = numbers(8, 3).float(), numbers(8, 1).float()
    with pytest.raises(ConstraintError, match="cannot be sampled on"):
        sample(nn.Linear(3, 1), nn.MSELoss(), data, steps=10, constraints={"weight": SPACES["rows"]})


def test_heads_have_radii_of_their_own():
    attention = nn.MultiheadAttention(6, 3, bias=False, dtype=torch.float64)
    before = {name: p.detach().clone() for name, p in attention.named_parameters()}
    groups = partition(attention, {"*": {"constraint": Sphere("initial", per="head")}}, verbose=False)
    opt = Langevin(groups)
    kept = opt.state[attention.in_proj_weight]["radius"], opt.state[attention.out_proj.weight]["radius"]
    torch.testing.assert_close(kept[0], before["in_proj_weight"].reshape(9, 12).norm(dim=1))
    torch.testing.assert_close(kept[1], before["out_proj.weight"].T.reshape(3, 12).norm(dim=1))
    assert [group["constraint"].count("per='head'") for group in opt.param_groups] == [1, 1]
    assert View(blocks=9) == groups[0]["constraint"].block_view
