"""The systems every contract is checked on (words × spaces), and the few verbs the checks need.

One tiny network serves them all: three matrices of one tall shape, the middle one lying, so that
spaces which stack have something to stack.
"""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from holonom import Langevin
from holonom.constraints import Circle, Constraint, LevelSet, Orthogonal, Sphere


def norm_is_root_three(q: Tensor) -> Tensor:
    return q.square().sum() - 3


def norm_is_below_two(q: Tensor) -> Tensor:
    return q.square().sum() - 4


SPACES: dict[str, Constraint | None] = {
    "free": None,
    "circle": Circle(1.5),
    "circle-radii": Circle(torch.tensor([[1.5]])),
    "sphere": Sphere(2.0),
    "sphere-fixed": Sphere(1.0, slack=False),
    "sphere-matrix": Sphere(2.0, per="matrix"),
    "sphere-initial": Sphere("initial", per="column", factor=1.5),
    "orthogonal": Orthogonal(),
    "orthogonal-initial": Orthogonal(scale="initial"),
    "orthogonal-k1": Orthogonal(iterations=1),
    "levelset": LevelSet(norm_is_root_three),
    "levelset-old": LevelSet(norm_is_root_three, direction="old"),
    "levelset-slack": LevelSet(norm_is_below_two, slack=True),
}


class Case(NamedTuple):
    scheme: str
    space: str

    @property
    def constraint(self) -> Constraint | None:
        return SPACES[self.space]

    @property
    def thermostatted(self) -> bool:
        return "E" in self.scheme

    @property
    def orthogonal(self) -> bool:
        """Stacked and polished now and then: equal to rounding where other spaces are bit-equal."""
        return self.space.startswith("orthogonal")

    def __str__(self) -> str:
        return f"{self.scheme}-{self.space}"


WORDS = {
    "free": "BAOAB OBA ABO L M BACDEDCAB BAFEFAB",
    "circle": "BAOAB ABO L BACDEDCAB",
    "circle-radii": "OBA",
    "sphere": "BAOAB ABO L BACDEDCAB",
    "sphere-fixed": "OBA L",
    "sphere-matrix": "BACDEDCAB",
    "sphere-initial": "BAOAB",
    "orthogonal": "BAOAB ABO L BACDEDCAB",
    "orthogonal-initial": "BAOAB L",
    "orthogonal-k1": "OBA L",
    "levelset": "BAOAB L",
    "levelset-old": "L",
    "levelset-slack": "OBA L",
}
CASES = [Case(word, space) for space, words in WORDS.items() for word in words.split()]
CONSTRAINED = [case for case in CASES if case.constraint is not None]
FEW = [Case("BAOAB", "free"), Case("BACDEDCAB", "circle"), Case("OBA", "sphere-fixed"), Case("L", "orthogonal")]

COLD = {"temperature": 0.0, "driving_noise": 0.0, "coupling": 0.1}  # options under which a word draws no noise

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_constrained_case = pytest.mark.parametrize("case", CONSTRAINED, ids=str)
few_cases = pytest.mark.parametrize("case", FEW, ids=str)


class Net(nn.Module):
    """x ↦ down·tanh(mid·tanh(up·x)), weights with orthonormal columns, or unit rows where rows are fixed."""

    def __init__(self, space: str = "free", init: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(init)
        self.up, self.mid, self.down = (nn.Parameter(tall(generator, space)) for _ in range(3))
        with torch.no_grad():
            self.mid.data = self.mid.mT.contiguous()
            if space == "sphere-fixed":
                self.mid.div_(self.mid.norm(dim=1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(x @ self.up.mT) @ self.mid.mT) @ self.down.mT


def tall(generator: torch.Generator, space: str) -> Tensor:
    q = torch.linalg.qr(torch.randn(4, 3, generator=generator))[0].contiguous()
    return q / q.norm(dim=1, keepdim=True) if space == "sphere-fixed" else q


def data(like: Tensor) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x, y = torch.randn(16, 3, generator=generator), torch.randn(16, 4, generator=generator)
    return x.to(like), y.to(like)


def loss(net: Net) -> Tensor:
    x, y = data(net.up)
    return (net(x) - y).square().mean()


def build(
    case: Case, *, init: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu", **options: Any
) -> tuple[Net, Langevin]:
    net = Net(case.space, init).to(device=device, dtype=dtype)
    return net, optimizer(case, net, **options)


def optimizer(case: Case, net: Net, **options: Any) -> Langevin:
    numbers = {"lr": 0.1, "temperature": 0.01, "constraint": case.constraint, "scheme": case.scheme, "seed": 0}
    return Langevin(net.named_parameters(), **{**numbers, **options})


def backward(net: Net, opt: Langevin) -> Tensor:
    opt.zero_grad()
    value = loss(net)
    value.backward()
    return value


def train(net: Net, opt: Langevin, steps: int) -> None:
    for _ in range(steps):
        backward(net, opt)
        opt.step()


def snapshot(net: nn.Module, opt: Langevin) -> dict[str, Any]:
    """What a run consists of besides its counters, by name: weights and state."""
    seen: dict[str, Any] = {name: p.detach().clone() for name, p in net.named_parameters()}
    for name, p in net.named_parameters():
        own = opt.state.get(p, {})
        seen |= {f"{name}.{slot}": own[slot].clone() for slot in own.keys() - {"clock", "stream"}}
    return seen


def counters(opt: Langevin) -> list[tuple[Any, ...]]:
    return [(group["step"], group["owed"], int(opt.state[group["params"][0]]["clock"])) for group in opt.param_groups]


def assert_equal(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Bit for bit, dtypes included."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def assert_close(actual: dict[str, Any], expected: dict[str, Any], tolerance: float = 2e-6) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
