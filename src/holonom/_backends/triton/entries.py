"""The kernel of spaces that act entry by entry: a stage of a program on all tensors of a bucket, in one launch.

A program instance has one chunk of one replica of one tensor. Where tensors lie is read from tables, so that new shapes
and numbers need no new kernel. See :class:`holonom._backends.triton.tables.Table` for the tables.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .functions import angle_of, arc_sine, four_normals, place_of, sine_and_cosine

CHUNK = 1024  # entries of one program instance: 256 blocks of four normals
LETTER = {letter: code for code, letter in enumerate("ABOLM", start=1)} | dict.fromkeys("CDF", 3)
"""The code of a letter. C, D and F are O with other coefficients."""


@triton.jit
def take_up(agrees, ratio, s, sine, cosine, limit):
    """Angle, sine and cosine of the weights that do not agree with theirs. Angles stay on their half of the circle."""
    at_rim = tl.abs(ratio) >= 1 - 4.76837158203125e-07
    ratio = tl.where(at_rim, tl.where(ratio < 0, -limit, limit), ratio)
    turns = arc_sine(ratio)
    behind = tl.abs(s) > 0.25
    turns = tl.where(behind, tl.where(turns < 0, -0.5, 0.5) - turns, turns)
    across = tl.sqrt(1 - ratio * ratio)
    across = tl.where(behind, -across, across)
    return tl.where(agrees, s, turns), tl.where(agrees, sine, ratio), tl.where(agrees, cosine, across)


@triton.jit
def step_entries(
    chunks,
    tensors,
    gradients,
    numbers,
    draws,
    owed,
    seeds,
    clock,
    skip,
    partial,
    sign,
    radius,
    limit,
    rounding,
    tiny,
    numbers_stride,
    seeds_stride,
    LETTERS: tl.constexpr,
    NORMALS: tl.constexpr,
    LENGTH: tl.constexpr,
    CIRCLE: tl.constexpr,
    RADII: tl.constexpr,
    MOMENTUM: tl.constexpr,
    FORCE: tl.constexpr,
    DECAY: tl.constexpr,
    SKIP: tl.constexpr,
    ENERGY: tl.constexpr,
    FINISH: tl.constexpr,
    TAKE_UP: tl.constexpr,
    SIZE: tl.constexpr,
    PERMUTED: tl.constexpr,
    WEIGHT: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    """Letters on q, p and, on circles, the angle s in turns.

    ``LETTERS`` has four bits a letter, from the lowest on; ``NORMALS`` says in the same way which draw of the stage a
    letter takes (0: none). ``numbers`` has two coefficients a letter and the weight decay, ``numbers_stride`` apart by
    rows and one replica apart by columns (``numbers_stride`` 1: the same for all); those of a kick are its time and the
    share of ``owed`` that is added to it. A gradient is that of the positions before the step, so B and L stand before
    the first A and see the angle that was loaded. Chunks and noise go by the logical order of entries; ``PERMUTED``
    where memory has another one. ``RADII``: entry i of all replicas has radius (i // inner) % period of those in the
    table, instead of ``radius``.
    """
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.load(chunks + 3 * chunk)
    replica = tl.load(chunks + 3 * chunk + 1)
    start = tl.load(chunks + 3 * chunk + 2)
    entry = tensors + 12 * tensor
    count = tl.load(entry + 4)
    before = tl.load(entry + 9)
    q_at = tl.load(entry).to(tl.pointer_type(WEIGHT)) + replica * count
    p_at = tl.load(entry + 1).to(tl.pointer_type(tl.float32)) + replica * count
    s_at = tl.load(entry + 2).to(tl.pointer_type(tl.float32)) + replica * count
    g_at = tl.load(gradients + tensor).to(tl.pointer_type(GRADIENT)) + replica * count
    if PERMUTED:
        length = tl.load(entry + 6)
        channels = tl.load(entry + 7)
    if RADII:
        shift = replica * count - before
        r_at = tl.load(entry + 8).to(tl.pointer_type(tl.float32))
        inner = tl.load(entry + 10)
        period = tl.load(entry + 11)
    column = tl.where(numbers_stride > 1, replica, 0)
    lanes = tl.arange(0, SIZE // 4)
    offset = lanes // 32 * 128 + lanes % 32
    low = tl.maximum(before - start, 0).to(tl.int32)  # what the chunk has of the tensor
    high = tl.minimum(count - start, SIZE).to(tl.int32)
    if SKIP:
        high = tl.where(tl.load(skip) != 0, 0, high)
    if NORMALS > 0:
        seed = tl.load(seeds + replica * seeds_stride)
        step = tl.load(clock)
        stream = 2 * tl.load(entry + 5)
        block = start // 4 + lanes
        first = four_normals(seed, step, block, stream, tl.load(draws))
        if CIRCLE and LETTERS == 4:  # L, whose noise moves both coordinates
            second = four_normals(seed, step, block, stream + 1, tl.load(draws))
        elif NORMALS >= 0:  # two draws at most: a stage with more takes several launches
            second = four_normals(seed, step, block, stream, tl.load(draws + 1))
    coefficients = ()  # loaded once: the compiler cannot know that stores leave them alone
    for i in tl.static_range(LENGTH):
        a = tl.load(numbers + 2 * i * numbers_stride + column)
        b = tl.load(numbers + (2 * i + 1) * numbers_stride + column)
        if ((LETTERS >> (4 * i)) & 15) == 2:  # B
            a += b * tl.load(owed).to(tl.float32)
        elif ((LETTERS >> (4 * i)) & 15) == 1 and (CIRCLE and not RADII):  # A
            a /= 6.283185307179586 * radius
        coefficients += (a, b)  # type: ignore[assignment]
    if DECAY:
        decay = tl.load(numbers + 2 * LENGTH * numbers_stride + column)
    energy = 0.0
    for w in tl.static_range(4):
        mask = (offset + 32 * w >= low) & (offset + 32 * w < high)
        at = start + offset + 32 * w
        r = radius
        if RADII:
            r = tl.load(r_at + (shift + at) // inner % period, mask, 1.0)
        if PERMUTED:
            at = place_of(at, length, channels)
        q = tl.load(q_at + at, mask, 0.0).to(tl.float32)
        if MOMENTUM:
            p = tl.load(p_at + at, mask, 0.0)
        if CIRCLE:
            s = tl.load(s_at + at, mask, 0.0)
            sine, cosine = sine_and_cosine(s)
            if TAKE_UP:  # holonom.constraints.Circle.adopt_: where a weight was written from outside, its angle follows
                agrees = tl.abs(q - r * sine) <= 4.76837158203125e-07 * r + rounding * (tl.abs(r * sine) + tiny)
                s, sine, cosine = take_up(agrees, q / r, s, sine, cosine, limit)
        if FORCE:
            f = sign * tl.load(g_at + at, mask, 0.0).to(tl.float32)
            if DECAY:
                f += decay * q
        for i in tl.static_range(LENGTH):
            a, b = coefficients[2 * i], coefficients[2 * i + 1]
            if ((NORMALS >> (4 * i)) & 15) == 1:
                z = first[w]
            elif ((NORMALS >> (4 * i)) & 15) == 2:
                z = second[w]
            if ((LETTERS >> (4 * i)) & 15) == 1:  # A
                if RADII:
                    s += a / (6.283185307179586 * r) * p
                elif CIRCLE:
                    s += a * p
                else:
                    q += a * p
            elif ((LETTERS >> (4 * i)) & 15) == 2:  # B
                if CIRCLE:
                    p -= a * (cosine * f)
                else:
                    p -= a * f
            elif ((LETTERS >> (4 * i)) & 15) == 3:  # O, C, D, F
                p *= a
                if ((NORMALS >> (4 * i)) & 15) > 0:
                    p += b * z
            elif ((LETTERS >> (4 * i)) & 15) == 4:  # L
                if CIRCLE:
                    x, y = r * sine - a * f, r * cosine
                    if ((NORMALS >> (4 * i)) & 15) > 0:
                        x += b * z
                        y += b * second[w]
                    s = angle_of(x, y)
                else:
                    q -= a * f
                    if ((NORMALS >> (4 * i)) & 15) > 0:
                        q += b * z
            else:  # M
                q -= a * f
                if ((NORMALS >> (4 * i)) & 15) > 0:
                    q += b / 2 * (p + z)
                    p = z
        if CIRCLE:
            if FINISH:
                s -= tl.floor(s + 0.5)
                sine, _ = sine_and_cosine(s)
                tl.store(q_at + at, (r * sine).to(WEIGHT), mask)
            tl.store(s_at + at, s, mask)
        else:
            tl.store(q_at + at, q.to(WEIGHT), mask)
        if MOMENTUM:
            tl.store(p_at + at, p, mask)
            if ENERGY:
                energy += tl.sum(tl.where(mask, p * p, 0.0))
    if ENERGY:
        tl.store(partial + chunk, energy)


@triton.jit
def find_non_finite(chunks, tensors, gradients, flag, GRADIENT: tl.constexpr, SIZE: tl.constexpr):
    """Set the flag if an entry of a gradient is NaN or infinite."""
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.load(chunks + 3 * chunk)
    count = tl.load(tensors + 12 * tensor + 4)
    at = tl.load(chunks + 3 * chunk + 2) + tl.arange(0, SIZE)
    g_at = tl.load(gradients + tensor).to(tl.pointer_type(GRADIENT)) + tl.load(chunks + 3 * chunk + 1) * count
    here = (at >= tl.load(tensors + 12 * tensor + 9)) & (at < count)
    g = tl.load(g_at + at, here, 0.0).to(tl.float32)
    finite = tl.abs(g) < float("inf")
    if tl.min(finite.to(tl.int32)) == 0:
        tl.store(flag, 1)
