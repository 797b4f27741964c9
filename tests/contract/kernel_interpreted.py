"""Steps by kernels and by the reference on a CPU. Run as a module, with TRITON_INTERPRET=1 in the environment.

Triton reads that when it is imported.
"""

import itertools
import sys

import torch

from holonom._step import run

from .interpreter import leave_if_unfit
from .kernel_cases import BLOCKS, HOLDS, differences, limits, run_blocks, run_changes, run_hold, run_permuted, run_steps
from .kernel_checks import CHECKS

if __name__ == "__main__":
    leave_if_unfit()
    run.KERNEL_DEVICES.add("cpu")
    failed = []
    chosen = [
        ("free", "BACDEDCAB", 1e-2, 0.1, torch.float32, 3, None),
        ("free", "M", 1e-2, 0.0, torch.bfloat16, 3, None),
        ("circle", "BAOAB", 1e-2, 0.0, torch.float32, 3, None),
        ("circle", "L", 1e-2, 0.0, torch.bfloat16, 0, None),
        ("sphere", "BAOAB", 1e-2, 0.0, torch.float32, 0, None),
        ("fixed sphere", "L", 1e-2, 0.1, torch.float32, 0, None),
        ("sphere", "BAFEFAB", 1e-2, 0.0, torch.float32, 0, 1),
    ]
    for case in chosen:
        options = {"edit": case[0] != "free", "one_seed": case[1] == "M"}
        found = differences(run_steps("cpu", None, *case, **options), run_steps("cpu", False, *case, **options))
        if not all(x <= limit for x, limit in zip(found, limits(case[4]), strict=True)):
            failed.append((case, found))
    found = differences(run_changes("cpu", None, "circle"), run_changes("cpu", False, "circle"))
    if not all(x <= limit for x, limit in zip(found, limits(torch.float32), strict=True)):
        failed.append(("changes", found))
    for space in ("circle", "sphere"):
        *ours, used = run_permuted("cpu", None, space, "BAOAB")
        found = differences(ours, run_permuted("cpu", False, space, "BAOAB"))
        if not used or not all(x <= limit for x, limit in zip(found, limits(torch.float32), strict=True)):
            failed.append((space, "permuted", used, found))
    for name, last in itertools.product(BLOCKS, (False, True)):
        *ours, used = run_blocks("cpu", None, name, last)
        found = differences(ours, run_blocks("cpu", False, name, last))
        if used != BLOCKS[name][1 + last] or not all(x <= limit for x, limit in zip(found, (1e-5, 1e-4), strict=True)):
            failed.append((name, last, used, found))
    for case in HOLDS:
        found, _ = differences(run_hold("cpu", True, *case), run_hold("cpu", False, *case))
        if not found <= 1e-6:
            failed.append(("hold", *case, found))
    for check in CHECKS:
        check("cpu")
    print(*failed, sep="\n")
    sys.exit(bool(failed))
