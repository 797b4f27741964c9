"""The kernels of large spheres, such as whole matrices: a block is too long for one program instance.

Whatever the letters do, they add multiples of a block's position, momentum, gradient and normals. So one launch sums
the products of these five vectors, chunk by chunk; one runs the letters on their five coefficients, with the sums in
place of dot products; one adds the multiples up. No sum depends on the order in which instances run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .functions import four_normals
from .rows import normal_at

CHUNK = 4096  # entries of one program instance: 1024 lanes of four, laid out as in rows.py
SUMS = 16  # of a chunk: 15 products of five vectors, and one to spare
COLUMNS = 5  # of the table of chunks (tensor, replica, row, start, block), and of that of blocks
TERMS = 8  # coefficients of a position and of a momentum, five each, in a row of 2·TERMS


@triton.jit
def load_part(at, mask, w: tl.constexpr, q_at, p_at, g_at, MOMENTUM: tl.constexpr, FORCE: tl.constexpr):
    """Every w-th entry of position, momentum and gradient."""
    q = tl.load(q_at + at + 32 * w, mask, 0.0).to(tl.float32)
    p = q * 0.0
    g = q * 0.0
    if MOMENTUM:
        p = tl.load(p_at + at + 32 * w, mask, 0.0)
    if FORCE:
        g = tl.load(g_at + at + 32 * w, mask, 0.0).to(tl.float32)
    return q, p, g


@triton.jit
def draw_parts(draw, DRAWN: tl.constexpr, seed, step, first, stream, zero):
    """The normals of a chunk in four parts; zeros for a draw that the stage does not have."""
    if DRAWN:
        a, b, c, d = four_normals(seed, step, first, stream, draw)
    else:
        a, b, c, d = zero, zero, zero, zero
    return a, b, c, d


@triton.jit
def sum_products(
    chunks, tensors, gradients, draws, seeds, clock, products, seeds_stride,
    DRAWS: tl.constexpr, MOMENTUM: tl.constexpr, FORCE: tl.constexpr,
    WEIGHT: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """The products of every two of the five vectors, of one chunk."""
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.load(chunks + 5 * chunk)
    replica = tl.load(chunks + 5 * chunk + 1)
    row = tl.load(chunks + 5 * chunk + 2)
    start = tl.load(chunks + 5 * chunk + 3)
    entry = tensors + 12 * tensor
    count = tl.load(entry + 4)
    stream = 2 * tl.load(entry + 5)
    length = tl.load(entry + 6)
    q_at = tl.load(entry).to(tl.pointer_type(WEIGHT)) + replica * count
    p_at = tl.load(entry + 1).to(tl.pointer_type(tl.float32)) + replica * count
    g_at = tl.load(gradients + tensor).to(tl.pointer_type(GRADIENT)) + replica * count
    seed = tl.load(seeds + replica * seeds_stride)
    step = tl.load(clock)
    lanes = tl.arange(0, 1024)
    at = start + (lanes // 32) * 128 + lanes % 32
    zero = at.to(tl.float32) * 0.0
    first = draw_parts(tl.load(draws), DRAWS > 0, seed, step, start // 4 + lanes, stream, zero)
    second = draw_parts(tl.load(draws + 1), DRAWS > 1, seed, step, start // 4 + lanes, stream, zero)
    qq, qp, qg, qz, qy = zero, zero, zero, zero, zero
    pp, pg, pz, py = zero, zero, zero, zero
    gg, gz, gy = zero, zero, zero
    zz, zy, yy = zero, zero, zero
    for w in tl.static_range(4):
        mask = (at + 32 * w >= row * length) & (at + 32 * w < (row + 1) * length)
        q, p, g = load_part(at, mask, w, q_at, p_at, g_at, MOMENTUM, FORCE)
        z = tl.where(mask, first[w], 0.0)
        y = tl.where(mask, second[w], 0.0)
        qq += q * q
        qp += q * p
        qg += q * g
        qz += q * z
        qy += q * y
        pp += p * p
        pg += p * g
        pz += p * z
        py += p * y
        gg += g * g
        gz += g * z
        gy += g * y
        zz += z * z
        zy += z * y
        yy += y * y
    out = products + 16 * chunk  # all of them, so that none is left from a stage with other letters
    tl.store(out, tl.sum(qq))
    tl.store(out + 1, tl.sum(qp))
    tl.store(out + 2, tl.sum(qg))
    tl.store(out + 3, tl.sum(qz))
    tl.store(out + 4, tl.sum(qy))
    tl.store(out + 5, tl.sum(pp))
    tl.store(out + 6, tl.sum(pg))
    tl.store(out + 7, tl.sum(pz))
    tl.store(out + 8, tl.sum(py))
    tl.store(out + 9, tl.sum(gg))
    tl.store(out + 10, tl.sum(gz))
    tl.store(out + 11, tl.sum(gy))
    tl.store(out + 12, tl.sum(zz))
    tl.store(out + 13, tl.sum(zy))
    tl.store(out + 14, tl.sum(yy))


@triton.jit
def dot(x, y, products):
    """The dot product of two sums of the five vectors, by their coefficients."""
    return tl.sum(tl.sum(x[:, None] * products * y[None, :], 1), 0)


@triton.jit
def run_letters(
    blocks, tensors, numbers, draws, owed, seeds, clock, skip, products, terms, energies, sign, rounding, limit,
    radius_stride, numbers_stride, seeds_stride,
    LETTERS: tl.constexpr, NORMALS: tl.constexpr, LENGTH: tl.constexpr, SLACK: tl.constexpr, MOMENTUM: tl.constexpr,
    DECAY: tl.constexpr, SKIP: tl.constexpr, ENERGY: tl.constexpr, TAKE_UP: tl.constexpr,
):  # fmt: skip
    """The letters of :func:`.rows.step_rows` on the coefficients of one block, in double precision."""
    block = tl.program_id(0).to(tl.int64)
    tensor = tl.load(blocks + 5 * block)
    replica = tl.load(blocks + 5 * block + 1)
    row = tl.load(blocks + 5 * block + 2)
    start = tl.load(blocks + 5 * block + 3)
    chunks = tl.load(blocks + 5 * block + 4)
    entry = tensors + 12 * tensor
    stream = 2 * tl.load(entry + 5)
    rows = tl.load(entry + 4) // tl.load(entry + 6)
    s_at = tl.load(entry + 2).to(tl.pointer_type(tl.float32)) + replica * rows + row
    t_at = tl.load(entry + 3).to(tl.pointer_type(tl.float32)) + replica * rows + row
    r_at = tl.load(entry + 8).to(tl.pointer_type(tl.float32)) + (replica * rows + row) * radius_stride
    column = tl.where(numbers_stride > 1, replica, 0)
    seed = tl.load(seeds + replica * seeds_stride)
    step = tl.load(clock)
    i = tl.arange(0, 8)
    low = tl.minimum(i[:, None], i[None, :])
    high = tl.maximum(i[:, None], i[None, :])
    place = low * (9 - low) // 2 + high
    some = tl.arange(0, 32)
    gram = tl.zeros((32, 8, 8), tl.float64)
    for begin in range(0, chunks, 32):
        chunk = start + begin + some[:, None, None]
        mask = (high[None, :, :] < 5) & (begin + some[:, None, None] < chunks)
        gram += tl.load(products + 16 * chunk + place[None, :, :], mask, 0.0).to(tl.float64)
    gram = tl.sum(gram, 0)
    zero = i.to(tl.float64) * 0.0
    q = tl.where(i == 0, 1.0, zero)
    p = zero
    if MOMENTUM:
        p = tl.where(i == 1, 1.0, zero)
    f = tl.where(i == 2, sign, zero)
    if DECAY:
        f += tl.load(numbers + 2 * LENGTH * numbers_stride + column) * q
    r = tl.load(r_at).to(tl.float64)
    s = 0.0 * r
    t = 0.0 * r
    if SLACK:
        s = tl.load(s_at).to(tl.float64)
        if MOMENTUM:
            t = tl.load(t_at).to(tl.float64)
    if TAKE_UP:
        squares = dot(q, q, gram)
        differs = tl.abs((squares + s * s) / (r * r) - 1) <= 3.814697265625e-06 + 4 * rounding
        differs = differs == 0
        scale = tl.where(squares > 0, r / tl.sqrt(tl.where(squares > 0, squares, 1.0)), 1.0)
        if SLACK:
            inside = (r * limit) * (r * limit)
            at_rim = r * r - squares <= 9.5367431640625e-07 * r * r
            scale = tl.where(at_rim, tl.sqrt(inside / tl.where(at_rim, squares, 1.0)), 1.0)
            squares = tl.where(at_rim, inside, squares)
            root = tl.sqrt(tl.where(differs, r * r - squares, 0.0))
            s = tl.where(differs, tl.where(s < 0, -root, root), s)
        q = tl.where(differs, scale, 1.0) * q
        if MOMENTUM:
            along = tl.where(differs, (dot(q, p, gram) + s * t) / (r * r), 0.0)
            p -= along * q
            t -= along * s
    for k in tl.static_range(LENGTH):
        a = tl.load(numbers + 2 * k * numbers_stride + column).to(tl.float64)
        b = tl.load(numbers + (2 * k + 1) * numbers_stride + column).to(tl.float64)
        z = tl.where(i == 2 + ((NORMALS >> (4 * k)) & 15), 1.0, zero)
        y = 0.0 * r
        if ((NORMALS >> (4 * k)) & 15) > 0 and SLACK:
            draw = tl.load(draws + ((NORMALS >> (4 * k)) & 15) - 1)
            y = normal_at(seed, step, row, stream + 1, draw).to(tl.float64)
        if ((LETTERS >> (4 * k)) & 15) == 1:  # A: the great circle
            speed2 = dot(p, p, gram) + t * t
            omega = tl.sqrt(speed2) / r
            angle = omega * a
            cosine = tl.cos(angle)
            small = tl.abs(angle) < 1e-6
            sine = a * tl.where(small, 1.0, tl.sin(angle) / tl.where(small, 1.0, angle))  # sin(ωh)/ω
            size2 = dot(q, q, gram) + s * s
            size2 = cosine * cosine * size2 + 2 * cosine * sine * (dot(q, p, gram) + s * t) + sine * sine * speed2
            scale = r / tl.sqrt(size2)
            back = omega * omega * sine
            u, v = q, s
            q = scale * (cosine * u + sine * p)
            s = scale * (cosine * v + sine * t)
            p = cosine * p - back * u
            t = cosine * t - back * v
        elif ((LETTERS >> (4 * k)) & 15) == 2:  # B
            p -= (a + b * tl.load(owed).to(tl.float64)) * f
            along = (dot(q, p, gram) + s * t) / (r * r)
            p -= along * q
            t -= along * s
        elif ((LETTERS >> (4 * k)) & 15) == 3:  # O, C, D, F
            p = a * p
            t = a * t
            if ((NORMALS >> (4 * k)) & 15) > 0:
                along = (dot(q, z, gram) + s * y) / (r * r)
                p += b * (z - along * q)
                t += b * (y - along * s)
        else:  # L
            q -= a * f
            if ((NORMALS >> (4 * k)) & 15) > 0:
                q += b * z
                s += b * y
            scale = r / tl.sqrt(dot(q, q, gram) + s * s)
            q = scale * q
            s = scale * s
    tl.store(terms + 16 * block + i, q.to(tl.float32))
    if MOMENTUM:
        tl.store(terms + 16 * block + 8 + i, p.to(tl.float32))
        if ENERGY:
            tl.store(energies + block, (dot(p, p, gram) + t * t).to(tl.float32))
    if SLACK:
        written = True
        if SKIP:
            written = tl.load(skip) == 0
        tl.store(s_at, s.to(tl.float32), written)
        if MOMENTUM:
            tl.store(t_at, t.to(tl.float32), written)


@triton.jit
def add_terms(
    chunks, tensors, gradients, draws, seeds, clock, skip, terms, seeds_stride,
    DRAWS: tl.constexpr, MOMENTUM: tl.constexpr, FORCE: tl.constexpr, SKIP: tl.constexpr,
    WEIGHT: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """Position and momentum of one chunk, from the coefficients of its block."""
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.load(chunks + 5 * chunk)
    replica = tl.load(chunks + 5 * chunk + 1)
    row = tl.load(chunks + 5 * chunk + 2)
    start = tl.load(chunks + 5 * chunk + 3)
    of_block = terms + 16 * tl.load(chunks + 5 * chunk + 4)
    entry = tensors + 12 * tensor
    count = tl.load(entry + 4)
    stream = 2 * tl.load(entry + 5)
    length = tl.load(entry + 6)
    q_at = tl.load(entry).to(tl.pointer_type(WEIGHT)) + replica * count
    p_at = tl.load(entry + 1).to(tl.pointer_type(tl.float32)) + replica * count
    g_at = tl.load(gradients + tensor).to(tl.pointer_type(GRADIENT)) + replica * count
    seed = tl.load(seeds + replica * seeds_stride)
    step = tl.load(clock)
    lanes = tl.arange(0, 1024)
    at = start + (lanes // 32) * 128 + lanes % 32
    zero = at.to(tl.float32) * 0.0
    first = draw_parts(tl.load(draws), DRAWS > 0, seed, step, start // 4 + lanes, stream, zero)
    second = draw_parts(tl.load(draws + 1), DRAWS > 1, seed, step, start // 4 + lanes, stream, zero)
    end = (row + 1) * length
    if SKIP:
        end = tl.where(tl.load(skip) != 0, row * length, end)
    for w in tl.static_range(4):
        mask = (at + 32 * w >= row * length) & (at + 32 * w < end)
        q, p, g = load_part(at, mask, w, q_at, p_at, g_at, MOMENTUM, FORCE)
        z, y = first[w], second[w]
        moved = tl.load(of_block) * q + tl.load(of_block + 1) * p + tl.load(of_block + 2) * g
        moved += tl.load(of_block + 3) * z + tl.load(of_block + 4) * y
        tl.store(q_at + at + 32 * w, moved.to(WEIGHT), mask)
        if MOMENTUM:
            moved = tl.load(of_block + 8) * q + tl.load(of_block + 9) * p + tl.load(of_block + 10) * g
            moved += tl.load(of_block + 11) * z + tl.load(of_block + 12) * y
            tl.store(p_at + at + 32 * w, moved, mask)
