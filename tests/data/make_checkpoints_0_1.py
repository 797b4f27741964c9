"""Write checkpoints-0.1.0.pt: checkpoints of version 0.1.0, and how 0.1.0 itself continues from each.

Run it with version 0.1.0 on the path, from the root of the repository:

    git worktree add ../holonom-0.1.0 21413f7
    PYTHONPATH=../holonom-0.1.0/src python -m tests.data.make_checkpoints_0_1

A record holds

- ``recipe``: the optimizer's class and options as plain data; :func:`build` makes an optimizer of it,
- ``weights`` and ``saved``: the parameters and ``state_dict()`` after ten noisy steps,
- ``after``: weights and state after five more steps without noise. 0.1.0 computed them from the loaded checkpoint.
  Noise is turned off because its streams belong to a version; everything else does not.

The rate changes just before saving, so that the letters a rotated word owes are owed at another rate than the next.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import holonom
from holonom import constraints, multirate

PATH = Path(__file__).parent / "checkpoints-0.1.0.pt"
STEPS_BEFORE, STEPS_AFTER = 10, 5  # an orthogonal weight is polished at step 13, in between
NOISE = ("temperature", "driving_noise", "probability")

Record = dict[str, Any]


def norm_is_root_three(q: Tensor) -> Tensor:
    return q.square().sum() - 3


def norm_is_below_two(q: Tensor) -> Tensor:
    return q.square().sum() - 4


FUNCTIONS = {f.__name__: f for f in (norm_is_root_three, norm_is_below_two)}
SPACES: dict[str, list[Any] | None] = {
    "free": None,
    "circle": ["Circle", {"radius": 1.5}],
    "circle-radii": ["Circle", {"radius": torch.tensor([1.5, 1.2, 2.0])}],
    "sphere": ["Sphere", {"radius": 2.0}],
    "sphere-fixed": ["Sphere", {"radius": 1.0, "slack": False}],
    "orthogonal": ["Orthogonal", {}],
    "orthogonal-k1": ["Orthogonal", {"iterations": 1}],
    "orthogonal-k5": ["Orthogonal", {"iterations": 5}],
    "levelset": ["LevelSet", {"g": "norm_is_root_three"}],
    "levelset-slack": ["LevelSet", {"g": "norm_is_below_two", "slack": True}],
}
WORDS = ["L", "OBA", "ABO", "BAOAB", "BACDEDCAB", "BAFEFAB"]


# ── used by the tests, with any version ───────────────────────────────────────────────────────────


def space(written: list[Any] | None) -> constraints.Constraint | None:
    if written is None:
        return None
    kind, options = written
    options = {name: FUNCTIONS[x] if name == "g" else x for name, x in options.items()}
    return getattr(constraints, kind)(**options)


def build(recipe: Record, weights: list[Tensor]) -> tuple[list[nn.Parameter], Any]:
    """Parameters with copies of these weights, and the recipe's optimizer on them."""
    params = [nn.Parameter(w.clone()) for w in weights]
    groups = []
    for written in recipe["groups"]:
        group = {**written, "params": [params[i] for i in written["params"]]}
        if "constraint" in group:
            group["constraint"] = space(group["constraint"])
        if "optimizer" in group:
            make = getattr(torch.optim, group.pop("optimizer"))
            group["optimizer"] = make(group.pop("params"), **group.pop("options"))
        groups.append(group)
    make = {"Langevin": holonom.Langevin, "like_sgd": holonom.Langevin.like_sgd}.get(recipe["class"])
    make = make or getattr(multirate, recipe["class"])
    return params, make(groups, **recipe["options"])


def step(params: list[nn.Parameter], opt: Any, number: int) -> None:
    """One step with the gradient sin(2q + number + i) of parameter i, where a gradient is due."""
    with opt.due() if hasattr(opt, "due") else nullcontext():
        for i, p in enumerate(params):
            p.grad = torch.sin(2 * p.detach() + number + i) if p.requires_grad else None
    opt.step()


def turn_off_noise(opt: Any) -> None:
    for group in opt.param_groups:
        group.update({name: 0.0 for name in NOISE if name in group})


def outcome(params: list[nn.Parameter], opt: Any) -> Record:
    """Weights, and state by parameter and name; of wrapped optimizers theirs too."""
    saved = opt.state_dict()
    return {
        "weights": [p.detach().clone() for p in params],
        "states": [copied(one["state"]) for one in (saved, *saved.get("optimizers", []))],
    }


def mapped(f: Callable[[Tensor], Any], tree: Any) -> Any:
    """The same containers with f(tensor) in place of every tensor."""
    if isinstance(tree, dict):
        return {key: mapped(f, x) for key, x in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(f, x) for x in tree)
    return f(tree) if isinstance(tree, Tensor) else tree


def copied(tree: Any) -> Any:
    """Copies of the tensors alone; ``deepcopy`` would copy the storage that those of a file share, whole."""
    return mapped(lambda x: x.detach().clone(), tree)


# ── the records ───────────────────────────────────────────────────────────────────────────────────


def initial_weights(shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [(0.6 * torch.randn(shape, generator=generator)).to(dtype) for shape in shapes]


def langevin(written: list[Any] | None, word: str, shapes: int, **options: Any) -> Record:
    group = {"params": list(range(shapes)), "constraint": written}
    options = {"lr": 0.1, "scheme": word, "friction": 2.0, "temperature": 0.01, "seed": 5, **options}
    return {"class": "Langevin", "groups": [group], "options": options}


def plain_records() -> dict[str, Record]:
    records = {}
    for name, written in SPACES.items():
        matrices = name.startswith("orthogonal")
        shapes = [(4, 3), (2, 3), (3, 3)] if matrices else [(4, 3), (3,)]
        for word in WORDS + ["M"] * (written is None):
            recipe = langevin(written, word, len(shapes), weight_decay=0.01 if word == "OBA" else 0.0)
            records[f"{word}-{name}"] = record(recipe, initial_weights(shapes))
        half = langevin(written, "BAOAB", len(shapes))
        records[f"BAOAB-{name}-bfloat16"] = record(half, initial_weights(shapes, torch.bfloat16))
    return records


def special_records() -> dict[str, Record]:
    free, circle, shapes = SPACES["free"], SPACES["circle"], [(4, 3), (3,)]
    weights = initial_weights(shapes)
    one_stream = langevin(circle, "BAOAB", 2, seed=torch.tensor(7))
    two_groups = langevin(free, "BAOAB", 2)
    two_groups["groups"] = [
        {"params": [0], "constraint": circle, "scheme": "BACDEDCAB", "lr": 0.05},
        {"params": [1], "constraint": free, "maximize": True},
    ]
    sgd = {"class": "like_sgd", "groups": [{"params": [0, 1]}], "options": {"lr": 0.01, "momentum": 0.9}}
    records = {
        "before-first-step-BAOAB": record(langevin(circle, "BAOAB", 2), weights, steps=0),
        "before-first-step-ABO": record(langevin(free, "ABO", 2), weights, steps=0),
        "synchronized": record(langevin(circle, "BAOAB", 2), weights, synchronized=True),
        "tensor-seed": record(one_stream, weights),
        "infinite-friction": record(langevin(free, "BAOAB", 2, friction=float("inf")), weights),
        "two-groups": record(two_groups, weights),
        "like-sgd": record(sgd, weights),
    }
    return records | ensemble_records() | multirate_records()


def ensemble_records() -> dict[str, Record]:
    """Three replicas, each with its noise and its thermostat."""
    ensemble = holonom.Ensemble(lambda: nn.Linear(3, 4), replicas=3, seed=0)
    weights = [p.detach() for p in ensemble.parameters()]
    each = torch.tensor([0.01, 0.02, 0.03])
    rows, matrices = ["Sphere", {"radius": 2.0, "view": "batch"}], ["Orthogonal", {"view": "batch"}]
    recipes = {
        "BAOAB-free": (langevin(None, "BAOAB", 2, temperature=each), weights),
        "BAOAB-free-rates": (langevin(None, "BAOAB", 2, lr=10 * each), weights),
        "BACDEDCAB-circle": (langevin(SPACES["circle"], "BACDEDCAB", 2, temperature=each), weights),
        "L-sphere": (langevin(rows, "L", 1), weights[:1]),
        "BAOAB-orthogonal": (langevin(matrices, "BAOAB", 1), weights[:1]),
    }
    for recipe, _ in recipes.values():
        recipe["options"]["seed"] = ensemble.seeds
    return {f"ensemble-{name}": record(*arguments) for name, arguments in recipes.items()}


def multirate_records() -> dict[str, Record]:
    """Saved in the middle of a cycle: ten steps, periods of three and six."""
    weights = initial_weights([(2, 3), (4, 3), (3, 3)])
    groups = [{"params": [i], "every": every} for i, every in enumerate((1, 3, 6))]
    slow = {"scheme": "BACDEDCAB", "constraint": SPACES["sphere"]}
    mixed = [{**groups[0], "constraint": SPACES["circle"]}, {**groups[1], **slow}, {**groups[2], "scheme": "OBA"}]
    wrapped = [
        {"params": [0], "optimizer": "SGD", "options": {"lr": 0.1, "momentum": 0.9}},
        {"params": [1], "optimizer": "AdamW", "options": {"lr": 0.01}, "every": 3, "drift": False},
        {"params": [2], "optimizer": "AdamW", "options": {"lr": 0.01, "amsgrad": True}, "every": 6},
    ]
    subsets = {"lr": 0.1, "steps_off": 3, "momentum": 0.5, "seed": 3}
    recipes = {
        "Multirate": (groups, {"lr": 0.1, "weight_decay": 0.01}),
        "MultirateLangevin": (mixed, {"lr": 0.1, "temperature": 0.01}),
        "RandomSubsets": ([{"params": [0, 1, 2], "probability": 0.5}], subsets),
        "MultirateWrapper": (wrapped, {}),
    }
    return {
        name: record({"class": name, "groups": own, "options": options}, weights)
        for name, (own, options) in recipes.items()
    }


def record(recipe: Record, weights: list[Tensor], steps: int = STEPS_BEFORE, synchronized: bool = False) -> Record:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first weights are moved onto the manifold
        params, opt = build(recipe, weights)
        for number in range(steps):
            step(params, opt, number)
        if synchronized:
            opt.synchronize()
        if isinstance(opt, holonom.Langevin) and not isinstance(opt, multirate.MultirateLangevin):
            for group in opt.param_groups:
                group["lr"] = 0.7 * group["lr"]
        saved, at_save = copied(opt.state_dict()), [p.detach().clone() for p in params]
        params, opt = build(recipe, at_save)
        opt.load_state_dict(copied(saved))
    turn_off_noise(opt)
    for number in range(STEPS_AFTER):
        step(params, opt, number)
    return {"recipe": recipe, "weights": at_save, "saved": saved, "after": outcome(params, opt)}


def in_shared_storages(tree: Any) -> Any:
    """All tensors of a dtype as views of one: a file holds each storage once, and small ones are mostly overhead."""
    found: dict[torch.dtype, list[Tensor]] = {}
    mapped(lambda x: found.setdefault(x.dtype, []).append(x.reshape(-1)), tree)
    pieces = {dtype: iter(torch.cat(xs).split([x.numel() for x in xs])) for dtype, xs in found.items()}
    return mapped(lambda x: next(pieces[x.dtype]).view(x.shape), tree)


if __name__ == "__main__":
    if holonom.__version__ != "0.1.0":
        raise SystemExit(f"these are checkpoints of version 0.1.0, and this is {holonom.__version__}")
    torch.set_num_threads(1)
    torch.save(in_shared_storages(plain_records() | special_records()), PATH)
    print(f"{PATH}: {PATH.stat().st_size:,} bytes")
