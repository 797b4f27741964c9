"""The kernel of spheres: a stage of a program on all rows of about one length in a bucket, in one launch.

A row stays in registers from the first letter to the last. Its entries are laid out in tiles of 128, as the noise is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .functions import four_normals

ROWS = 8  # rows of one program instance
LANES = (64, 256, 1024, 4096)
"""Kernels exist for rows of up to four times so many entries."""


@triton.jit
def normals_of_row(seed, step, first, stream, draw, LANE_COUNT: tl.constexpr):
    """Those of entries first + (0 … 4·lanes) in tiles of 128; ``first`` is a multiple of 128."""
    a, b, c, d = four_normals(seed, step, first // 4 + tl.arange(0, LANE_COUNT), stream, draw)
    return tl.join(tl.join(a, c), tl.join(b, d)).reshape(LANE_COUNT, 4)


@triton.jit
def normal_at(seed, step, index, stream, draw):
    """The normal of one entry."""
    lane = tl.arange(0, 1)
    a, b, c, d = four_normals(seed, step, index // 128 * 32 + index % 32 + lane, stream, draw)
    w = index // 32 % 4
    return tl.sum(tl.where(w == 0, a, tl.where(w == 1, b, tl.where(w == 2, c, d))))


@triton.jit
def step_rows(
    chunks,
    tensors,
    gradients,
    numbers,
    draws,
    seeds,
    clock,
    skip,
    partial,
    radii,
    sign,
    rounding,
    limit,
    radius_stride,
    numbers_stride,
    seeds_stride,
    LETTERS: tl.constexpr,
    NORMALS: tl.constexpr,
    LENGTH: tl.constexpr,
    SLACK: tl.constexpr,
    MOMENTUM: tl.constexpr,
    FORCE: tl.constexpr,
    DECAY: tl.constexpr,
    SKIP: tl.constexpr,
    ENERGY: tl.constexpr,
    TAKE_UP: tl.constexpr,
    WEIGHT: tl.constexpr,
    GRADIENT: tl.constexpr,
    LANE_COUNT: tl.constexpr,
    ROW_COUNT: tl.constexpr,
):
    """Letters on x = (w, ξ) and π = (p, p_ξ); arguments as those of :func:`.entries.step_entries`."""
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.load(chunks + 3 * chunk)
    replica = tl.load(chunks + 3 * chunk + 1)
    row = tl.load(chunks + 3 * chunk + 2)
    entry = tensors + 8 * tensor
    count = tl.load(entry + 4)
    stream = 2 * tl.load(entry + 5)
    length = tl.load(entry + 6)
    rows = count // length
    q_at = tl.load(entry).to(tl.pointer_type(WEIGHT)) + replica * count
    p_at = tl.load(entry + 1).to(tl.pointer_type(tl.float32)) + replica * count
    s_at = tl.load(entry + 2).to(tl.pointer_type(tl.float32)) + replica * rows
    t_at = tl.load(entry + 3).to(tl.pointer_type(tl.float32)) + replica * rows
    g_at = tl.load(gradients + tensor).to(tl.pointer_type(GRADIENT)) + replica * count
    column = tl.where(numbers_stride > 1, replica, 0)
    seed = tl.load(seeds + replica * seeds_stride)
    step = tl.load(clock)
    last = tl.minimum(row + ROW_COUNT, rows)
    if SKIP:
        last = tl.where(tl.load(skip) != 0, row, last)
    energy = 0.0
    lanes = tl.arange(0, LANE_COUNT)
    inner = ((lanes // 32) * 128 + lanes % 32)[:, None] + 32 * tl.arange(0, 4)[None, :]
    while row < last:
        first = row * length // 128 * 128
        at = first + inner
        mask = (at >= row * length) & (at < (row + 1) * length)
        r = tl.load(radii + (replica * rows + row) * radius_stride)
        q = tl.load(q_at + at, mask, 0.0).to(tl.float32)
        s = 0.0
        t = 0.0
        if MOMENTUM:
            p = tl.load(p_at + at, mask, 0.0)
        if SLACK:
            s = tl.load(s_at + row)
            if MOMENTUM:
                t = tl.load(t_at + row)
        if FORCE:
            f = sign * tl.load(g_at + at, mask, 0.0).to(tl.float32)
            if DECAY:
                f += tl.load(numbers + 2 * LENGTH * numbers_stride + column) * q
        if TAKE_UP:  # holonom.constraints.Sphere.adopt_: a row that was written from outside
            squares = tl.sum(q * q)
            differs = not (tl.abs((squares + s * s) / (r * r) - 1) <= 3.814697265625e-06 + 4 * rounding)
            if differs:
                if SLACK:
                    inside = (r * limit) * (r * limit)
                    if r * r - squares <= 9.5367431640625e-07 * r * r:
                        q *= tl.sqrt(inside / squares)
                        squares = inside
                    s = tl.where(s < 0, -tl.sqrt(r * r - squares), tl.sqrt(r * r - squares))
                else:
                    q *= tl.where(squares > 0, r / tl.sqrt(squares), 1.0)
                if MOMENTUM:
                    along = (tl.sum(q * p) + s * t) / (r * r)
                    p -= along * q
                    t -= along * s
        for i in tl.static_range(LENGTH):
            a = tl.load(numbers + 2 * i * numbers_stride + column)
            b = tl.load(numbers + (2 * i + 1) * numbers_stride + column)
            y = 0.0
            if ((NORMALS >> (4 * i)) & 15) > 0:
                draw = tl.load(draws + ((NORMALS >> (4 * i)) & 15) - 1)
                z = tl.where(mask, normals_of_row(seed, step, first, stream, draw, LANE_COUNT), 0.0)
                if SLACK:
                    y = normal_at(seed, step, row, stream + 1, draw)
            if ((LETTERS >> (4 * i)) & 15) == 1:  # A: the great circle
                speed2 = tl.sum(p * p) + t * t
                omega = tl.sqrt(speed2) / r
                angle = omega * a
                cosine = tl.cos(angle)
                small = tl.abs(angle) < 1e-3
                ratio = tl.sin(angle) / tl.where(small, 1.0, angle)
                sine = a * tl.where(small, 1 - angle * angle / 6, ratio)  # sin(ωh)/ω
                dot = tl.sum(q * p) + s * t
                size2 = cosine * cosine * (tl.sum(q * q) + s * s) + 2 * cosine * sine * dot + sine * sine * speed2
                scale = r / tl.sqrt(size2)
                back = omega * omega * sine
                moved, slack = scale * (cosine * q + sine * p), scale * (cosine * s + sine * t)
                p, t = cosine * p - back * q, cosine * t - back * s
                q, s = moved, slack
            elif ((LETTERS >> (4 * i)) & 15) == 2:  # B
                p -= a * f
                along = (tl.sum(q * p) + s * t) / (r * r)
                p -= along * q
                t -= along * s
            elif ((LETTERS >> (4 * i)) & 15) == 3:  # O, C, D, F
                p *= a
                t *= a
                if ((NORMALS >> (4 * i)) & 15) > 0:
                    along = (tl.sum(q * z) + s * y) / (r * r)
                    p += b * (z - along * q)
                    t += b * (y - along * s)
            else:  # L
                q -= a * f
                if ((NORMALS >> (4 * i)) & 15) > 0:
                    q += b * z
                    s += b * y
                scale = r / tl.sqrt(tl.sum(q * q) + s * s)
                q *= scale
                s *= scale
        tl.store(q_at + at, q.to(WEIGHT), mask)
        if SLACK:
            tl.store(s_at + row, s)
        if MOMENTUM:
            tl.store(p_at + at, p, mask)
            if SLACK:
                tl.store(t_at + row, t)
            if ENERGY:
                energy += tl.sum(p * p) + t * t
        row += 1
    if ENERGY:
        tl.store(partial + chunk, energy)
