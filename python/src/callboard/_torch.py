"""Tensors of PyTorch as arguments and results. On the CPU they share the memory of their array in both directions."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np


def is_tensor(kind: type) -> bool:
    """Whether this is a type of tensors. PyTorch is only looked at if user code has imported it."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and issubclass(kind, tensor)


def from_array(array: np.ndarray[Any, Any], *, was_list: bool) -> Any:
    """The array as a tensor, which must not be written into. Lists become what `torch.tensor` makes of them."""
    import torch

    if array.dtype.name == "bfloat16":
        return from_array(array.view(np.int16), was_list=False).view(torch.bfloat16)
    if was_list and array.dtype == np.float64:
        array = array.astype(np.float32)
    with warnings.catch_warnings():
        # The array is a view of received bytes, which no other code reads.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def to_array(tensor: Any) -> np.ndarray[Any, Any]:
    """The tensor as an array; from another device it is copied. A `TypeError` is a tensor that has no array."""
    import torch

    if tensor.is_meta:
        raise TypeError("a tensor on the meta device has no data")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise TypeError("a tensor that is sparse, quantized or nested has no array")
    # A conjugate or negative view is no array before it is resolved.
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError("a tensor of bfloat16 needs ml_dtypes: install `callboard[bfloat16]`") from None
        halves: np.ndarray[Any, Any] = tensor.contiguous().view(torch.int16).numpy()
        return halves.view(ml_dtypes.bfloat16)
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array
