"""Every private torch name has a fallback: each is taken away in turn, and the result is the same."""

import builtins
import re
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holonom import Langevin, _torch
from holonom._backends import inductor
from holonom._step import run
from holonom.constraints import Orthogonal

MULTI_TENSOR = ["_foreach_add_", "_foreach_mul_", "_foreach_copy_"]


@pytest.fixture(params=["with multi-tensor kernels", "without"])
def kernels(request, monkeypatch):
    for name in MULTI_TENSOR if request.param == "without" else []:
        monkeypatch.delattr(torch, name)


def lists():
    return [torch.arange(3.0), torch.ones(2, 2)], [torch.full((3,), 2.0), torch.eye(2)]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda ys, xs: _torch.add_scaled_(ys, xs, 0.5), lambda y, x: y + 0.5 * x),
        (lambda ys, xs: _torch.add_scaled_(ys, xs, torch.tensor(0.5)), lambda y, x: y + 0.5 * x),
        (lambda ys, xs: _torch.scale_(ys, 3.0), lambda y, x: 3 * y),
        (_torch.copy_, lambda y, x: x),
    ],
    ids=["add_scaled_", "add_scaled_, tensor", "scale_", "copy_"],
)
def test_lists_of_tensors(function, expected):
    ys, xs = lists()
    wanted = [expected(y, x) for y, x in zip(ys, xs, strict=True)]
    function(ys, xs)
    assert all(map(torch.equal, ys, wanted))
    function([], [])


def test_a_coefficient_per_replica():
    y, x = torch.zeros(2, 3, 3), torch.ones(2, 3, 3)
    _torch.add_scaled_([y], [x], torch.tensor([1.0, 2.0]))
    assert torch.equal(y, torch.stack([torch.ones(3, 3), torch.full((3, 3), 2.0)]))


class Settings:
    """torch.backends without fp32_precision, as before torch 2.9."""

    class cuda:
        matmul = object()

    class mkldnn:
        matmul = object()


@pytest.mark.parametrize("old", [False, True], ids=["fp32_precision", "before it"])
def test_full_precision_and_back(old, monkeypatch):
    before = torch.get_float32_matmul_precision()
    if old:
        monkeypatch.setattr(_torch.torch, "backends", Settings)
    try:
        torch.set_float32_matmul_precision("medium")
        with _torch.full_precision():
            if old:
                assert torch.get_float32_matmul_precision() == "highest"
            else:
                assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "medium"
        with pytest.raises(KeyError), _torch.full_precision():
            raise KeyError
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        monkeypatch.undo()
        torch.set_float32_matmul_precision(before)


def without(monkeypatch, *modules):
    """Let imports of these fail."""
    original = builtins.__import__

    def guarded(name, globals=None, locals=None, fromlist=(), level=0):
        if name in modules or any(f"{name}.{part}" in modules for part in fromlist or ()):
            raise ImportError(name)
        return original(name, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", guarded)
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_options_that_torch_knows_are_passed_and_others_are_not(monkeypatch):
    options = {"size_asserts": False, "an_option_of_tomorrow": 1, "guard_filter_fn": len}
    assert _torch.known_options(options) == {"size_asserts": False, "guard_filter_fn": len}
    without(monkeypatch, "torch._inductor")
    assert _torch.known_options(options) == {}


def test_guards_are_dropped_where_torch_can(monkeypatch):
    class Guard:
        name = "L['x']"

    if hasattr(torch.compiler, "skip_all_guards_unsafe"):
        [drop] = _torch.guards_where(lambda source: source == "L['x']").values()
        assert drop([Guard]) == [True]
        monkeypatch.delattr(torch.compiler, "skip_all_guards_unsafe")
    assert _torch.guards_where(lambda source: True) == {}


def test_compile_errors_of_older_releases(monkeypatch):
    new = _torch.compile_errors()
    assert all(issubclass(error, Exception) for error in new)
    assert {error.__name__ for error in new} >= {"BackendCompilerFailed", "Unsupported"}
    without(monkeypatch, "torch._inductor.exc")
    old = _torch.compile_errors.__wrapped__()
    assert {error.__name__ for error in old} >= {"BackendCompilerFailed", "Unsupported"}
    assert not {error.__name__ for error in old} & {"InductorError", "CppCompileError"}


@pytest.mark.parametrize(
    ("release", "compiles"), [("3.2.0", False), ("3.3.1", True), ("3.10.0+git1", True), ("4.0.0", True)]
)
def test_which_triton_compiles_the_kernels(monkeypatch, release, compiles):
    module = ModuleType("triton")
    module.__version__, module.__spec__ = release, ModuleSpec("triton", None)
    monkeypatch.setitem(sys.modules, "triton", module)
    assert (_torch.triton_fault.__wrapped__() is None) == compiles


def test_a_triton_without_a_compiler_runs_no_kernels(monkeypatch):
    """Slim images of containers have Triton and no gcc: steps then are those of the reference."""

    class Driver:
        @property
        def active(self):
            raise RuntimeError("Failed to find C compiler.")

    module = ModuleType("triton")
    module.__version__, module.__spec__, module.runtime = "3.6.0", ModuleSpec("triton", None), ModuleType("runtime")
    module.runtime.driver = Driver()
    monkeypatch.setitem(sys.modules, "triton", module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _torch.triton_fault.__wrapped__() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert re.search(r"Failed to find C compiler\. .*gcc", _torch.triton_fault.__wrapped__())


def test_that_a_gpu_has_no_kernels_is_said_once(monkeypatch):
    monkeypatch.setattr(run, "KERNEL_DEVICES", {"cpu"})
    monkeypatch.setattr(run, "has_triton", lambda: False)
    monkeypatch.setattr(run, "triton_fault", lambda: "there is no Triton")
    run._warn_without_triton.cache_clear()
    for fuse, said in ((False, 0), (None, 1), (None, 0)):
        p = torch.nn.Parameter(torch.ones(3))
        p.grad = torch.ones(3)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            Langevin([p], 0.1, fuse=fuse, seed=0).step()
        assert sum("because there is no Triton. The" in str(one.message) for one in found) == said
        assert all(one.filename == __file__ for one in found)


def test_step_hooks_are_found():
    opt = Langevin([torch.nn.Parameter(torch.ones(1))], 0.1)
    assert not _torch.has_step_hooks(opt)
    handle = opt.register_step_post_hook(lambda *args: None)
    assert _torch.has_step_hooks(opt)
    handle.remove()
    assert not _torch.has_step_hooks(opt)
    shared = register_optimizer_step_pre_hook(lambda *args: None)
    assert _torch.has_step_hooks(opt)
    shared.remove()


def trained(fuse, space=None):
    p = torch.nn.Parameter(
        torch.linalg.qr(torch.randn(7, 5, generator=torch.Generator().manual_seed(0))).Q.contiguous()
    )
    opt = Langevin([p], 0.1, temperature=0.1, fuse=fuse, constraint=space, seed=0)
    for _ in range(3):
        p.grad = torch.sin(3 * p.detach())
        opt.step()
    return p.detach()


def test_a_compiled_step_works_without_the_private_names(monkeypatch):
    """Options of another release in particular: they must not raise inside step()."""
    monkeypatch.setattr(inductor, "_kernels", {})
    monkeypatch.setattr(inductor, "_fixed", {})
    for name in MULTI_TENSOR:
        monkeypatch.delattr(torch, name)
    monkeypatch.delattr(torch.compiler, "skip_all_guards_unsafe", raising=False)
    monkeypatch.setattr(inductor, "OPTIONS", inductor.OPTIONS | {"an_option_of_tomorrow": True})
    monkeypatch.setattr(inductor, "DRAW_OPTIONS", inductor.DRAW_OPTIONS | {"another": True})
    fast = trained(True)
    assert inductor._kernels
    assert None not in inductor._kernels.values()
    torch.testing.assert_close(fast, trained(False), rtol=1e-5, atol=1e-6)


def test_an_orthogonal_step_works_without_the_private_names(monkeypatch):
    expected = trained(None, Orthogonal())
    for name in MULTI_TENSOR:
        monkeypatch.delattr(torch, name)
    monkeypatch.setattr(_torch.torch, "backends", Settings)
    assert torch.equal(trained(None, Orthogonal()), expected)
