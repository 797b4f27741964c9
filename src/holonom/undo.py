"""Undoing on a device what turns out to be bad, without asking it.

A device that found something bad must write what was there before. NaN times zero is NaN, but its bits times zero are
zero: seen as integers, x·good + before·bad is exactly one of the two, in a few launches for all tensors of a kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

from .lists import Tensors

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an entry


class Undo:
    """What tensors were when this was made."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        kinds: defaultdict[tuple[torch.device, torch.dtype], Tensors] = defaultdict(list)
        self._others = []
        for x in tensors:
            if type(x) in (Tensor, Parameter) and not x.is_neg():
                bits = _BITS[x.element_size()]
                kinds[x.device, bits].append(x.view(bits))
            else:  # one that stands for others may not have bits, or not its own
                self._others.append((x, x.clone()))
        self._kinds = [(xs, list(torch._foreach_mul(xs, 1))) for xs in kinds.values()]

    def where_(self, bad: Tensor) -> None:
        """Put everything back if ``bad``, a boolean on the device. Once.

        All is done in place: memory must not run out here, where bad numbers are still in the tensors. These may
        share memory, so that nothing is added to them.
        """
        for now, before in self._kinds:
            flag = bad.to(now[0].device, now[0].dtype)
            torch._foreach_mul_(now, 1 - flag)
            torch._foreach_mul_(before, flag)
            torch._foreach_add_(before, now)
            torch._foreach_copy_(now, before)
        for x, was in self._others:
            x.copy_(torch.where(bad.to(x.device), was, x))

    def everything_(self) -> None:
        for now, before in self._kinds:
            torch._foreach_copy_(now, before)
        for x, was in self._others:
            x.copy_(was)
