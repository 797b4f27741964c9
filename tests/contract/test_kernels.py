"""The GPU's kernels do what the reference integrator does."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from holonom import Langevin
from holonom._step import run
from holonom._step.buckets import make_buckets
from holonom._torch import has_triton
from holonom.constraints import Circle, Free, Orthogonal, Sphere

from .kernel_cases import (
    BLOCKS,
    HOLDS,
    UNFIT,
    differences,
    limits,
    run_blocks,
    run_changes,
    run_devices,
    run_hold,
    run_permuted,
    run_steps,
    table,
)
from .kernel_checks import CHECKS

needs_cuda = pytest.mark.skipif(
    not (torch.cuda.is_available() and has_triton()), reason="no CUDA device with kernels here"
)
needs_triton = pytest.mark.skipif(not has_triton(), reason="Triton 3.3 is not installed")


@needs_cuda
@pytest.mark.parametrize("case", list(table()), ids=str)
def test_kernels_do_what_the_reference_does(case):
    found = differences(run_steps("cuda", None, *case), run_steps("cuda", False, *case))
    assert all(x <= limit for x, limit in zip(found, limits(case[4]), strict=True)), found


@needs_cuda
@pytest.mark.parametrize("word", ["BAOAB", "L"])
@pytest.mark.parametrize("space", ["circle", "sphere", "fixed sphere"])
def test_kernels_take_up_positions_written_from_outside(space, word):
    case = (space, word, 1e-2, 0.1, torch.float32, 0, None)
    found = differences(run_steps("cuda", None, *case, edit=True), run_steps("cuda", False, *case, edit=True))
    assert all(x <= limit for x, limit in zip(found, limits(torch.float32), strict=True)), found


@needs_cuda
@pytest.mark.parametrize("space", ["free", "circle", "sphere"])
def test_kernels_read_what_changes_between_steps(space):
    found = differences(run_changes("cuda", None, space), run_changes("cuda", False, space))
    assert all(x <= limit for x, limit in zip(found, limits(torch.float32), strict=True)), found


@needs_cuda
@pytest.mark.parametrize("word", ["BAOAB", "L", "BACDEDCAB"])
@pytest.mark.parametrize("space", ["free", "circle", "sphere", "fixed sphere"])
def test_kernels_know_channels_last_and_transposed_weights(space, word):
    *ours, used = run_permuted("cuda", None, space, word)
    assert used
    found = differences(ours, run_permuted("cuda", False, space, word))
    assert all(x <= limit for x, limit in zip(found, limits(torch.float32), strict=True)), found


@needs_cuda
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_kernels_take_blocks_that_are_rows_in_memory(name, last):
    *ours, used = run_blocks("cuda", None, name, last)
    assert used == BLOCKS[name][1 + last]
    found = differences(ours, run_blocks("cuda", False, name, last))
    assert all(x <= limit for x, limit in zip(found, limits(torch.float32), strict=True)), found


@needs_cuda
@pytest.mark.parametrize("case", HOLDS, ids=str)
def test_kernels_hold_blocks_after_another_optimizers_step(case):
    found, _ = differences(run_hold("cuda", True, *case), run_hold("cuda", False, *case))
    assert found <= 1e-6


@needs_cuda
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_what_is_around_kernels(check):
    check("cuda")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two CUDA devices here")
@pytest.mark.parametrize("constraint", [None, Circle(1.0), Sphere(9.0), Orthogonal()], ids=str)
@pytest.mark.parametrize("word", ["BAOAB", "BACDEDCAB"])
def test_a_group_may_be_on_several_devices(constraint, word):
    fuses = [False] if isinstance(constraint, Orthogonal) else [None, False]  # products are those of the reference
    alone = run_devices(["cuda:0", "cuda:0"], False, constraint, word)
    for fuse in fuses:
        found = differences(run_devices(["cuda:0", "cuda:1"], fuse, constraint, word), alone)
        assert all(x <= limit for x, limit in zip(found, limits(torch.float32), strict=True)), found


def test_a_group_that_is_partly_on_the_host_has_no_kernels(monkeypatch):
    monkeypatch.setattr(run, "has_triton", lambda: pytest.fail("it does not matter whether there is a Triton"))
    buckets = [SimpleNamespace(device=torch.device(name)) for name in ("cuda", "cpu")]
    assert not run.has_kernels({"fuse": None}, buckets)


def test_a_skipped_step_is_known_where_a_group_has_its_clock():
    """Also if nothing of it moves; a clock adds no number of another device."""
    group = {"params": [torch.empty(2, device="meta")]}
    for buckets in ([], make_buckets(group, Free(), {group["params"][0]: {}}, ["a"])):
        found = run.Work(group, buckets, None).on_device(torch.tensor(True))
        assert found.device.type == "meta"


@needs_triton
def test_kernels_do_what_the_reference_does_on_a_cpu():
    """Triton's interpreter runs the same code, slowly; a few cases."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run_module(f"{__package__}.kernel_interpreted", environment)


@needs_triton
def test_kernels_move_shards_as_whole_tensors_on_a_cpu():
    """Two ranks; their parts begin anywhere in a tile of noise."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run_module("tests.sharding.kernels", environment, "cpu")


@needs_triton
def test_kernels_compile_for_a_gpu_that_is_not_here(tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    run_module(f"{__package__}.kernel_compile", environment)


def run_module(name, environment, *arguments):
    command, root = [sys.executable, "-m", name, *arguments], Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode == UNFIT:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr


def params_on(device, *shapes):
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter((torch.rand(shape, generator=generator) - 0.5).to(device)) for shape in shapes]
    for p in params:
        p.grad = torch.ones_like(p)
    return params


def kernels_are_used(opt):
    group, buckets = opt.param_groups[0], opt._buckets()[0]
    return run.has_kernels(group, buckets)


@needs_cuda
@pytest.mark.parametrize("constraint", [None, Circle(1.0), Sphere(9.0)], ids=["free", "circle", "sphere"])
def test_which_steps_are_run_by_kernels(constraint):
    options = {"lr": 0.1, "constraint": constraint, "seed": 0}
    assert kernels_are_used(Langevin(params_on("cuda", (6, 10)), **options))
    assert not kernels_are_used(Langevin(params_on("cuda", (6, 10)), fuse=False, **options))
    double = [nn.Parameter(p.detach().double()) for p in params_on("cuda", (6, 10))]
    assert not kernels_are_used(Langevin(double, **options))


@needs_cuda
def test_rates_of_replicas_with_one_seed_are_not_run_by_kernels():
    """Noise is then one stream for all replicas, and rates are not: no chunk has one of each."""
    lr = torch.linspace(0.05, 0.1, 3, device="cuda")
    assert not kernels_are_used(Langevin(params_on("cuda", (3, 10)), lr, seed=0))
    assert kernels_are_used(Langevin(params_on("cuda", (3, 10)), lr, seed=torch.arange(3, device="cuda")))


@needs_cuda
def test_gradients_may_be_elsewhere_at_every_step():
    ours, theirs = params_on("cuda", (40, 30), (7,)), params_on("cuda", (40, 30), (7,))
    pairs = [(Langevin(p, 0.1, seed=0, fuse=fuse), p) for p, fuse in ((ours, None), (theirs, False))]
    for number in range(4):
        for opt, params in pairs:
            for p in params:
                gradient = torch.full_like(p, 0.1 * number + 0.1)
                # another address; a transposed one; another dtype
                p.grad = gradient if number < 2 or p.ndim < 2 else gradient.t().contiguous().t()
            opt.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@needs_cuda
def test_autograd_notices_what_kernels_write():
    (p,) = params_on("cuda", (6, 10))
    opt = Langevin([p], 0.1, seed=0)
    loss = p.square().sum()
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@needs_cuda
def test_a_step_needs_no_memory_of_the_size_of_the_weights():
    params = params_on("cuda", (1000, 1000), (500, 2000))
    opt = Langevin(params, 0.1, constraint=Circle(1.0), temperature=1e-4, seed=0)
    opt.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    opt.step()
    assert torch.cuda.max_memory_allocated() - before < 0.05 * 4 * 2_000_000


@needs_cuda
def test_a_captured_step_reads_tables_that_stay():
    """The copy of a table is part of the graph, so its source must outlive the capture."""
    ours, theirs = params_on("cuda", (40, 30), (7,)), params_on("cuda", (40, 30), (7,))
    opt, other = (Langevin(p, 0.1, seed=0, temperature=1e-3) for p in (ours, theirs))
    for one, params in ((opt, ours), (other, theirs)):
        one.guard_gradients = False
        for _ in range(3):
            one.step()
        for p in params:
            p.grad = torch.full_like(p, 0.5)  # another address than that of the steps before
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        opt.step()
    overwritten = [torch.full((64,), -1, dtype=torch.int64, pin_memory=True) for _ in range(256)]
    for _ in range(3):
        graph.replay()
        other.step()
    torch.cuda.synchronize()
    assert len(overwritten) == 256
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@needs_cuda
def test_captured_steps_and_steps_between_them_read_their_own_gradients():
    ours, theirs = params_on("cuda", (40, 30), (7,)), params_on("cuda", (40, 30), (7,))
    pairs = [(Langevin(p, 0.1, seed=0), p) for p in (ours, theirs)]
    opt, other = (pair[0] for pair in pairs)
    for _ in range(4):  # the last of them repeat launches
        for one, _params in pairs:
            one.step()
    for params in (ours, theirs):
        for p in params:
            p.grad = torch.full_like(p, 0.5)
    captured = [p.grad for p in ours]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        opt.step()
    for number in range(3):
        graph.replay()
        other.step()
        for (one, params), value in ((pairs[0], -0.25), (pairs[1], -0.25)):
            kept = [p.grad for p in params]
            for p in params:
                p.grad = torch.full_like(p, value * number)
            one.step()
            for p, gradient in zip(params, kept, strict=True):
                p.grad = gradient
    torch.cuda.synchronize()
    assert all(x is p.grad for x, p in zip(captured, ours, strict=True))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@needs_cuda
def test_optimizers_may_step_on_streams_of_their_own():
    ends = []
    for streams in ([torch.cuda.current_stream()] * 2, [torch.cuda.Stream(), torch.cuda.Stream()]):
        pairs = []
        for seed in (0, 1):
            params = params_on("cuda", (400, 300), (7,))
            pairs.append((Langevin(params, 0.1, temperature=1e-3, constraint=Circle(1.0), seed=seed), params))
        torch.cuda.synchronize()
        for number in range(6):
            for (opt, params), stream in zip(pairs, streams, strict=True):
                with torch.cuda.stream(stream):
                    opt.param_groups[0]["lr"] = 0.1 / (1 + number // 2)
                    for p in params:
                        p.grad = torch.sin(p.detach() + number)  # new memory, which the streams reuse
                    opt.step()
        torch.cuda.synchronize()
        ends.append([p.detach() for _, params in pairs for p in params])
    assert all(map(torch.equal, *ends))


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_properties(0).total_memory < 120e9,
    reason="no CUDA device of 120 GB here",
)
@pytest.mark.parametrize("space", [None, Circle(1.0)], ids=["free", "circle"])
def test_tensors_of_more_entries_than_32_bits_number(space):
    count = (1 << 31) + 1500
    p = nn.Parameter(torch.zeros(count, dtype=torch.bfloat16, device="cuda"))
    p.grad = torch.ones_like(p)
    opt = Langevin([p], 0.25, scheme="L", constraint=space, seed=0)
    opt.step()
    assert float(p.detach()[0]) != 0
    assert bool((p.detach() == p.detach()[0]).all())
    p.grad[-1] = torch.nan
    opt.step()
    assert opt._read_skipped() == 1
    p.grad[-1] = 1.0
    opt.param_groups[0]["temperature"] = 1e-2
    opt.step()
    ends = p.detach()[:1500].float(), p.detach()[-1500:].float()
    assert all(0.04 < float(x.std()) < 0.1 for x in ends)  # √(2τh) = 0.07
    assert not torch.equal(*ends)
