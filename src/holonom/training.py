"""Training an ensemble: steps, evaluations on a schedule, checkpoints that resume bit-equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ._files import load, save
from ._numbers import as_whole
from ._training.stepper import Compiled, Stepper
from ._training.threads import few_threads
from .batches import Batches
from .ensemble import Ensemble, Loss
from .errors import CheckpointError

Evaluate = Callable[[Ensemble], dict[str, Tensor]]


class History:
    """Metrics per replica at the steps where they were looked at."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: dict[str, list[Tensor]] = {}

    def add(self, step: int, metrics: dict[str, Tensor]) -> None:
        """Append the (R,) metrics of one step."""
        self.steps.append(step)
        for name, value in metrics.items():
            self.values.setdefault(name, []).append(value.detach().cpu())

    def __getitem__(self, name: str) -> Tensor:
        """(times, R)."""
        return torch.stack(self.values[name])

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"steps": self.steps, "values": {name: torch.stack(v) for name, v in self.values.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state` returned."""
        self.steps = list(state["steps"])
        self.values = {name: list(v.cpu().unbind(0)) for name, v in state["values"].items()}


def train(
    ensemble: Ensemble,
    optimizer: Optimizer,
    loss: Loss,
    batches: Batches,
    steps: int,
    *,
    evaluate: Evaluate,
    evaluations: int = 40,
    checkpoint: Path | str | None = None,
    checkpoint_every: int | None = None,
    after_epoch: Callable[[int], None] | None = None,
    compiled: Compiled | None = None,
    progress: Callable[[int, int, History], None] | None = None,
) -> History:
    """Take ``steps`` optimizer steps with every replica and return the metrics along the way.

    Args:
        ensemble, optimizer: what is trained, and by what; both are changed.
        loss: ``loss(output, target) → number`` of one replica.
        batches: the data, e.g. :class:`holonom.batches.Shuffled`.
        steps: how many in all, those of a resumed run included.
        evaluate: returns (R,) metrics; called without gradients, in eval mode, ``evaluations`` times and at the start.
        checkpoint: a file. If it exists the run continues from it, bit for bit as if it had not stopped.
        checkpoint_every: steps between checkpoints (default: at every evaluation).
        after_epoch: called with the number of epochs done; the place for a scheduler.
        compiled: compile the step, or its gradients alone: the larger part of it where networks are large. None
            decides by the work ahead.
        progress: called with (step, steps, history so far).
    """
    if not isinstance(ensemble, Ensemble):
        raise TypeError(
            f"train() trains an Ensemble, got {type(ensemble).__name__}: Ensemble(make_model, replicas=1) holds one "
            f"model, and Ensemble.from_models([model]) one that exists already"
        )
    steps, evaluations = _whole("steps", steps, 0), _whole("evaluations", evaluations, 1)
    checkpoint = None if checkpoint is None else Path(checkpoint)
    if compiled is None:
        compiled = worth_compiling(ensemble, steps)
    history = History()
    devices = [ensemble.seeds.device] if ensemble.seeds.is_cuda else []
    # A fork of torch's generator for dropout, which knows no other source.
    with few_threads(ensemble.parameters()) as all_threads, torch.random.fork_rng(devices):
        torch.manual_seed(int(ensemble.seeds[0]))
        start = _load(checkpoint, ensemble, optimizer, history, steps) if checkpoint and checkpoint.exists() else 0
        if not history.steps:
            history.add(0, _look(ensemble, evaluate, all_threads))
        stepper = Stepper(ensemble, optimizer, loss, batches, compiled)
        step = saved = start
        for mark in _marks(steps, evaluations, start):
            for count, order in _stretches(batches, step, mark):
                stepper.run(order)
                step += count
                if progress is not None:
                    progress(step, steps, history)
                if after_epoch is not None and step % batches.per_epoch == 0:
                    after_epoch(step // batches.per_epoch)
            history.add(step, _look(ensemble, evaluate, all_threads))
            if checkpoint is not None and (step - saved >= (checkpoint_every or 0) or step == steps):
                _save(checkpoint, ensemble, optimizer, history, step, steps)
                saved = step
    return history


def _marks(steps: int, evaluations: int, start: int) -> list[int]:
    """The steps at which to evaluate, beyond those already taken."""
    marks = {round(steps * k / evaluations) for k in range(1, evaluations + 1)}
    return sorted(mark for mark in marks if mark > start)


def _stretches(batches: Batches, start: int, end: int) -> Iterator[tuple[int, Tensor]]:
    """The rows of the data's order for steps ``start`` to ``end``, epoch by epoch."""
    while start < end:
        epoch, place = divmod(start, batches.per_epoch)
        count = min(end - start, batches.per_epoch - place)
        yield count, batches.order(epoch)[place : place + count]
        start += count


def worth_compiling(ensemble: Ensemble, steps: int) -> bool:
    """Whether a compiler's half minute is repaid: small ensembles are bound by calls, large ones by memory."""
    elements = sum(p.numel() for p in ensemble.parameters())
    if not ensemble.seeds.is_cuda:  # no graph takes the calls away: a step's cost as much as half a million elements
        return steps * (500_000 + elements) > 4_000_000_000
    return steps * (20_000 + elements) > 2_000_000_000


@torch.no_grad()
def _look(ensemble: Ensemble, evaluate: Evaluate, threads: int) -> dict[str, Tensor]:
    """Metrics, with as many threads as there are: far more examples than a step has."""
    training, before = ensemble.training, torch.get_num_threads()
    ensemble.eval()
    torch.set_num_threads(threads)
    try:
        found = evaluate(ensemble)
    finally:
        torch.set_num_threads(before)
        ensemble.train(training)
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise TypeError(
            f"evaluate(ensemble) must return a dict of tensors, one metric a replica, such as "
            f"{{'loss': ensemble.losses(loss, x, y)}}; got {found!r}"
        )
    return found


def _whole(name: str, value: Any, least: int) -> int:
    number = as_whole(int(value) if isinstance(value, float) and value.is_integer() else value)
    if number is None or number < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return number


def _save(path: Path, ensemble: Ensemble, optimizer: Optimizer, history: History, step: int, steps: int) -> None:
    state = {
        "step": step,
        "steps": steps,
        "seeds": ensemble.seeds,
        "model": ensemble.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": history.state(),
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }
    save(state, path)


def _load(path: Path, ensemble: Ensemble, optimizer: Optimizer, history: History, steps: int) -> int:
    state = load(path, "delete it to start over", ensemble.seeds.device)
    if state["steps"] != steps:
        raise CheckpointError(f"{path} is of a run of {state['steps']} steps, not {steps}; delete it to start over")
    weights, seeds = deepcopy(ensemble.state_dict()), ensemble.seeds.clone()
    try:
        _continue_seeds(path, ensemble, state.get("seeds"))
        _load_weights(path, ensemble, state["model"])
        optimizer.load_state_dict(state["optimizer"])
    except Exception:
        ensemble.seeds.copy_(seeds)
        ensemble.load_state_dict(weights)
        raise
    history.restore(state["history"])
    torch.set_rng_state(state["random"].cpu())
    if state["random_cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["random_cuda"].cpu())
    return int(state["step"])


def _load_weights(path: Path, ensemble: Ensemble, weights: dict[str, Tensor]) -> None:
    try:
        ensemble.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{path} was written by another model or number of replicas: {error}") from None


def _continue_seeds(path: Path, ensemble: Ensemble, saved: Tensor | None) -> None:
    """The order of the data and the noise go on as in the run that was interrupted, or nothing does."""
    if saved is None and not ensemble.seed_given:
        raise CheckpointError(
            f"{path} was written by version 0.1, where an Ensemble had seed=0 unless another was given: give it to "
            f"this one, or delete the file to start over"
        )
    if saved is None or saved.shape != ensemble.seeds.shape:  # another number of replicas is refused with the weights
        return
    if not ensemble.seed_given:
        ensemble.seeds.copy_(saved)  # in place: the batches and the optimizer hold them too
    elif not torch.equal(saved, ensemble.seeds):
        raise CheckpointError(
            f"{path} was written by an ensemble with another seed, which decides the order of the data and the noise: "
            f"give that seed to Ensemble, or delete the file to start over"
        )
