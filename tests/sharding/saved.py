"""Checkpoints of a constrained, sharded run: written on some ranks, read on others, in torch's ways."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

from .held import Case, build, gradients_, mesh_of, whole

CASES = [
    Case("matrices", "tangent", "fsdp", "bfloat16"), Case("rows", "angular", "rows"), Case("scaled", "tangent", "rows"),
    Case("matrices", "plain", "mixed", optimizer="sgd"),
]  # fmt: skip


def steps(net, opt, first, count):
    for step in range(first, first + count):
        gradients_(net, step)
        opt.step()


def facts(net, opt, held):
    """All that a run is, as whole tensors."""
    found = {f"weight {name}": whole(p) for name, p in net.named_parameters()}
    for name, own in held.state_dict()["held"].items():
        found |= {f"{key} {name}": whole(x) for key, x in own.items() if torch.is_tensor(x)}
    for number, p in enumerate(net.parameters()):
        state = opt.state.get(p, {})
        found |= {f"{key} {number}": whole(x) for key, x in state.items() if torch.is_tensor(x) and key != "step"}
    return found


def write(folder, world):
    """Two steps, every kind of checkpoint, and the state then."""
    found = []
    for number, case in enumerate(CASES):
        net, opt, held = build(case, mesh_of((world,)))
        steps(net, opt, 0, 2)
        model, optimizer = get_state_dict(net, opt)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=f"{folder}/{number}")
        dcp.save({"model": model, "held": held}, checkpoint_id=f"{folder}/{number}-held")
        full = StateDictOptions(full_state_dict=True, cpu_offload=True)
        everything = get_state_dict(net, opt, options=full)
        if dist.get_rank() == 0:
            torch.save(everything, f"{folder}/{number}.pt")
        dist.barrier()
        found.append(facts(net, opt, held))
    return found


def read(folder, world):
    """The state after each kind of load, and after another step."""
    return [
        {
            kind: _read(Path(folder), number, case, mesh_of((world,)) if world > 1 else None, kind)
            for kind in ("dcp", "held", "full")
        }
        for number, case in enumerate(CASES)
    ]


def _read(folder, number, case, mesh, kind):
    torch.manual_seed(7)
    net, opt, held = build(case, mesh, scale=3.0)
    if kind == "full":
        own = torch.load(folder / f"{number}.pt", weights_only=True)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=mesh is not None)
        if mesh is not None and dist.get_rank():
            own = {}, {}
        set_optimizer_state_dict(net, opt, own[1], options=options)  # it makes a step; weights come after it
        set_model_state_dict(net, own[0], options=options)
    elif kind == "held":
        model = get_state_dict(net, opt)[0]
        dcp.load({"model": model, "held": held}, checkpoint_id=folder / f"{number}-held")
        net.load_state_dict(model)
    else:
        model, optimizer = get_state_dict(net, opt)
        state = {"model": model, "optimizer": optimizer}
        dcp.load(state, checkpoint_id=folder / f"{number}")
        set_state_dict(net, opt, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    loaded = facts(net, opt, held)
    held.check()
    steps(net, opt, 2, 1)
    return loaded, facts(net, opt, held)
