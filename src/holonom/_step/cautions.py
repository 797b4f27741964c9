"""What a group's settings do not reach, temperatures or small steps: refused if nothing would move, else said once."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from .._lines import users_line
from .accuracy import loses_its_kick, position_temperature
from .letters import damping, plain

TOLERATED = 0.02  # relative error of the positions' temperature

Group = dict[str, Any]


def refuse_lost_kick(group: Group) -> None:
    """Raise where infinite friction takes every kick before it moves anything."""
    momentum = group.get("momentum")
    found = _on_host(group["friction"] if momentum is None else momentum)
    infinite = found is not None and bool(_any(found == (math.inf if momentum is None else 0.0)))
    if infinite and loses_its_kick(group["scheme"]):
        name = "friction=inf" if momentum is None else "momentum=0"
        raise ValueError(
            f"scheme {group['scheme']!r} with {name} draws the momentum anew between every kick and the drift behind "
            f"it, so the gradient would never move a parameter; write scheme='BAOAB', or a finite friction"
        )


def warn_once(groups: dict[int, Group], said: set[str]) -> None:
    """Warn about positions off their temperature, temperatures that draw no noise, and weights that round steps away.

    ``groups`` by number; ``said`` holds what was warned about before. Tensors on a device are not read.
    """
    for kind, find in {"word": _off_temperature, "noise": _without_noise, "rounding": _rounds_away}.items():
        found = {} if kind in said else {number: find(group) for number, group in groups.items()}
        texts = {number: text for number, text in found.items() if text}
        if texts:
            said.add(kind)
            first = next(iter(texts.values()))
            same = [str(number) for number, text in texts.items() if text == first]
            more = f" (and alike in {len(texts) - len(same)} more groups)" if len(texts) > len(same) else ""
            warnings.warn(f"group {', '.join(same)}: {first}{more}", stacklevel=users_line())


def _off_temperature(group: Group) -> str | None:
    if group.get("momentum") is not None:
        return None  # its noise is drawn for the positions
    h, friction, tau = (_on_host(group[name]) for name in ("lr", "friction", "temperature"))
    if h is None or friction is None or tau is None or not _any(tau > 0):
        return None
    left = damping(friction, h * group.get("every", 1))
    ratio = position_temperature(group["scheme"], left)
    lefts, ratios = (torch.as_tensor(x, dtype=torch.float64) for x in (left, ratio))
    errors = torch.where(torch.as_tensor(tau) > 0, (ratios - 1).abs(), 0.0).nan_to_num(nan=0.0)  # NaN: no claim
    worst = int(errors.argmax())
    if errors.flatten()[worst] <= TOLERATED:
        return None
    size, off = (float(x.expand_as(errors).flatten()[worst]) for x in (-lefts.log(), ratios))
    more = "; Langevin.like_sgd(params, lr, momentum) draws OBA's noise for its positions"
    return (
        f"scheme {group['scheme']!r} at friction·lr = {size:.3g} samples positions at {off:.3g} × the temperature it "
        f"is given, although its momenta (temperatures()) are at 1 ×. Write scheme='BAOAB', whose positions are right, "
        f"or lower friction·lr{more if group['scheme'] == 'OBA' else ''}"
    )


def _without_noise(group: Group) -> str | None:
    word, tau = group["scheme"], _on_host(group["temperature"])
    if set(word) & set("LM") or group.get("momentum") is not None or tau is None or not _any(tau > 0):
        return None
    driving = "thermostat_friction" if group["driving_noise"] is None else "driving_noise"
    sources = {"O": "friction", "D": driving, "F": driving}
    names = list(dict.fromkeys(sources[letter] for letter in word if letter in sources))
    sizes = [None if group[name] is None else _on_host(group[name]) for name in names]
    known = [x for x in sizes if x is not None]
    if len(known) < len(sizes) or not _any((tau > 0) & (sum(known) == 0)):
        return None
    why = " and ".join(f"{name}=0" for name in names) if names else f"scheme {word!r} has no letter that draws it"
    role = " (it is the thermostat's target only, which need not be reached without noise)" if "E" in word else ""
    what = f"a positive {' or '.join(names)}" if names else "scheme='BAOAB' with a friction"
    return (
        f"a temperature above 0 draws no noise, because {why}{role}. To sample, write {what}; to train without noise, "
        f"temperature=0"
    )


def _rounds_away(group: Group) -> str | None:
    """Of half precision without a master copy. Circles have one: the angle."""
    narrow = {dtype for dtype in {p.dtype for p in group["params"]} if dtype.itemsize < 4}
    if not narrow or str(group["constraint"]).startswith("Circle"):
        return None
    dtype = max(narrow, key=lambda dtype: torch.finfo(dtype).eps)
    return (
        f"{str(dtype).removeprefix('torch.')} weights are rounded to themselves by changes below "
        f"{torch.finfo(dtype).eps / 2:.2g} of their size, so small steps and small noise are lost. Keep float32 "
        f"weights and run the model under torch.autocast; a Circle keeps its weights' angles in float32"
    )


def _on_host(value: Any) -> Any:
    """A float, a tensor of the host, or None for a tensor of a device, which is not read."""
    value = plain(value)
    return None if isinstance(value, Tensor) and value.device.type != "cpu" else value


def _any(condition: Any) -> bool:
    return bool(condition.any()) if isinstance(condition, Tensor) else bool(condition)
