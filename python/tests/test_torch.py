"""Tensors of PyTorch, with the real package where it is installed, and with a stand-in where it is not."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

import callboard as cb
from callboard import _torch
from callboard._envelope import decode, encode
from callboard._target import routes_of


class Tensor:
    """The few methods of a tensor that are used."""

    layout = "torch.strided"
    is_meta = is_quantized = is_nested = False

    def __init__(self, array: np.ndarray[Any, Any], steps: tuple[str, ...] = ()) -> None:
        self.array, self.steps, self.dtype = array, steps, array.dtype

    def detach(self) -> Tensor:
        return Tensor(self.array, (*self.steps, "detach"))

    def cpu(self) -> Tensor:
        return Tensor(self.array, (*self.steps, "cpu"))

    def resolve_conj(self) -> Tensor:
        return Tensor(self.array, (*self.steps, "resolve_conj"))

    def resolve_neg(self) -> Tensor:
        return Tensor(self.array, (*self.steps, "resolve_neg"))

    def numpy(self) -> np.ndarray[Any, Any]:
        # A tensor with a gradient, of another device, or a conjugate view has no array.
        assert self.steps == ("detach", "cpu", "resolve_conj", "resolve_neg")
        return self.array


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    try:
        import torch
    except ImportError:
        stand_in = types.ModuleType("torch")
        vars(stand_in).update(Tensor=Tensor, from_numpy=Tensor, bfloat16="torch.bfloat16", strided="torch.strided")
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
    assert isinstance(tensor, torch.Tensor) and np.shares_memory(_torch.to_array(tensor), array)
    with cb.test_client(f) as client:
        assert client.call(array).dtype == np.float32
        # As `torch.tensor` makes them.
        assert client.call([0.5, 1]).dtype == np.float32 and client.call([1]).dtype == np.int64
        with pytest.raises(cb.InvalidInput, match="Expected an array of numbers"):
            client.call({"a": 1})


DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype_and_layout_cross(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, dtype))
    for tensor in (whole, whole[0, 0, 0], whole[:0], whole.transpose(0, 2), whole[:, ::2]):
        array = decode(encode({"x": tensor}))["x"]
        assert (array.dtype.name, array.shape) == (dtype, tuple(tensor.shape)) and array.tolist() == tensor.tolist()
        back = _torch.from_array(array, was_list=False)
        assert back.dtype == tensor.dtype and torch.equal(back, tensor)


def test_views_and_gradients_are_resolved() -> None:
    torch = pytest.importorskip("torch")
    complexes = torch.tensor([1 + 2j, -3j])
    for tensor in (complexes.conj(), complexes.conj().imag, torch.nn.Parameter(torch.ones(2))):
        assert decode(encode(tensor)).tolist() == tensor.tolist()


def test_a_tensor_without_an_array_is_refused_with_its_place() -> None:
    torch = pytest.importorskip("torch")
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    for tensor in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), quantized, nested):
        with pytest.raises(TypeError, match=r"`torch.Tensor` cannot be sent: .* at \$\.a\[1\]"):
            encode({"a": [1, tensor]})
    with pytest.raises(TypeError, match=r"`torch.Tensor` cannot be sent: .* at \$"):
        encode(torch.empty(2, device="meta"))


def test_a_device_that_fails_is_no_fault_of_the_value(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def cpu(_: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    tensor = torch.from_numpy(np.ones(2, np.float32))
    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    with pytest.raises(RuntimeError, match="CUDA error"):
        encode({"a": [1, tensor]})


def test_a_batch_of_tensors_is_served() -> None:
    torch = pytest.importorskip("torch")

    class Scale:
        def setup(self) -> None:
            self.layer = torch.nn.Linear(2, 1)

        def predict(self, rows: Any) -> Any:
            return list(self.layer(torch.stack(rows)))

    # The hints are texts in this file, and the module is known in the test only.
    Scale.predict.__annotations__.update({"rows": list[torch.Tensor], "return": list[torch.Tensor]})
    Scale.predict = cb.batched(max_batch_size=4)(Scale.predict)  # type: ignore[method-assign]
    with cb.test_client(cb.service(Scale)) as client:
        output = client.call(np.ones(2, np.float32))
        assert (output.shape, output.dtype) == ((1,), np.float32)


def test_tensors_of_two_bytes_cross() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    tensor = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16, requires_grad=True)
    array = decode(encode({"x": tensor}))["x"]
    assert (array.dtype.name, array.tolist()) == ("bfloat16", [[1.5, -2.0]])
