"""Whether Triton's interpreter can run loops whose length a kernel reads. For processes with TRITON_INTERPRET=1."""

import sys

import torch
import triton
import triton.language as tl

from .kernel_cases import UNFIT

FAULT = "only 0-dimensional arrays can be converted to Python scalars"


@triton.jit
def count(length, found):
    total = 0
    for _ in range(tl.load(length)):
        total += 1
    tl.store(found, total)


def leave_if_unfit() -> None:
    """End the process where this Triton takes a loaded number for an array that NumPy (2.4) no longer converts."""
    found = torch.zeros(1, dtype=torch.int32)
    try:
        count[(1,)](torch.full((1,), 3, dtype=torch.int32), found)
    except Exception as error:  # the interpreter's own kind, which has the cause's text
        if FAULT not in str(error):
            raise
        print(f"Triton {triton.__version__}'s interpreter cannot turn a loaded scalar into a bound of range(): {FAULT}")
        sys.exit(UNFIT)
    assert int(found) == 3
