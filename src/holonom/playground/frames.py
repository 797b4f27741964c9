"""Messages to the page: a header in JSON, then arrays.

4 bytes   length n of the header, little endian
n bytes   the header, padded with spaces to a multiple of four; "arrays" lists [type, length] of what follows
…         the arrays, each padded to a multiple of four bytes
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .diagnostics import as_array, finite
from .recipe import Arm
from .run import NUMBERS, Run

LARGEST_LOGIT = 32.0

TYPES = {"float32": "f4", "uint8": "u1"}


class Message:
    """A header to be filled, and arrays that it refers to by number."""

    def __init__(self, kind: str, **header: Any) -> None:
        self.header: dict[str, Any] = {"kind": kind, **header}
        self.arrays: list[np.ndarray[Any, Any]] = []

    def put(self, values: Any) -> int:
        self.arrays.append(as_array(values))
        return len(self.arrays) - 1

    def pack(self) -> bytes:
        listed = [[TYPES[array.dtype.name], array.size] for array in self.arrays]
        text = json.dumps({**self.header, "arrays": listed}, allow_nan=False, separators=(",", ":")).encode()
        head = _padded(text, b" ")
        little = [array.astype(array.dtype.newbyteorder("<"), copy=False) for array in self.arrays]
        parts = [_padded(array.tobytes(), b"\0") for array in little]
        return b"".join([len(head).to_bytes(4, "little"), head, *parts])


def _padded(content: bytes, by: bytes) -> bytes:
    return content + by * (-len(content) % 4)


def plane(run: Run) -> bytes:
    """The points, sent when they change."""
    message = Message("plane", run=run.number, bound=run.settings.bound)
    if run.has_data:
        parts = {"train": (run.x, run.y), "test": (run.x_test, run.y_test)}
        message.header |= {name: message.put(torch.cat([x, y[:, None]], 1)) for name, (x, y) in parts.items()}
    return message.pack()


class Grid:
    """Points of the plane shown, ``side`` × ``side``, y outside and downwards."""

    def __init__(self) -> None:
        self.key: tuple[int, float] | None = None
        self.points = torch.empty(0)

    def take(self, side: int, bound: float) -> Tensor:
        if self.key != (side, bound):
            self.key = side, bound
            along = torch.linspace(-bound, bound, side)
            y, x = torch.meshgrid(-along, along, indexing="ij")
            self.points = torch.stack([x.flatten(), y.flatten()], 1)
        return self.points


@torch.no_grad()
def field(message: Message, arm: Arm, points: Tensor) -> dict[str, int]:
    """The logits on a grid; of replicas the logit of the mean probability, and the standard deviation of theirs.

    Logits are not rounded: near the start a network's outputs may differ by less than 1e-3 over the whole plane, and
    the boundary lies where they change sign.
    """
    logits = arm.model(points).squeeze(-1).nan_to_num(0.0)
    found = {}
    if logits.ndim == 2:
        probability = torch.sigmoid(logits.double())
        found["spread"] = message.put((255 * 2 * probability.std(0)).clamp(0, 255).to(torch.uint8))  # at most ½
        logits = torch.logit(probability.mean(0))
    return {"logits": message.put(logits.clamp(-LARGEST_LOGIT, LARGEST_LOGIT)), **found}


def measure(run: Run, number: int) -> dict[str, Any]:
    """Mean and standard deviation over replicas of every number of an arm, which its series takes up."""
    arm = run.arms[number]
    found = {}
    for name, values in run.numbers(arm).items():
        several = values.ndim == 1
        found[name] = float(values.mean()), float(values.std()) if several else 0.0
    run.series[number].add(run.step, [found[name][0] for name in NUMBERS])
    return {name: [finite(value) for value in pair] for name, pair in found.items()}
