"""Matrix-free curvature against the dense Hessian."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from holonom.landscape import over
from holonom.metrics import Hessian

X = torch.randn(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 3


def perceptron():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3)).double()


def dense(model, names):
    """∂²L/∂θ² row by row, with the loss written as a function of one vector."""
    model = model.eval()
    named = dict(model.named_parameters())
    sizes = [named[name].numel() for name in names]

    def loss(vector):
        parts = vector.split(sizes)
        state = {name: part.view_as(named[name]) for name, part in zip(names, parts, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, state, (X,)), Y)

    start = torch.cat([named[name].detach().flatten() for name in names])
    return torch.autograd.functional.hessian(loss, start)


@pytest.fixture
def model():
    return perceptron()


@pytest.mark.parametrize("batch_size", [7, 512])
def test_products_equal_the_dense_hessian(model, batch_size):
    hessian = Hessian(model, over((X, Y), F.cross_entropy, batch_size=batch_size))
    full = dense(model, hessian.names)
    torch.testing.assert_close(full, full.mT)
    vectors = torch.randn(4, hessian.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(hessian.product(vectors), vectors @ full, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(hessian.product(vectors[0]), full @ vectors[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("which", "pick"),
    [
        ("largest", lambda x: x.flip(0)[:3]),
        ("smallest", lambda x: x[:3]),
        ("magnitude", lambda x: x[x.abs().argsort(descending=True)[:3]]),
    ],
)
def test_extreme_eigenvalues(model, which, pick):
    hessian = Hessian(model, lambda m: F.cross_entropy(m(X), Y))
    exact = torch.linalg.eigvalsh(dense(model, hessian.names))
    torch.testing.assert_close(hessian.eigenvalues(3, which=which, tolerance=1e-8), pick(exact), rtol=1e-6, atol=1e-9)


def test_few_products_are_enough_for_the_largest(model):
    products = []

    class Counted(Hessian):
        def product(self, vectors):
            products.append(1)
            return super().product(vectors)

    hessian = Counted(model, lambda m: F.cross_entropy(m(X), Y))
    exact = torch.linalg.eigvalsh(dense(model, hessian.names))
    assert float(hessian.eigenvalues()[0]) == pytest.approx(float(exact[-1]), rel=1e-3)
    assert len(products) < hessian.size / 2


def test_the_trace_is_within_its_error(model):
    hessian = Hessian(model, over((X, Y), F.cross_entropy))
    exact = float(dense(model, hessian.names).trace())
    found = hessian.trace(samples=400, at_once=50)
    assert abs(found.value - exact) < 4 * found.error
    assert found.error < 0.2 * abs(exact)
    again = hessian.trace(samples=400, at_once=7)
    assert again.value == pytest.approx(found.value, rel=1e-9)


def test_groups_are_diagonal_blocks(model):
    hessian = Hessian(model, over((X, Y), F.cross_entropy))
    groups = hessian.groups()
    assert list(groups) == ["0", "3"]
    total = 0.0
    for part in groups.values():
        block = dense(model, part.names)
        top = float(torch.linalg.eigvalsh(block)[-1])
        assert float(part.eigenvalues(tolerance=1e-8)[0]) == pytest.approx(top, rel=1e-6)
        total += float(block.trace())
    assert total == pytest.approx(float(dense(model, hessian.names).trace()), rel=1e-9)
    assert list(hessian.groups({"biases": "*.bias"})["biases"].names) == ["0.bias", "3.bias"]


def test_a_quadratic_is_exact_in_one_probe():
    class Bowl(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Parameter(torch.ones(4, dtype=torch.float64))

        def forward(self):
            return 0.5 * (torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64) * self.q**2).sum()

    hessian = Hessian(Bowl(), lambda m: m())
    found = hessian.trace(samples=2)
    assert found.value == pytest.approx(10)
    assert found.error == pytest.approx(0)
    assert hessian.eigenvalues(4).tolist() == pytest.approx([4, 3, 2, 1])
    linear = Hessian(Bowl(), lambda m: m.q.sum())
    assert linear.eigenvalues(1).tolist() == [0]


def test_the_model_is_left_alone(model):
    model.train()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    hessian = Hessian(model, over((X, Y), F.cross_entropy))
    hessian.eigenvalues(1)
    hessian.trace(2)
    assert model.training
    assert model[2].training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())


def test_bad_requests_are_refused(model):
    hessian = Hessian(model, lambda m: F.cross_entropy(m(X), Y))
    with pytest.raises(ValueError, match="not a parameter"):
        Hessian(model, lambda m: m(X).sum(), ["9.weight"])
    with pytest.raises(ValueError, match="so not 100"):
        hessian.eigenvalues(100)
    with pytest.raises(ValueError, match="which"):
        hessian.eigenvalues(which="middle")
    with pytest.raises(ValueError, match="at least 2 samples"):
        hessian.trace(1)
    with pytest.raises(ValueError, match="entries"):
        hessian.product(torch.zeros(3))
    with pytest.raises(ValueError, match="one number"):
        Hessian(model, lambda m: m(X)).trace(2)
    with pytest.raises(ValueError, match="data is empty"):
        Hessian(model, over([], F.cross_entropy)).trace(2)
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="require gradients"):
        Hessian(model, lambda m: m(X).sum())
