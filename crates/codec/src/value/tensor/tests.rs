//! Tensors to and from arrays and lists: shared, copied and refused cases.

use ndarray::{Array, ArrayD, IxDyn, array, s};
use proptest::prelude::*;

use super::*;
use crate::DecodeErrorKind;
use crate::value::{Map, Value};

#[test]
fn from_array_keeps_the_buffer_of_a_standard_array() {
    let elements = vec![1.0_f32; 1024];
    let address = elements.as_ptr().addr();
    let tensor = Tensor::from_array(Array::from_shape_vec((32, 32), elements).unwrap());
    assert_eq!(tensor.data().as_ptr().addr(), address);
    assert_eq!(tensor.view::<f32>().unwrap().as_ptr().addr(), address);
}

#[test]
fn from_array_converts_other_orders_to_row_major() {
    let base = Array::from_iter(0..12_i32).into_shape_with_order((3, 4)).unwrap();
    let transposed = base.clone().reversed_axes();
    assert_eq!(Tensor::from_array(transposed.clone()).view::<i32>().unwrap(), transposed.into_dyn());
    let sliced = base.clone().slice_move(s![1.., ..;2]);
    assert_eq!(Tensor::from_array(sliced.clone()).view::<i32>().unwrap(), sliced.into_dyn());
    let tail = base.slice_move(s![1.., ..]);
    assert_eq!(Tensor::from_array(tail.clone()).view::<i32>().unwrap(), tail.into_dyn());
}

#[test]
fn unaligned_bytes_are_copied_once_into_an_aligned_buffer() {
    let mut bytes = vec![0_u8; 1 + 4 * 8];
    bytes[1..9].copy_from_slice(&2.5_f64.to_le_bytes());
    let bytes = Bytes::from(bytes);
    for skip in [0, 1] {
        let tensor = Tensor::try_new(DType::F64, &[4], bytes.slice(skip..skip + 32)).unwrap();
        assert!(tensor.data().as_ptr().addr().is_multiple_of(8));
    }
    let tensor = Tensor::try_new(DType::F64, &[2, 2], bytes.slice(1..)).unwrap();
    assert_eq!(tensor.view::<f64>().unwrap()[[0, 0]], 2.5);
}

#[test]
fn tensors_without_axes_and_with_empty_axes_are_whole_tensors() {
    let one = Tensor::try_new(DType::I16, &[], Bytes::from_static(&[7, 0])).unwrap();
    assert_eq!((one.len(), one.to_scalar()), (1, Some(7_i16.into())));
    assert_eq!(one.view::<i16>().unwrap().ndim(), 0);

    let none = Tensor::try_new(DType::F64, &[2, 0, 3], Bytes::from_static(b"x").slice(1..)).unwrap();
    assert_eq!(none.view::<f64>().unwrap().shape(), [2, 0, 3]);
    assert_eq!(none.split().unwrap().len(), 2);
}

#[test]
fn false_shapes_are_refused() {
    let eight = Bytes::from_static(&[0; 8]);
    let wrong = |dtype, shape: &[usize]| Tensor::try_new(dtype, shape, eight.clone()).unwrap_err();
    assert_eq!(wrong(DType::F32, &[3]).to_string(), "shape [3] of f32 needs 12 bytes, not 8");
    assert!(matches!(wrong(DType::F32, &[usize::MAX, 2]), TensorError::TooLarge { .. }));
    assert!(matches!(wrong(DType::U8, &[1 << 62, 0, 1 << 62]), TensorError::TooLarge { .. }));
    assert!(matches!(wrong(DType::U8, &[1 << 40, 0]), TensorError::TooLarge { .. }));
    assert!(matches!(wrong(DType::U8, &[1; MAX_RANK + 1]), TensorError::TooManyAxes { rank: 33 }));
    let not_bool = Tensor::try_new(DType::Bool, &[3], Bytes::from_static(&[0, 1, 2]));
    assert_eq!(not_bool.unwrap_err(), TensorError::NotABool { index: 2 });
}

#[test]
fn stacking_names_the_item_that_does_not_fit() {
    let (a, b) = (Tensor::from_array(array![1_u8, 2]), Tensor::from_array(array![3_u8]));
    let error = Tensor::stack(&[&a, &a, &b]).unwrap_err();
    assert!(matches!(error, TensorError::Mismatch { index: 2, .. }));
    assert_eq!(error.to_string(), "item 2 is u8 of shape [1], others are u8 of shape [2]");
    assert_eq!(Tensor::stack(&[]).unwrap_err(), TensorError::NothingToJoin);
    let single = Tensor::from_array(array![1_i8, 2]);
    assert!(matches!(Tensor::stack(&[&a, &single]), Err(TensorError::Mismatch { index: 1, .. })));
}

#[test]
fn an_item_that_does_not_fit_is_refused_alone() {
    let (a, b) = (Tensor::from_array(array![1_u8, 2]), Tensor::from_array(array![3_u8, 4]));
    let odd = Tensor::from_array(array![5_u8]);
    let joined = Tensor::stack_matching(&[&odd, &a, &b]).unwrap();
    assert_eq!(joined.whole, Tensor::from_array(array![[1_u8, 2], [3, 4]]));
    let [Err(error), Ok(0), Ok(1)] = &joined.items[..] else { panic!("{:?}", joined.items) };
    assert_eq!(error.to_string(), "item 0 is u8 of shape [1], others are u8 of shape [2]");
    assert_eq!(Tensor::stack_matching(&[]).unwrap_err(), TensorError::NothingToJoin);

    let rows = Tensor::from_array(array![[1_u8, 2], [3, 4]]);
    let joined = Tensor::concat_matching(&[&rows, &a, &rows]).unwrap();
    assert_eq!((joined.whole.shape(), joined.items[1].is_err(), &joined.items[2]), (&[4, 2][..], true, &Ok(1)));
    let bare = crate::Scalar::U8(1).to_tensor();
    assert_eq!(Tensor::concat_matching(&[&bare, &bare, &rows]).unwrap_err(), TensorError::NoFirstAxis);

    let texts = |texts: &[&str]| StrTensor::from_texts(&[texts.len()], texts).unwrap();
    let joined = StrTensor::stack_matching(&[&texts(&["a"]), &texts(&["b", "c"]), &texts(&["d"])]).unwrap();
    assert_eq!(joined.whole.shape(), [2, 1]);
    assert!(matches!(joined.items[1], Err(TensorError::ShapeMismatch { index: 1, .. })));
}

#[test]
fn a_view_becomes_a_tensor_by_one_copy_in_row_major_order() {
    let base = Array::from_iter(0..6_i32).into_shape_with_order((2, 3)).unwrap();
    let tensor = Tensor::from_view(base.t());
    assert_eq!(tensor.view::<i32>().unwrap(), base.t().into_dyn());
    assert_eq!(tensor.as_slice::<i32>().unwrap(), [0, 3, 1, 4, 2, 5]);
}

#[test]
fn parts_share_the_buffer_of_the_whole() {
    let whole = Tensor::from_array(Array::from_iter(0..6_i64).into_shape_with_order((3, 2)).unwrap());
    let rows = whole.split().unwrap();
    assert_eq!(rows[1].data().as_ptr(), whole.data()[16..].as_ptr());
    let parts = whole.split_rows(&[1, 0, 2]).unwrap();
    assert_eq!(parts.iter().map(|part| part.shape()[0]).collect::<Vec<_>>(), [1, 0, 2]);
    assert_eq!(Tensor::concat(&parts.iter().collect::<Vec<_>>()).unwrap(), whole);
    assert_eq!(
        whole.split_rows(&[usize::MAX, 4]).unwrap_err(),
        TensorError::WrongParts { requested: usize::MAX, actual: 3 }
    );
}

#[test]
fn nested_lists_become_the_narrowest_tensor_that_holds_them() {
    let list = |items: &[Value]| Value::List(items.to_vec());
    let dtype_of = |items: &[Value]| Tensor::from_value(&list(items), None).map(|tensor| tensor.dtype()).ok();
    assert_eq!(dtype_of(&[true.into(), false.into()]), Some(DType::Bool));
    assert_eq!(dtype_of(&[1.into(), (-2).into()]), Some(DType::I64));
    assert_eq!(dtype_of(&[1.into(), u64::MAX.into()]), Some(DType::U64));
    assert_eq!(dtype_of(&[1.into(), 0.5.into()]), Some(DType::F64));
    assert_eq!(dtype_of(&[1.into(), true.into()]), None);
    assert_eq!(dtype_of(&[(-1).into(), u64::MAX.into()]), None);
    assert_eq!(dtype_of(&[]), Some(DType::F64));
}

#[test]
fn complex_numbers_in_lists_are_pairs() {
    let complex = |re: f32, im: f32| num_complex::Complex::new(re, im);
    let tensor = Tensor::from_array(array![[complex(1.0, -2.0), complex(0.5, 0.0)]]);
    let written = Value::from(tensor.clone()).encode(crate::Format::Json).unwrap();
    assert_eq!(written, "[[[1.0,-2.0],[0.5,0.0]]]");
    let nested = Value::decode(crate::Format::Json, &written, &crate::DecodeLimits::default()).unwrap();
    assert_eq!(Tensor::from_value(&nested, Some(DType::C64)).unwrap(), tensor);
    let error = Tensor::from_value(&[1, 2, 3].into_iter().collect(), Some(DType::C64)).unwrap_err();
    assert_eq!(error.to_string(), "c64 in lists is pairs of a real and an imaginary part");
    let scalars: Value = [complex(1.0, -2.0), complex(0.5, 0.0)].map(crate::Scalar::from).into_iter().collect();
    assert_eq!(Tensor::from_value(&scalars, None).unwrap(), tensor.reshape(&[2]).unwrap());
    assert_eq!(Tensor::from_value(&2.into(), Some(DType::C128)).unwrap().shape(), [0_usize; 0]);
}

#[test]
fn ragged_and_foreign_elements_are_named() {
    let row = |len: i32| (0..len).collect::<Value>();
    let message = |rows: Vec<Value>| Tensor::from_value(&rows.into(), None).unwrap_err().to_string();
    assert_eq!(message(vec![row(2), row(3)]), "a row of 3 where others have 2 at $[1]");
    assert_eq!(message(vec![row(2), 1.into()]), "int where others have a row of 2 at $[1]");
    assert_eq!(message(vec![1.into(), row(2)]), "a list where others have a number at $[1]");
    assert_eq!(message(vec![row(1), vec!["x".into()].into()]), "str is not a number at $[1][0]");
}

#[test]
fn a_map_of_dtype_shape_and_data_is_a_tensor() {
    let map = |data: Value| {
        Value::from(Map::from_iter([
            ("dtype", "float32".into()),
            ("shape", [2, 1].into_iter().collect()),
            ("data", data),
        ]))
    };
    let expected = Tensor::from_array(array![[1.0_f32], [2.0]]);
    let forms: [Value; 4] = [
        [1, 2].into_iter().collect(),
        vec![Value::List(vec![1.into()]), Value::List(vec![2.into()])].into(),
        expected.data().clone().into(),
        "AACAPwAAAEA=".into(),
    ];
    for data in forms {
        assert_eq!(Tensor::from_value(&map(data), None).unwrap(), expected);
    }
    let error = Tensor::from_value(&map(vec![1.into()].into()), None).unwrap_err();
    assert_eq!((error.kind(), error.path()), (DecodeErrorKind::Mismatch, "$.shape"));
    let error = Tensor::from_value(&map("AACAPwAAAEA=".into()), Some(DType::F64)).unwrap_err();
    assert_eq!(error.to_string(), "the tensor is of f32, not of f64 at $.dtype");
}

proptest! {
    #[test]
    fn split_undoes_stack(shape in proptest::collection::vec(0_usize..4, 0..4), count in 1_usize..6, seed: u64) {
        let make = |index: usize| {
            let mut next = seed.wrapping_add(index as u64);
            let element = || { next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1); next };
            Tensor::from_array(ArrayD::from_shape_simple_fn(IxDyn(&shape), element))
        };
        let items: Vec<Tensor> = (0..count).map(make).collect();
        let batch = Tensor::stack(&items.iter().collect::<Vec<_>>()).unwrap();
        prop_assert_eq!(batch.shape()[0], count);
        prop_assert_eq!(batch.split().unwrap(), items);
    }
}
