"""A run of one experiment: its files, device and results."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._training.stepper import Compiled
from ..batches import Batches
from ..ensemble import Ensemble, Loss
from ..optimizer import Langevin
from ..training import Evaluate, History, train
from . import checkpoints, ranks
from .artifacts import ArtifactCache
from .pieces import WHOLE, Piece, Unfinished
from .progress import WholeBar, bar, latest

Array = np.ndarray[Any, np.dtype[Any]]


class Measured(Protocol):
    """Input of tables and curves; metrics are (times, runs)."""

    @property
    def arm(self) -> str: ...
    @property
    def steps(self) -> Array: ...
    @property
    def curves(self) -> dict[str, Array]: ...
    @property
    def residual(self) -> float: ...
    def final(self, metric: str) -> Array: ...


@dataclass
class Fit:
    """The result of training one arm: metrics (times, runs) and the trained ensemble."""

    arm: str
    steps: Array
    curves: dict[str, Array]
    ensemble: Ensemble
    seconds: float
    residual: float = 0.0

    def final(self, metric: str) -> Array:
        """(runs,) at the end."""
        last: Array = self.curves[metric][-1]
        return last

    def split(self, names: Sequence[str]) -> dict[str, Fit]:
        """A grid trained as one ensemble (``repeats=len(names)``) as one fit per value."""
        parts = {
            name: {metric: np.split(values, len(names), 1)[i] for metric, values in self.curves.items()}
            for i, name in enumerate(names)
        }
        share = self.seconds / len(names)
        return {
            name: Fit(name, self.steps, curves, self.ensemble, share, self.residual) for name, curves in parts.items()
        }


@dataclass
class Run:
    """The argument of an experiment: makes ensembles, trains arms, draws figures and collects tables."""

    id: str
    scale: str
    replicas: int
    seed: int
    device: torch.device
    folder: Path
    root: Path | None = None
    resume: bool = False
    quiet: bool = False
    log: Any = None
    place: str = ""  # among several experiments
    piece: Piece = WHOLE  # of what each() makes
    tables: list[dict[str, Any]] = field(default_factory=list)
    figures: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # of training, by arm
    _whole: WholeBar | None = None

    # ── training ─────────────────────────────────────────────────────────────────────────────────

    def ensemble(self, make_model: Callable[[], nn.Module], repeats: int = 1) -> Ensemble:
        """This rank's share of the replicas, on the device."""
        ranks.share(self.replicas)  # refuses fewer replicas than processes
        return Ensemble(make_model, self.replicas, self.seed, repeats=repeats, mesh=ranks.mesh()).to(self.device)

    def single(self, make_model: Callable[[], nn.Module]) -> Ensemble:
        """One replica on every rank that no arm uses, to choose settings with."""
        return Ensemble(make_model, 1, self.seed, first=self.replicas + ranks.rank()).to(self.device)

    def first(self, make_model: Callable[[], nn.Module]) -> Ensemble:
        """The first of every rank's replicas, for an arm that is shown without a claim."""
        return Ensemble(make_model, 1, self.seed, first=ranks.share(self.replicas)[0]).to(self.device)

    def generators(self) -> list[torch.Generator]:
        """One per local replica, for its data; the same for every arm."""
        first, count = ranks.share(self.replicas)
        return [torch.Generator().manual_seed(self.seed * 1_000_003 + first + i) for i in range(count)]

    def fit(
        self,
        arm: str,
        ensemble: Ensemble,
        optimizer: Optimizer,
        loss: Loss,
        batches: Batches,
        steps: int,
        evaluate: Evaluate,
        evaluations: int = 40,
        after_epoch: Callable[[int], None] | None = None,
        compiled: Compiled | None = None,
        checkpoint_every: int | None = None,
    ) -> Fit:
        """Train one arm; an interrupted one continues from its checkpoint, a finished one is read from it."""
        checkpoint = self.checkpoint(f"{arm}-{ranks.rank()}")
        started = time.perf_counter()
        with self.progress(arm, steps) as progress:
            history = train(
                ensemble,
                optimizer,
                loss,
                batches,
                steps,
                evaluate=evaluate,
                evaluations=evaluations,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                after_epoch=after_epoch,
                compiled=compiled,
                progress=progress,
            )
        seconds = time.perf_counter() - started
        self.seconds[arm] = round(seconds, 2)
        residual = ranks.largest(max(optimizer.residuals()) if isinstance(optimizer, Langevin) else 0.0)
        curves = {name: ranks.gather(history[name].double().numpy(), ensemble.repeats) for name in history.values}
        fit = Fit(arm, np.array(history.steps), curves, ensemble, seconds, residual)
        self._log(fit)
        return fit

    def once(self, name: str, make: Callable[[], Array], shape: tuple[int, ...] | None = None) -> Array:
        """What ``make`` returns; a resumed run reads what the interrupted one had made, on every rank or on none.

        With its ``shape`` a plan can go on without it.
        """
        values: Array = self.checkpoints.per_rank(name, lambda: torch.from_numpy(np.asarray(make()))).numpy()
        return values

    def each(self, parts: Mapping[str, Callable[[], Array]], shape: tuple[int, ...]) -> dict[str, Array]:
        """:meth:`once` for parts that do not need each other; a run in pieces makes this piece's alone.

        Raises:
            Unfinished: if some of the others' are not here.
        """
        there = {name for name in parts if self.checkpoints.has_per_rank(name)}
        made = {
            name: self.once(name, make, shape)
            for place, (name, make) in enumerate(parts.items())
            if self.piece.has(place) or name in there
        }
        if missing := len(parts) - len(made):
            raise Unfinished(str(self.folder / checkpoints.FOLDER), self.piece, missing, len(parts))
        return made

    @property
    def checkpoints(self) -> ArtifactCache:
        """Artifacts of this run alone; those of an earlier run are ignored unless this one resumes."""
        return ArtifactCache(self.folder / checkpoints.FOLDER, fresh=not self.resume)

    def checkpoint(self, name: str) -> Path:
        """A file for :func:`holonom.training.train`; one of an earlier run is deleted unless this one resumes."""
        file = self.checkpoints.path(name)
        if not self.resume:
            file.unlink(missing_ok=True)
        return file

    @contextmanager
    def progress(self, title: str, total: int, unit: str = "step") -> Iterator[Callable[[int, int, Any], None]]:
        """A bar with the time left, on the first rank; call it with (done, total, history or None).

        Inside :meth:`whole` its part of that bar.
        """
        if self._whole is not None:
            with self._whole.part(title) as show:
                yield show
            return
        with bar(f"{self.place}{self.id} {title}", total, unit, self._silent) as shown:

            def show_steps(done: int, total: int, history: History | None = None) -> None:
                shown.set_postfix(latest(history), False)
                shown.update(done - shown.n)

            yield show_steps

    @contextmanager
    def whole(self, shares: Mapping[str, float]) -> Iterator[None]:
        """One bar over several trainings and what else calls :meth:`progress`: what each of them takes of the time.

        The shares need not add up to anything; a title that is not among them takes no part.
        """
        with bar(f"{self.place}{self.id}", 100, "%", self._silent) as shown:
            self._whole = WholeBar(shown, f"{self.place}{self.id}", shares)
            try:
                yield
                self._whole.finish()
            finally:
                self._whole = None

    @property
    def _silent(self) -> bool:
        return self.quiet or ranks.rank() > 0

    def _log(self, fit: Fit) -> None:
        if self.log is not None and ranks.rank() == 0:
            for metric, values in fit.curves.items():
                for step, row in zip(fit.steps, values, strict=True):
                    self.log.add_scalar(f"{self.id}/{fit.arm}/{metric}", float(np.nanmean(row)), int(step))

    # ── results ────────────────────────────────────────────────────────────────────────────────

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.tables.append({"title": title, "columns": list(columns), "rows": [list(row) for row in rows]})

    def summary(self, fits: Mapping[str, Measured], metrics: dict[str, str], title: str = "Final values") -> None:
        """A table of arms against metrics, mean ± standard deviation over runs; ``metrics`` maps keys to headings.

        Headings that end in "%" show values times 100.
        """
        rows = []
        for name, fit in fits.items():
            row: list[Any] = [name]
            for key, heading in metrics.items():
                values = fit.final(key) * (100 if heading.endswith("%") else 1)
                good = values[np.isfinite(values)]
                spread = f" ± {good.std(ddof=1):.3g}" if len(good) > 1 else ""
                row.append(f"{good.mean():.4g}{spread}" if len(good) else "diverged")
            row.append(f"{fit.residual:.0e}" if fit.residual else "–")
            rows.append(row)
        self.table(title, ["method", *metrics.values(), "constraint violation"], rows)

    def note(self, text: str) -> None:
        """A remark for the reader of the report."""
        self.notes.append(text)

    @contextmanager
    def figure(self, name: str, caption: str, colours: int | None = None, **options: Any) -> Iterator[Any]:
        """``with run.figure("curves", "…", ncols=2) as axes:`` — subplots saved as DIR/ID/name.png.

        With a number of ``colours`` the file is a quarter as large where colours change gradually.
        """
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(**{"layout": "constrained", "squeeze": False, **options})
        try:
            yield axes
            if ranks.rank() == 0:
                self.folder.mkdir(parents=True, exist_ok=True)
                path = self.folder / f"{name}.png"
                figure.savefig(path, dpi=140)
                if colours is not None:
                    from PIL import Image

                    with Image.open(path) as image:
                        reduced = image.convert("RGB").quantize(colours, dither=Image.Dither.NONE)
                    reduced.save(path, optimize=True)
            self.figures.append({"file": f"{name}.png", "caption": caption})
        finally:
            plt.close(figure)

    def curves(
        self, fits: Mapping[str, Measured], metric: str, heading: str, caption: str, epochs: int = 1, **axis: Any
    ) -> None:
        """Mean over runs against epochs (of ``epochs`` steps), with the band from the 10th to the 90th percentile."""
        with self.figure(f"curve-{metric}", caption, figsize=(7, 4.2)) as axes:
            panel = axes[0, 0]
            for fit in fits.values():
                x, values = fit.steps / epochs, fit.curves[metric]
                (line,) = panel.plot(x, np.nanmean(values, 1), label=fit.arm)
                if values.shape[1] > 2:
                    low, high = np.nanpercentile(values, [10, 90], axis=1)
                    panel.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
            panel.set(xlabel="epoch" if epochs > 1 else "step", ylabel=heading, **axis)
            panel.legend(frameon=False)

    def save_curves(self, fits: Mapping[str, Measured]) -> None:
        """All curves as curves.csv (arm, metric, step, run, value) and the last values as runs.csv."""
        curves = (
            (name, metric, int(step), run, value)
            for name, fit in fits.items()
            for metric, values in fit.curves.items()
            for step, row in zip(fit.steps, values, strict=True)
            for run, value in enumerate(row)
        )
        self.save_rows("curves.csv", ["arm", "metric", "step", "run", "value"], curves)
        metrics = list(next(iter(fits.values())).curves)
        finals = (
            (name, run, *row)
            for name, fit in fits.items()
            for run, row in enumerate(np.stack([fit.final(metric) for metric in metrics], 1))
        )
        self.save_rows("runs.csv", ["arm", "run", *metrics], finals)

    def save_rows(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A CSV file beside the result; numbers to six digits."""
        if ranks.rank() > 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / name, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows([f"{x:.6g}" if isinstance(x, (float, np.floating)) else x for x in row] for row in rows)


def accuracy_and_loss(loss: Loss, x: Tensor, y: Tensor, prefix: str, shared: bool) -> Evaluate:
    """Metrics ``{prefix}_loss`` and ``{prefix}_accuracy`` of a classifier on a fixed set."""

    def hits(output: Tensor, target: Tensor) -> Tensor:
        if target.is_floating_point():
            return ((output.squeeze(-1) > 0) == (target > 0.5)).float().mean()
        return (output.argmax(-1) == target).float().mean()

    def evaluate(ensemble: Ensemble) -> dict[str, Tensor]:
        output = ensemble(x, shared=shared)
        targets = (0, None if shared else 0)
        return {
            f"{prefix}_loss": torch.vmap(loss, targets)(output, y),
            f"{prefix}_accuracy": torch.vmap(hits, targets)(output, y),
        }

    return evaluate


def both(*evaluations: Evaluate) -> Evaluate:
    """Several evaluations as one."""
    return lambda ensemble: {k: v for one in evaluations for k, v in one(ensemble).items()}
