"""Penalties that the papers compare hard constraints with. (Weight decay is an option of Langevin.)"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ._partition.methods import orthogonal_places
from .constraints import Orthogonal


def orthogonal_penalty(model: nn.Module | Iterable[Tensor], strength: float, layers: str = "hidden") -> Tensor:
    """λ Σ ‖WᵀW − I‖²_F, to be added to the loss (paper Figs. 4 and 5).

    W is the tall orientation. Of a model these are the weights that :func:`holonom.presets.o_cola_od` constrains: the
    papers penalise all but the first and last layer (``layers="hidden"``); ``"all"`` takes those as well. Kernels are
    read as (out, in·kh·kw). An iterable of matrices is taken as it is; of an ensemble it is the sum over replicas.
    """
    if layers not in ("hidden", "all"):
        raise ValueError(f"layers must be 'hidden' or 'all', got {layers!r}")
    if isinstance(model, nn.Module):
        places = orthogonal_places(model, layers)
        matrices: list[Tensor] = [Orthogonal(place.view).view(place.parameter) for place in places]
    else:
        matrices = [Orthogonal("conv" if w.ndim > 2 else None).view(w) for w in model]
    if not matrices:
        raise ValueError("there is no weight to penalise; pass layers='all', or the matrices themselves")
    total = torch.zeros((), device=matrices[0].device, dtype=matrices[0].dtype)
    for q in matrices:
        error = q.mT @ q - torch.eye(q.shape[-1], device=q.device, dtype=q.dtype)
        total = total + error.square().sum()
    return strength * total
