"""Compile the kernels that steps would launch, for a GPU that need not be there. Run as a module.

The interpreter runs what no compiler takes, and compilers of several releases take different things.
"""

import sys
import warnings

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from holonom._backends import triton as steps
from holonom._backends.triton import hold
from holonom._constrain.bounds import bound_
from holonom._step import run
from holonom.constraints import Circle

from .kernel_cases import SPACES, run_hold, run_permuted, run_steps

TARGET = GPUTarget("cuda", 90, 32)
KERNELS = {
    steps: ("step_entries", "find_non_finite", "step_rows", "sum_products", "run_letters", "add_terms"),
    hold: ("hold_rows", "sum_moves", "make_factors", "write_blocks", "bound_entries"),
}
POINTERS = {
    torch.bool: "*i1", torch.int64: "*i64", torch.float64: "*fp64", torch.float32: "*fp32", torch.bfloat16: "*bf16",
}  # fmt: skip


class Recorder:
    """Stands for a kernel: keeps what it is launched with and runs nothing."""

    def __init__(self, kernel, found):
        self.kernel, self.found = kernel, found

    def __getitem__(self, grid):
        def launch(*given, num_warps, maxnreg=None, **options):
            names = [parameter.name for parameter in self.kernel.params]
            fixed = {p.name for p in self.kernel.params if p.is_constexpr}
            arguments = dict(zip(names, given, strict=False)) | options
            assert set(arguments) == set(names)
            kinds = {n: ("constexpr", x) if n in fixed or is_one(x) else (kind(x), None) for n, x in arguments.items()}
            self.found[self.kernel.__name__, str(kinds), num_warps, maxnreg] = self.kernel, names, kinds

        return launch


def is_one(x):
    return type(x) is int and x == 1


def kind(x):
    return POINTERS[x.dtype] if isinstance(x, torch.Tensor) else {int: "i32", float: "fp32"}[type(x)]


def launches():
    """Kernels with the kinds of their arguments, from steps of every kind."""
    found = {}
    run.KERNEL_DEVICES.add("cpu")
    SPACES["circles"] = Circle(torch.tensor(0.7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module, names in KERNELS.items():
            for name in names:
                setattr(module, name, Recorder(getattr(module, name), found))
        for space in SPACES:
            for word, tau, decay, dtype in (
                ("L", 1e-2, 0.0, torch.bfloat16),
                ("BAOAB", 0.0, 0.1, torch.float32),
                ("BACDEDCAB", 1e-2, 0.0, torch.float32),
            ):
                run_steps("cpu", None, space, word, tau, decay, dtype, 0, None, steps=1)
        run_steps("cpu", None, "circle", "BAOAB", 1e-2, 0.0, torch.float32, 3, None, steps=1)
        for space in ("circle", "sphere"):
            run_permuted("cpu", None, space, "BAOAB")
        for update, dropped in (("plain", 0.0), ("tangent", 0.0), ("angular", 0.01)):
            run_hold("cpu", True, update, False, dropped, False)
        bound_(Circle(0.5), [torch.ones(5)], [0.5], None)
    return found


if __name__ == "__main__":
    found = launches()
    for (_, _, num_warps, maxnreg), (kernel, names, kinds) in found.items():
        signature = {name: kinds[name][0] for name in names}
        fixed = {(i,): kinds[name][1] for i, name in enumerate(names) if kinds[name][0] == "constexpr"}
        options = {"num_warps": num_warps, "maxnreg": maxnreg}
        triton.compile(ASTSource(kernel, signature, fixed), target=TARGET, options=options)
    print(f"{len(found)} kernels")
    sys.exit(not found)
