"""A small GPT in shards (FSDP2) whose matrices keep their norms, by one line beside AdamW (this file is its text).

    torchrun --nproc-per-node 2 examples/fsdp_gpt.py

Every process has a part of each matrix. A step adds up three numbers for each matrix over all of them, at once.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holonom
from holonom.constraints import Sphere
from holonom.models import TransformerLM
from holonom.partitions import positions, weights

STEPS, CONTEXT, BATCH = 40, 64, 16

if __name__ == "__main__":
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    mesh, rank = init_device_mesh(kind, (dist.get_world_size(),)), dist.get_rank()

    text = Path(__file__).read_text()
    characters = sorted(set(text))
    tokens = torch.tensor([characters.index(c) for c in text], device=kind)

    torch.manual_seed(0)  # the same weights on every rank
    model = TransformerLM(len(characters), embedding=64, heads=4, feedforward=256, layers=2, dropout=0.0).to(kind)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    spheres = {weights & ~positions: Sphere("initial", per="matrix")}
    held = holonom.constrain(opt, model, spheres, update="tangent")  # the one line

    generator = torch.Generator(kind).manual_seed(rank)  # other characters on every rank
    for _ in range(STEPS):
        start = torch.randint(len(tokens) - CONTEXT - 1, (BATCH,), generator=generator, device=kind)
        batch = tokens[start + torch.arange(CONTEXT + 1, device=kind)[:, None]]
        loss = nn.functional.cross_entropy(model(batch[:-1]).flatten(0, 1), batch[1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()

    off = max(held.residuals().values())  # all ranks call it together
    dist.all_reduce(loss.detach_())
    if rank == 0:
        print(f"loss {loss.item() / dist.get_world_size():.3f} on {dist.get_world_size()} ranks")
        print(f"norms are off by {off:.0e}")
    dist.destroy_process_group()
