//! One run: tensors lent to ONNX Runtime, and its outputs taken over, both without a copy.
//!
//! This module is the only one of the crate with `unsafe`, and it has three duties:
//!
//! * An input is a borrow of our bytes. It is released before [`run`] returns, so the bytes outlive it; ONNX Runtime
//!   only reads what it is fed.
//! * An output belongs to ONNX Runtime. [`Owned`] releases it, once; bytes that point into it keep it alive. An output
//!   that points into an input (a graph may hand one through) is copied, because the borrow ends.
//! * `Run` is called through a shared session, which its C API allows; the binding does not offer it.

#![allow(unsafe_code, reason = "the C API of ONNX Runtime: borrowed inputs, outputs without a copy, runs in parallel")]

use std::ffi::{CString, NulError, c_char, c_void};
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::{DType, Map, Scalar, StrTensor, Tensor, Value};
use ort::AsPointer as _;
use ort::memory::MemoryInfo;
use ort::session::{Session, SharedSessionInner};
use ort::sys::{ONNXTensorElementDataType as Element, ONNXType, OrtStatusPtr};

use super::NAME;
use crate::engine::EngineError;
use crate::signature::{Signature, TensorSpec};

/// The deepest output: a sequence of maps of tensors is 3.
const MAX_DEPTH: usize = 4;

/// The names of a model's inputs and outputs, as C takes them.
#[derive(Debug)]
pub(super) struct Names {
    inputs: Vec<CString>,
    outputs: Vec<CString>,
    /// The memory of borrowed inputs: main memory.
    memory: MemoryInfo<'static>,
}

impl Names {
    pub(super) fn new(signature: &Signature) -> Result<Self, NulError> {
        let names = |specs: &[TensorSpec]| {
            specs.iter().map(|spec| CString::new(spec.name())).collect::<Result<Vec<_>, NulError>>()
        };
        let (inputs, outputs) = (names(signature.inputs())?, names(signature.outputs())?);
        Ok(Self { inputs, outputs, memory: MemoryInfo::default() })
    }
}

/// Runs the model. An input that is null is not given: the model has a value of its own for it.
pub(super) fn run(session: &Session, names: &Names, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
    let given = || names.inputs.iter().zip(inputs).filter(|(_, input)| !input.is_null());
    let lent = given().map(|(_, input)| lend(names, input)).collect::<Result<Vec<_>, _>>()?;
    let input_names: Vec<*const c_char> = given().map(|(name, _)| name.as_ptr()).collect();
    let input_values: Vec<_> = lent.iter().map(|value| value.0.as_ptr().cast_const()).collect();
    let output_names: Vec<*const c_char> = names.outputs.iter().map(|name| name.as_ptr()).collect();
    let mut outputs = vec![ptr::null_mut(); output_names.len()];
    // SAFETY: each array has the length that is given with it, and lives until `Run` returns. The session is not
    // changed: its `Run` may be called by several threads.
    let status = unsafe {
        (ort::api().Run)(
            session.ptr().cast_mut(),
            ptr::null(),
            input_names.as_ptr(),
            input_values.as_ptr(),
            input_values.len(),
            output_names.as_ptr(),
            output_names.len(),
            outputs.as_mut_ptr(),
        )
    };
    // Taken over first, so that they are released whatever follows.
    let outputs: Vec<_> = outputs.into_iter().map(|value| NonNull::new(value).map(Owned)).collect();
    check(status)?;
    let taking = OutputTaker { session: session.inner(), lent: inputs.iter().flat_map(memory_of).collect() };
    outputs.into_iter().map(|output| output.map_or(Ok(Value::Null), |output| taking.value(output, 0))).collect()
}

/// A value of ONNX Runtime that is ours to release.
struct Owned(NonNull<ort::sys::OrtValue>);

// SAFETY: a value belongs to no thread, and is only read here.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: nothing else releases the value that `Run`, `Create…` or `GetValue` gave us.
        unsafe { (ort::api().ReleaseValue)(self.0.as_ptr()) }
    }
}

/// The memory of an output tensor.
struct OutputMemory {
    start: *const u8,
    len: usize,
    // Released before the session, whose allocator it came from.
    _value: Owned,
    _session: Arc<SharedSessionInner>,
}

// SAFETY: `start` points into the value that moves along, and is only read.
unsafe impl Send for OutputMemory {}
// SAFETY: as above.
unsafe impl Sync for OutputMemory {}

impl AsRef<[u8]> for OutputMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the value has `len` bytes from `start` on, in main memory because a run binds no output to a device;
        // they are not written after the run, and the value lives as long.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

/// The value over the input's own bytes. The caller keeps the input until the value is released.
fn lend(names: &Names, input: &Value) -> Result<Owned, EngineError> {
    match input {
        Value::Tensor(tensor) => lend_tensor(names, tensor),
        Value::StrTensor(texts) => copy_texts(texts),
        Value::List(values) => {
            // The sequence keeps what its parts point to, so they may be released before it.
            let parts = values.iter().map(|value| lend(names, value)).collect::<Result<Vec<_>, _>>()?;
            let pointers: Vec<_> = parts.iter().map(|part| part.0.as_ptr().cast_const()).collect();
            // SAFETY: the pointers are of values that live, and there are as many as said.
            created(|value| unsafe {
                (ort::api().CreateValue)(pointers.as_ptr(), pointers.len(), ONNXType::ONNX_TYPE_SEQUENCE, value)
            })
        }
        other => Err(EngineError::new(NAME, format_args!("cannot be given a {}", other.kind()))),
    }
}

fn lend_tensor(names: &Names, tensor: &Tensor) -> Result<Owned, EngineError> {
    let element = element_of(tensor.dtype())
        .ok_or_else(|| EngineError::new(NAME, format_args!("cannot be given a tensor of {}", tensor.dtype())))?;
    let (data, shape) = (tensor.data(), axes(tensor.shape()));
    // SAFETY: the bytes are aligned for the dtype and as many as the shape needs, as every tensor's are. They are only
    // read, in spite of the `*mut`.
    created(|value| unsafe {
        (ort::api().CreateTensorWithDataAsOrtValue)(
            names.memory.ptr(),
            data.as_ptr().cast_mut().cast::<c_void>(),
            data.len(),
            shape.as_ptr(),
            shape.len(),
            element,
            value,
        )
    })
}

/// Texts have no common form in memory: each is copied.
fn copy_texts(texts: &StrTensor) -> Result<Owned, EngineError> {
    let shape = axes(texts.shape());
    let mut allocator = ptr::null_mut();
    // SAFETY: writes one pointer. The default allocator is never released.
    check(unsafe { (ort::api().GetAllocatorWithDefaultOptions)(&raw mut allocator) })?;
    // SAFETY: the shape has the length that is given with it.
    let value = created(|value| unsafe {
        let element = Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
        (ort::api().CreateTensorAsOrtValue)(allocator, shape.as_ptr(), shape.len(), element, value)
    })?;
    for (index, text) in texts.iter().enumerate() {
        let mut buffer = ptr::null_mut();
        // SAFETY: the index is below the number of elements of the shape.
        check(unsafe {
            (ort::api().GetResizedStringTensorElementBuffer)(value.0.as_ptr(), index, text.len(), &raw mut buffer)
        })?;
        // SAFETY: the buffer has as many bytes as were asked for.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), text.len()) };
    }
    Ok(value)
}

/// Takes outputs over from the library.
struct OutputTaker {
    session: Arc<SharedSessionInner>,
    /// The memory of the inputs, whose borrow ends with the run.
    lent: Vec<Range<usize>>,
}

impl OutputTaker {
    fn value(&self, value: Owned, depth: usize) -> Result<Value, EngineError> {
        if depth == MAX_DEPTH {
            return Err(EngineError::new(NAME, format_args!("gave a value nested deeper than {MAX_DEPTH}")));
        }
        match kind(&value)? {
            TENSOR => self.tensor(value),
            SEQUENCE => {
                let parts = (0..count(&value)?).map(|index| self.value(part(&value, index)?, depth + 1));
                parts.collect::<Result<_, _>>().map(Value::List)
            }
            MAP => {
                let (keys, values) =
                    (self.value(part(&value, 0)?, depth + 1)?, self.value(part(&value, 1)?, depth + 1)?);
                Ok(Value::Map(texts_of(&keys)?.into_iter().zip(scalars_of(&values)?).collect::<Map>()))
            }
            // An optional output without a value.
            NOTHING | OPTIONAL => Ok(Value::Null),
            _ => Err(EngineError::new(NAME, "gave a value that is no tensor, sequence or map")),
        }
    }

    fn tensor(&self, value: Owned) -> Result<Value, EngineError> {
        let (element, shape) = element_and_shape(&value)?;
        if element == Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING as i32 {
            return read_texts(&value, &shape).map(Value::StrTensor);
        }
        let dtype = dtype_of(element)
            .ok_or_else(|| EngineError::new(NAME, "gave a tensor whose elements no client can have"))?;
        let mut start = ptr::null_mut();
        // SAFETY: writes one pointer; the value is a tensor.
        check(unsafe { (ort::api().GetTensorMutableData)(value.0.as_ptr(), &raw mut start) })?;
        let len = shape.iter().try_fold(dtype.size_bytes(), |size, axis| size.checked_mul(*axis));
        let len = len.ok_or_else(|| EngineError::new(NAME, "gave a tensor larger than memory"))?;
        let data = if start.is_null() || len == 0 {
            Bytes::new()
        } else {
            let start = start.cast_const().cast::<u8>();
            let memory = OutputMemory { start, len, _value: value, _session: Arc::clone(&self.session) };
            let address = start.addr();
            if self.lent.iter().any(|input| input.start < address + len && address < input.end) {
                Bytes::copy_from_slice(memory.as_ref())
            } else {
                Bytes::from_owner(memory)
            }
        };
        Tensor::try_new(dtype, &shape, data).map(Value::Tensor).map_err(|error| EngineError::new(NAME, error))
    }
}

/// The addresses of an input's bytes.
fn memory_of(input: &Value) -> Vec<Range<usize>> {
    let addresses = |tensor: &Tensor| {
        let range = tensor.data().as_ptr_range();
        range.start.addr()..range.end.addr()
    };
    let parts = input.as_list().unwrap_or_else(|| slice::from_ref(input));
    parts.iter().filter_map(Value::as_tensor).map(addresses).collect()
}

fn element_and_shape(value: &Owned) -> Result<(i32, Vec<usize>), EngineError> {
    let mut info = ptr::null_mut();
    // SAFETY: writes one pointer, which is released below; the value is a tensor.
    check(unsafe { (ort::api().GetTensorTypeAndShape)(value.0.as_ptr(), &raw mut info) })?;
    // A number and not the enum: a newer library may know more elements.
    let (mut element, mut rank, mut axes) = (0_i32, 0, Vec::new());
    // SAFETY: `info` is valid until it is released, once, and `axes` has the length that is given with it.
    let read = unsafe {
        let api = ort::api();
        let read = check((api.GetTensorElementType)(info, (&raw mut element).cast()))
            .and_then(|()| check((api.GetDimensionsCount)(info, &raw mut rank)))
            .and_then(|()| {
                axes.resize(rank, 0_i64);
                check((api.GetDimensions)(info, axes.as_mut_ptr(), rank))
            });
        (api.ReleaseTensorTypeAndShapeInfo)(info);
        read
    };
    read?;
    let shape = axes.into_iter().map(usize::try_from).collect::<Result<_, _>>();
    Ok((element, shape.map_err(|_| EngineError::new(NAME, "gave a tensor with a negative axis"))?))
}

fn read_texts(value: &Owned, shape: &[usize]) -> Result<StrTensor, EngineError> {
    let (mut len, mut offsets) = (0, vec![0_usize; shape.iter().product()]);
    // SAFETY: writes one number; the value is a tensor of texts.
    check(unsafe { (ort::api().GetStringTensorDataLength)(value.0.as_ptr(), &raw mut len) })?;
    let mut texts = vec![0_u8; len];
    // SAFETY: both buffers have the lengths that are given with them.
    check(unsafe {
        let (texts, offsets_at) = (texts.as_mut_ptr().cast::<c_void>(), offsets.as_mut_ptr());
        (ort::api().GetStringTensorContent)(value.0.as_ptr(), texts, len, offsets_at, offsets.len())
    })?;
    let ends = offsets.iter().skip(1).chain([&len]).take(offsets.len());
    let mut data: Vec<u8> = ends.flat_map(|end| (*end as u64).to_le_bytes()).collect();
    data.append(&mut texts);
    StrTensor::try_new(shape, data.into()).map_err(|error| EngineError::new(NAME, error))
}

// `ONNXType` as numbers: a newer library may know more.
const NOTHING: i32 = ONNXType::ONNX_TYPE_UNKNOWN as i32;
const TENSOR: i32 = ONNXType::ONNX_TYPE_TENSOR as i32;
const SEQUENCE: i32 = ONNXType::ONNX_TYPE_SEQUENCE as i32;
const MAP: i32 = ONNXType::ONNX_TYPE_MAP as i32;
const OPTIONAL: i32 = ONNXType::ONNX_TYPE_OPTIONAL as i32;

fn kind(value: &Owned) -> Result<i32, EngineError> {
    let (mut kind, mut has_value) = (NOTHING, 0);
    // SAFETY: each writes one number.
    unsafe {
        check((ort::api().HasValue)(value.0.as_ptr(), &raw mut has_value))?;
        if has_value != 0 {
            check((ort::api().GetValueType)(value.0.as_ptr(), (&raw mut kind).cast()))?;
        }
    }
    Ok(kind)
}

fn count(value: &Owned) -> Result<usize, EngineError> {
    let mut count = 0;
    // SAFETY: writes one number.
    check(unsafe { (ort::api().GetValueCount)(value.0.as_ptr(), &raw mut count) })?;
    Ok(count)
}

/// An element of a sequence, or the keys (0) or values (1) of a map. ONNX Runtime makes a copy.
fn part(value: &Owned, index: usize) -> Result<Owned, EngineError> {
    let index = i32::try_from(index).map_err(|_| EngineError::new(NAME, "gave a sequence that is too long"))?;
    let mut allocator = ptr::null_mut();
    // SAFETY: writes one pointer. The default allocator is never released.
    check(unsafe { (ort::api().GetAllocatorWithDefaultOptions)(&raw mut allocator) })?;
    // SAFETY: an index out of range is a status, not an access.
    created(|part| unsafe { (ort::api().GetValue)(value.0.as_ptr(), index, allocator, part) })
}

/// Keys as texts: the keys of our maps are.
fn texts_of(keys: &Value) -> Result<Vec<String>, EngineError> {
    match keys {
        Value::StrTensor(texts) => Ok(texts.iter().map(str::to_owned).collect()),
        other => {
            let keys = other.as_tensor().and_then(|keys| keys.as_slice::<i64>().ok());
            let keys = keys.ok_or_else(|| EngineError::new(NAME, "gave a map whose keys are neither texts nor i64"))?;
            Ok(keys.iter().map(i64::to_string).collect())
        }
    }
}

fn scalars_of(values: &Value) -> Result<Vec<Value>, EngineError> {
    let unknown = || EngineError::new(NAME, "gave a map whose values are not f32, f64, i64 or texts");
    match values {
        Value::StrTensor(texts) => Ok(texts.iter().map(Value::from).collect()),
        Value::Tensor(numbers) => match numbers.dtype() {
            DType::F32 => scalars(numbers, Scalar::F32),
            DType::F64 => scalars(numbers, Scalar::F64),
            DType::I64 => scalars(numbers, Scalar::I64),
            _ => Err(unknown()),
        },
        _ => Err(unknown()),
    }
}

fn scalars<T: callboard_codec::Element>(numbers: &Tensor, scalar: fn(T) -> Scalar) -> Result<Vec<Value>, EngineError> {
    let numbers = numbers.as_slice::<T>().map_err(|error| EngineError::new(NAME, error))?;
    Ok(numbers.iter().map(|number| Value::Scalar(scalar(*number))).collect())
}

fn axes(shape: &[usize]) -> Vec<i64> {
    // A tensor's size fits an `isize`, so its axes do.
    shape.iter().map(|axis| *axis as i64).collect()
}

/// The value that a call has written.
fn created(call: impl FnOnce(*mut *mut ort::sys::OrtValue) -> OrtStatusPtr) -> Result<Owned, EngineError> {
    let mut value = ptr::null_mut();
    check(call(&raw mut value))?;
    NonNull::new(value).map(Owned).ok_or_else(|| EngineError::new(NAME, "gave no value"))
}

/// The error of a call, if it is one. The status is released.
fn check(status: OrtStatusPtr) -> Result<(), EngineError> {
    // SAFETY: every status comes from the call just made, and is looked at once.
    unsafe { ort::Error::result_from_status(status) }.map_err(super::failed)
}

const ELEMENTS: [(DType, Element); 13] = [
    (DType::F32, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT),
    (DType::F64, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE),
    (DType::F16, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16),
    (DType::BF16, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16),
    (DType::I8, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8),
    (DType::I16, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16),
    (DType::I32, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32),
    (DType::I64, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64),
    (DType::U8, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8),
    (DType::U16, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16),
    (DType::U32, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32),
    (DType::U64, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64),
    (DType::Bool, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL),
];

fn element_of(dtype: DType) -> Option<Element> {
    ELEMENTS.iter().find(|(known, _)| *known == dtype).map(|(_, element)| *element)
}

fn dtype_of(element: i32) -> Option<DType> {
    ELEMENTS.iter().find(|(_, known)| *known as i32 == element).map(|(dtype, _)| *dtype)
}
