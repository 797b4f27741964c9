"""The thread that trains. It makes frames when a page waits for one, and never waits for a page."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from . import diagnostics, frames
from .hub import Hub
from .run import Run
from .settings import Settings, read_settings

T = TypeVar("T")

FRAME_TIME = 1 / 30  # seconds between two frames, unless making them takes longer
SHARE_OF_FRAMES = 0.5  # of the time at most, while training goes on
SHARE_OF_DIAGNOSTICS = 0.15
FIELD_TIME = 0.010  # seconds for the fields of a frame
SIDES = (32, 40, 48, 64, 80, 96)  # of a field's grid
SPEEDS = (1, 5, 25, 100, 400, None)  # steps per second; None: as many as there are
_IDLE = 0.2

log = logging.getLogger(__name__)


class Engine:
    """One run, and who plays it. :meth:`call` is the only way in from other threads."""

    def __init__(self, settings: Settings, hub: Hub) -> None:
        self.hub = hub
        self.run = Run(settings)
        self.playing = False
        self.untouched = True  # nobody has played or changed anything yet
        self.speed: int | None = None
        self.version = 0  # of what there is to see
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="playground", daemon=True)
        self._stopping = False
        self._grid = frames.Grid()
        self._side = 3  # index into SIDES
        self._next_frame = 0.0
        self._next_diagnostic = 0.0
        self._turn = 0
        self._parts: dict[tuple[int, str], tuple[int, frames.Message]] = {}  # the step, and the latest of each kind
        self._credit = 0.0
        self._rate = Rate()
        self._problem = ""
        self._blind = False

    # ── from other threads ───────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self.call(lambda: None)
        self._thread.join(5)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function in the engine's thread, between two steps."""
        future: Future[T] = Future()
        self._calls.put((function, future))
        return future

    # ── what pages may ask for, in the engine's thread ───────────────────────────────────────────

    def play(self, on: bool) -> None:
        self.playing, self.untouched = on and self.run.going, False
        self._credit, self._problem = 0.0, ""
        self._rate.clear()
        self._say()

    def step(self) -> None:
        self.playing = self.untouched = False
        if self.run.going:
            self._train(1)
        self._say()

    def set_speed(self, speed: int | None) -> None:
        self.speed, self._credit = speed, 0.0
        self._say()

    def set(self, given: Any) -> None:
        """Take up settings: at once where they can be, else with a new run. Raises before anything has changed."""
        settings = read_settings(given, self.run.settings)
        self.untouched = False
        painted = settings.painted != self.run.settings.painted
        if not self.run.change(settings):
            self._begin(Run(settings, self.run.number + 1))
        elif painted:
            self.hub.send_plane(frames.plane(self.run))
        self._say()

    def reset(self) -> None:
        self._begin(self.run.again())
        self._say()

    def _begin(self, run: Run) -> None:
        self.run = run
        self.playing = self.playing and run.going
        self._parts.clear()
        self._rate.clear()
        self._problem, self._blind = "", False
        self.hub.send_plane(frames.plane(run))

    def _say(self) -> None:
        """Tell all pages the settings."""
        self.version += 1
        self._next_frame = 0.0
        state = {
            "kind": "state", "run": self.run.number, "settings": self.run.settings.to_json(), "playing": self.playing,
            "speed": self.speed, "untouched": self.untouched, "problem": self._problem,
        }  # fmt: skip
        self.hub.send_state(json.dumps(state, separators=(",", ":")))

    # ── the thread ───────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        torch.set_num_threads(1)  # the other cores are the browser's; scripts have one, too
        self.hub.send_plane(frames.plane(self.run))
        self._say()
        while not self._stopping:
            trained = self._answer() or self._advance()
            looked = self._look_safely()
            if not trained and not looked:
                self._wait()

    def _answer(self) -> bool:
        """Run the calls that have come."""
        found = False
        while not self._calls.empty():
            self._run_call(*self._calls.get())
            found = True
        return found

    def _wait(self) -> None:
        until = self._next_frame - time.perf_counter()
        timeout = max(0.004, min(_IDLE, until)) if self.playing else _IDLE / 10
        try:
            self._run_call(*self._calls.get(timeout=timeout))
        except queue.Empty:
            return

    def _run_call(self, function: Callable[[], Any], future: Future[Any]) -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    def _advance(self) -> bool:
        """Train until the next frame is due."""
        if not (self.playing and self.hub.pages):
            return False
        now = time.perf_counter()
        end = max(self._next_frame, now + 0.002)
        allowed = 1 << 30
        if self.speed is not None:
            self._credit = min(self._credit + self.speed * self._rate.since_last(now), max(1.0, self.speed * 0.2))
            allowed = int(self._credit)
            self._credit -= allowed
        taken = 0
        while taken < allowed and time.perf_counter() < end and self._calls.empty():
            if not self._train(1):
                break
            taken += 1
        self._rate.count(taken)
        return taken > 0

    def _train(self, steps: int) -> bool:
        try:
            for _ in range(steps):
                self.run.advance()
        except Exception as error:  # a fault of the run must not end the thread
            self._fail("training stopped", error)
            return False
        self.version += 1
        if not self.run.going:
            self.playing = False
            self._say()
            return False
        return True

    def _fail(self, what: str, error: Exception) -> None:
        log.exception(what)
        self.playing, self._problem = False, f"{what}: {error}. Reset, or change a setting."
        self._say()

    # ── what pages see ───────────────────────────────────────────────────────────────────────────

    def _look_safely(self) -> bool:
        if self._blind:
            return False
        try:
            return self._look()
        except Exception as error:
            self._blind = True  # until the next run
            self._fail("this run cannot be shown", error)
            return False

    def _look(self) -> bool:
        """Make a frame if one is due and some page waits for it, and one diagnostic if there is time for it."""
        start = time.perf_counter()
        if start < self._next_frame or not self.hub.pages:
            return False
        looked = self._diagnose(start) if self.run.has_data else False
        if self.hub.waiting(self.version):
            begin = time.perf_counter()
            self.hub.send_frame(self.frame(), self.version)
            spent = time.perf_counter() - begin
            looked = True
            rest = spent / SHARE_OF_FRAMES if self.playing else 0.0
            self._next_frame = start + max(FRAME_TIME, rest)
        return looked

    def _diagnose(self, now: float) -> bool:
        """Make the diagnostic that is oldest; at rest, all that do not show the present."""
        places = [(number, kind) for kind in diagnostics.KINDS for number in range(len(self.run.arms))]
        if self.playing:
            if now < self._next_diagnostic:
                return False
            self._turn = (self._turn + 1) % len(places)
            chosen = places[self._turn]
            if self._parts.get(chosen, (-1,))[0] == self.version_of_run:
                return False
        else:
            stale = [place for place in places if self._parts.get(place, (-1,))[0] != self.version_of_run]
            if not stale:
                return False
            chosen = stale[0]
        number, kind = chosen
        part = frames.Message(kind)
        part.header["content"] = diagnostics.KINDS[kind](self.run, number, part.put)
        part.header["step"] = self.run.step
        self._parts[chosen] = self.version_of_run, part
        spent = time.perf_counter() - now
        self._next_diagnostic = now + spent / SHARE_OF_DIAGNOSTICS
        self.version += 1
        return True

    @property
    def version_of_run(self) -> int:
        """Changes whenever a number of the run may have changed."""
        return self.run.step + (1 << 40) * len(self.run.changes)

    @property
    def settled(self) -> bool:
        """Whether all that is shown is of the present step."""
        places = len(self.run.arms) * len(diagnostics.KINDS)
        return len(self._parts) == places and all(s == self.version_of_run for s, _ in self._parts.values())

    def frame(self) -> bytes:
        """All there is to see now."""
        run = self.run
        message = frames.Message("frame", run=run.number, step=run.step, rate=self._rate.per_second())
        message.header["settled"] = self.settled and not self.playing
        message.header["arms"] = [self._arm(message, number) for number in range(len(run.arms))] if run.has_data else []
        return message.pack()

    def _arm(self, message: frames.Message, number: int) -> dict[str, Any]:
        run, arm = self.run, self.run.arms[number]
        begin = time.perf_counter()
        side = SIDES[self._side if self.playing else -1]
        shown = {"side": side, **frames.field(message, arm, self._grid.take(side, run.settings.bound))}
        if self.playing:
            self._adapt((time.perf_counter() - begin) * len(run.arms))
        parts = {}
        for (owner, kind), (_, part) in self._parts.items():
            if owner == number:
                parts[kind] = {**part.header, "base": len(message.arrays)}
                message.arrays += part.arrays
        numbers = frames.measure(run, number)
        return {
            "step": arm.step, "stopped": arm.stopped, "notes": run.notes[number], "numbers": numbers, "field": shown,
            "series": message.put(run.series[number].table()), "parts": parts,
        }  # fmt: skip

    def _adapt(self, spent: float) -> None:
        """A finer grid where fields take little time, a coarser one where they take long."""
        if spent > 1.5 * FIELD_TIME and self._side > 0:
            self._side -= 1
        elif spent < 0.4 * FIELD_TIME and self._side < len(SIDES) - 1:
            self._side += 1


class Rate:
    """Steps per second over the last second or so."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.marks: list[tuple[float, int]] = []
        self.total = 0
        self.last = time.perf_counter()

    def since_last(self, now: float) -> float:
        passed, self.last = now - self.last, now
        return passed

    def count(self, steps: int) -> None:
        self.total += steps
        now = time.perf_counter()
        self.marks.append((now, self.total))
        self.marks = [mark for mark in self.marks if mark[0] > now - 1.0] or self.marks[-1:]

    def per_second(self) -> float:
        (first, before), (last, after) = (self.marks[0], self.marks[-1]) if self.marks else ((0.0, 0), (0.0, 0))
        return (after - before) / (last - first) if last > first else 0.0
