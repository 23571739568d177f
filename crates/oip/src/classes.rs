//! An output as its best classes: `"value:index"` each, the highest value first (classification extension).

use callboard_codec::DType;
use half::{bf16, f16};

use super::array::Array;
use super::datatype::Datatype;
use super::error::Refusal;

/// The `most` highest values of each item, over all of its axes. Equal values keep their order.
pub(crate) fn classify(name: &str, array: &Array, most: usize, is_batched: bool) -> Result<Array, Refusal> {
    let Datatype::Number(dtype) = array.datatype else {
        return Err(Refusal::new(format!("output '{name}' is of BYTES and has no classes")));
    };
    let rows = if is_batched { array.shape.first().copied().unwrap_or(1) } else { 1 };
    let values = values(dtype, &array.data);
    let per_row = values.len().checked_div(rows).unwrap_or(0);
    let most = most.min(per_row);
    let texts = values.chunks(per_row.max(1)).flat_map(|row| best(row, most));
    let shape = if is_batched { vec![rows, most] } else { vec![most] };
    Ok(Array::from_elements(shape, texts))
}

fn best(row: &[f64], most: usize) -> Vec<String> {
    let mut ranked: Vec<usize> = (0..row.len()).collect();
    ranked.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
    ranked.truncate(most);
    ranked.into_iter().map(|index| format!("{:.6}:{index}", row[index])).collect()
}

/// All elements as floats. Whole numbers beyond 2⁵³ are rounded: they are only ranked.
fn values(dtype: DType, data: &[u8]) -> Vec<f64> {
    macro_rules! each {
        ($bytes:literal, $read:expr) => {
            data.as_chunks::<$bytes>().0.iter().map(|element| $read(*element)).collect()
        };
    }
    match dtype {
        DType::Bool | DType::U8 => each!(1, |[byte]: [u8; 1]| f64::from(byte)),
        DType::I8 => each!(1, |bytes| f64::from(i8::from_le_bytes(bytes))),
        DType::I16 => each!(2, |bytes| f64::from(i16::from_le_bytes(bytes))),
        DType::U16 => each!(2, |bytes| f64::from(u16::from_le_bytes(bytes))),
        DType::F16 => each!(2, |bytes| f16::from_le_bytes(bytes).to_f64()),
        DType::BF16 => each!(2, |bytes| bf16::from_le_bytes(bytes).to_f64()),
        DType::I32 => each!(4, |bytes| f64::from(i32::from_le_bytes(bytes))),
        DType::U32 => each!(4, |bytes| f64::from(u32::from_le_bytes(bytes))),
        DType::F32 => each!(4, |bytes| f64::from(f32::from_le_bytes(bytes))),
        DType::I64 => each!(8, |bytes| i64::from_le_bytes(bytes) as f64),
        DType::U64 => each!(8, |bytes| u64::from_le_bytes(bytes) as f64),
        DType::F64 => each!(8, f64::from_le_bytes),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use callboard_codec::Tensor;

    use super::*;

    fn texts(array: &Array) -> Vec<String> {
        array.elements().map(|element| String::from_utf8(element.to_vec()).unwrap()).collect()
    }

    #[test]
    fn the_best_classes_of_each_item_come_first() {
        let scores = Tensor::from_vec(&[2, 3], vec![0.1_f32, 0.7, 0.2, 0.5, 0.2, 0.3]).unwrap();
        let scores = Array::from_tensor(&scores).unwrap();
        let classified = classify("y", &scores, 2, true).unwrap();
        assert_eq!(classified.shape, [2, 2]);
        assert_eq!(texts(&classified), ["0.700000:1", "0.200000:2", "0.500000:0", "0.300000:2"]);
        let whole = classify("y", &scores, 1, false).unwrap();
        assert_eq!((whole.shape.as_slice(), texts(&whole)), (&[1][..], vec!["0.700000:1".to_owned()]));
        assert_eq!(classify("y", &scores, 99, true).unwrap().shape, [2, 3], "no more classes than there are");
    }
}
