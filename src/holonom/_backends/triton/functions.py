"""Device functions that the kernels share: sines in turns, and the normals of :mod:`holonom._random.philox`.

Polynomials replace library sines, which would take longer than reading and writing the weights. Every absolute error
is below 2e-7 (tests compare with float64).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place_of(index, length, channels):
    """Where an entry lies in memory that has the channels of every stretch of ``length`` entries last."""
    width = length // channels
    rest = index % length
    return index - rest + rest % width * channels + rest // width


@triton.jit
def sine_and_cosine(turns):
    """sin 2πx and cos 2πx for |x| < 2²⁰. The nearest half turn is taken off, polynomials do the rest, |y| ≤ 1/4.

    The sum with 3·2²² rounds 2x to a whole number, whose last bit says whether signs change. That takes two additions,
    where conversions between floats and integers would run at a quarter of their rate.
    """
    rounded = 2 * turns + 12582912.0
    y = turns - 0.5 * (rounded - 12582912.0)
    w = y * y
    s = 39.13364028930664 * w - 76.49602508544922
    s = s * w + 81.59864807128906
    s = s * w - 41.341617584228516
    s = (s * w + 6.283185005187988) * y
    c = -24.538782119750977 * w + 60.07903289794922
    c = c * w - 85.4503402709961
    c = c * w + 64.93928527832031
    c = c * w - 19.739208221435547
    c = c * w + 1.0
    sign = rounded.to(tl.int32, bitcast=True) << 31
    s = (s.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)
    c = (c.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)
    return s, c


@triton.jit
def arc_sine(x):
    """asin(x)/2π for |x| ≤ 1: ¼ − √(1−|x|)·Q(|x|)."""
    a = tl.minimum(tl.abs(x), 1.0)
    q = 0.00011131235066593546 * a - 0.0006421248399275559
    q = q * a + 0.0017709106959941275
    q = q * a - 0.0033123566547131164
    q = q * a + 0.005190262973309222
    q = q * a - 0.008053877333689126
    q = q * a + 0.014169798802708602
    q = q * a - 0.03415484595123882
    q = q * a + 0.25
    turns = 0.25 - tl.sqrt(1 - a) * q
    return tl.where(x < 0, -turns, turns)


@triton.jit
def logarithm(x):
    """ln x of a normal number, to 2e-7 of itself: x = 2ᵉ(1 + y), |y| ≤ 1/3. tl.log looks for 0 and infinity, too."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F2AAAAB) & -0x800000  # e·2²³
    y = (bits - exponent).to(tl.float32, bitcast=True) - 1
    q = 0.13820241391658783 * y - 0.1512218415737152
    q = q * y + 0.14042308926582336
    q = q * y - 0.1647232621908188
    q = q * y + 0.20007920265197754
    q = q * y - 0.2500423789024353
    q = q * y + 0.3333326578140259
    q = (q * y - 0.5) * y
    return exponent.to(tl.float32) * 8.262958317573066e-08 + (q * y + y)


@triton.jit
def angle_of(y, x):
    """atan2(y, x)/2π, by the arc sine of the smaller coordinate, where that has all its digits."""
    size = tl.sqrt(x * x + y * y)
    inverse = 1 / tl.where(size > 0, size, 1.0)
    steep = tl.abs(y) > tl.abs(x)
    turns = arc_sine(tl.where(steep, tl.abs(x), tl.abs(y)) * inverse)
    turns = tl.where(steep, 0.25 - turns, turns)
    turns = tl.where(x < 0, 0.5 - turns, turns)
    return tl.where(y < 0, -turns, turns)


@triton.jit
def four_normals(seed, step, block, stream, draw):
    """The normals of elements 128·t + 32·w + j, w = 0 … 3, from block 32·t + j."""
    a, b, c, d = four_words(seed, step, block, stream, draw)
    first, second = normal_pair(a, b)
    third, fourth = normal_pair(c, d)
    return first, second, third, fourth


@triton.jit
def four_words(seed, step, block, stream, draw):
    block = block.to(tl.uint32)
    zero = block * 0
    counter = zero + step.to(tl.uint32), zero + stream.to(tl.uint32), zero + draw.to(tl.uint32)
    return tl.philox(seed, counter[0], block, counter[1], counter[2])


@triton.jit
def normal_pair(u, v):
    """Box–Muller of two 32-bit words."""
    uniform = (u.to(tl.uint32, bitcast=True).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    size = tl.sqrt(-2 * logarithm(uniform))
    sine, cosine = sine_and_cosine(v.to(tl.int32, bitcast=True).to(tl.float32) * 2.3283064365386963e-10)
    return size * cosine, size * sine
