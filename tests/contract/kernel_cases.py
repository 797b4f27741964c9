"""Steps by kernels and by the reference, from the same state with the same noise. Run as a script: on a CPU.

As a script it must be started with TRITON_INTERPRET=1, which Triton reads when it is imported.
"""

import gc
import itertools
import sys
import warnings
import weakref
from unittest import mock

import pytest
import torch
from torch import nn

from holonom import Langevin
from holonom._constrain.spheres import Workspace, hold_
from holonom._sharding.ranks import Named
from holonom._step import finite, run
from holonom._step.buckets import make_buckets
from holonom._step.finite import skip_non_finite
from holonom.constraints import Circle, Free, Orthogonal, Sphere, View

SPACES = {"free": None, "circle": Circle(0.7), "sphere": Sphere(9.0), "fixed sphere": Sphere(3.0, slack=False)}
WORDS = ("L", "M", "OBA", "BAOAB", "ABO", "BAAOAAB", "BACDEDCAB", "BAFEFAB")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = {"free": ((30, 50), (7,), ()), "circle": ((30, 50), (7,), (3,))}
ROWS = ((30, 50), (7, 700), (3, 3072), (2, 17_000))  # kernels of each kind: the last are too long for one instance


def table():
    """space, word, temperature, weight decay, dtype, replicas, and at which step a gradient is NaN."""
    for space, word, tau, decay, dtype, replicas, bad in itertools.product(
        SPACES, WORDS, (0.0, 1e-2), (0.0, 0.1), DTYPES, (0, 3), (None, 0, 1)
    ):
        plain = dtype == torch.float32 and not replicas
        if word == "M" and space != "free":
            continue
        if (bad is not None or decay) and not plain:
            continue
        yield space, word, tau, decay, dtype, replicas, bad


def run_steps(device, fuse, space, word, tau, decay, dtype, replicas, bad, steps=3, edit=False, one_seed=False):
    """Positions and state after some steps with gradients that do not depend on the positions."""
    generator = torch.Generator().manual_seed(1)
    lead = (replicas,) if replicas else ()
    shapes = SHAPES.get(space, ROWS)
    starts = [(torch.rand((*lead, *shape), generator=generator) - 0.5) * 1.2 for shape in shapes]
    params = [nn.Parameter(x.to(device, dtype)) for x in starts]
    constraint = SPACES[space]
    if isinstance(constraint, Sphere) and replicas:
        constraint = Sphere(constraint.radius, constraint.has_slack, view="batch")
    options = {"lr": torch.linspace(0.05, 0.1, replicas).to(device)} if replicas else {"lr": 0.1}
    seeds = torch.arange(replicas, device=device) + 5 if replicas and not one_seed else 7
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt = Langevin(
            params, scheme=word, temperature=tau, constraint=constraint, weight_decay=decay, fuse=fuse,
            seed=seeds, coupling=0.1,
            driving_noise=0.01 if tau else 0.0, **options,
        )  # fmt: skip
        for number in range(steps):
            for p in params:
                place = torch.arange(p.numel(), dtype=torch.float32).reshape(p.shape)
                p.grad = torch.sin(3 * place + number).to(device, dtype)
            if number == bad:
                params[1].grad.view(-1)[0] = float("nan")
            if edit and number == 1:
                params[0].data.mul_(0.5)
            opt.step()
        opt.synchronize()
    return params, [opt.state[p] for p in params]


CHANGES = (
    {"lr": 0.05},
    {"lr": 0.08, "weight_decay": 0.3},
    {"temperature": 0.2},
    {"maximize": True},
    {"maximize": False, "friction": 3.0},
    {"lr": 0.0},
    {"lr": 0.1, "scheme": "OBA"},
)


def run_changes(device, fuse, space):
    """Positions and state after steps between which everything changes that a launch is made from; two of each."""
    generator = torch.Generator().manual_seed(2)
    params = [nn.Parameter(((torch.rand(shape, generator=generator) - 0.5) * 1.2).to(device)) for shape in ROWS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt = Langevin(params, 0.1, temperature=1e-2, constraint=SPACES[space], fuse=fuse, seed=3)
    for number, change in enumerate(({}, *CHANGES)):
        opt.param_groups[0].update(change)
        for repeat in range(3):
            for p in params:
                place = torch.arange(p.numel(), dtype=torch.float32).reshape(p.shape)
                p.grad = torch.sin(3 * place + number + repeat).to(device)
            if number == 5 and repeat == 2 and hasattr(p, "grad_dtype"):  # of other dtypes, where torch takes them
                for p in params:
                    p.grad_dtype = None
                    p.grad = p.grad.to(torch.bfloat16)
            if number == 3 and repeat == 1:
                params[0].grad.view(-1)[0] = float("inf")
            opt.step()
    opt.synchronize()
    return params, [opt.state[p] for p in params]


def run_permuted(device, fuse, space, word):
    """The same with weights whose channels are last, a transposed matrix, and gradients in one and in another order."""
    constraint = SPACES[space]
    if isinstance(constraint, Sphere):
        constraint = Sphere(constraint.radius, constraint.has_slack, view="conv")
    generator = torch.Generator().manual_seed(3)
    starts = [
        (torch.rand(shape, generator=generator) - 0.5) * 1.2 for shape in ((6, 5, 3, 3), (4, 70, 2, 2), (5, 40, 1, 1))
    ]
    params = [nn.Parameter(x.to(device).contiguous(memory_format=torch.channels_last)) for x in starts]
    if not isinstance(constraint, Sphere):
        params.append(nn.Parameter((torch.rand((50, 30), generator=generator) - 0.5).to(device).t()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt = Langevin(params, 0.1, scheme=word, temperature=1e-2, constraint=constraint, fuse=fuse, seed=3)
    used = run.has_kernels(opt.param_groups[0], opt._buckets()[0])
    for number in range(4):
        for p in params:
            place = torch.arange(p.numel(), dtype=torch.float32).reshape(p.shape)
            gradient = torch.sin(3 * place + number).to(device)
            p.grad = gradient if number == 2 else torch.empty_like(p).copy_(gradient)
        opt.step()
    opt.synchronize()
    return params, [opt.state[p] for p in params], used


BLOCKS = {  # space, whether kernels take contiguous weights, and those whose channels are last
    "matrices": (Sphere(3.0, slack=False, view="conv", per="matrix"), True, False),
    "bounded blocks": (Sphere(9.0, view=View(blocks=2), per="block"), True, False),
    "columns": (Sphere(3.0, slack=False, view="conv", per="column"), False, False),
    "initial": (Sphere("initial", view="conv"), True, True),
}


def run_blocks(device, fuse, name, last):
    """The same with one square kernel, (8, 8) as a matrix, whose blocks are not its rows."""
    weight = torch.rand((8, 2, 2, 2), generator=torch.Generator().manual_seed(4)) - 0.5
    memory = torch.channels_last if last else torch.contiguous_format
    params = [nn.Parameter(weight.to(device).contiguous(memory_format=memory))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt = Langevin(params, 0.1, temperature=1e-2, constraint=BLOCKS[name][0], fuse=fuse, seed=3)
    used = run.has_kernels(opt.param_groups[0], opt._buckets()[0])
    for _ in range(4):
        params[0].grad = torch.sin(3 * params[0].detach())
        opt.step()
    return params, [opt.state[p] for p in params], used


HOLDS = list(itertools.product(("plain", "tangent", "angular"), (False, True), (0.0, 0.01), (False, True)))


def run_hold(device, kernels, update, bounded, dropped, many):
    """Blocks of several lengths after a step of another optimizer; one of them has not moved."""
    if bounded and update == "angular":
        bounded = False
    generator = torch.Generator().manual_seed(6)
    shapes = ((5, 40), (3, 700), (2, 9000), (1, 130))
    old = [torch.randn(shape, generator=generator) for shape in shapes]
    old = [x / x.norm(dim=-1, keepdim=True) * (1 if bounded else 2) for x in old]
    new = [x + 0.05 * torch.randn(x.shape, generator=generator) / x.shape[-1] ** 0.5 for x in old]
    new[0][1] = old[0][1]
    new[1][0] = old[1][0] * (1 - dropped)  # nothing but the decay that is left out
    blocks = sum(len(x) for x in new)
    radius = torch.linspace(0.9, 2.1, blocks).to(device) if many else 1.0 if bounded else 2.0
    old, new = [x.to(device) for x in old], [x.to(device) for x in new]
    work = Workspace(new)
    chosen = run.KERNEL_DEVICES.copy()
    run.KERNEL_DEVICES.intersection_update(chosen if kernels else ())
    try:
        for _ in range(2):
            hold_(update, bounded, new, old, radius, 0.03, dropped, work, torch.finfo(torch.float32).eps)
    finally:
        run.KERNEL_DEVICES.update(chosen)
    assert (work.table is not None) == kernels
    return new, []


def parameters(device, *shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    return [nn.Parameter((torch.rand(shape, generator=generator) - 0.5).to(device, dtype)) for shape in shapes]


def step(opt, params, value=0.3, steps=1):
    for _ in range(steps):
        for p in params:
            p.grad = torch.full_like(p, value)
        opt.step()


def check_that_no_gradient_is_kept(device):
    """Whoever runs the steps: kernels, the reference (products, double precision, lr = 0), one replica or several."""
    seeds = torch.arange(3, device=device)
    cases = {
        "free": ({}, (6, 4), torch.float32),
        "orthogonal": ({"constraint": Orthogonal()}, (6, 4), torch.float32),
        "double": ({}, (6, 4), torch.float64),
        "replicas": ({"seed": seeds}, (3, 4), torch.float32),
        "at rest": ({}, (6, 4), torch.float32),
    }
    for name, (options, shape, dtype) in cases.items():
        params = parameters(device, shape, shape, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opt = Langevin(params, 0.1, **{"seed": 0, **options})
        step(opt, params, steps=3)
        if name == "at rest":
            opt.param_groups[0]["lr"] = 0.0
            step(opt, params)
        kept = weakref.ref(params[0].grad)
        opt.zero_grad()
        gc.collect()
        assert kept() is None, name


def check_that_recording_begins_between_equal_steps(device):
    """Launches that are repeated would not look at positions."""
    found = []
    for fuse in (None, False):
        params = parameters(device, (6, 4))
        opt = Langevin(params, 0.1, temperature=1e-2, seed=0, fuse=fuse)
        step(opt, params, steps=3)
        opt.record_temperatures()
        step(opt, params, steps=3)
        found.append(opt.temperatures("configurational")[0])
        opt.record_temperatures(False)
        step(opt, params, steps=3)
        found.append(float(params[0].detach().sum()))
    assert all(abs(x - y) <= 1e-5 for x, y in zip(found[:2], found[2:], strict=True)), found


def check_that_steps_of_another_backend_leave_no_launches(device):
    """Launches of an earlier step hold its numbers."""
    ends = []
    for fuse in (None, False):
        params = parameters(device, (6, 4))
        opt = Langevin(params, 0.1, seed=0, fuse=fuse)
        step(opt, params, steps=3)
        opt.param_groups[0].update(lr=0.05, fuse=False)
        step(opt, params, steps=3)
        ends.append(params[0].detach())
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-6)


def check_finiteness_of_unusual_gradients(device):
    """In memory with gaps, in double precision, and of parameters that other ranks move."""
    wide = parameters(device, (6, 100))[0].data
    p = nn.Parameter(wide[:, :50])
    opt = Langevin([p], 0.1, seed=0)
    gradient = torch.full((6, 100), torch.nan, device=device)
    gradient[:, :50] = 0.1
    for value, skipped in ((0.1, 0), (torch.nan, 1)):
        gradient[5, 40] = value
        p.grad = gradient[:, :50]
        opt.step()
        assert opt._read_skipped() == skipped
    (p,) = parameters(device, (5,), dtype=torch.float64)
    opt = Langevin([p], 1e-50, seed=0)
    step(opt, [p], 1e40)
    assert not opt._read_skipped()
    step(opt, [p], torch.inf)
    assert opt._read_skipped()
    elsewhere = Named(torch.device(device), ["a weight"])
    for value in (1.0, torch.nan):
        gradients = run.Gradients([torch.full((3,), value, device=device)])
        assert bool(skip_non_finite([run.Work({"step": 0}, [elsewhere], [gradients])])) == (value != 1)


def check_gradients_of_several_dtypes(device):
    """The float32 ones keep their digits, whichever comes first."""
    if not hasattr(torch.Tensor, "grad_dtype"):
        return
    ends = []
    for fuse in (None, False):
        params = parameters(device, (6, 4), (5,))
        opt = Langevin(params, 0.1, seed=0, fuse=fuse)
        for p in params:
            p.grad_dtype = None
        for _ in range(3):
            params[0].grad, params[1].grad = (torch.full_like(p, 0.3001) for p in params)
            params[0].grad = params[0].grad.bfloat16()
            opt.step()
        ends.append([p.detach() for p in params])
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-6)


def check_that_a_word_may_be_assigned(device):
    """L leaves momenta alone that the word before it had; its noise is that of L."""
    for constraint in (Circle(0.7), Sphere(9.0)):
        ends = []
        for fuse in (None, False):
            params = parameters(device, (6, 40))
            opt = Langevin(params, 0.1, temperature=1e-2, constraint=constraint, seed=0, fuse=fuse)
            step(opt, params, steps=2)
            opt.param_groups[0]["scheme"] = "L"
            step(opt, params, steps=2)
            ends.append(params[0].detach())
        torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)


def check_that_what_is_owed_is_read_at_every_step(device):
    """After a change of lr at a skipped step the device alone knows it; with ABO it is no time of a kick only."""
    for word in ("ABO", "BAOAB"):
        ends = []
        for fuse in (None, False):
            params = parameters(device, (6, 4))
            opt = Langevin(params, 0.4, scheme=word, seed=0, fuse=fuse)
            step(opt, params, steps=2)
            opt.param_groups[0]["lr"] = 0.1
            step(opt, params, torch.nan)
            step(opt, params, steps=4)
            ends.append(params[0].detach())
        torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)


def check_that_steps_read_no_table_of_a_capture(device):
    """What is copied in a capture is there with the replay only; a first step has more to copy than it could."""
    from holonom._backends.triton import hold, tables

    params = parameters(device, (6, 4))
    opt = Langevin(params, 0.1, temperature=1e-2, seed=0)
    step(opt, params)
    (bucket,) = opt._buckets()[0]
    table, held = tables.table_of(bucket, 1), hold.Table(params)
    elsewhere = run.Gradients([torch.ones_like(params[0])])
    captured = {"is_capturing": lambda device: True}
    with mock.patch.multiple(tables, **captured), mock.patch.multiple(hold, **captured):
        table.read(elsewhere)
        found = table.gradients, held.tensors(params, params), held.radii(2.0)
        with pytest.raises(RuntimeError, match="parameter 0 cannot be captured"):
            tables.table_of(bucket, 2)
    table.read(run.Gradients(elsewhere))
    after = table.gradients, held.tensors(params, params), held.radii(2.0)
    assert all(x is not y and torch.equal(x, y) for x, y in zip(found, after, strict=True))
    assert all(x is y for x, y in zip(after[1:], (held.tensors(params, params), held.radii(2.0)), strict=True))


def check_that_tables_are_made_on_the_host(device):
    from holonom._backends.triton import tables

    with torch.device("meta"):  # stands for a default device that is a GPU
        assert tables.pinned([1], torch.int64, torch.device(device)).device.type == "cpu"


def check_that_tensors_without_addresses_have_no_kernels(device):
    """Those on "meta" stand for tensor subclasses that keep their memory elsewhere."""
    from holonom._backends.triton import fits

    p = nn.Parameter(torch.empty(3, device="meta"))
    (bucket,) = make_buckets({"params": [p]}, Free(), {p: {"stream": torch.tensor(0)}}, ["p"])
    bucket.refresh()
    with mock.patch.object(run, "KERNEL_DEVICES", {"meta"}), mock.patch.object(finite, "KERNEL_DEVICES", {"meta"}):
        assert not fits([bucket], "BAOAB", 1)
        assert not finite.has_kernel([bucket])


def check_circles_with_many_radii(device):
    """Of one, of rows, columns, channels and replicas; as they broadcast, and where memory has channels last."""
    last = torch.channels_last
    for shape, radii, seed, memory in (
        ((6, 4), (), 0, None),
        ((40, 30), (40, 1), 0, None),
        ((40, 30), (30,), 0, None),
        ((6, 5, 4), (6, 1, 4), 0, None),
        ((3, 6, 4), (3, 1, 1), torch.arange(3, device=device), None),
        ((6, 5, 3, 3), (1, 5, 1, 1), 0, last),
    ):
        radius = torch.linspace(0.5, 1.5, max(1, torch.Size(radii).numel())).reshape(radii)
        for word in ("BAOAB", "L"):
            ends = []
            for fuse in (None, False):
                params = parameters(device, shape)
                if memory:
                    params = [nn.Parameter(params[0].detach().contiguous(memory_format=memory))]
                circle = Circle(radius.to(device, copy=True))
                opt = Langevin(params, 0.1, scheme=word, temperature=1e-2, constraint=circle, fuse=fuse, seed=seed)
                assert run.has_kernels(opt.param_groups[0], opt._buckets()[0]) == (fuse is None)
                step(opt, params, steps=2)
                circle.radius.mul_(1.1)  # angles follow the weights
                step(opt, params, steps=2)
                ends.append(params[0].detach())
            torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)


def check_words_of_several_launches(device):
    """Four draws in a stage; stages of half precision on circles, whose angles are not rounded between them."""
    for constraint, word, dtype, shape in (
        (None, "OBAOAOABO", torch.float32, (6, 4)),
        (Circle(0.7), "OBAOAOABO", torch.bfloat16, (6, 4)),
        (Circle(0.7), "BACDEDCADOB", torch.bfloat16, (6, 4)),
        (Sphere(90.0), "OBAOAOABO", torch.float32, (6, 4)),
        (Sphere(90.0), "OBAOAOABO", torch.float32, (1, 17_000)),
    ):
        ends = []
        for fuse in (None, False):
            params = parameters(device, shape, dtype=dtype)
            options = {"coupling": 0.1, "driving_noise": 0.1} if "E" in word else {}
            opt = Langevin(
                params, 0.1, scheme=word, temperature=1e-2, constraint=constraint, fuse=fuse, seed=0, **options
            )
            assert run.has_kernels(opt.param_groups[0], opt._buckets()[0]) == (fuse is None)
            step(opt, params, steps=3)
            ends.append((params, [opt.state[params[0]]]))
        found = differences(*ends)
        assert all(x <= limit for x, limit in zip(found, limits(dtype), strict=True)), (word, found)


def check_that_gradients_in_the_order_of_weights_are_not_copied(device):
    """With channels last a kernel of one pixel is in both orders; autograd gives it the strides of the other ones."""
    from holonom._backends.triton import tables

    kernels = [nn.Conv2d(4, 6, size, bias=False).to(device, memory_format=torch.channels_last) for size in (1, 3)]
    params = [kernel.weight for kernel in kernels]
    image = torch.ones(2, 4, 8, 8, device=device).contiguous(memory_format=torch.channels_last)
    sum(kernel(image).square().sum() for kernel in kernels).backward()
    opt = Langevin(params, 0.1, seed=0)
    opt.step()
    (bucket,) = opt._buckets()[0]
    found = run.Gradients([p.grad for p in params])
    tables.table_of(bucket, 1).read(found)
    assert found.noted[1] is None


def check_that_seeds_may_have_gaps(device):
    ends = []
    for seeds in (torch.tensor([1, 7, 2, 7]).to(device)[::2], torch.tensor([1, 2]).to(device)):
        (p,) = parameters(device, (2, 5))
        step(Langevin([p], 0.1, temperature=1e-2, seed=seeds), [p])
        ends.append(p.detach())
    assert torch.equal(*ends)


def run_devices(devices, fuse, constraint, word):
    """Positions and state of a group on several devices: a bad gradient, none of the first, and none at all."""
    params = [p for device in devices for p in parameters(device, (6, 4))]
    resting = nn.Parameter(torch.zeros(3, device=devices[-1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt = Langevin(params, 0.1, scheme=word, temperature=1e-2, constraint=constraint, seed=0, fuse=fuse)
        opt.add_param_group({"params": [resting], "constraint": Free()})
    for number in range(5):
        for p in params:
            p.grad = torch.full_like(p, 0.3)
        if number == 1:
            params[-1].grad[0, 0] = torch.nan
        if number == 3:
            params[0].grad = None
        opt.step()
    return [p.detach().cpu() for p in params], [{k: v.cpu() for k, v in opt.state[p].items()} for p in params]


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


def differences(ours, theirs):
    """The largest difference of positions, and of everything else that state holds."""
    q = max(
        float((x.detach().double() - y.detach().double()).abs().max()) for x, y in zip(ours[0], theirs[0], strict=True)
    )
    pairs = [(x[k], y[k]) for x, y in zip(ours[1], theirs[1], strict=True) for k in y]
    return q, max((float((x.double() - y.double()).abs().max()) for x, y in pairs), default=0.0)


def limits(dtype):
    """Of positions, which half precision rounds, and of state, which it does not."""
    return (1e-5, 1e-4) if dtype == torch.float32 else (8 * torch.finfo(dtype).eps, 2e-2)


if __name__ == "__main__":
    run.KERNEL_DEVICES.add("cpu")
    failed = []
    chosen = [
        ("free", "BACDEDCAB", 1e-2, 0.1, torch.float32, 3, None),
        ("free", "M", 1e-2, 0.0, torch.bfloat16, 3, None),
        ("circle", "BAOAB", 1e-2, 0.0, torch.float32, 3, None),
        ("circle", "L", 1e-2, 0.0, torch.bfloat16, 0, None),
        ("sphere", "BAOAB", 1e-2, 0.0, torch.float32, 0, None),
        ("fixed sphere", "L", 1e-2, 0.1, torch.float32, 0, None),
        ("sphere", "BAFEFAB", 1e-2, 0.0, torch.float32, 0, 1),
    ]
    for case in chosen:
        options = {"edit": case[0] != "free", "one_seed": case[1] == "M"}
        found = differences(run_steps("cpu", None, *case, **options), run_steps("cpu", False, *case, **options))
        if not all(x <= limit for x, limit in zip(found, limits(case[4]), strict=True)):
            failed.append((case, found))
    found = differences(run_changes("cpu", None, "circle"), run_changes("cpu", False, "circle"))
    if not all(x <= limit for x, limit in zip(found, limits(torch.float32), strict=True)):
        failed.append(("changes", found))
    for space in ("circle", "sphere"):
        *ours, used = run_permuted("cpu", None, space, "BAOAB")
        found = differences(ours, run_permuted("cpu", False, space, "BAOAB"))
        if not used or not all(x <= limit for x, limit in zip(found, limits(torch.float32), strict=True)):
            failed.append((space, "permuted", used, found))
    for name, last in itertools.product(BLOCKS, (False, True)):
        *ours, used = run_blocks("cpu", None, name, last)
        found = differences(ours, run_blocks("cpu", False, name, last))
        if used != BLOCKS[name][1 + last] or not all(x <= limit for x, limit in zip(found, (1e-5, 1e-4), strict=True)):
            failed.append((name, last, used, found))
    for case in HOLDS:
        found, _ = differences(run_hold("cpu", True, *case), run_hold("cpu", False, *case))
        if not found <= 1e-6:
            failed.append(("hold", *case, found))
    for check in CHECKS:
        check("cpu")
    print(*failed, sep="\n")
    sys.exit(bool(failed))
