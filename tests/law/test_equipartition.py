"""Langevin in layers: every group has its own friction and temperature, on its own manifold, and keeps both.

The momenta of a group are Gaussian in the cotangent space with variance τ per degree of freedom, constraints
subtracted: pᵀp = τ·dof, whatever the manifold, the neighbours and the friction. Degrees of freedom are
counted by hand here, which checks ``temperatures()`` as well.

Noise that is not made tangent, or a count that forgets the constraints, is off by a factor (3/2 for rows in
three dimensions). With a linear potential BAOAB's momenta are exact to second order in h; allowed is 1 %. The
standard errors come from the spread over blocks, as everywhere.
"""

import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere
from tests.law.chains import assert_agree
from tests.law.mechanics import MOMENTA, ellipsoid


def eye(count, rows, columns):
    return torch.eye(rows, columns, dtype=torch.float64).repeat(count, 1, 1)


# name: (constraint, start, degrees of freedom of a block, friction, temperature)
LAYERS = {
    "free": (None, torch.zeros(2000, 1, dtype=torch.float64), 1, 0.5, 0.2),
    "circle": (Circle(0.7), torch.full((2000, 1), 0.1, dtype=torch.float64), 1, 1.0, 0.4),
    "sphere": (Sphere(1.0, slack=False), eye(1, 3, 3)[0].repeat(400, 1), 2, 2.0, 0.1),
    "sphere with slack": (Sphere(1.0), 0.5 * eye(1, 3, 3)[0].repeat(400, 1), 3, 1.0, 0.3),
    "tall": (Orthogonal(view="batch"), eye(500, 3, 2), 3, 1.0, 0.2),
    "wide": (Orthogonal(view="batch"), eye(500, 2, 3), 3, float("inf"), 0.1),
    "level set": (LevelSet(ellipsoid, batch_dims=1), eye(1, 3, 3)[0, 1:2].repeat(1000, 1), 2, 1.0, 0.2),
}
STEPS, BURN = 80, 60


@pytest.mark.parametrize("word", ["BAOAB", "OBABO"])
def test_every_layer_keeps_its_own_temperature(word):
    params = {name: torch.nn.Parameter(layer[1].clone()) for name, layer in LAYERS.items()}
    groups = [
        {"params": [params[name]], "constraint": space, "friction": friction, "temperature": temperature}
        for name, (space, _, _, friction, temperature) in LAYERS.items()
    ]
    optimizer = Langevin(groups, lr=0.1, scheme=word, seed=17)
    totals, shown = dict.fromkeys(LAYERS, 0.0), torch.zeros(len(LAYERS))
    for n in range(BURN + STEPS):
        for name, p in params.items():
            p.grad = 0.05 * torch.ones_like(p) if name != "free" else p.detach().clone()
        if n >= BURN and n % 2 == 0:
            optimizer.synchronize()
            for name, p in params.items():
                for slot in MOMENTA:
                    if slot in optimizer.state[p]:
                        totals[name] = totals[name] + optimizer.state[p][slot].square().flatten(1).sum(1) * 2 / STEPS
            shown += torch.tensor(optimizer.temperatures()) * 2 / STEPS
        optimizer.step()
    for (name, (_, _, freedom, _, temperature)), display in zip(LAYERS.items(), shown.tolist()):
        ratio = totals[name][:, None] / (freedom * temperature)
        assert display == pytest.approx(float(ratio.mean()) * temperature, rel=1e-5)
        assert_agree(ratio, [1], resolution=0.08, bias=0.01)
