"""Every private torch name that holonom uses; those that a release may not have, each with a fallback."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, wraps
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

P = ParamSpec("P")
T = TypeVar("T")

release: str = torch.__version__
"""The torch release, as results record it."""

folder = Path(torch.__file__).parent
"""Where torch's own code is."""

version: Callable[[Tensor], int] = attrgetter("_version")
"""How often a tensor was written in place."""


# ── multi-tensor kernels ─────────────────────────────────────────────────────────────────────────


def _multi_tensor(name: str) -> Callable[..., Any] | None:
    return getattr(torch, f"_foreach_{name}", None)


def add_scaled_(ys: Sequence[Tensor], xs: Sequence[Tensor], a: float | Tensor) -> None:
    """y += a·x for all; a tensor of shape (R, …) is broadcast over the trailing dimensions."""
    kernel = _multi_tensor("add_")
    if kernel is not None and not isinstance(a, Tensor) and ys:
        kernel(list(ys), list(xs), alpha=a)
        return
    for y, x in zip(ys, xs, strict=True):
        if isinstance(a, Tensor):
            y.add_(x * a.reshape(a.shape + (1,) * (x.ndim - a.ndim)))
        else:
            y.add_(x, alpha=a)


def scale_(xs: Sequence[Tensor], a: float) -> None:
    """x ← a·x for all."""
    kernel = _multi_tensor("mul_")
    if kernel is not None and xs:
        kernel(list(xs), a)
        return
    for x in xs:
        x.mul_(a)


def copy_(ys: Sequence[Tensor], xs: Sequence[Tensor]) -> None:
    """y ← x for all."""
    kernel = _multi_tensor("copy_")
    if kernel is not None and ys:
        kernel(list(ys), list(xs))
        return
    for y, x in zip(ys, xs, strict=True):
        y.copy_(x)


# ── the precision of matrix products ─────────────────────────────────────────────────────────────


_changing_precision = Lock()
_inside = 0  # calls of full_precision() that have not ended, of all threads
_users_precision: list[str] | None = None  # None: products have all their digits as it is


@contextmanager
def full_precision() -> Iterator[None]:
    """float32 products with all their digits, whatever the user's TF32, bfloat16 or autocast setting is.

    The setting is that of the process: the first thread to enter changes it, the last one to leave restores it.
    """
    global _inside, _users_precision
    with _changing_precision:
        if not _inside:
            settings = _precision()
            _users_precision = None if _EXACT.issuperset(settings) else settings[1:]
            if _users_precision is not None:
                _set_precision(["ieee"] * len(_users_precision))
        _inside += 1
    try:
        if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                yield
        else:
            yield
    finally:
        with _changing_precision:
            _inside -= 1
            if not _inside and _users_precision is not None:
                _set_precision(_users_precision)


_EXACT = {"none", "ieee", "highest"}


def _matmul_backends() -> list[Any]:
    """Those with a setting of their own, which torch 2.9 introduced."""
    found = [getattr(getattr(torch.backends, name), "matmul", None) for name in ("cuda", "mkldnn")]
    return [backend for backend in found if hasattr(backend, "fp32_precision")]


def _precision() -> list[str]:
    """What all products of the process inherit, and what each kind of product has."""
    backends = _matmul_backends()
    if not backends:
        return ["none", torch.get_float32_matmul_precision()]
    return [str(getattr(torch.backends, "fp32_precision", "none")), *(backend.fp32_precision for backend in backends)]


def _set_precision(settings: list[str]) -> None:
    backends = _matmul_backends()
    for backend, setting in zip(backends, settings, strict=False):
        backend.fp32_precision = setting
    if not backends:
        torch.set_float32_matmul_precision("highest" if settings[0] == "ieee" else settings[0])


@contextmanager
def few_digits() -> Iterator[None]:
    """Products of float32 matrices on a GPU with TF32's eleven bits, inside :func:`full_precision`.

    Another thread's products may get them, too: code that calls this takes double precision for all that needs digits.
    """
    backend = torch.backends.cuda.matmul
    with _changing_precision:
        before = getattr(backend, "fp32_precision", None) or torch.get_float32_matmul_precision()
        _set_gpu_precision("tf32" if hasattr(backend, "fp32_precision") else "high")
        try:
            yield
        finally:
            _set_gpu_precision(before)


def _set_gpu_precision(setting: str) -> None:
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision = setting
    else:
        torch.set_float32_matmul_precision(setting)


# ── the compiler ─────────────────────────────────────────────────────────────────────────────────

is_traced: Callable[[], bool] = torch.compiler.is_compiling
"""Whether the compiler is tracing the caller: what is kept between calls must stay out of its program."""


def cached(function: Callable[P, T]) -> Callable[P, T]:
    """functools.lru_cache, which the compiler does not see: it would trace the function and warn at every user."""
    kept = lru_cache(maxsize=256)(function)

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> T:
        if is_traced():
            return function(*args, **keywords)
        return kept(*args, **keywords)  # type: ignore[arg-type]

    call.__dict__["cache_clear"] = kept.cache_clear
    return call


@cache
def compile_errors() -> tuple[type[Exception], ...]:
    """What torch.compile raises while it compiles, before anything runs."""
    from torch._dynamo import exc

    names = ("BackendCompilerFailed", "Unsupported", "FailOnRecompileLimitHit", "FailOnCacheLimitHit")
    found = [getattr(exc, name) for name in names if hasattr(exc, name)]
    try:
        from torch._inductor.exc import CppCompileError, InductorError

        found += [InductorError, CppCompileError]
    except ImportError:  # other names in older releases, all raised as BackendCompilerFailed
        pass
    return tuple(found)


def known_options(options: dict[str, Any]) -> dict[str, Any]:
    """The inductor options that this torch release knows, of the types it takes; others would raise."""
    try:
        from torch._inductor import config
    except ImportError:
        return {}

    def known(name: str, value: Any) -> bool:
        present: Any = config
        for part in name.split("."):
            present = getattr(present, part, _MISSING)
        fits = present is None or isinstance(value, type(present))
        return name == "guard_filter_fn" or (present is not _MISSING and fits)

    return {name: value for name, value in options.items() if known(name, value)}


_MISSING = object()


def guards_where(keep: Callable[[str], bool]) -> dict[str, Any]:
    """The option that drops the guards of a program but those on sources that ``keep`` accepts; torch 2.10.

    For callers that check the rest themselves. An older torch keeps all of them, which is slower.
    """
    if not hasattr(torch.compiler, "skip_all_guards_unsafe"):
        return {}
    return {"guard_filter_fn": lambda guards: [keep(guard.name) for guard in guards]}


def graph_pass(function: Callable[[Any], None], version: int) -> dict[str, Any]:
    """The option that has the compiler change its graphs by a function; ``version`` is that of the function.

    Inductor's cache on disk keeps programs by it. Nothing where a release has no such option.
    """
    try:
        from torch._inductor.custom_graph_pass import CustomGraphPass
    except ImportError:
        return {}

    class Pass(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            function(graph)

        def uuid(self) -> tuple[str, int]:
            return f"{function.__module__}.{function.__qualname__}", version

    return {"post_grad_custom_pre_pass": Pass()}


@cache
def triton_fault() -> str | None:
    """Why our kernels cannot be compiled here, with what to do about it; None if they can.

    They need Triton 3.3, which torch's CUDA builds bring along: that of torch 2.6 has no tuples of tensors. Triton
    needs a C compiler for what launches a kernel, which slim images of containers do not have.
    """
    if importlib.util.find_spec("triton") is None:
        return "there is no Triton 3.3 or later (torch 2.7 brings it along; on Windows install triton-windows)"
    import triton

    major, minor, *_ = triton.__version__.split(".")
    if (int(major), int(minor)) < (3, 3):
        return f"Triton is {triton.__version__}, not 3.3 or later (update torch to 2.7 or later)"
    if torch.cuda.is_available():
        try:
            triton.runtime.driver.active.get_current_target()
        except Exception as error:  # of Triton's, of a C compiler, or of the system
            return f"Triton does not start: {error} (it needs a C compiler, such as gcc, and Python's headers)"
    return None


def has_triton() -> bool:
    """Whether our kernels can be compiled here."""
    return triton_fault() is None


# ── hooks ────────────────────────────────────────────────────────────────────────────────────────


def watch_gradient(x: Tensor, look: Callable[[Tensor], None]) -> None:
    """Call ``look`` with the gradient that comes to x; not in a trace, where a hook cannot read values."""
    if not is_traced():
        x.register_hook(look)  # type: ignore[no-untyped-call]


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether hooks may read or change the arguments or the results of this module alone."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


# ── modules ──────────────────────────────────────────────────────────────────────────────────────


def replace_tensors(tree: nn.Module, others: Mapping[int, Tensor]) -> None:
    """Put other tensors in place of a module's parameters and buffers, whose ids are the keys."""
    for module in tree.modules():
        for own in (module._parameters, module._buffers):
            own.update({name: others[id(x)] for name, x in own.items() if x is not None})  # type: ignore[misc]


def take_over(module: nn.Module, tree: nn.Module) -> None:
    """Give a module the submodules, parameters and buffers of another one, under their names."""
    for name, child in tree._modules.items():
        module.add_module(name, child)
    for name, p in tree._parameters.items():
        module.register_parameter(name, p)
    for name, buffer in tree._buffers.items():
        module.register_buffer(name, buffer, persistent=name not in tree._non_persistent_buffers_set)


# ── optimizers ───────────────────────────────────────────────────────────────────────────────────


def takes_step_hooks(optimizer: Optimizer) -> bool:
    """Whether the optimizer's constructor was run, which makes the places of hooks."""
    return hasattr(optimizer, "_optimizer_step_pre_hooks")


def step_hooks(optimizer: Optimizer) -> list[Callable[..., Any]]:
    """The hooks that are registered around this optimizer's step."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return [hook for name in names for hook in getattr(optimizer, name, {}).values()]


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether a hook is registered around the optimizer's step."""
    from torch.optim import optimizer as module

    shared = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    return bool(step_hooks(optimizer)) or any(getattr(module, name, None) for name in shared)


def muon() -> Callable[..., Optimizer]:
    """torch.optim.Muon."""
    found: Callable[..., Optimizer] | None = getattr(torch.optim, "Muon", None)
    if found is None:
        raise RuntimeError(f"torch {release} has no Muon: update torch to 2.9 or later, or use presets.adamh")
    return found


# ── shards ───────────────────────────────────────────────────────────────────────────────────────


def placement_kind(placement: Any) -> tuple[str, int | None, bool]:
    """What a placement of a DTensor is: "shard", "replicate", "partial" or "other"; the dimension of a shard; strided.

    A strided shard is FSDP2's of what tensor parallelism has cut in the same dimension. Its class is private, and only
    in later releases is it a ``Shard``.
    """
    if hasattr(placement, "split_factor"):
        return "shard", int(placement.dim), placement.split_factor > 1
    for kind in ("shard", "replicate", "partial"):
        if getattr(placement, f"is_{kind}")():
            return kind, (int(placement.dim) if kind == "shard" else None), False
    return "other", None, False


def gather_into(whole: Tensor, part: Tensor, group: Any) -> None:
    """Write the parts of all ranks behind each other into ``whole``; torch 2.13 has renamed the function."""
    distributed = torch.distributed
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    gather(whole, part, group=group)
