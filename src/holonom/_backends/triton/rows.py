"""The kernel of spheres: a stage of a program on all rows of about one length in a bucket, in one launch.

A row stays in registers from the first letter to the last. Its entries are laid out in tiles of 128, as the noise is:
a lane has entries j, j + 32, j + 64 and j + 96 of its tile, whose normals come of one block. Vectors are four tensors
of lanes, because joining them to one would send every normal through shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .functions import four_normals, four_words, normal_pair, place_of, sine_and_cosine

ROWS = 4  # rows of one program instance
LANES = (64, 256, 1024, 4096)
"""Kernels exist for rows of up to four times so many entries. One of 32 lanes would be for rows of exactly 128."""


@triton.jit
def add_pairs(a, b, x, y):
    return a + x, b + y


@triton.jit
def add_triples(a, b, c, x, y, z):
    return a + x, b + y, c + z


@triton.jit
def dot(x0, x1, x2, x3, y0, y1, y2, y3):
    """Entry by entry, summed over the four parts: what is left is a sum over lanes."""
    return x0 * y0 + x1 * y1 + x2 * y2 + x3 * y3


@triton.jit
def normal_at(seed, step, index, stream, draw):
    """The normal of one entry."""
    a, b, c, d = four_words(seed, step, index // 128 * 32 + index % 32, stream, draw)
    w = index // 32 % 4
    first, second = normal_pair(tl.where(w < 2, a, c), tl.where(w < 2, b, d))
    return tl.where(w % 2 == 0, first, second)


@triton.jit
def four_places(row, at, length, channels, PERMUTED: tl.constexpr):
    """Where entries ``at``, ``at`` + 32, … of a row are. Constants that are added to addresses cost nothing."""
    if PERMUTED:
        first, second = row + place_of(at, length, channels), row + place_of(at + 32, length, channels)
        third, fourth = row + place_of(at + 64, length, channels), row + place_of(at + 96, length, channels)
    else:
        first = row + at
        second, third, fourth = first + 32, first + 64, first + 96
    return first, second, third, fourth


@triton.jit
def step_rows(
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
    PERMUTED: tl.constexpr,
    WEIGHT: tl.constexpr,
    GRADIENT: tl.constexpr,
    LANE_COUNT: tl.constexpr,
    ROW_COUNT: tl.constexpr,
):
    """Letters on x = (w, ξ) and π = (p, p_ξ); arguments as those of :func:`.entries.step_entries`.

    ``PERMUTED`` concerns weights and gradients. Momenta are kept row by row.
    """
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.load(chunks + 3 * chunk)
    replica = tl.load(chunks + 3 * chunk + 1)
    row = tl.load(chunks + 3 * chunk + 2)
    entry = tensors + 12 * tensor
    count = tl.load(entry + 4)
    stream = 2 * tl.load(entry + 5)
    length = tl.load(entry + 6).to(tl.int32)  # at most 4·LANE_COUNT
    rows = count // length
    channels = tl.load(entry + 7).to(tl.int32)
    q_at = tl.load(entry).to(tl.pointer_type(WEIGHT)) + replica * count
    p_at = tl.load(entry + 1).to(tl.pointer_type(tl.float32)) + replica * count
    s_at = tl.load(entry + 2).to(tl.pointer_type(tl.float32)) + replica * rows
    t_at = tl.load(entry + 3).to(tl.pointer_type(tl.float32)) + replica * rows
    r_at = tl.load(entry + 8).to(tl.pointer_type(tl.float32))
    g_at = tl.load(gradients + tensor).to(tl.pointer_type(GRADIENT)) + replica * count
    column = tl.where(numbers_stride > 1, replica, 0)
    seed = tl.load(seeds + replica * seeds_stride)
    step = tl.load(clock)
    last = tl.minimum(row + ROW_COUNT, rows)
    if SKIP:
        last = tl.where(tl.load(skip) != 0, row, last)
    if DECAY:
        decay = tl.load(numbers + 2 * LENGTH * numbers_stride + column)
    energy = 0.0
    lanes = tl.arange(0, LANE_COUNT)
    width = length.to(tl.uint32)
    while row < last:
        begin = row * length
        first = begin // 128 * 128
        # Numbers within a row take 32 bits. Negative ones are large as unsigned ones: one comparison checks both ends.
        at = lanes // 32 * 128 + lanes % 32 - (begin - first).to(tl.int32)
        m0 = at.to(tl.uint32, bitcast=True) < width
        m1 = (at + 32).to(tl.uint32, bitcast=True) < width
        m2 = (at + 64).to(tl.uint32, bitcast=True) < width
        m3 = (at + 96).to(tl.uint32, bitcast=True) < width
        r = tl.load(r_at + (replica * rows + row) * radius_stride)
        w0, w1, w2, w3 = four_places(q_at + begin, at, length, channels, PERMUTED)
        q0 = tl.load(w0, m0, 0.0).to(tl.float32)
        q1 = tl.load(w1, m1, 0.0).to(tl.float32)
        q2 = tl.load(w2, m2, 0.0).to(tl.float32)
        q3 = tl.load(w3, m3, 0.0).to(tl.float32)
        s = 0.0
        t = 0.0
        if MOMENTUM:
            v0, v1, v2, v3 = four_places(p_at + begin, at, length, channels, False)
            p0 = tl.load(v0, m0, 0.0)
            p1 = tl.load(v1, m1, 0.0)
            p2 = tl.load(v2, m2, 0.0)
            p3 = tl.load(v3, m3, 0.0)
        if SLACK:
            s = tl.load(s_at + row)
            if MOMENTUM:
                t = tl.load(t_at + row)
        if FORCE:
            f0, f1, f2, f3 = four_places(g_at + begin, at, length, channels, PERMUTED)
            f0 = sign * tl.load(f0, m0, 0.0).to(tl.float32)
            f1 = sign * tl.load(f1, m1, 0.0).to(tl.float32)
            f2 = sign * tl.load(f2, m2, 0.0).to(tl.float32)
            f3 = sign * tl.load(f3, m3, 0.0).to(tl.float32)
            if DECAY:
                f0 += decay * q0
                f1 += decay * q1
                f2 += decay * q2
                f3 += decay * q3
        if TAKE_UP:  # holonom.constraints.Sphere.adopt_: a row that was written from outside
            if MOMENTUM:
                squares, along = tl.reduce(
                    (dot(q0, q1, q2, q3, q0, q1, q2, q3), dot(q0, q1, q2, q3, p0, p1, p2, p3)), 0, add_pairs
                )
            else:
                squares = tl.sum(dot(q0, q1, q2, q3, q0, q1, q2, q3))
            # No branch: Triton 3.3 and 3.4 crash on one in a loop.
            agrees = tl.abs((squares + s * s) / (r * r) - 1) <= 3.814697265625e-06 + 4 * rounding
            scale = tl.where(squares > 0, r / tl.sqrt(squares), 1.0)
            if SLACK:
                inside = (r * limit) * (r * limit)
                at_rim = r * r - squares <= 9.5367431640625e-07 * r * r
                scale = tl.where(at_rim, tl.sqrt(inside / squares), 1.0)
                squares = tl.where(at_rim, inside, squares)
                root = tl.sqrt(r * r - squares)
                s = tl.where(agrees, s, tl.where(s < 0, -root, root))
            scale = tl.where(agrees, 1.0, scale)
            q0 *= scale
            q1 *= scale
            q2 *= scale
            q3 *= scale
            if MOMENTUM:
                along = tl.where(agrees, 0.0, (scale * along + s * t) / (r * r))
                p0 -= along * q0
                p1 -= along * q1
                p2 -= along * q2
                p3 -= along * q3
                t -= along * s
        for i in tl.static_range(LENGTH):
            a = tl.load(numbers + 2 * i * numbers_stride + column)
            b = tl.load(numbers + (2 * i + 1) * numbers_stride + column)
            y = 0.0
            if ((NORMALS >> (4 * i)) & 15) > 0:
                draw = tl.load(draws + ((NORMALS >> (4 * i)) & 15) - 1)
                z0, z1, z2, z3 = four_normals(seed, step, first // 4 + lanes, stream, draw)
                z0 = tl.where(m0, z0, 0.0)
                z1 = tl.where(m1, z1, 0.0)
                z2 = tl.where(m2, z2, 0.0)
                z3 = tl.where(m3, z3, 0.0)
                if SLACK:
                    y = normal_at(seed, step, row, stream + 1, draw)
            if ((LETTERS >> (4 * i)) & 15) == 1:  # A: the great circle
                speed2, across, squares = tl.reduce(
                    (
                        dot(p0, p1, p2, p3, p0, p1, p2, p3),
                        dot(q0, q1, q2, q3, p0, p1, p2, p3),
                        dot(q0, q1, q2, q3, q0, q1, q2, q3),
                    ),
                    0,
                    add_triples,
                )
                speed2 += t * t
                omega = tl.sqrt(speed2) / r
                angle = omega * a
                turns = angle * 0.15915494309189535
                sine, cosine = sine_and_cosine(turns - tl.floor(turns + 0.5))
                small = tl.abs(angle) < 1e-3
                ratio = sine / tl.where(small, 1.0, angle)
                sine = a * tl.where(small, 1 - angle * angle / 6, ratio)  # sin(ωh)/ω
                size2 = (
                    cosine * cosine * (squares + s * s) + 2 * cosine * sine * (across + s * t) + sine * sine * speed2
                )
                scale = r / tl.sqrt(size2)
                along, ahead = scale * cosine, scale * sine
                back = omega * omega * sine
                u0, u1, u2, u3, u = q0, q1, q2, q3, s
                q0 = along * u0 + ahead * p0
                q1 = along * u1 + ahead * p1
                q2 = along * u2 + ahead * p2
                q3 = along * u3 + ahead * p3
                s = along * u + ahead * t
                p0 = cosine * p0 - back * u0
                p1 = cosine * p1 - back * u1
                p2 = cosine * p2 - back * u2
                p3 = cosine * p3 - back * u3
                t = cosine * t - back * u
            elif ((LETTERS >> (4 * i)) & 15) == 2:  # B
                a += b * tl.load(owed).to(tl.float32)
                p0 -= a * f0
                p1 -= a * f1
                p2 -= a * f2
                p3 -= a * f3
                along = (tl.sum(dot(q0, q1, q2, q3, p0, p1, p2, p3)) + s * t) / (r * r)
                p0 -= along * q0
                p1 -= along * q1
                p2 -= along * q2
                p3 -= along * q3
                t -= along * s
            elif ((LETTERS >> (4 * i)) & 15) == 3:  # O, C, D, F
                p0 *= a
                p1 *= a
                p2 *= a
                p3 *= a
                t *= a
                if ((NORMALS >> (4 * i)) & 15) > 0:
                    along = (tl.sum(dot(q0, q1, q2, q3, z0, z1, z2, z3)) + s * y) / (r * r)
                    p0 += b * (z0 - along * q0)
                    p1 += b * (z1 - along * q1)
                    p2 += b * (z2 - along * q2)
                    p3 += b * (z3 - along * q3)
                    t += b * (y - along * s)
            else:  # L
                q0 -= a * f0
                q1 -= a * f1
                q2 -= a * f2
                q3 -= a * f3
                if ((NORMALS >> (4 * i)) & 15) > 0:
                    q0 += b * z0
                    q1 += b * z1
                    q2 += b * z2
                    q3 += b * z3
                    s += b * y
                scale = r / tl.sqrt(tl.sum(dot(q0, q1, q2, q3, q0, q1, q2, q3)) + s * s)
                q0 *= scale
                q1 *= scale
                q2 *= scale
                q3 *= scale
                s *= scale
        tl.store(w0, q0.to(WEIGHT), m0)
        tl.store(w1, q1.to(WEIGHT), m1)
        tl.store(w2, q2.to(WEIGHT), m2)
        tl.store(w3, q3.to(WEIGHT), m3)
        if SLACK:
            tl.store(s_at + row, s)
        if MOMENTUM:
            tl.store(v0, p0, m0)
            tl.store(v1, p1, m1)
            tl.store(v2, p2, m2)
            tl.store(v3, p3, m3)
            if SLACK:
                tl.store(t_at + row, t)
            if ENERGY:
                energy += tl.sum(dot(p0, p1, p2, p3, p0, p1, p2, p3)) + t * t
        row += 1
    if ENERGY:
        tl.store(partial + chunk, energy)
