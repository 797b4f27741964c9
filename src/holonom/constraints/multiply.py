"""Which library multiplies two matrices."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import Parameter

_LARGE = 256  # side from which oneDNN is the faster one
_SMALL = 2  # b has to be this many times as large as a, or else copying a takes longer than it saves


def product(a: Tensor, b: Tensor) -> Tensor:
    """a·b, of large matrices in less time than torch takes for it."""
    if suits_onednn(a, b):
        result: Tensor = torch.ops.mkldnn._linear_pointwise(a.contiguous(), b.mT, None, "none", [], "")
        return result
    return torch.matmul(a, b)


def suits_onednn(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN, which torch brings along for its layers, multiplies these faster than MKL.

    On processors of AMD's with AVX-512 it takes a tenth to a quarter less time for large float32 matrices if a lies
    row by row in memory, or is small enough to be copied; on Intel's, and on AMD's without, Intel's own library is no
    slower. Matrices with gaps it would take entry by entry, and it knows no gradients.
    """
    return (
        a.ndim == b.ndim == 2
        and min(*a.shape, b.shape[1]) >= _LARGE
        and a.dtype == b.dtype == torch.float32
        and a.device.type == b.device.type == "cpu"
        and {type(a), type(b)} <= {Tensor, Parameter}
        and (a.is_contiguous() or (a.mT.is_contiguous() and _SMALL * a.numel() <= b.numel()))
        and (b.is_contiguous() or b.mT.is_contiguous())
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and bool(torch.backends.mkldnn.enabled)
        and onednn_is_faster()
    )


@cache
def onednn_is_faster() -> bool:
    ask = getattr(torch.cpu, "get_capabilities", None)  # not in every torch
    made_by_amd = ask is not None and "AMD" in str(ask().get("cpu_name"))
    has_both = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]
    return made_by_amd and torch.backends.cpu.get_cpu_capability() == "AVX512" and has_both


def multiplies_exactly() -> bool:
    """Whether products of float32 numbers on a CPU are float32's: users may ask for fewer digits."""
    backend = getattr(torch.backends.mkldnn, "matmul", None)  # not in every torch
    precision = getattr(backend, "fp32_precision", None)
    if precision is None:
        return torch.get_float32_matmul_precision() == "highest"
    return precision in ("none", "ieee")
