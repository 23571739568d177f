//! One array on the wire: elements in row-major order, packed, little-endian; each element of `BYTES` follows its
//! length.
//!
//! Numbers are shared with the body in both directions. An array is checked when it is made: its shape accounts for
//! every byte.

use bytes::{BufMut, Bytes, BytesMut};
use callboard_codec::{DType, Media, StrTensor, Tensor, TensorError, Value};

use super::datatype::Datatype;
use super::error::Refusal;

/// Elements with their type and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The type of the elements.
    pub datatype: Datatype,
    /// The length of each axis.
    pub shape: Vec<usize>,
    /// The elements in the binary form of the protocol.
    pub data: Bytes,
}

/// The bytes of the length before each element of `BYTES`.
pub(crate) const LENGTH_BYTES: usize = 4;

impl Array {
    /// An array from a client. Each element of `BYTES` becomes a value, so there are at most `most`.
    pub(crate) fn try_new(
        name: &str,
        datatype: Datatype,
        shape: Vec<usize>,
        data: Bytes,
        most: usize,
    ) -> Result<Self, Refusal> {
        let count = count(name, &shape)?;
        match datatype.size_bytes() {
            Some(size) => {
                let expected = count.checked_mul(size).ok_or_else(|| Refusal::shape_too_large(name, &shape))?;
                if expected != data.len() {
                    return Err(Refusal::wrong_size(name, expected, data.len()));
                }
            }
            None => {
                if count > most {
                    return Err(Refusal::too_many_elements(name, count, most));
                }
                let elements = count_elements(name, &data, count)?;
                if elements != count {
                    return Err(Refusal::wrong_count(name, count, elements));
                }
            }
        }
        // Any byte but 0 is true, as in C.
        let data = match datatype {
            Datatype::Number(DType::Bool) if data.iter().any(|byte| *byte > 1) => {
                data.iter().map(|byte| u8::from(*byte != 0)).collect()
            }
            _ => data,
        };
        Ok(Self { datatype, shape, data })
    }

    /// An array of `BYTES`.
    pub(crate) fn from_elements<T: AsRef<[u8]>>(shape: Vec<usize>, elements: impl IntoIterator<Item = T>) -> Self {
        let mut data = BytesMut::new();
        for element in elements {
            push_element(&mut data, element.as_ref());
        }
        Self { datatype: Datatype::Bytes, shape, data: data.freeze() }
    }

    pub(crate) fn from_tensor(tensor: &Tensor) -> Option<Self> {
        let datatype = Datatype::from_dtype(tensor.dtype())?;
        Some(Self { datatype, shape: tensor.shape().to_vec(), data: tensor.data().clone() })
    }

    pub(crate) fn from_texts(texts: &StrTensor) -> Self {
        Self::from_elements(texts.shape().to_vec(), texts.iter())
    }

    /// The elements of `BYTES`, shared.
    pub fn elements(&self) -> impl Iterator<Item = Bytes> {
        ByteElements(self.data.clone()).map_while(Result::ok)
    }

    /// A tensor of numbers or texts; elements that are not UTF-8 become a list.
    pub(crate) fn to_value(&self) -> Result<Value, TensorError> {
        match self.datatype {
            Datatype::Number(dtype) => Ok(Value::Tensor(Tensor::try_new(dtype, &self.shape, self.data.clone())?)),
            Datatype::Bytes => {
                let elements: Vec<Bytes> = self.elements().collect();
                let texts: Result<Vec<&str>, _> = elements.iter().map(|element| std::str::from_utf8(element)).collect();
                match texts {
                    Ok(texts) => Ok(Value::StrTensor(StrTensor::from_texts(&self.shape, texts)?)),
                    Err(_) => Ok(Value::List(elements.into_iter().map(Value::Bytes).collect())),
                }
            }
        }
    }

    /// The rows along the first axis. Numbers are shared.
    pub(crate) fn rows(&self) -> Vec<Self> {
        let Some((rows, shape)) = self.shape.split_first() else { return Vec::new() };
        let of = |data: Bytes| Self { datatype: self.datatype, shape: shape.to_vec(), data };
        match self.datatype {
            Datatype::Number(_) => {
                let bytes = self.data.len() / (*rows).max(1);
                (0..*rows).map(|row| of(self.data.slice(row * bytes..(row + 1) * bytes))).collect()
            }
            Datatype::Bytes => {
                let count = shape.iter().product();
                let mut rest = self.data.clone();
                let mut row = || {
                    let bytes = ByteElements(rest.clone()).map_while(Result::ok).take(count);
                    let bytes = bytes.map(|element| LENGTH_BYTES + element.len()).sum();
                    of(rest.split_to(bytes))
                };
                (0..*rows).map(|_| row()).collect()
            }
        }
    }

    /// Joins rows along a new first axis. `None` if their types or shapes differ.
    pub(crate) fn stack(rows: &[Self]) -> Option<Self> {
        let first = rows.first()?;
        if rows.iter().any(|row| row.datatype != first.datatype || row.shape != first.shape) {
            return None;
        }
        let shape = std::iter::once(rows.len()).chain(first.shape.iter().copied()).collect();
        let data = match rows {
            [only] => only.data.clone(),
            _ => {
                let mut data = BytesMut::with_capacity(rows.iter().map(|row| row.data.len()).sum());
                rows.iter().for_each(|row| data.extend_from_slice(&row.data));
                data.freeze()
            }
        };
        Some(Self { datatype: first.datatype, shape, data })
    }
}

/// Decodes elements of base64. Each keeps its length before it.
pub(crate) fn from_base64(name: &str, data: &Bytes) -> Result<Bytes, Refusal> {
    let mut decoded = BytesMut::with_capacity(data.len());
    for (index, element) in ByteElements(data.clone()).map_while(Result::ok).enumerate() {
        let bytes = std::str::from_utf8(&element).ok().and_then(|text| Media::from_base64(text).ok());
        let bytes = bytes.ok_or_else(|| Refusal::unparsable(name, format_args!("element {index} is not base64")))?;
        push_element(&mut decoded, bytes.bytes());
    }
    Ok(decoded.freeze())
}

/// Appends an element with its length.
pub fn push_element(data: &mut BytesMut, element: &[u8]) {
    // The limits of bodies are far below.
    data.put_u32_le(u32::try_from(element.len()).unwrap_or(u32::MAX));
    data.extend_from_slice(element);
}

/// The number of elements of a client's shape.
pub(crate) fn count(name: &str, shape: &[usize]) -> Result<usize, Refusal> {
    // An empty axis makes the product 0, but must not hide an overflow of the others.
    let mut axes = shape.iter().filter(|axis| **axis > 0);
    let product = axes.try_fold(1_usize, |product, axis| product.checked_mul(*axis));
    product.ok_or_else(|| Refusal::shape_too_large(name, shape))?;
    Ok(shape.iter().product())
}

/// The number of complete elements in these bytes, counted up to one beyond the expected number.
fn count_elements(name: &str, data: &Bytes, expected: usize) -> Result<usize, Refusal> {
    let mut elements = ByteElements(data.clone());
    let mut count = 0;
    for element in &mut elements {
        element.map_err(|missing| Refusal::broken_element(name, count, missing))?;
        count += 1;
        if count > expected {
            break;
        }
    }
    Ok(count)
}

/// Iterates over elements of `BYTES`. The error is the number of missing bytes.
struct ByteElements(Bytes);

impl Iterator for ByteElements {
    type Item = Result<Bytes, usize>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let Some(length) = self.0.first_chunk::<LENGTH_BYTES>() else {
            let missing = LENGTH_BYTES - self.0.len();
            self.0.clear();
            return Some(Err(missing));
        };
        let length = u32::from_le_bytes(*length) as usize;
        let left = self.0.len() - LENGTH_BYTES;
        if length > left {
            self.0.clear();
            return Some(Err(length - left));
        }
        let _ = self.0.split_to(LENGTH_BYTES);
        Some(Ok(self.0.split_to(length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(shape: &[usize], texts: &[&str]) -> Array {
        Array::from_elements(shape.to_vec(), texts)
    }

    #[test]
    fn stack_is_the_inverse_of_rows() {
        let numbers = Tensor::from_vec(&[3, 2], vec![1_i16, 2, 3, 4, 5, 6]).unwrap();
        let numbers = Array::from_tensor(&numbers).unwrap();
        let words = texts(&[2, 2], &["a", "", "longer", "d"]);
        for whole in [numbers, words] {
            let rows = whole.rows();
            assert_eq!(rows.len(), whole.shape[0]);
            assert_eq!(Array::stack(&rows).unwrap(), whole);
        }
        assert!(Array::stack(&[texts(&[1], &["a"]), texts(&[2], &["a", "b"])]).is_none());
    }

    #[test]
    fn aligned_numbers_are_not_copied() {
        let tensor = Tensor::from_vec(&[4], vec![1.0_f64; 4]).unwrap();
        let array = Array::from_tensor(&tensor).unwrap();
        let Value::Tensor(again) = array.to_value().unwrap() else { panic!("numbers") };
        assert_eq!(again.data().as_ptr(), tensor.data().as_ptr());
    }

    #[test]
    fn every_byte_is_accounted_for() {
        let f32s = Datatype::Number(DType::F32);
        let array = |datatype, shape: &[usize], data: &'static [u8]| {
            Array::try_new("x", datatype, shape.to_vec(), Bytes::from_static(data), 1000)
                .map_err(|error| error.to_string())
        };
        assert!(array(f32s, &[2], &[0; 8]).is_ok());
        assert!(array(f32s, &[3], &[0; 8]).unwrap_err().contains("12 bytes"));
        assert!(array(f32s, &[usize::MAX, 2], &[]).unwrap_err().contains("too large"));
        assert!(array(f32s, &[usize::MAX, 2, 0], &[]).unwrap_err().contains("too large"));
        assert!(array(Datatype::Bytes, &[1], b"\x02\0\0\0ab").is_ok());
        assert!(array(Datatype::Bytes, &[2], b"\x02\0\0\0ab").unwrap_err().contains("1 element"));
        assert!(array(Datatype::Bytes, &[1], b"\xff\xff\xff\xffab").is_err());
        assert!(array(Datatype::Bytes, &[1], b"\x02\0").is_err());
        assert!(array(Datatype::Bytes, &[1001], &[0; 4004]).unwrap_err().contains("1001 elements"));
        assert!(array(Datatype::Bytes, &[1], &[0; 4000]).is_err());
    }
}
