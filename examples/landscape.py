"""What training found: the way from the first weights to the last, layer by layer, and the boundary it drew.

Layer by layer, the straight line from initial to trained weights tells more than for the whole network: on a
spiral of four turns one of the first layers climbs a barrier and the last does not (thesis Fig. 6.17). All 51 points
of a path are evaluated together.
"""

import copy

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from holonom.data import spirals
from holonom.landscape import barrier_state, error_rate, interpolate, layerwise, over
from holonom.metrics import Hessian, boundary_curvature, cross_section, distance, mean_curvature


def loss_fn(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return binary_cross_entropy_with_logits(outputs[:, 0], labels)


if __name__ == "__main__":
    torch.manual_seed(1)
    x, y = spirals(500, turns=4, noise=0.02, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(
        nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1)
    )
    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    for _ in range(2500):
        batch = torch.randint(500, (50,))
        optimizer.zero_grad()
        loss_fn(model(x[batch]), y[batch]).backward()
        optimizer.step()
    end = model.state_dict()

    evaluate = over((x, y), {"loss": loss_fn, "error": error_rate})
    print(f"whole network: {interpolate(model, start, end, evaluate)}")
    layers = layerwise(model, start, end, evaluate)
    print(layers)
    print(f"distance travelled (6.3): {float(distance(model, start, end)):.2f}")
    for name in layers.barriers():
        top = barrier_state(layers[name])  # initial weights from which training often goes better (Fig. 6.3)
        print(f"the barrier of layer {name} has its top at α = {layers[name].profile().place:.2f}: {len(top)} tensors")

    def predict(points: torch.Tensor) -> torch.Tensor:
        return model(points)[:, 0].sigmoid()

    print(f"mean boundary curvature: {mean_curvature(boundary_curvature(predict, grid=400)):.1f}")
    print(f"steepest prediction along y = 0: {float(cross_section(predict).steepest):.1f}")
    sharpness = Hessian(model, over((x, y), loss_fn)).eigenvalues(2, tolerance=1e-2)
    print(f"largest eigenvalues of the Hessian: {sharpness[0]:.2f}, {sharpness[1]:.2f}")
