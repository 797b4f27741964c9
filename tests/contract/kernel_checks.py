"""What is around the kernels' arithmetic: each function checks one thing, on a GPU or in Triton's interpreter."""

import gc
import warnings
import weakref
from unittest import mock

import pytest
import torch
from torch import nn

import holonom
from holonom import Langevin
from holonom._constrain import bounds
from holonom._sharding.ranks import Named
from holonom._step import finite, run
from holonom._step.buckets import make_buckets
from holonom._step.finite import skip_non_finite
from holonom.constraints import Circle, Free, Orthogonal, Sphere

from .kernel_cases import differences, limits, parameters


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


def check_that_a_schedule_copies_coefficients_alone(device):
    """The numbers of draws stay, and the addresses where nothing has moved."""
    from holonom._backends.triton import tables

    params = parameters(device, (6, 4))
    opt = Langevin(params, 0.1, temperature=1e-2, seed=0)
    params[0].grad = torch.ones_like(params[0])
    for _ in range(4):
        opt.step()
    for lr in (0.2, 0.3):
        opt.param_groups[0]["lr"] = lr
        with mock.patch.object(tables, "upload", wraps=tables.upload) as copied:
            opt.step()
        assert copied.call_count == 1


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


def check_that_blocks_of_one_length_are_held_in_one_launch(device):
    """Those that an instance has registers for; longer ones take three launches."""
    from holonom._backends.triton import hold

    names = ("hold_rows", "sum_moves", "make_factors", "write_blocks")
    for lengths, expected in (
        ((700, 768), ["hold_rows"]),
        ((768, 3072), ["hold_rows"] * 2),
        ((9000,), [*names[1:]]),
    ):
        found = []
        blocks = [torch.rand(2, length).to(device) for length in lengths]
        with mock.patch.multiple(hold, **{name: Counted(getattr(hold, name), found) for name in names}):
            hold.hold_("plain", False, blocks, [], 2.0, 0.1, 0.0, hold.Table(blocks), (1e-6, 1e-6, 1e15, 1e-6))
        assert found == expected
        assert all(torch.allclose(x.norm(dim=-1), torch.tensor(2.0).to(x)) for x in blocks)


def check_that_bounds_are_those_of_the_reference(device):
    """In one launch for tensors of all shapes, wherever their memory begins; NaN stays NaN."""
    from holonom._backends.triton import hold

    ends = []
    for kernels in (True, False):
        params, found = parameters(device, (6, 40), (9000,), (3, 5, 2), (1,)), []
        params.append(nn.Parameter(parameters(device, (31,))[0].data[1:]))
        opt = torch.optim.SGD(params, 1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # weights that start elsewhere are moved
            holonom.constrain(opt, nn.ParameterList(params), {"*": Circle(0.3)})
        devices, counted = run.KERNEL_DEVICES if kernels else set(), Counted(hold.bound_entries, found)
        with mock.patch.object(bounds, "KERNEL_DEVICES", devices), mock.patch.object(hold, "bound_entries", counted):
            for number in range(3):
                for p in params:
                    p.grad = torch.sin(number + 5 * p.detach())
                params[0].grad[2, 3] = torch.nan
                opt.step()
        assert found == ["bound_entries"] * 3 * kernels
        ends.append([p.detach() for p in params])
    assert all(x.nan_to_num().abs().max() == torch.tensor(0.3) for x in (ends[0][0], ends[0][1]))
    torch.testing.assert_close(*ends, rtol=0, atol=0, equal_nan=True)


class Counted:
    """A kernel that notes its launches."""

    def __init__(self, kernel, found):
        self.kernel, self.found = kernel, found

    def __getitem__(self, grid):
        self.found.append(self.kernel.__name__)
        return self.kernel[grid]


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
