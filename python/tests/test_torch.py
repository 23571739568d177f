"""Tensors of PyTorch, with the real package where it is installed, and with a stand-in where it is not."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

import callboard as cb
from callboard._envelope import decode, encode
from callboard._target import routes_of


class Tensor:
    """The few methods of a tensor that are used."""

    def __init__(self, array: np.ndarray[Any, Any], steps: tuple[str, ...] = ()) -> None:
        self.array, self.steps, self.dtype = array, steps, array.dtype

    def detach(self) -> Tensor:
        return Tensor(self.array, (*self.steps, "detach"))

    def cpu(self) -> Tensor:
        return Tensor(self.array, (*self.steps, "cpu"))

    def numpy(self) -> np.ndarray[Any, Any]:
        # A tensor with a gradient, or of another device, has no array.
        assert self.steps == ("detach", "cpu")
        return self.array


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    try:
        import torch
    except ImportError:
        stand_in = types.ModuleType("torch")
        vars(stand_in).update(Tensor=Tensor, from_numpy=Tensor, bfloat16="torch.bfloat16")
        monkeypatch.setitem(sys.modules, "torch", stand_in)
        return stand_in
    return torch


def test_a_tensor_shares_the_memory_of_its_array(torch: Any) -> None:
    def f(x: Any) -> Any:
        return x

    f.__annotations__.update({"x": torch.Tensor, "return": torch.Tensor})
    (route,) = routes_of(f, "f")
    assert route.describe()["input"]["type"] == route.describe()["output"]["type"] == "array"
    array = decode(encode(np.arange(1000, dtype=np.float32)))
    tensor = route.signature.arguments(array)["x"]
    assert isinstance(tensor, torch.Tensor) and np.shares_memory(tensor.detach().cpu().numpy(), array)
    with cb.test_client(f) as client:
        assert client.call(array).dtype == np.float32
        # As `torch.tensor` makes them.
        assert client.call([0.5, 1]).dtype == np.float32 and client.call([1]).dtype == np.int64
        with pytest.raises(cb.InvalidInput, match="Expected an array of numbers"):
            client.call({"a": 1})


def test_tensors_of_two_bytes_cross() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    tensor = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16, requires_grad=True)
    array = decode(encode({"x": tensor}))["x"]
    assert (array.dtype.name, array.tolist()) == ("bfloat16", [[1.5, -2.0]])
