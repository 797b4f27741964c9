"""A mesh of one rank: as it is, where nothing is cut; or cut as larger meshes cut, so that one rank sends to itself."""

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from holonom._constrain import cuts
from holonom._sharding import shards
from holonom._sharding.shards import Piece
from holonom._torch import placement_kind


def mesh_of_one(backend, device, folder):
    """A fixture's steps."""
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
    yield init_device_mesh(device, (1,))
    dist.destroy_process_group()


def groups_of(mesh, dims):
    return tuple(mesh.get_group(m) for m in dims)


def dims(piece):
    kinds = [placement_kind(placement)[1] for placement in piece.placements]
    return {dim: (m,) for m, dim in enumerate(kinds) if dim is not None}


def cut_(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shard counts as a part: sums, owners and their process group are those of several ranks."""
    for module in (cuts, shards):
        monkeypatch.setattr(module, "groups_of", groups_of)
    monkeypatch.setattr(Piece, "dims", property(dims))
    monkeypatch.setattr("holonom._sharding.kinds.block_piece", lambda space, piece: None)
    crossed = property(lambda cut: tuple(d for d in cut.piece.dims if cut.reach[d] > 1))
    monkeypatch.setattr(cuts.Cut, "crossed", crossed)


class Calls(TorchDispatchMode):
    """The names of the operations that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.__name__.split(".")[0])
        return function(*args, **(kwargs or {}))
