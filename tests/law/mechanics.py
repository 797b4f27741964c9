"""Motion on every manifold without noise: where to start, what force to feel, how to read energy and momenta.

Every system has a few blocks, a generic start on the manifold with a tangent momentum of size one, and a
smooth potential without symmetry, U = Σ aᵢxᵢ + ½ Σ bᵢxᵢ².
"""

import torch

from holonom import Langevin
from holonom.constraints import Circle, LevelSet, Orthogonal, Sphere


def ellipsoid(x):
    return x[0] ** 2 / 1.5 + x[1] ** 2 + x[2] ** 2 / 0.7 - 1


def ball(x):
    return x.square().sum() - 1


# name: (constraint, shape, size of the initial entries; Sphere, Orthogonal and LevelSet scale them onto the manifold)
SYSTEMS = {
    "free": (None, (4,), 0.5),
    "circle": (Circle(0.8), (4,), 0.5),
    "sphere": (Sphere(0.9, slack=False), (2, 3), 0.5),
    "sphere with slack": (Sphere(0.9), (2, 3), 0.3),
    "tall": (Orthogonal(), (4, 2), 0.5),
    "wide": (Orthogonal(), (2, 4), 0.5),
    "square": (Orthogonal(), (3, 3), 0.5),
    "level set": (LevelSet(ellipsoid, batch_dims=1), (2, 3), 0.5),
    "level set with slack": (LevelSet(ball, slack=True, batch_dims=1), (2, 2), 0.3),
}
NAMES = [name for name in SYSTEMS if name != "wide"]  # the same motion as tall, transposed
MOMENTA = ("momentum", "spin", "chord", "slack_momentum")


class Motion:
    """One system, its optimizer at τ = 0, and the force it feels."""

    def __init__(self, name, h, word="BAOAB", friction=0.0):
        space, shape, size = SYSTEMS[name]
        generator = torch.Generator().manual_seed(11)
        start = size * torch.randn(shape, generator=generator, dtype=torch.float64)
        if space is not None:
            space.land_(space.view(start), name)
        count = start.numel()
        self.slope = torch.sin(torch.arange(1.0, count + 1, dtype=torch.float64)).reshape(shape)
        self.stiffness = 1 + torch.cos(2.0 * torch.arange(count, dtype=torch.float64)).reshape(shape) / 2
        self.q = torch.nn.Parameter(start)
        self.optimizer = Langevin([self.q], h, scheme=word, friction=friction, constraint=space)
        self.state = self.optimizer.state[self.q]
        for slot in self.momenta:
            self.state[slot].copy_(torch.randn(self.state[slot].shape, generator=generator, dtype=torch.float64))
        self.optimizer.project_()  # and with it the momenta onto the cotangent space

    @property
    def momenta(self):
        return [slot for slot in MOMENTA if slot in self.state]

    def force(self):
        x = self.q.detach()
        self.q.grad = self.slope + self.stiffness * x

    def step(self, count=1):
        for _ in range(count):
            self.force()
            self.optimizer.step()
        return self.q.detach().clone()

    def synchronize(self):
        self.force()
        self.optimizer.synchronize()

    def reverse(self):
        """Textbook momenta, turned round."""
        self.synchronize()
        for slot in self.momenta:
            self.state[slot].neg_()

    def energy(self):
        """½|p|² + U at the present positions, the owed half kick paid."""
        self.synchronize()
        x = self.q.detach()
        kinetic = sum(self.state[slot].square().sum() for slot in self.momenta) / 2
        return float(kinetic + (self.slope * x + self.stiffness * x.square() / 2).sum())
