"""DTensors on a GPU: one rank and NCCL, and the kernels on shards of two ranks that have one GPU and gloo.

What several ranks do otherwise is tested with gloo on CPUs.
"""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import holonom
from holonom import Langevin
from holonom._torch import has_triton
from holonom.constraints import Circle, Orthogonal, Sphere
from tests.sharding import kernels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

SPACES = {"free": None, "circle": Circle(1.0), "sphere": Sphere(3.0), "orthogonal": Orthogonal()}
SHAPES = ((20, 12), (16, 16))


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cuda", (1,))
    dist.destroy_process_group()


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


@pytest.mark.skipif(not has_triton(), reason="no kernels here")
def test_kernels_move_shards_as_whole_tensors():
    kernels.check("cuda")
