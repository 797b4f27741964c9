"""Steps by kernels and by the reference, from the same state with the same noise."""

import itertools
import warnings

import torch
from torch import nn

from holonom import Langevin
from holonom._constrain.spheres import Workspace, hold_
from holonom._step import run
from holonom.constraints import Circle, Free, Sphere, View

SPACES = {"free": None, "circle": Circle(0.7), "sphere": Sphere(9.0), "fixed sphere": Sphere(3.0, slack=False)}
WORDS = ("L", "M", "OBA", "BAOAB", "ABO", "BAAOAAB", "BACDEDCAB", "BAFEFAB")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = {"free": ((30, 50), (7,), ()), "circle": ((30, 50), (7,), (3,))}
UNFIT = 77  # the exit status of a process whose interpreter cannot run kernels: interpreter.py
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
    shapes = ((5, 40), (3, 700), (2, 9000), (1, 130), (2, 5000))  # the third is too long for one instance
    old = [torch.randn(shape, generator=generator) for shape in shapes]
    old = [x / x.norm(dim=-1, keepdim=True) * (1 if bounded else 2) for x in old]
    new = [x + 0.05 * torch.randn(x.shape, generator=generator) / x.shape[-1] ** 0.5 for x in old]
    new[0][1] = old[0][1]
    new[1][0] = old[1][0] * (1 - dropped)  # nothing but the decay that is left out
    blocks = sum(len(x) for x in new)
    radius = torch.linspace(0.9, 2.1, blocks).to(device) if many else 1.0 if bounded else 2.0
    old, new = [x.to(device) for x in old], [x.to(device) for x in new]
    if many:  # memory that begins anywhere
        new[0] = torch.cat([new[0].new_zeros(1), new[0].flatten()])[1:].view_as(new[0])
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
