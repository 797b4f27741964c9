"""Progress bars: one for a training, or one for all of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..training import History

WHOLE = "{desc} {percentage:3.0f} %|{bar}| {elapsed}, {left} left{postfix}"
KNOWN = 3.0  # percent; a bar that is less far does not say what is left: compiling has taken most of its time
Show = Callable[..., None]


@contextmanager
def bar(title: str, total: float, unit: str, silent: bool) -> Iterator[Any]:
    """A bar of tqdm; one in percent shows times instead of a rate."""
    from tqdm import tqdm

    class Percent(tqdm):  # type: ignore[misc]
        @property
        def format_dict(self) -> dict[str, Any]:
            found = super().format_dict
            left, rate = found["total"] - found["n"], found["rate"]
            known = left == 0 or (found["n"] >= KNOWN and rate)
            return {**found, "left": tqdm.format_interval(left / (rate or 1.0)) if known else "?"}

    kind = Percent if unit == "%" else tqdm
    percent: dict[str, Any] = {"bar_format": WHOLE} if unit == "%" else {"unit_scale": True}
    shown = kind(total=total, desc=title, unit=unit, mininterval=0.5, disable=silent, dynamic_ncols=True, **percent)
    try:
        yield shown
    finally:
        shown.close()


def latest(history: History | None) -> dict[str, str]:
    """The first two metrics at the last evaluation, averaged over runs."""
    if history is None:
        return {}
    return {name: f"{float(values[-1].mean()):.3g}" for name, values in list(history.values.items())[:2]}


class WholeBar:
    """A bar in percent, to which every part contributes its share of the time."""

    def __init__(self, shown: Any, title: str, shares: Mapping[str, float]) -> None:
        self._shown, self._title = shown, title
        total = sum(shares.values())
        self._percent = {name: 100 * share / total for name, share in shares.items()}
        self._done = 0.0  # percent, of the parts before

    @contextmanager
    def part(self, name: str) -> Iterator[Show]:
        """The progress of one part: call it with (done, total, history or None)."""
        share = self._percent.pop(name, 0.0)
        self._shown.set_description_str(f"{self._title} {name}", refresh=True)

        def show(done: int, total: int, history: History | None = None) -> None:
            self._to(self._done + share * done / total)

        yield show
        self._done += share
        self._to(self._done)

    def finish(self) -> None:
        self._shown.set_description_str(self._title, refresh=False)
        self._to(self._shown.total)

    def _to(self, percent: float) -> None:
        self._shown.update(percent - self._shown.n)
