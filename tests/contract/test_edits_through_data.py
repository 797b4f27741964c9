"""Weights changed through ``.data``, which torch's version counter does not see: the step finds them by itself."""

import copy
import io
import pickle
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from holonom import Langevin
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from holonom.errors import ConstraintError

from .cases import (
    assert_equal,
    build,
    every_case,
    every_constrained_case,
    optimizer,
    snapshot,
    train,
)

TINY = 1e-7
EDITS = {
    "mul": lambda p: p.data.mul_(3.0),
    "shrink": lambda p: p.data.mul_(0.6),
    "clamp": lambda p: p.data.clamp_(-0.4, 0.4),
    "copy": lambda p: p.data.copy_(p.detach().flip(0) * 0.9),
}
edits = pytest.mark.parametrize("edit", EDITS)
WORDS = ["BAOAB", "ABO", "OBA", "L", "BACDEDCAB"]
EDITABLE = {"circle": Circle(1.5), "sphere": Sphere(2.0), "sphere-fixed": Sphere(1.0, slack=False)}
SPACES = {**EDITABLE, "orthogonal": Orthogonal(), "orthogonal-square": Orthogonal()}
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14, torch.bfloat16: 0.02}


def weights(space, dtype=torch.float32, replicas=None):
    generator = torch.Generator().manual_seed(4)
    shape = (4, 4) if space == "orthogonal-square" else (5, 3)
    draw = torch.randn(*([replicas] if replicas else []), *shape, generator=generator, dtype=torch.float64)
    q = torch.linalg.qr(draw)[0].contiguous()
    if space == "sphere-fixed":
        q = q / q.norm(dim=-1, keepdim=True)
    return [nn.Parameter(x.to(dtype)) for x in (q, q.roll(1, -2).clone())]


def step(params, opt):
    for i, p in enumerate(params):
        p.grad = torch.sin(3 * p.detach() + i)
    opt.step()


def landed(space, q, dtype=torch.float32):
    """Where the edited weight belongs, by its own formula."""
    margin = max(1e-3, 2 * torch.finfo(dtype).eps)
    if space == "circle":
        return torch.where(q.abs() < 1.5, q, torch.sign(q) * 1.5 * (1 - margin))
    if space.startswith("sphere"):
        norm = q.norm(dim=-1, keepdim=True)
        return q / norm if space == "sphere-fixed" else torch.where(norm < 2, q, q / norm * 2 * (1 - margin))
    u, _, vh = torch.linalg.svd(q, full_matrices=False)
    return u @ vh


@edits
@pytest.mark.parametrize(("space", "fuse"), [(s, False) for s in SPACES] + [(s, True) for s in EDITABLE])
def test_a_step_starts_from_the_edited_weights(space, fuse, edit):
    """With a step too short to matter, what is left is the edit, landed, and momenta are tangent there."""
    for word in WORDS if not fuse else ["BAOAB"]:  # every compiled word takes seconds
        params = weights(space)
        temperature = 0.0 if fuse else 0.01
        opt = Langevin(params, 0.1, scheme=word, constraint=SPACES[space], temperature=temperature, fuse=fuse, seed=0)
        for _ in range(3):
            step(params, opt)
        EDITS[edit](params[0])
        expected = landed(space, params[0].detach().double())
        untouched = params[1].detach().clone()
        opt.param_groups[0].update(lr=TINY, temperature=0.0, driving_noise=0.0)
        step(params, opt)
        torch.testing.assert_close(params[0].detach().double(), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(params[1].detach(), untouched, rtol=0, atol=1e-5)
        assert opt.residuals()[0] < 2e-6
        assert opt.cotangencies()[0] < 2e-6


@edits
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("word", ["BAOAB", "L"])
@pytest.mark.parametrize("space", SPACES)
def test_in_every_precision(space, word, dtype, edit):
    params = weights(space, dtype)
    opt = Langevin(params, 0.1, scheme=word, constraint=SPACES[space], temperature=0.01, seed=0)
    for _ in range(3):
        step(params, opt)
    EDITS[edit](params[0])
    expected = landed(space, params[0].detach().double(), dtype)
    opt.param_groups[0].update(lr=1e-12, temperature=0.0)
    step(params, opt)
    torch.testing.assert_close(params[0].detach().double(), expected, rtol=0, atol=max(1e-10, TOLERANCE[dtype] / 2))
    assert opt.residuals()[0] < TOLERANCE[dtype]


@pytest.mark.parametrize("word", ["BAOAB", "L"])
@pytest.mark.parametrize("space", EDITABLE)
def test_one_replica_is_edited_and_the_others_go_on(space, word):
    constraint = {"sphere": Sphere(2.0, view="batch"), "sphere-fixed": Sphere(1.0, slack=False, view="batch")}
    ends = []
    for edited in (False, True):
        params = weights(space, replicas=3)
        options = {"seed": torch.tensor([5, 6, 7]), "temperature": 0.01, "scheme": word}
        opt = Langevin(params, 0.1, constraint=constraint.get(space, EDITABLE[space]), **options)
        for _ in range(3):
            step(params, opt)
        if edited:
            params[0].data[1].mul_(0.5)
        step(params, opt)
        ends.append(params[0].detach().clone())
    assert torch.equal(ends[0][::2], ends[1][::2])
    assert not torch.equal(ends[0][1], ends[1][1])


@pytest.mark.parametrize(
    ("space", "dtype", "fuse"),
    [(space, dtype, False) for space in EDITABLE for dtype in (torch.float32, torch.bfloat16)]
    + [(space, torch.float32, True) for space in EDITABLE]
    + [("circle", torch.bfloat16, True)],
)
def test_what_was_not_edited_is_kept_bit_for_bit(space, dtype, fuse):
    """Angles, slack and momenta of other entries and rows are those of the run without the edit."""
    ends = []
    for edited in (False, True):
        params = weights(space, dtype)
        opt = Langevin(params, 0.1, constraint=EDITABLE[space], fuse=fuse, temperature=0.0 if fuse else 0.01, seed=0)
        for _ in range(20):
            step(params, opt)
        if edited:
            params[0].data[2] = params[0].data[2].flip(0) * 0.5
        for p in params:
            p.grad = torch.zeros_like(p)
        opt.step()
        ends.append({f"{i}{k}": v.clone() for i, p in enumerate(params) for k, v in {**opt.state[p], "q": p}.items()})
    rows = [0, 1, 3, 4]
    for name, x in ends[0].items():
        y = ends[1][name]
        assert torch.equal(x[rows], y[rows]) if name[0] == "0" and x.ndim == 2 else torch.equal(x, y), name
    assert not torch.equal(ends[0]["0q"][2], ends[1]["0q"][2])


@pytest.mark.parametrize("space", ["circle", "sphere"])
def test_an_edit_keeps_the_sign_of_the_slack(space):
    """A weight that moves up goes on moving up: on the other half of the circle it would turn back."""
    w = nn.Parameter(torch.tensor([[0.5]]))
    opt = Langevin([w], 0.01, constraint={"circle": Circle(1.0), "sphere": Sphere(1.0)}[space], friction=0.0)
    speed = 0.0
    while speed >= 0:  # past the rim and back: ξ < 0, and θ falls
        before = w.item()
        w.grad = torch.full_like(w, -5.0) if before < 0.99 and speed == 0 else torch.zeros_like(w)
        opt.step()
        speed = w.item() - before
    for _ in range(20):
        opt.step()
    w.data.mul_(0.9)
    before = w.item()
    opt.step()
    assert w.item() < before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("radius", [1e-3, 1.0, 300.0])
def test_an_unedited_weight_is_never_taken_for_an_edited_one(dtype, radius):
    """Also where half precision has few digits left, and at the rim."""
    for constraint in (Circle(radius), Sphere(radius), Sphere(radius, slack=False)):
        generator = torch.Generator().manual_seed(1)
        q = torch.randn(50, 20, generator=generator)
        q = (q / q.norm(dim=1, keepdim=True) * radius * 0.9).to(dtype)
        w = nn.Parameter(q)
        constraint.land_(w.detach(), "w")
        opt = Langevin([w], 0.3, constraint=constraint, temperature=radius**2, seed=0)
        for _ in range(10):
            w.grad = torch.zeros_like(w)
            opt.step()
            (phase,) = opt._buckets()[0][0].phases()
            assert constraint.holds(phase, dtype)
            before = [x.clone() for x in phase if isinstance(x, torch.Tensor)]
            constraint.adopt_(phase, dtype)
            assert all(torch.equal(a, b) for a, b in zip(before, (x for x in phase if isinstance(x, torch.Tensor))))


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("shape", [(6, 6), (8, 3), (3, 8)])
def test_any_matrix_of_full_rank_is_taken_up(shape, scale):
    generator = torch.Generator().manual_seed(2)
    w = nn.Parameter(torch.linalg.qr(torch.randn(8, 8, generator=generator))[0][: shape[0], : shape[1]].contiguous())
    with pytest.warns(UserWarning, match="Orthogonal") if shape == (6, 6) else nullcontext():
        opt = Langevin([w], 0.01, constraint=Orthogonal())
    for _ in range(2):
        step([w], opt)
    w.data.copy_(torch.randn(shape, generator=generator) * scale)
    step([w], opt)
    assert opt.residuals()[0] < 2e-6
    assert opt.cotangencies()[0] < 2e-6


def test_a_matrix_without_a_nearest_point_is_named():
    w = nn.Parameter(torch.eye(3))
    opt = Langevin([("layer.weight", w)], 0.01, constraint=Orthogonal())
    step([w], opt)
    w.data.fill_(1.0)
    before = {name: x.clone() for name, x in opt.state[w].items()}
    with pytest.raises(ConstraintError, match=r"'layer.weight': .*rank-deficient"):
        step([w], opt)
    assert_equal(dict(opt.state[w]), before)


def test_a_level_set_with_slack_takes_up_what_lies_inside():
    """Without that the old slack would pull the block back to where it was."""
    w = nn.Parameter(torch.tensor([1.2, 0.3]))
    opt = Langevin([w], 1e-6, constraint=LevelSet(lambda q: q.square().sum() - 4, slack=True), friction=0.0)
    step([w], opt)
    w.data.copy_(torch.tensor([0.1, -0.2]))
    step([w], opt)
    torch.testing.assert_close(w.detach(), torch.tensor([0.1, -0.2]), rtol=0, atol=1e-5)
    w.data.copy_(torch.tensor([3.0, 0.0]))
    step([w], opt)
    assert w.detach().norm() == pytest.approx((4 - 1e-3) ** 0.5, abs=1e-4)


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────


def everything(net, opt):
    """Weights, state, counters and torch's counts of writes."""
    seen = snapshot(net, opt)
    versions = [p._version for p in net.parameters()] + [x._version for own in opt.state.values() for x in own.values()]
    groups = [{k: v for k, v in group.items() if k != "params"} for group in opt.param_groups]
    return seen, versions, groups


def through_a_file(checkpoint):
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def edit_all(net, way):
    for p in net.parameters():
        if way == "data":
            p.data.mul_(0.9)
        else:
            with torch.no_grad():
                p.mul_(0.9)


ways = pytest.mark.parametrize("way", ["in place", "data"])
GETTERS = {"state_dict": lambda opt: opt.state_dict(), "deepcopy": copy.deepcopy, "pickle": pickle.dumps}


@every_case
@ways
@pytest.mark.parametrize("getter", GETTERS)
def test_looking_at_an_optimizer_moves_nothing(case, getter, way):
    net, opt = build(case)
    train(net, opt, 2)
    edit_all(net, way)
    before = everything(net, opt)
    GETTERS[getter](opt)
    after = everything(net, opt)
    assert_equal(after[0], before[0])
    assert after[1:] == before[1:]


@every_constrained_case
@ways
@pytest.mark.parametrize("built", ["before the weights are loaded", "on the checkpoint's weights"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_checkpoint_with_a_pending_edit_resumes_as_the_run_that_was_not_saved(case, way, built, steps):
    net, opt = build(case)
    train(net, opt, steps)
    edit_all(net, way)
    saved = through_a_file({"net": net.state_dict(), "opt": opt.state_dict()})
    unsaved, unsaved_opt = build(case)
    train(unsaved, unsaved_opt, steps)
    edit_all(unsaved, way)
    fresh, fresh_opt = build(case, init=1)
    fresh.load_state_dict(saved["net"])
    if built.startswith("on"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fresh_opt = optimizer(case, fresh)
    fresh_opt.load_state_dict(saved["opt"])
    twin, twin_opt = copy.deepcopy((net, opt))
    for pair in ((net, opt), (unsaved, unsaved_opt), (fresh, fresh_opt), (twin, twin_opt)):
        train(*pair, 3)
    expected = snapshot(unsaved, unsaved_opt)
    assert_equal(snapshot(net, opt), expected)
    assert_equal(snapshot(twin, twin_opt), expected)
    if (
        not steps and built.startswith("on") and "k1" not in case.space and "initial" not in case.space
    ):  # the constructor landed them: before the first step the weights decide
        other, _ = build(case)
        edit_all(other, way)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other_opt = optimizer(case, other)
        train(other, other_opt, 3)
        expected = snapshot(other, other_opt)
    assert_equal(snapshot(fresh, fresh_opt), expected)


@every_constrained_case
def test_a_checkpoint_made_while_averaged_weights_are_swapped_in_changes_nothing(case):
    """Evaluate and save with the average, then swap the weights back: the run goes on as if nothing had happened."""
    ends = []
    for swap in (False, True):
        net, opt = build(case)
        average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        for _ in range(3):
            train(net, opt, 1)
            average.update_parameters(net)
        if swap:
            own = [p.detach().clone() for p in net.parameters()]
            with torch.no_grad():
                for p, q in zip(net.parameters(), average.module.parameters(), strict=True):
                    p.copy_(q)
            opt.state_dict()
            copy.deepcopy(opt)
            assert all(map(torch.equal, net.parameters(), average.module.parameters()))
            with torch.no_grad():
                for p, q in zip(net.parameters(), own, strict=True):
                    p.copy_(q)
        train(net, opt, 2)
        ends.append(snapshot(net, opt))
    assert_equal(*ends)
