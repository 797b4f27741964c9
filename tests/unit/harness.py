"""One experiment read twice: by the library and by the oracle, on the same gradients and the same normals.

The oracle takes two gradients a step, the library one: positions agree after every step, momenta after
``synchronize()``. States are tuples with the position first, in the oracle's layout.
"""

import numpy as np
import torch

from tests import oracle

STEPSIZES = (0.1, 0.25, 0.05, 0.2, 0.15, 0.12)  # another one at every step: a closing kick lasts for the old one
PHYSICS = {"friction": 0.7, "temperature": 0.3, "coupling": 0.2, "driving_noise": 0.5}
THERMOSTATS = ("BACDEDCAB", "BAFEFAB", "BABCE", "ECAB")
WORDS = ("BAOAB", "OBA", "ABO", "BAAOAAB", "OBABO", *THERMOSTATS)
COLD = dict(PHYSICS, temperature=0.0, driving_noise=0.0)


class Normals:
    """The k-th draw for a parameter is the same array for both readers, whoever asks first."""

    def __init__(self):
        self.readers = {}

    def _next(self, reader, shape, index, part):
        stream = self.readers.setdefault((reader, index, part), np.random.default_rng([1999, index, part]))
        return np.asarray(stream.standard_normal(tuple(shape)))

    def library(self, shape, dtype, device, seed, step, draw, index, part):
        """The source of :func:`tests.injected.inject`."""
        return torch.from_numpy(self._next("library", shape, index, part)).to(device, dtype)

    def oracle(self, shape, index=0, part=0):
        return self._next("oracle", shape, index, part)


def slope(q):
    """An asymmetric, anharmonic gradient that couples neighbours, for an array of any shape."""
    flat = q.reshape(-1)
    return (np.sin(2 * flat) + 0.3 * flat + 0.4 * np.cos(np.roll(flat, 1)) - 0.2).reshape(q.shape)


def close(actual, expected, tolerance=1e-12):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def array(tensor):
    return tensor.detach().numpy().copy()


def parameter(values):
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def backward(optimizer, gradient):
    """``gradient(*positions)`` gives one array per parameter."""
    params = parameters(optimizer)
    for p, g in zip(params, gradient(*map(array, params)), strict=True):
        p.grad = torch.from_numpy(np.array(g))


def each(gradient):
    """The same gradient on every parameter by itself."""
    return lambda *positions: [gradient(q) for q in positions]


def letters(drift, kick, ornstein_uhlenbeck, project, draw, freedom, physics):
    """The letters of :func:`oracle.compose` on states (q, p, ξ), from a space's own A, B, O and Π.

    drift(q, p, t), kick(q, p, t), ornstein_uhlenbeck(q, p, t, noise) -> (q, p); project(q, p) -> p;
    draw(q) -> ambient normals at q.
    """
    temperature, coupling, sigma = (physics[name] for name in ("temperature", "coupling", "driving_noise"))
    merged = oracle.thermostat_ornstein_uhlenbeck
    return {
        "A": lambda s, t: (*drift(s[0], s[1], t), s[2]),
        "B": lambda s, t: (*kick(s[0], s[1], t), s[2]),
        "O": lambda s, t: (*ornstein_uhlenbeck(s[0], s[1], t, draw(s[0])), s[2]),
        "C": lambda s, t: (s[0], oracle.thermostat_decay(s[1], t, s[2]), s[2]),
        "D": lambda s, t: (s[0], project(s[0], oracle.driving_kick(s[1], t, sigma, draw(s[0]))), s[2]),
        "E": lambda s, t: (s[0], s[1], oracle.thermostat_update(s[1], t, s[2], coupling, temperature, freedom)),
        "F": lambda s, t: (s[0], project(s[0], merged(s[1], t, s[2], sigma, draw(s[0]))), s[2]),
    }


def textbook(word, table, state, stepsizes=STEPSIZES):
    """The state after every step. A word that kicks only behind its last drift (ABO) starts at its force."""
    cut = word.rindex("A") + 1
    if "B" in word[cut:] and "B" not in word[:cut]:
        for letter in word[cut:]:
            state = table[letter](state, stepsizes[0] / word.count(letter))
    for h in stepsizes:
        state = oracle.compose(word, table, state, h)
        yield state


def repeat(step, state, stepsizes=STEPSIZES):
    """The state after every step of ``step(state, h)``: methods that are one formula."""
    for h in stepsizes:
        state = step(state, h)
        yield state


def agree(optimizer, gradient, expected, read, synchronize=False, stepsizes=STEPSIZES, tolerance=1e-12):
    """Step the library along ``expected``; ``read()`` gives its state as the oracle would.

    ``synchronize``: pay what is owed after every step and compare whole states, or only at the end.
    """
    for number, (h, state) in enumerate(zip(stepsizes, expected, strict=True), 1):
        for group in optimizer.param_groups:
            group["lr"] = h
        backward(optimizer, gradient)
        optimizer.step()
        close(read()[0], state[0], tolerance)
        if synchronize or number == len(stepsizes):
            backward(optimizer, gradient)
            optimizer.synchronize()
            for actual, wanted in zip(read(), state, strict=True):
                close(actual, wanted, tolerance)


def thermostat(optimizer):
    """ξ of the first group, 0 where the word has none."""
    value = optimizer.state[parameters(optimizer)[0]].get("thermostat")
    return 0.0 if value is None else array(value)
