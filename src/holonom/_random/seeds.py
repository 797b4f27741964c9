"""Seeds: a number drawn at construction where none was given, and which of them a checkpoint replaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .._numbers import as_whole

Group = dict[str, Any]


def fresh_seed() -> int:
    """63 bits of torch's default CPU generator: ``torch.manual_seed`` repeats a run, and two optimizers differ."""
    return int(torch.randint(0, (1 << 63) - 1, (), dtype=torch.int64, device="cpu"))


def checked(seed: Any) -> int:
    """A seed as a Python number, in the range of ``torch.manual_seed``; raises for what is none."""
    number = as_whole(seed)
    if number is None:
        raise TypeError(f"seed must be a whole number, got {seed!r}")
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"seed must be at least -2**63 and less than 2**64, got {number}: keys of noise have 64 bits")
    return number


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's generators under a seed; afterwards they are as they were, those of GPUs, too."""
    before, in_use = torch.initial_seed(), torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if in_use else []):
            torch.manual_seed(seed)
            yield
    finally:
        if not in_use:  # a GPU's generator is seeded when it is first used, by the last seed it was given
            torch.cuda.manual_seed_all(before)


def refuse_ranks(user: str) -> None:
    """Raise where several ranks of torch.distributed would each draw a number of their own."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise ValueError(
            f"{user} has no seed, and torch.distributed runs {distributed.get_world_size()} ranks: each rank would "
            f"draw its own random numbers, and their weights would drift apart. Give the same number on every rank, "
            f"such as seed=0"
        )


# ── what is remembered in a group: ``seed``, and ``seed_given``, whether somebody gave it ────────────


def with_seed(options: Group) -> Group:
    """An optimizer's defaults with a seed, which groups without one of their own share."""
    given = options["seed"] is not None
    return {**options, "seed": options["seed"] if given else fresh_seed(), "seed_given": given}


def noted(group: Group) -> Group:
    """A new group, with ``seed_given`` where it has a seed of its own; None stands for the optimizer's."""
    own = {name: value for name, value in group.items() if name != "seed" or value is not None}
    return {"seed_given": True, **own} if "seed" in own else own


def keep_given(groups: Sequence[Group], before: Sequence[Group], defaults: Group) -> str | None:
    """After loading: seeds that were given stay, others are the checkpoint's. Returns what to warn about."""
    different, taken = [], []
    for number, (group, own) in enumerate(zip(groups, before, strict=True)):
        drawn, given = not group.get("seed_given", False), own.get("seed_given", False)
        if given:
            if numbers(group["seed"]) != numbers(own["seed"]):
                different.append(f"group {number}: {_short(own['seed'])}, the checkpoint's {_short(group['seed'])}")
            group["seed"] = own["seed"]
        elif drawn:
            taken.append(group["seed"])
        group["seed_given"] = given
    if taken and not defaults.get("seed_given", False):
        defaults["seed"] = taken[0]  # for groups that are added later
    if not different:
        return None
    return (
        f"the checkpoint was made with another seed than the one given here, which stays ({'; '.join(different)}). "
        f"From here on the noise is not that of the run that was saved; to continue that run, leave the seed out"
    )


def numbers(seed: int | Tensor | tuple[int, ...]) -> int | tuple[int, ...]:
    """A seed as Python's numbers; a tensor of one element is one number."""
    if isinstance(seed, Tensor):
        return tuple(seed.tolist()) if seed.numel() != 1 else int(seed)
    return seed


def _short(seed: Any) -> str:
    found = numbers(seed)
    return str(found) if isinstance(found, int) or len(found) < 4 else f"({found[0]}, … {len(found) - 1} more)"
