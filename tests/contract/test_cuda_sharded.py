"""DTensors on a GPU: one rank and NCCL, and the kernels on shards of two ranks that have one GPU and gloo.

What several ranks do otherwise is tested with gloo on CPUs.
"""

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import holonom
from holonom import Langevin
from holonom._sharding.shards import local, piece_of
from holonom._sharding.spheres import Blocks
from holonom._torch import has_triton
from holonom.constraints import Circle, Orthogonal, Sphere, View
from tests.contract.test_cuda import no_reading_back
from tests.sharding import alone, kernels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

SPACES = {"free": None, "circle": Circle(1.0), "sphere": Sphere(3.0), "orthogonal": Orthogonal()}
CUT = {
    "sphere": Sphere(3.0), "matrices": Sphere(3.0, per="matrix"), "orthogonal": Orthogonal(),
    "radius on the host": Sphere(torch.tensor(3.0), per="matrix"),
}  # fmt: skip
SPACES |= CUT
HELD = {
    "matrices": Sphere("initial", per="matrix"), "orthogonal": Orthogonal(),
    "radius on the host": Sphere(torch.tensor(3.0), slack=False, per="matrix"),
}  # fmt: skip
SHAPES = ((20, 12), (16, 16))


@pytest.fixture
def mesh(tmp_path):
    yield from alone.mesh_of_one("nccl", "cuda", tmp_path)


@pytest.fixture
def cut(mesh, monkeypatch):
    """One rank does what several do: it sends to itself."""
    alone.cut_(monkeypatch)
    return mesh


def starts():
    generator = torch.Generator().manual_seed(0)
    tall = [torch.linalg.qr(torch.randn(shape, generator=generator))[0] for shape in SHAPES]
    return [0.9 * x.cuda() for x in tall]


def whole(p):
    return p.full_tensor() if isinstance(p, DTensor) else p


def optimizer(params, space, word):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Langevin(
            params,
            0.05,
            scheme=word,
            constraint=SPACES[space],
            temperature=1e-3,
            seed=3,
            coupling=0.1,
            driving_noise=0.01,
        )


def set_gradients(params, number):
    for i, p in enumerate(params):
        g = torch.sin(3 * torch.arange(float(p.numel())).reshape(p.shape) + number + i).cuda()
        p.grad = distribute_tensor(g, p.device_mesh, p.placements) if isinstance(p, DTensor) else g


@pytest.mark.parametrize("word", ["L", "BAOAB", "BACDEDCAB"])
@pytest.mark.parametrize("space", SPACES)
def test_one_rank_does_what_plain_tensors_do(mesh, space, word):
    plain = [nn.Parameter(x.clone()) for x in starts()]
    spread = [nn.Parameter(distribute_tensor(x.clone(), mesh, [Shard(0)])) for x in starts()]
    opt, other = optimizer(plain, space, word), optimizer(spread, space, word)
    for number in range(4):
        for one, params in ((opt, plain), (other, spread)):
            set_gradients(params, number)
            one.step()
    exact = space in ("free", "circle") and word != "BACDEDCAB"
    for p, q in zip(plain, spread, strict=True):
        torch.testing.assert_close(whole(q), p.detach(), rtol=0, atol=0 if exact else 1e-5)


@pytest.mark.parametrize("update", ["plain", "tangent", "angular"])
def test_constrain_does_what_it_does_to_plain_tensors(mesh, update):
    ends = []
    for spread in (False, True):
        model = nn.Linear(12, 20, bias=False, device="cuda")
        with torch.no_grad():
            model.weight.copy_(starts()[0])
        if spread:
            model.weight = nn.Parameter(distribute_tensor(model.weight.detach().clone(), mesh, [Shard(0)]))
        opt = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.0)
        held = holonom.constrain(opt, model, {"weight": Sphere("initial", per="matrix")}, update)
        for number in range(4):
            set_gradients(list(model.parameters()), number)
            opt.step()
        assert max(held.residuals().values()) < 1e-6
        ends.append(whole(model.weight.detach()))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)


@pytest.mark.parametrize("space", ["free", "circle"])
def test_sharded_steps_can_be_captured(mesh, space):
    ends = []
    for captured in (False, True):
        params = [nn.Parameter(distribute_tensor(x.clone(), mesh, [Shard(0)])) for x in starts()]
        opt = optimizer(params, space, "BAOAB")
        opt.guard_gradients = False
        set_gradients(params, 0)
        for _ in range(3):
            opt.step()
        if captured:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                opt.step()
            for _ in range(4):
                graph.replay()
        else:
            for _ in range(4):
                opt.step()
        ends.append([whole(p.detach()).clone() for p in params])
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)


def spread_params(mesh):
    return [nn.Parameter(distribute_tensor(x.clone(), mesh, [Shard(0)])) for x in starts()]


@pytest.mark.parametrize("word", ["L", "BACDEDCAB"])
@pytest.mark.parametrize("space", CUT)
def test_steps_of_cut_matrices_never_wait_for_the_device(cut, space, word):
    plain, spread = [nn.Parameter(x.clone()) for x in starts()], spread_params(cut)
    opt, other = optimizer(plain, space, word), optimizer(spread, space, word)
    for number in range(4):
        set_gradients(plain, number)
        opt.step()
        set_gradients(spread, number)
        with no_reading_back() if number > 1 else nullcontext():
            other.step()
    for p, q in zip(plain, spread, strict=True):
        torch.testing.assert_close(whole(q), p.detach(), rtol=0, atol=1e-5)


class Layers(nn.Module):
    def __init__(self, params):
        super().__init__()
        self.first, self.second = params


def held_by(params, space, update, momentum):
    model = Layers(params)
    opt = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return opt, holonom.constrain(opt, model, {("first", "second"): HELD[space]}, update, momentum)


@pytest.mark.parametrize("momentum", ["keep", "project"])
@pytest.mark.parametrize("update", ["plain", "tangent"])
@pytest.mark.parametrize("space", HELD)
def test_constrain_of_cut_matrices_never_waits_for_the_device(cut, space, update, momentum):
    """An edit from outside may wait; it is taken up as of plain tensors."""
    plain, spread = [nn.Parameter(x.clone()) for x in starts()], spread_params(cut)
    opt, _ = held_by(plain, space, update, momentum)
    other, held = held_by(spread, space, update, momentum)
    for number in range(5):
        if number == 3:
            with torch.no_grad():
                for p in (*plain, *spread):
                    p.mul_(1.2)
        set_gradients(plain, number)
        opt.step()
        set_gradients(spread, number)
        with no_reading_back() if number in (2, 4) else nullcontext():
            other.step()
    held.check()
    for p, q in zip(plain, spread, strict=True):
        torch.testing.assert_close(whole(q.detach()), p.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("update", ["plain", "tangent"])
@pytest.mark.parametrize("space", HELD)
def test_constrain_of_cut_matrices_can_be_captured(cut, space, update):
    ends = []
    for captured in (False, True):
        params = spread_params(cut)
        opt, _ = held_by(params, space, update, "keep")
        set_gradients(params, 0)
        for _ in range(3):
            opt.step()
        if captured:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog asks for its events
                opt.step()
            for _ in range(4):
                graph.replay()
        else:
            for _ in range(4):
                opt.step()
        ends.append([whole(p.detach()).clone() for p in params])
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)


def test_sums_of_blocks_are_equal_bit_for_bit(cut):
    """Of heads, whose many rows are added up."""
    space = Sphere(1.0, view=View(blocks=2), per="head")
    p = distribute_tensor(torch.randn(4096, 64, device="cuda"), cut, [Shard(0)])
    blocks, flat = Blocks(space, [piece_of(p)], p.device), local(p).reshape(-1)
    first = blocks.here(flat, flat)
    assert all(torch.equal(blocks.here(flat, flat), first) for _ in range(50))


@pytest.mark.skipif(not has_triton(), reason="no kernels here")
def test_kernels_move_shards_as_whole_tensors():
    kernels.check("cuda")
