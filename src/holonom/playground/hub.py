"""The pages that watch: each has one place for every kind of message, so that a slow page holds nothing up."""

from __future__ import annotations

import asyncio
from collections import deque
from threading import Lock

MOST_PAGES = 200
_MOST_PROBLEMS = 8


class Page:
    """What waits for one page. A newer message of a kind takes the place of an older one."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.loop = asyncio.get_running_loop()
        self.filled = asyncio.Event()
        self.state: str | None = None
        self.plane: bytes | None = None
        self.frame: bytes | None = None
        self.problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        self.ready = True  # it has drawn the last frame
        self.shown = -1  # the version of that frame

    async def take(self) -> list[str | bytes]:
        """What has come, in the order in which it is to be read; waits for something."""
        await self.filled.wait()
        self.filled.clear()
        with self.hub.lock:
            found = [self.state, self.plane, *self.problems, self.frame]
            self.state = self.plane = self.frame = None
            self.problems.clear()
        return [message for message in found if message is not None]

    def wake(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.filled.set)


class Hub:
    """Hands messages of the engine's thread to all pages."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.pages: set[Page] = set()
        self.state: str | None = None
        self.plane: bytes | None = None

    def join(self) -> Page | None:
        """A new page, which gets what all have got; None if there are too many."""
        page = Page(self)
        with self.lock:
            if len(self.pages) >= MOST_PAGES:
                return None
            page.state, page.plane = self.state, self.plane
            self.pages.add(page)
        page.wake()
        return page

    def leave(self, page: Page) -> None:
        with self.lock:
            self.pages.discard(page)

    def waiting(self, version: int) -> bool:
        """Whether a page could draw this version."""
        with self.lock:
            return any(page.ready and page.shown != version for page in self.pages)

    def send_state(self, state: str) -> None:
        with self.lock:
            self.state = state
            for page in self.pages:
                page.state = state
                page.wake()

    def send_plane(self, plane: bytes) -> None:
        with self.lock:
            self.plane = plane
            for page in self.pages:
                page.plane = plane
                page.wake()

    def send_frame(self, frame: bytes, version: int) -> None:
        with self.lock:
            for page in self.pages:
                if page.ready and page.shown != version:
                    page.frame, page.ready, page.shown = frame, False, version
                    page.wake()

    def drawn(self, page: Page) -> None:
        with self.lock:
            page.ready = True

    def tell(self, page: Page, problem: str) -> None:
        with self.lock:
            page.problems.append(problem)
        page.wake()
