"""A transformer in shards, trained by its own gradients, with what people write."""

import warnings

import torch
from torch import nn

import holonom
from holonom.constraints import Orthogonal, Sphere
from holonom.models import TransformerLM
from holonom.partitions import hidden, role, weights

from .held import mesh_of, whole

KINDS = ("adamh", "normalised", "heads")


def train(kind, spread):
    """Weights, residuals and angles after four steps on the same batches, in one process or with FSDP2 on all ranks."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = TransformerLM(17, embedding=12, heads=3, feedforward=20, layers=2, dropout=0.0).double()
    if spread:
        from torch.distributed.fsdp import fully_shard

        mesh = mesh_of((torch.distributed.get_world_size(),))
        for layer in (*model.layers, model):
            fully_shard(layer, mesh=mesh)
    if kind == "heads":
        opt = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.0)
        rules = {
            role("attention") & weights: Sphere("initial", per="head"),
            role("feed-forward") & weights & hidden: Orthogonal(),
        }
        opt.held = holonom.constrain(opt, model, rules, "tangent")
    else:
        opt = getattr(holonom.presets, kind)(model)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        tokens = torch.randint(17, (9, 4), generator=generator)
        opt.zero_grad()
        nn.functional.cross_entropy(model(tokens[:-1]).flatten(0, 1), tokens[1:].flatten()).backward()
        opt.step()
    opt.held.check()
    found = {name: whole(p) for name, p in model.named_parameters()}
    angles = {label: torch.tensor(own) for label, own in opt.held.angles().items()}
    return {"weights": found, "residuals": opt.held.residuals(), "angles": angles}


def train_all():
    return {kind: train(kind, True) for kind in KINDS}
