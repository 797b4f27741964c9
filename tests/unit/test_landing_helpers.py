"""holonom.project_ and holonom.init_: weights that no optimizer moves, onto their manifolds."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import holonom
from holonom import Langevin
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from holonom.errors import ConstraintError

SPACES = {
    "circle": Circle(0.5),
    "sphere": Sphere(0.9),
    "sphere-fixed": Sphere(1.0, slack=False),
    "orthogonal": Orthogonal(),
}
spaces = pytest.mark.parametrize("space", SPACES)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))


def groups_of(model, space):
    return holonom.partition(model, {"*.weight": {"constraint": space}, "rest": {}}, verbose=False)


def optimizer_of(model, space):
    groups = groups_of(model, space)
    holonom.init_(groups, torch.Generator().manual_seed(1))
    return Langevin(groups, 0.1)


def violation(space, p):
    q = p.detach().double()
    if isinstance(space, Circle):
        return float((q.abs() - space.radius).clamp_min(0).max())
    if isinstance(space, Sphere):
        excess = q.norm(dim=-1) - space.radius
        return float((excess.clamp_min(0) if space.has_slack else excess.abs()).max())
    q = q if q.shape[0] >= q.shape[1] else q.mT
    return float((q.mT @ q - torch.eye(q.shape[1])).abs().max())


@spaces
@pytest.mark.parametrize("named", [True, False])
def test_an_averaged_model_is_brought_back(space, named):
    model = network()
    opt = optimizer_of(model, SPACES[space])
    if not named:
        model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(2)))
        holonom.init_([{"params": model.parameters(), "constraint": SPACES[space]}])
        opt = Langevin(model.parameters(), 0.1, constraint=SPACES[space])
    average = AveragedModel(model)
    for _ in range(4):
        with torch.no_grad():
            for p in average.module.parameters():
                p.add_(torch.randn_like(p))
    before = [p.detach().clone() for p in model.parameters()]
    free = {name: p.detach().clone() for name, p in average.named_parameters() if "bias" in name}
    holonom.project_(average, like=opt)
    for name, p in average.named_parameters():
        if "bias" in name:
            assert torch.equal(p, free[name])
        else:
            assert violation(SPACES[space], p) < 1e-5
    assert all(map(torch.equal, model.parameters(), before))


def test_what_is_on_the_manifold_stays_as_it_is():
    model = network()
    opt = optimizer_of(model, Orthogonal())
    twin = copy.deepcopy(model)
    versions = [p._version for p in twin.parameters()]
    holonom.project_(twin, like=opt)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert [p._version for p in twin.parameters()] == versions


@spaces
def test_groups_are_projected_before_an_optimizer_is_built(space):
    model = network()
    groups = groups_of(model, SPACES[space])
    groups[0]["params"] = iter(groups[0]["params"])  # used up once only
    holonom.project_(groups)
    assert violation(SPACES[space], model[0].weight) < 1e-5
    opt = Langevin(groups, 0.1)
    assert len(opt.param_groups[0]["params"]) == 2


@spaces
def test_drawn_weights_are_on_the_manifold_and_follow_the_generator(space):
    drawn = []
    for seed in (3, 3, 4):
        model = network()
        biases = [p.detach().clone() for name, p in model.named_parameters() if "bias" in name]
        holonom.init_(groups_of(model, SPACES[space]), torch.Generator().manual_seed(seed))
        assert violation(SPACES[space], model[0].weight) < 1e-5
        assert all(map(torch.equal, biases, [p for name, p in model.named_parameters() if "bias" in name]))
        drawn.append(model[0].weight.detach().clone())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_level_set_has_nothing_to_draw_from_and_nothing_is_drawn():
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    groups = [
        {"params": [("first", model[0].weight)], "constraint": Orthogonal()},
        {"params": [("second", model[2].weight)], "constraint": LevelSet(lambda q: q.square().sum() - 1, name="unit")},
    ]
    with pytest.raises(ConstraintError, match=r"LevelSet\(unit.*'second'.*project_"):
        holonom.init_(groups)
    assert all(map(torch.equal, model.parameters(), before))
    holonom.project_(groups[1:])
    assert float(model[2].weight.detach().square().sum()) == pytest.approx(1, abs=1e-5)


def test_what_does_not_fit_is_refused_and_nothing_is_moved():
    model = network()
    opt = optimizer_of(model, Circle(0.1))
    with pytest.raises(ValueError, match=r"no parameter named '0.weight'"):
        holonom.project_(nn.Linear(4, 4), like=opt)
    with pytest.raises(ValueError, match=r"'2.weight' has shape \(5, 4\).*\(3, 4\)"):
        holonom.project_(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 5)), like=opt)
    with pytest.raises(TypeError, match="needs the Langevin optimizer"):
        holonom.project_(model, like=torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(TypeError, match=r"group 0 is 'Circle.*optimizer.project_"):
        holonom.project_(opt.param_groups)
    with pytest.raises(TypeError, match="dicts with 'params'"):
        holonom.init_(model.parameters())
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.fill_(1.0)
        twin[2].weight.fill_(torch.nan)
    with pytest.raises(ConstraintError, match=r"'2.weight': the weights hold NaN"):
        holonom.project_(twin, like=opt)
    assert (twin[0].weight == 1).all()


def test_parameters_without_names_are_not_guessed():
    first, second = (nn.Linear(3, 3, bias=False) for _ in range(2))
    groups = [{"params": second.parameters(), "constraint": Circle(5.0)}, {"params": first.parameters()}]
    with pytest.raises(ValueError, match="parameters of one shape have different constraints"):
        holonom.project_(nn.Sequential(first, second), like=Langevin(groups, 0.1))
    with pytest.raises(ValueError, match="shapes are not the module's"):
        holonom.project_(nn.Linear(2, 2), like=Langevin(first.parameters(), 0.1, constraint=Circle(5.0)))


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("preset", ["o_cola_ud", "s_cola_ud", "c_cola_od"])
def test_weights_of_a_preset_are_drawn_through_its_optimizer(preset):
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    opt = getattr(holonom.presets, preset)(net)
    before = net[1].weight.clone(), net[1].bias.clone()
    holonom.init_(opt)
    drawn = net[1].weight.clone()
    assert not torch.equal(drawn, before[0])
    assert torch.equal(net[1].bias, before[1])
    net(torch.ones(4)).sum().backward()
    opt.step()
    assert max(opt.residuals()) < 1e-6
    assert 0 < (net[1].weight - drawn).norm() < 0.3 * (net[1].weight - before[0]).norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_orthogonal_weights_are_drawn_in_half_precision(dtype):
    q = nn.Parameter(torch.zeros(5, 3, dtype=dtype))
    holonom.init_([{"params": [q], "constraint": Orthogonal()}])
    assert (q.float().T @ q.float() - torch.eye(3)).abs().max() < 4 * torch.finfo(dtype).eps


def test_an_optimizer_is_no_list_of_groups():
    opt = Langevin([nn.Parameter(torch.ones(2))], 0.1)
    with pytest.raises(TypeError, match="project_ takes groups, got Langevin"):
        holonom.project_(opt)
