"""What PyTorch's own tests demand of every optimizer, on six systems: one test per rule.

Rules with stricter tests elsewhere are not repeated: gradients only read, missing or frozen, closures, foreach,
zero_grad, GradScaler (test_gradients); profilers, groups of one tensor or with names (test_groups); weights_only
(test_resume); another dtype or device (test_dtypes, test_cuda).
"""

import copy
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim import lr_scheduler as schedules
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import SWALR

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal, Sphere

SETTINGS = {
    "OBA": {"scheme": "OBA"},
    "BAOAB": {"temperature": 0.01, "seed": 3},
    "L": {"scheme": "L", "temperature": 0.01},
    "circle": {"constraint": Circle(1.5), "temperature": 0.01, "weight_decay": 0.1},
    "sphere": {"constraint": Sphere(2.0), "scheme": "BACDEDCAB", "temperature": 0.01},
    "orthogonal": {"constraint": Orthogonal(), "temperature": 0.01},
}
CLOSE = {"rtol": 2e-6, "atol": 2e-6}
every_setting = pytest.mark.parametrize("setting", SETTINGS)


def weights(setting="BAOAB"):
    """Two matrices that every space takes as they are, and a vector for those that take vectors."""
    generator = torch.Generator().manual_seed(0)
    tall, wide = (torch.linalg.qr(torch.randn(4, 3, generator=generator))[0] for _ in range(2))
    values = [tall.contiguous(), wide.mT.contiguous(), torch.linspace(-1, 1, 3)]
    return [nn.Parameter(x) for x in values[: 2 if setting == "orthogonal" else 3]]


def build(setting="BAOAB", params=None, **options):
    params = weights(setting) if params is None else params
    return params, Langevin(params, **{"lr": 0.1, "seed": 0, **SETTINGS[setting], **options})


def backward(params, number=0):
    """The gradient of ½Σ(q − target)², with targets that move."""
    for i, p in enumerate(params):
        p.grad = p.detach() - 0.3 * (i + 1) - 0.1 * number


def train(params, opt, steps=3, first=0):
    for number in range(first, first + steps):
        backward(params, number)
        opt.step()


def plain(tree):
    """Containers and numbers that compare by ``==``, without the names of parameters, which are optional."""
    if isinstance(tree, dict):
        return {key: plain(x) for key, x in tree.items() if key != "param_names"}
    if isinstance(tree, (list, tuple)):
        return [plain(x) for x in tree]
    return (tree.dtype, tree.tolist()) if isinstance(tree, torch.Tensor) else tree


def same(a, b, **tolerance):
    torch.testing.assert_close(a, b, **tolerance or {"rtol": 0, "atol": 0})


def test_the_rate_has_a_default():
    opt = Langevin([{"params": weights()}, {"params": weights(), "lr": 0.5}])
    assert [group["lr"] for group in opt.param_groups] == [0.1, 0.5]


@every_setting
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("where", ["argument", "group"])
def test_a_tensor_of_one_element_is_a_rate(setting, shape, where):
    rate, params = torch.tensor(0.1).reshape(shape), weights(setting)
    given = params if where == "argument" else [{"params": params, "lr": rate}]
    _, opt = build(setting, given, lr=rate if where == "argument" else 0.7)
    other, other_opt = build(setting)
    train(params, opt)
    train(other, other_opt)
    same(params, other, **CLOSE)


@every_setting
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_a_schedule_writes_a_tensor_rate_in_place(setting, shape):
    rate = torch.tensor(0.1).reshape(shape)
    runs = [build(setting, lr=rate), build(setting)]
    for params, opt in runs:
        schedule = schedules.ExponentialLR(opt, 0.5)
        for number in range(4):
            train(params, opt, 1, number)
            schedule.step()
    assert runs[0][1].param_groups[0]["lr"] is rate
    same(rate, torch.full(shape, 0.1 / 16), **CLOSE)
    same(runs[0][0], runs[1][0], **CLOSE)


def test_more_rates_than_one_need_as_many_replicas():
    with pytest.raises(ValueError, match="Tensor lr must be 1-element"):
        Langevin(weights(), torch.tensor([0.001, 0.001]))


SCHEDULES = {
    "LambdaLR": [lambda epoch: 0.9**epoch], "MultiplicativeLR": [lambda epoch: 0.9], "StepLR": [3],
    "MultiStepLR": [[2, 5]], "ConstantLR": [0.4, 4], "LinearLR": [0.4, 0.8, 4], "ExponentialLR": [0.9],
    "PolynomialLR": [6, 0.9], "CosineAnnealingLR": [6], "CosineAnnealingWarmRestarts": [3], "SWALR": [0.01, 4],
    "ReduceLROnPlateau": ["min", 0.1, 1], "CyclicLR": [0.01, 0.1, 2], "OneCycleLR": [0.1, 12],
}  # fmt: skip


def schedule_of(name, opt):
    if name in ("ChainedScheduler", "SequentialLR"):
        two = [schedules.ConstantLR(opt, 0.4, 4), schedules.ExponentialLR(opt, 0.9)]
        return schedules.ChainedScheduler(two) if name == "ChainedScheduler" else schedules.SequentialLR(opt, two, [3])
    options = {"cycle_momentum": False} if "Cycl" in name else {}  # there is no momentum to cycle
    return {**vars(schedules), "SWALR": SWALR}[name](opt, *SCHEDULES[name], **options)


@pytest.mark.parametrize("number_type", [float, torch.tensor])
@pytest.mark.parametrize("name", [*SCHEDULES, "ChainedScheduler", "SequentialLR"])
def test_every_schedule_sets_the_rates_it_would_set_for_sgd(name, number_type):
    rates = []
    for optimizer in (SGD, Langevin):
        params, seen = weights(), []
        opt = optimizer(params, number_type(0.1))
        schedule = schedule_of(name, opt)
        for number in range(8):
            train(params, opt, 1, number)
            schedule.step(*[1.0] * (name == "ReduceLROnPlateau"))
            seen.append(float(opt.param_groups[0]["lr"]))
        rates.append(seen)
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda p, q: [], ValueError, "optimizer got an empty parameter list"),
        (lambda p, q: p, TypeError, "params argument given to the optimizer should be an iterable of Tensors or dicts"),
        (lambda p, q: ["weight"], TypeError, "(?i)tensors"),
        (lambda p, q: [{"params": {p, q}}], TypeError, "(?i)order"),
        (lambda p, q: [p * 2], ValueError, "can't optimize a non-leaf Tensor"),
        (lambda p, q: [{"params": p}, {"params": p}], ValueError, "parameters appear in more than one parameter group"),
        (lambda p, q: [("p", p), q], ValueError, "should be with/without names. Some param names are missing"),
        (lambda p, q: [{"params": p}, {"params": [("q", q)]}], ValueError, "cannot add param group with names to the"),
        (lambda p, q: [torch.zeros(2, dtype=torch.complex64)], TypeError, "complex64.*view_as_real"),
    ],
    ids=["empty", "tensor", "text", "set", "non-leaf", "two groups", "some names", "some groups named", "complex"],
)
def test_bad_parameters_are_refused_in_torchs_words(make, error, said):
    with pytest.raises(error, match=said):
        Langevin(make(*weights()[:2]), lr=0.1)


@every_setting
def test_a_parameter_given_twice_in_a_group_warns_and_counts_once(setting):
    params = weights(setting)
    with pytest.warns(UserWarning, match="a parameter group with duplicate parameters"):
        _, opt = build(setting, [params[0], *params])
    other, other_opt = build(setting)
    train(params, opt)
    train(other, other_opt)
    same(params, other, **CLOSE)


@every_setting
def test_a_group_that_is_there_twice_is_saved_as_it_is_saved_once(setting):
    _, opt = build(setting)
    once = plain(opt.state_dict()["param_groups"])
    opt.param_groups.extend(opt.param_groups)
    assert plain(opt.state_dict()["param_groups"]) == 2 * once


@every_setting
def test_groups_in_new_dicts_are_the_same_groups(setting):
    (params, opt), (other, other_opt) = build(setting), build(setting)
    for number in range(4):
        opt.param_groups = [dict(group) for group in opt.param_groups]
        train(params, opt, 1, number)
    train(other, other_opt, 4)
    same(params, other)
    assert plain(opt.state_dict()) == plain(other_opt.state_dict())


@pytest.mark.parametrize("edit", ["extended", "replaced", "cut"])
def test_other_groups_in_the_list_work_or_are_refused_in_words(edit):
    """Torch's tests leave this open. An error that does not name add_param_group is not an answer."""
    *params, new = *weights(), nn.Parameter(torch.ones(2))
    opt = Langevin([{"params": [p]} for p in params], 0.1)
    train(params, opt)
    groups = opt.param_groups
    if edit == "extended":
        groups += [{**groups[0], "params": [new]}]
    else:
        opt.param_groups = groups[:2] + [{**groups[2], "params": [new]}] * (edit == "replaced")
    everyone, held = [*params, new], {id(p) for group in opt.param_groups for p in group["params"]}
    before, refusal = [p.detach().clone() for p in everyone], "add_param_group"
    try:
        assert len(opt.state_dict()["param_groups"]) == len(opt.param_groups)
        train(everyone, opt, 1)
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        held, refusal = set(), str(error)
    assert "add_param_group" in refusal
    assert [not torch.equal(p, q) for p, q in zip(everyone, before)] == [id(p) in held for p in everyone]


@every_setting
def test_zero_gradients_move_nothing_that_rests(setting):
    params, opt = build(setting, temperature=0.0, coupling=0.1, driving_noise=0.0, weight_decay=0.0)
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.zeros_like(p)
    opt.step()
    same([p.detach() for p in params], before, **CLOSE)


@every_setting
def test_every_parameter_has_state(setting):
    params, opt = build(setting)
    train(params, opt, 1)
    assert all(opt.state[p] for p in params)


@every_setting
def test_an_optimizer_is_freed_without_the_garbage_collector(setting):
    params, opt = build(setting)
    train(params, opt)
    gone = weakref.ref(opt)
    del opt
    assert gone() is None


def test_step_hooks_run_in_order_and_may_replace_the_arguments():
    params, opt = build()
    backward(params)
    seen = []
    hooks = [
        register_optimizer_step_post_hook(lambda *_: seen.append("all after")),
        register_optimizer_step_pre_hook(lambda *_: seen.append("all before")),
        opt.register_step_post_hook(lambda *_: seen.append("after")),
        opt.register_step_pre_hook(lambda own, args, kwargs: ((own, lambda: seen.append("closure")), kwargs)),
    ]
    opt.step()
    for hook in hooks:
        hook.remove()
    opt.step()
    assert seen == ["all before", "closure", "after", "all after"]
    opt.register_step_pre_hook(lambda *_: "neither None nor arguments")
    with pytest.raises(RuntimeError, match="must return None or a tuple"):
        opt.step()


@every_setting
def test_hooks_around_saving_may_add_to_it_and_replace_it(setting):
    _, opt = build(setting)
    opt.register_state_dict_pre_hook(lambda own: own.state.update(note=1))
    assert opt.state_dict()["state"]["note"] == 1
    opt.register_state_dict_post_hook(lambda own, saved: {"note": saved["state"].pop("note")})
    assert opt.state_dict() == {"note": 1}


@every_setting
def test_hooks_around_loading_run_in_order_and_see_the_result(setting):
    (_, opt), seen = build(setting), []
    for rate, prepend in ((0.2, False), (0.3, True)):
        opt.register_load_state_dict_pre_hook(
            lambda _, saved, rate=rate: {**saved, "param_groups": [{**g, "lr": rate} for g in saved["param_groups"]]},
            prepend=prepend,
        )
    opt.register_load_state_dict_post_hook(lambda own: seen.append(own.param_groups[0]["lr"]))
    opt.load_state_dict(opt.state_dict())
    assert seen == [0.2]


@every_setting
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_has_the_same_public_attributes_no_hooks_and_steps_alike(setting, way):
    params, opt = build(setting)
    train(params, opt)
    called = []
    opt.register_step_pre_hook(lambda *_: called.append(1))
    twins, twin = copy.deepcopy((params, opt)) if way == "deepcopy" else pickle.loads(pickle.dumps((params, opt)))
    train(twins, twin)
    assert not called
    train(params, opt)
    same(twins, params)
    assert {x for x in vars(twin) if x[0] != "_"} == {x for x in vars(opt) if x[0] != "_"}


@every_setting
@pytest.mark.parametrize("names", [(False, False), (False, True), (True, False), (True, True)], ids=str)
def test_a_loaded_optimizer_saves_what_the_other_does(setting, names):
    runs = []
    for named in names:
        params = weights(setting)
        runs.append((params, build(setting, [(f"w{i}", p) for i, p in enumerate(params)] if named else params)[1]))
    (params, opt), (twins, twin) = runs
    train(params, opt)
    given = copy.deepcopy(opt.state_dict())
    twin.load_state_dict(given)
    assert plain(given) == plain(opt.state_dict())
    with torch.no_grad():
        for p, q in zip(twins, params):
            p.copy_(q)
    for own, one in runs:
        train(own, one, 3, first=3)
    same(twins, params)
    assert ("param_names" in twin.state_dict()["param_groups"][0]) == any(names)
    assert plain(twin.state_dict()) == plain(opt.state_dict())


@every_setting
def test_a_checkpoint_without_later_options_loads_with_the_defaults(setting):
    params, opt = build(setting)
    train(params, opt)
    saved, keys = copy.deepcopy(opt.state_dict()), set(opt.param_groups[0])
    for option in ("foreach", "maximize", "fuse"):
        saved["param_groups"][0].pop(option, None)
    opt.load_state_dict(saved)
    train(params, opt)
    assert set(opt.param_groups[0]) == keys
