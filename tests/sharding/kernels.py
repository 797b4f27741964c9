"""The GPU's kernels on the shards of two ranks: each has the entries that a whole tensor has there.

With TRITON_INTERPRET=1 this runs on a CPU: ``python -m tests.sharding.kernels cpu``.
"""

import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from holonom import Langevin
from holonom._sharding.shards import local, piece_of
from holonom._step import run
from holonom.constraints import Circle, Constraint, Sphere

from . import ranks

SHAPES = ((5, 7), (9,), (6, 150), (2, 17000))  # parts start anywhere in a tile of 128; the last rows take many chunks
SPACES: dict[str, Constraint | None] = {
    "free": None, "circle": Circle(3.0), "circles of many radii": Circle(torch.arange(3.0, 8.0)[:, None]),
    "rows": Sphere(90.0), "rows of their norms": Sphere("initial", factor=1.2),
}  # fmt: skip
CASES = (
    ("free", "BAOAB"), ("circle", "BAOAB"), ("circle", "L"), ("circles of many radii", "BAOAB"), ("rows", "BAOAB"),
    ("rows of their norms", "L"),
)  # fmt: skip
STEPS = 2


def starts(space: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    # A cut vector is summed over ranks; kernels of entries know no rows.
    shapes = [shape for shape in SHAPES if len(shape) > 1] if space.startswith("rows") else SHAPES[:3]
    if space == "circles of many radii":  # one a row
        shapes = SHAPES[:1]
    return [torch.rand(shape, generator=generator) - 0.5 for shape in shapes]


def trained(params: list[nn.Parameter], space: str, word: str, wholes: list[Tensor]) -> tuple[list[Tensor], bool]:
    """The parts that are here after some steps, and whether kernels moved them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt = Langevin(params, 0.1, scheme=word, temperature=1e-2, constraint=SPACES[space], seed=3)
    used = all(run.has_kernels(opt.param_groups[0], [bucket]) for bucket in opt._buckets()[0])
    for step in range(STEPS):
        for p, x in zip(params, wholes, strict=True):
            g = torch.sin(3 * x + step)
            p.grad = piece_of(p).spread(piece_of(p).narrow(g).clone()) if isinstance(p, DTensor) else g.clone()
        opt.step()
    return [local(p).detach() for p in params], used


def compared(device: str) -> dict[str, Any]:
    """By space and word: whether kernels ran, and the largest difference from whole tensors' kernels."""
    run.KERNEL_DEVICES.add(device)
    if device == "cuda":
        torch.cuda.set_device(0)
    mesh, found = init_device_mesh(device, (dist.get_world_size(),)), {}
    for space, word in CASES:
        wholes = [x.to(device) for x in starts(space)]
        alone, _ = trained([nn.Parameter(x.clone()) for x in wholes], space, word, wholes)
        spread = []
        for x in wholes:  # without communication, of which gloo has little for a GPU
            part = torch.chunk(x, dist.get_world_size())[dist.get_rank()].clone()
            whole = {"shape": x.shape, "stride": x.stride()}
            spread.append(nn.Parameter(DTensor.from_local(part, mesh, [Shard(0)], run_check=False, **whole)))
        parts, used = trained(spread, space, word, wholes)
        pairs = zip(spread, parts, alone, strict=True)
        differences = [float((part - piece_of(p).narrow(x)).abs().max()) for p, part, x in pairs]
        found[f"{space} {word}"] = used, max(differences)
    return found


def check(device: str) -> None:
    for found in ranks.run(2, compared, device):
        for name, (used, difference) in found.items():
            assert used, name
            assert difference <= (0.0 if name.startswith(("free", "circle")) else 1e-4), (name, difference)


if __name__ == "__main__":
    if sys.argv[1] == "cpu":
        from tests.contract.interpreter import leave_if_unfit

        leave_if_unfit()
    check(sys.argv[1])
