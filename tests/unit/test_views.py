"""Views: a parameter moves as the contiguous matrices that its view reads, whatever its order in memory is."""

import copy
import io
import re
from itertools import product

import pytest
import torch
from torch import nn

from holonom import Ensemble, Langevin, init, optimizer
from holonom.constraints import Circle, Free, Orthogonal, Sphere, View
from holonom.errors import ConstraintError
from holonom.landscape import geodesic
from tests.injected import inject

READINGS = {  # name: (shape, view, its matrices, by hand)
    "matrix": ((5, 3), None, lambda q: q),
    "matrix, View()": ((5, 3), View(), lambda q: q),
    "transposed matrix": ((3, 5), View(output=1), lambda q: q.T),
    "convolution": ((3, 2, 2, 2), "conv", lambda q: q.reshape(3, 8)),
    "1-d convolution, View()": ((7, 2, 3), View(), lambda q: q.reshape(7, 6)),
    "3-d convolution": ((9, 2, 1, 2, 2), "conv", lambda q: q.reshape(9, 8)),
    "transposed convolution": ((2, 9, 2, 2), View(output=1), lambda q: q.permute(1, 0, 2, 3).reshape(9, 8)),
    "1-d transposed, square": ((2, 6, 3), View(output=1), lambda q: q.permute(1, 0, 2).reshape(6, 6)),
    "last dimension": ((2, 2, 5), View(output=2), lambda q: q.permute(2, 0, 1).reshape(5, 4)),
    "packed": ((6, 3), View(blocks=3), lambda q: q.reshape(3, 2, 3)),
    "packed squares": ((6, 2), View(blocks=3), lambda q: q.reshape(3, 2, 2)),
    "packed, inputs first": ((4, 9), View(output=1, blocks=3), lambda q: q.T.reshape(3, 3, 4)),
    "packed kernels": ((2, 6, 2, 1), View(output=1, blocks=2), lambda q: q.permute(1, 0, 2, 3).reshape(2, 3, 4)),
    "batch": ((2, 2, 4, 3), "batch", lambda q: q),
    "batch, View(2)": ((2, 2, 4, 3), View(2), lambda q: q),
    "batch conv": ((2, 3, 2, 2), "batch conv", lambda q: q.reshape(2, 3, 4)),
    "batch of transposed": ((2, 2, 5, 2, 1), View(1, 1), lambda q: q.permute(0, 2, 1, 3, 4).reshape(2, 5, 4)),
    "batch of packed": ((2, 3, 8), View(1, 1, 2), lambda q: q.permute(0, 2, 1).reshape(2, 2, 4, 3)),
}
COPIED = {"transposed convolution", "1-d transposed, square", "packed kernels", "batch of transposed"}
HARD = ("convolution", "transposed convolution", "packed, inputs first")
SPACES = {
    "sphere": lambda view: Sphere(1.0, view=view),
    "rigid sphere": lambda view: Sphere(1.0, slack=False, view=view),
    "orthogonal": lambda view: Orthogonal(view),
    "orthogonal, K": lambda view: Orthogonal(view, iterations=3),
}
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def numbers(*shape, key=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(key), dtype=torch.float64).to(dtype)


def on_manifold(space, shape, key=0):
    """Weights strictly inside their spheres, or exactly on the manifold."""
    weight = numbers(*shape, key=key)
    space.land_(weight, "start")
    return weight * 0.7 if isinstance(space, Sphere) and space.has_slack else weight


def move(params, space, word, forces, steps=4, **options):
    """Steps under the gradients sin(3q) + force."""
    options = {"lr": 0.1, "temperature": 0.02, "friction": 0.7, "weight_decay": 0.1, **options}
    opt = Langevin(params, scheme=word, constraint=space, seed=0, **options)
    advance(params, opt, forces, steps)
    return opt


def advance(params, opt, forces, steps):
    for _ in range(steps):
        for p, force in zip(params, forces, strict=True):
            p.grad = torch.sin(3 * p.detach()) + force.to(p)
        opt.step()


def momenta(opt, p):
    return [x for name, x in opt.state[p].items() if name in ("momentum", "spin", "chord")]


def contents(opt, params):
    """Weights and momenta, slack and thermostat, all in logical order."""
    state = [x for p in params for x in opt.state[p].values()]
    return [p.detach() for p in params] + state


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("word", ["L", "BAOAB"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(
    ("reading", "dtype"),
    [*product(READINGS, [torch.float64]), *product(HARD, [torch.float32, torch.bfloat16])],
    ids=str,
)
def test_a_parameter_moves_as_its_matrices_do(monkeypatch, reading, space, word, dtype):
    """Two parameters each: the library stacks those of orthogonal weights. Their noise is injected, read by hand."""
    shape, view, read = READINGS[reading]
    sphere = "sphere" in space

    def by_hand(x):  # blocks of rows are rows
        x = read(x).clone(memory_format=torch.contiguous_format)
        return x.flatten(-3, -2) if sphere and isinstance(view, View) and view.blocks > 1 else x

    def matrices(shape, dtype, device, seed, step, draw, index, part):
        z = numbers(*READINGS[reading][0], key=1000 * index + 10 * step + draw % 7)
        return by_hand(z)[..., :1].reshape(shape) + 0.5 if part else by_hand(z)

    def parameters(shape, dtype, device, seed, step, draw, index, part):
        z = numbers(*READINGS[reading][0], key=1000 * index + 10 * step + draw % 7)
        return by_hand(z)[..., :1].reshape(shape) + 0.5 if part else z

    starts = [on_manifold(SPACES[space](view), shape, key).to(dtype) for key in (1, 2)]
    forces = [numbers(*shape, key=key, dtype=dtype) for key in (3, 4)]
    inject(monkeypatch, parameters)
    params = [nn.Parameter(x.clone()) for x in starts]
    opt = move(params, SPACES[space](view), word, forces)
    inject(monkeypatch, matrices)
    explicit = [nn.Parameter(by_hand(x)) for x in starts]
    plain = SPACES[space]("batch" if explicit[0].ndim > 2 else None)
    expected = move(explicit, plain, word, [by_hand(x) for x in forces])

    tolerance = TOLERANCES[dtype]
    assert not torch.equal(params[0], starts[0])
    for p, q in zip(params, explicit, strict=True):
        torch.testing.assert_close(by_hand(p.detach()), q.detach(), rtol=0, atol=tolerance)
        for ours, theirs in zip(momenta(opt, p), momenta(expected, q), strict=True):
            assert ours.shape == p.shape
            torch.testing.assert_close(by_hand(ours), theirs, rtol=0, atol=tolerance)
    assert opt.residuals() == pytest.approx(expected.residuals(), abs=tolerance)
    assert opt.temperatures() == pytest.approx(expected.temperatures(), abs=tolerance, nan_ok=True)
    if dtype != torch.bfloat16:
        assert opt.residuals()[0] < (1e-2 if "K" in space else tolerance)


@pytest.mark.parametrize("reading", READINGS)
def test_positions_are_copied_only_where_no_view_exists(reading):
    shape, view, read = READINGS[reading]
    q = numbers(*shape)
    for space in (Sphere(1.0, view=view), Orthogonal(view)):
        space.check(q, "q")
        block = space.view(q)
        shares = block.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()
        assert space.is_view(q) == shares == (reading not in COPIED)
        momentum = space.readable(q)
        assert torch.equal(momentum, q)
        assert (momentum is q) == shares
        assert space.is_view(momentum)
        other = torch.zeros_like(q)
        space.write_(other, block)
        assert torch.equal(other, q)
    tall = read(q) if read(q).shape[-2] >= read(q).shape[-1] else read(q).mT
    assert torch.equal(Orthogonal(view).view(q), tall)


# ── memory formats ──

KERNELS = {"convolution": ((4, 3, 3, 2), "conv"), "transposed": ((3, 4, 3, 2), View(output=1))}


def kernel(shape, memory, space, dtype=torch.float64, key=1):
    return nn.Parameter(on_manifold(space, shape, key).to(dtype).contiguous(memory_format=memory))


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("word", ["L", "BAOAB", "BACDEDCAB"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("case", KERNELS)
def test_memory_formats_move_alike(case, space, word, dtype):
    """With the library's own noise, bit for bit, except that a transposed kernel's sums may run in another order."""
    shape, view = KERNELS[case]
    results = []
    for memory in FORMATS.values():
        own = SPACES[space](view)
        params = [kernel(shape, memory, own, dtype, key) for key in (1, 2)]
        forces = [numbers(*shape, key=key, dtype=dtype) for key in (3, 4)]
        opt = move(params, own, word, forces)
        for p, force in zip(params, forces, strict=True):
            p.grad = force.contiguous(memory_format=torch.channels_last)  # whatever the weight's format is
        opt.step()
        assert all(p.is_contiguous(memory_format=memory) for p in params)
        results.append(contents(opt, params))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0 if case == "convolution" else TOLERANCES[dtype])


@pytest.mark.parametrize("space", [None, Circle(2.0), *(make("conv") for make in SPACES.values())], ids=str)
def test_a_model_may_change_its_memory_format_between_steps(space):
    runs = []
    for changes in (False, True):
        net = nn.Conv2d(3, 4, (3, 2), bias=False, dtype=torch.float64)
        with torch.no_grad():
            net.weight.copy_(on_manifold(space or Free(), (4, 3, 3, 2)).clamp(-1.9, 1.9))
        opt = Langevin(net.parameters(), 0.1, temperature=0.02, constraint=space, seed=0)
        for step in range(4):
            if changes and step in (1, 3):
                net.to(memory_format=torch.channels_last if step == 1 else torch.contiguous_format)
            advance([net.weight], opt, [numbers(4, 3, 3, 2, key=3)], 1)
        runs.append(contents(opt, [net.weight]))
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@pytest.mark.parametrize("saved", FORMATS)
@pytest.mark.parametrize("case", KERNELS)
@pytest.mark.parametrize("space", ["sphere", "orthogonal"])
def test_a_checkpoint_resumes_in_another_memory_format(space, case, saved):
    shape, view = KERNELS[case]
    own = SPACES[space](view)
    forces = [numbers(*shape, key=3)]
    params = [kernel(shape, FORMATS[saved], own)]
    opt = move(params, own, "BAOAB", forces, steps=3)
    file = io.BytesIO()
    torch.save({"optimizer": opt.state_dict(), "weights": params[0].detach()}, file)
    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    advance(params, opt, forces, 3)
    for memory in FORMATS.values():
        resumed = [nn.Parameter(checkpoint["weights"].clone(memory_format=memory))]
        other = Langevin(resumed, 0.1, scheme="BAOAB", constraint=own)
        state = copy.deepcopy(checkpoint["optimizer"])
        for x in state["state"].values():  # as a format would write them that knows no strides
            x |= {name: value.contiguous() for name, value in x.items() if value.ndim == 4}
        other.load_state_dict(state)
        advance(resumed, other, forces, 3)
        for a, b in zip(contents(opt, params), contents(other, resumed), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0 if case == "convolution" else 1e-13)


@pytest.mark.parametrize("space", ["sphere", "orthogonal"])
@pytest.mark.parametrize("case", KERNELS)
def test_edits_and_momenta_are_written_where_no_view_exists(case, space):
    shape, view = KERNELS[case]
    own = SPACES[space](view)
    results = []
    for memory in FORMATS.values():
        params = [kernel(shape, memory, own)]
        forces = [numbers(*shape, key=3)]
        opt = move(params, own, "BAOAB", forces)
        before = momenta(opt, params[0])[0].clone()
        opt.scale_momenta_(2.0)
        assert torch.equal(momenta(opt, params[0])[0], 2 * before)
        with torch.no_grad():
            params[0].mul_(1.5)
        assert opt.residuals()[0] > 0.1
        advance(params, opt, forces, 1)
        opt.synchronize()
        assert opt.residuals()[0] < 1e-12
        assert opt.cotangencies()[0] < 1e-12
        with torch.no_grad():
            params[0].add_(0.1)
        opt.project_()
        assert opt.residuals()[0] < 1e-12
        results.append(contents(opt, params))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def test_a_kernel_without_a_gradient_stays():
    own = Orthogonal(View(output=1))
    params = [kernel((3, 4, 3, 2), memory, own, key=i) for i, memory in enumerate(FORMATS.values())]
    opt = Langevin(params, 0.1, constraint=own)
    before = [p.detach().clone() for p in params]
    params[1].grad = torch.ones_like(params[1])
    opt.step()
    assert torch.equal(params[0], before[0])
    assert not torch.equal(params[1], before[1])
    assert opt.residuals()[0] < 1e-12


@pytest.mark.parametrize("space", ["sphere", "orthogonal"])
@pytest.mark.parametrize("case", KERNELS)
def test_a_step_skipped_on_a_device_leaves_kernels_bit_for_bit(monkeypatch, case, space):
    """Simulated on the CPU: the step runs, and what was there before is written."""
    monkeypatch.setattr(optimizer, "skip_non_finite", lambda work: torch.tensor(skipped))
    shape, view = KERNELS[case]
    own = SPACES[space](view)
    params = [kernel(shape, memory, own, key=i) for i, memory in enumerate(FORMATS.values())]
    forces = [numbers(*shape, key=3)] * 2
    skipped = False
    opt = move(params, own, "BAOAB", forces)
    before = [x.clone() for x in contents(opt, params)]
    skipped = True
    advance(params, opt, forces, 1)
    assert all(map(torch.equal, contents(opt, params), before))
    skipped = False
    advance(params, opt, forces, 1)
    assert not any(map(torch.equal, params, before))


# ── blocks ──


@pytest.mark.parametrize("word", ["L", "BAOAB"])
@pytest.mark.parametrize("output", [0, 1])
def test_packed_blocks_move_as_matrices_of_their_own(output, word):
    def packed(blocks):
        whole = torch.cat(blocks)
        return whole.T.contiguous() if output else whole

    blocks = [on_manifold(Orthogonal(), (4, 6), key=i) for i in range(3)]
    forces = [numbers(4, 6, key=10 + i) for i in range(3)]
    separate = [nn.Parameter(x.clone()) for x in blocks]
    move(separate, Orthogonal(), word, forces, temperature=0.0)
    whole = nn.Parameter(packed(blocks))
    opt = move([whole], Orthogonal(View(output=output, blocks=3)), word, [packed(forces)], temperature=0.0)
    torch.testing.assert_close(whole.detach(), packed([p.detach() for p in separate]), rtol=0, atol=1e-13)
    assert opt.residuals()[0] < 1e-13


def test_degrees_of_freedom_are_counted_by_blocks():
    q = numbers(6, 4)
    assert Orthogonal(View(blocks=3)).degrees_of_freedom(q) == 24 - 3 * 3
    assert Orthogonal().degrees_of_freedom(q) == 24 - 10
    assert Orthogonal(View(output=1, blocks=2)).degrees_of_freedom(q) == 24 - 2 * 3
    assert Sphere(1.0, slack=False, view=View(output=1)).degrees_of_freedom(q) == 24 - 4
    assert Sphere(1.0, slack=False, view=View(blocks=3)).degrees_of_freedom(q) == 24 - 6


def test_one_radius_per_output_channel_of_a_transposed_convolution():
    radii = torch.linspace(0.5, 2.0, 4, dtype=torch.float64)
    space = Sphere(radii, slack=False, view=View(output=1, blocks=2))
    weight = nn.Parameter(init.sphere_(numbers(3, 4, 2, 2), space))
    opt = move([weight], space, "BAOAB", [numbers(3, 4, 2, 2)])
    torch.testing.assert_close(weight.detach().square().sum((0, 2, 3)).sqrt(), radii)
    assert opt.residuals()[0] < 1e-14


# ── initialisation, geodesics, ensembles ──


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("memory", ["contiguous", "reversed"])
def test_initialisers_start_on_the_manifold(reading, memory):
    shape, view, read = READINGS[reading]

    def empty():
        return (
            torch.empty(shape[::-1]).permute(*reversed(range(len(shape))))
            if memory == "reversed"
            else torch.empty(shape)
        )

    rows = read(init.sphere_(empty().zero_(), Sphere(2.0, slack=False, view=view)))
    torch.testing.assert_close(rows.norm(dim=-1), torch.full(rows.shape[:-1], 2.0))
    q = read(init.orthogonal_(empty().zero_(), view))
    q = q if q.shape[-2] >= q.shape[-1] else q.mT
    torch.testing.assert_close(q.mT @ q, torch.eye(q.shape[-1]).expand(*q.shape[:-2], -1, -1))


def test_initialisers_draw_the_same_in_every_memory_format():
    for fill in (lambda w: init.sphere_(w, Sphere(1.0, view="conv")), lambda w: init.orthogonal_(w, "conv")):
        weights = []
        for memory in FORMATS.values():
            torch.manual_seed(3)
            weights.append(fill(torch.zeros(4, 3, 3, 2).contiguous(memory_format=memory)))
        assert torch.equal(*weights)


@pytest.mark.parametrize("space", [Sphere(1.0, slack=False, view=View(output=1)), Orthogonal(View(output=1, blocks=2))])
def test_geodesics_of_readings_that_are_copies(space):
    start, end = (on_manifold(space, (2, 6, 2, 1), key) for key in (1, 2))
    make = geodesic._on_spheres if isinstance(space, Sphere) else geodesic._by_rotation
    if isinstance(space, Orthogonal):  # of one connected component
        end = start + 0.1 * end
        space.land_(end, "end")
    curve = make(space, start, end, "w")
    for alpha, expected in ((0.0, start), (1.0, end)):
        torch.testing.assert_close(curve(torch.tensor(alpha, dtype=torch.float64)), expected, rtol=0, atol=1e-12)
    middle = curve(torch.tensor(0.5, dtype=torch.float64))
    assert space.land_(middle, "middle").moved == 0


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 2, dtype=torch.float64)
        self.packed = nn.Linear(4, 6, dtype=torch.float64)

    def forward(self, x):
        return self.packed(torch.tanh(self.up(x)).mean((-1, -2))).square().mean()


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("word", ["L", "BAOAB"])
def test_a_replica_equals_the_model_alone(space, word):
    ensemble = Ensemble(Decoder, 2, seed=1)
    models = ensemble.unstack()
    x = numbers(3, 5, 3, 3, 3)

    def build(model, batch, seed):
        views = {"up.weight": View(batch, 1), "packed.weight": View(batch, 0, 2)}
        named = dict(model.named_parameters())
        groups = [{"params": [named[name]], "constraint": SPACES[space](view)} for name, view in views.items()]
        return Langevin(groups, 0.1, scheme=word, temperature=0.01, seed=seed)

    several = build(ensemble, 1, ensemble.seeds)
    for batch in x:
        several.zero_grad()
        ensemble(batch).sum().backward()
        several.step()
    for i, model in enumerate(models):
        alone = build(model, 0, ensemble.seeds[i])
        for batch in x:
            alone.zero_grad()
            model(batch).backward()
            alone.step()
        for p, q in zip(model.parameters(), ensemble.parameters(), strict=True):
            torch.testing.assert_close(q[i], p, rtol=0, atol=1e-12)


# ── words ──


def test_auto_is_the_default_and_resolved_when_a_group_is_built():
    assert repr(Orthogonal()) == "Orthogonal(view='auto', iterations=None, tolerance=None)"
    opt = Langevin([nn.Parameter(torch.eye(3))], constraint=Orthogonal())
    assert opt.param_groups[0]["constraint"] == "Orthogonal(view=None, iterations=None, tolerance=None)"
    opt = Langevin([nn.Parameter(torch.eye(3) / 2)], constraint=Sphere())
    assert "view=None" in opt.param_groups[0]["constraint"]


@pytest.mark.parametrize(
    ("view", "ndim", "name"),
    [
        (View(), 2, None),
        (View(), 4, "conv"),
        (View(1), 3, "batch"),
        (View(2), 4, "batch"),
        (View(1), 5, "batch conv"),
        (View(2), 5, View(2)),
        (View(output=1), 4, View(output=1)),
        (View(blocks=3), 2, View(blocks=3)),
        ("conv", 4, "conv"),
    ],
)
def test_views_that_have_a_name_are_printed_by_it(view, ndim, name):
    assert Orthogonal().with_view(view, ndim).block_view == name
    assert Orthogonal().with_view(view).block_view == view


def test_views_say_nothing_that_their_space_does_not_see():
    assert Sphere().with_view(View(blocks=3), 2).block_view is None
    assert Orthogonal().with_view(View(output=1), 2).block_view is None
    assert Orthogonal().with_view(View(1, 1), 3).block_view == "batch"
    assert Sphere().with_view(View(output=1), 2).block_view == View(output=1)


def test_a_view_that_was_given_wins():
    space = Sphere(view="conv")
    assert space.with_view(View(output=1), 4) is space
    assert Sphere(view=None).with_view("batch").block_view is None
    for other in (Free(), Circle(1.0)):
        assert other.with_view(View(output=1), 4) is other


REFUSED = [
    (lambda: View(batch=-1), "View: batch must be a whole number of at least 0, got -1"),
    (lambda: View(output=1.0), "View: output must be a whole number of at least 0, got 1.0"),
    (lambda: View(blocks=0), "View: blocks must be a whole number of at least 1, got 0"),
    (
        lambda: Orthogonal("cube"),
        "Orthogonal: view must be one of 'auto', None, 'conv', 'batch', 'batch conv' or a View",
    ),
    (
        lambda: build(Orthogonal(), (4, 3, 2, 2)),
        "Orthogonal on parameter 0 of shape (4, 3, 2, 2): say how to read more",
    ),
    (lambda: build(Sphere(), (4, 3, 2)), "view=View(output=1) for a transposed convolution (in, out, kh, kw)"),
    (lambda: build(Orthogonal(View(blocks=3)), (4, 3)), "4 outputs are not 3 blocks of one size"),
    (lambda: build(Sphere(view=View(output=2)), (4, 3)), "view=View(batch=0, output=2, blocks=1) needs at least 3 dim"),
    (lambda: build(Sphere(view=View(1)), (4, 3)), "needs at least 3 dimensions, the shape is (4, 3)"),
    (lambda: build(Sphere(torch.ones(3), view=View(output=1)), (3, 4, 2)), "(3,) radii for rows of shape (4,)"),
    (lambda: init.orthogonal_(torch.zeros(4, 3, 2)), "Orthogonal on the weight of shape (4, 3, 2): say how to read"),
]


def build(space, shape):
    return Langevin([nn.Parameter(torch.ones(shape))], constraint=space)


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refusals_say_what_to_write(make, message):
    with pytest.raises(ConstraintError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("slack", [True, False])
@pytest.mark.parametrize("word", ["L", "BAOAB"])
def test_kernels_with_and_without_views_share_a_group(word, slack):
    """In channels_last a 1×1 kernel's rows are a view of its memory, a 3×3 kernel's are a copy."""
    runs = []
    for memory in FORMATS.values():
        net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 5, 1, bias=False)).double()
        space = Sphere(1.0, slack=slack, view="conv")
        with torch.no_grad():
            for key, p in enumerate(net.parameters()):
                p.copy_(on_manifold(space, p.shape, key))
        net.to(memory_format=memory)
        params = list(net.parameters())
        opt = move(params, space, word, [numbers(*p.shape, key=3) for p in params], steps=3)
        runs.append(contents(opt, params))
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)
