//! `--random-tensor f32:1x3x224x224`: a pseudo-random tensor, the same for the same arguments and seed.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use callboard_codec::{DType, Tensor, Value};
use fastrand::Rng;

/// A larger tensor would only measure the network.
const MAX_BYTES: usize = 1 << 30;

/// The generator: an element type and a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorSpec {
    dtype: DType,
    shape: Vec<usize>,
}

impl FromStr for TensorSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (dtype, shape) = text.split_once(':').ok_or_else(|| {
            format!("expected an element type and a shape, such as `f32:1x3x224x224`, found `{text}`")
        })?;
        let dtype = DType::all().find(|known| known.name() == dtype).ok_or_else(|| {
            let known: Vec<&str> = DType::all().map(DType::name).collect();
            format!("`{dtype}` is not an element type; known: {}", known.join(", "))
        })?;
        let axis =
            |length: &str| length.parse::<usize>().map_err(|_| format!("`{length}` is not the length of an axis"));
        let shape: Vec<usize> = shape.split('x').map(axis).collect::<Result<_, _>>()?;
        let bytes = shape.iter().try_fold(dtype.size_bytes(), |bytes, length| bytes.checked_mul(*length));
        if bytes.is_none_or(|bytes| bytes > MAX_BYTES) {
            return Err(format!("`{text}` has more than {MAX_BYTES} bytes"));
        }
        Ok(Self { dtype, shape })
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<String> = self.shape.iter().map(ToString::to_string).collect();
        write!(f, "{}:{}", self.dtype.name(), shape.join("x"))
    }
}

impl TensorSpec {
    /// Floats from 0 to 1, integers over their whole range, and random bools.
    pub(crate) fn generate(&self, seed: u64) -> Value {
        let mut rng = Rng::with_seed(seed);
        let count: usize = self.shape.iter().product();
        let mut bytes = Vec::with_capacity(count * self.dtype.size_bytes());
        for _ in 0..count {
            self.element(&mut rng, &mut bytes);
        }
        let tensor = Tensor::try_new(self.dtype, &self.shape, Bytes::from(bytes));
        Value::from(tensor.expect("as many bytes as elements"))
    }

    fn element(&self, rng: &mut Rng, bytes: &mut Vec<u8>) {
        match self.dtype {
            DType::Bool => bytes.push(u8::from(rng.bool())),
            DType::F16 => bytes.extend(rng.u16(..F16_ONE).to_le_bytes()),
            DType::BF16 => bytes.extend(rng.u16(..BF16_ONE).to_le_bytes()),
            DType::F32 => bytes.extend(rng.f32().to_le_bytes()),
            DType::F64 => bytes.extend(rng.f64().to_le_bytes()),
            DType::C64 => (0..2).for_each(|_| bytes.extend(rng.f32().to_le_bytes())),
            DType::C128 => (0..2).for_each(|_| bytes.extend(rng.f64().to_le_bytes())),
            whole => bytes.extend(&rng.u64(..).to_le_bytes()[..whole.size_bytes()]),
        }
    }
}

/// The bits of 1; all below are numbers from 0 to 1.
const F16_ONE: u16 = 0x3C00;

/// As [`F16_ONE`].
const BF16_ONE: u16 = 0x3F80;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_element_type_makes_a_tensor_of_its_shape() {
        for dtype in DType::all() {
            let spec: TensorSpec = format!("{}:2x3", dtype.name()).parse().unwrap();
            let Value::Tensor(tensor) = spec.generate(7) else { panic!("a tensor") };
            assert_eq!((tensor.dtype(), tensor.shape()), (dtype, [2, 3].as_slice()));
            assert_eq!(spec.generate(7), spec.generate(7), "{spec}");
            assert_eq!(spec.to_string(), format!("{}:2x3", dtype.name()));
        }
        let spec: TensorSpec = "f32:64".parse().unwrap();
        assert_ne!(spec.generate(7), spec.generate(8));
        let Value::Tensor(tensor) = spec.generate(7) else { panic!("a tensor") };
        assert!(tensor.as_slice::<f32>().unwrap().iter().all(|x| (0.0..1.0).contains(x)));
    }

    #[test]
    fn errors_name_the_expected_value() {
        for (text, part) in [
            ("f32", "such as `f32:1x3x224x224`"),
            ("float:1", "`float` is not an element type; known: bool"),
            ("f32:1xx2", "`` is not the length"),
            ("f32:-1", "`-1` is not the length"),
            ("u8:2000000000", "more than 1073741824 bytes"),
            ("f64:9999999999999x9999999999999", "more than"),
        ] {
            let error = text.parse::<TensorSpec>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,16}") {
            let _ = text.parse::<TensorSpec>();
        }
    }
}
