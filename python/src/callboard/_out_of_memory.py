"""A batch that found no memory, of the device or of the process: which errors say so, and how memory is freed."""

from __future__ import annotations

import contextlib
import gc
import sys

from callboard._said import said

# How errors of other types say it, such as `RuntimeError: CUDA error: out of memory`.
_WORDS = ("out of memory", "RESOURCE_EXHAUSTED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it is `torch.OutOfMemoryError`, one with this name, a `MemoryError`, or a `RuntimeError` that says so."""
    names = [base.__name__ for base in type(error).__mro__]
    if "OutOfMemoryError" in names or "MemoryError" in names:
        return True
    return "RuntimeError" in names and any(word in said(error) for word in _WORDS)


def free_memory() -> None:
    """Frees what is in cycles, and the memory of the device that PyTorch keeps for later."""
    gc.collect()
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    with contextlib.suppress(Exception):
        if cuda is not None and cuda.is_initialized():
            cuda.empty_cache()
