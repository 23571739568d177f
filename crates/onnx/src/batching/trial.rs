//! The trial: one made-up item alone, and the same one beside others.
//!
//! Runs of different sizes add numbers up in another order, so floats are compared with a tolerance. The companions
//! have far larger numbers than the item, so that a dependence is far beyond it.

use callboard_codec::{DType, Element, StrTensor, Tensor, Value};
use half::{bf16, f16};

use crate::cast::cast;
use crate::model::Model;
use crate::run::{Values, run_once};
use crate::signature::{Axis, BatchAxis, Kind, TensorSpec};

/// The sizes of the runs, with the item among its companions. Together with the item alone they compute 7 items, where
/// the warm-up computes 33 by default.
const RUNS: [(usize, usize); 2] = [(2, 1), (4, 2)];

/// The lengths that axes of any length are tried with: a short text, a small picture, one.
const LENGTHS: [usize; 3] = [8, 64, 1];

/// The most numbers of a made-up input of one item. A larger item is not tried: made up, a number is 8 bytes.
const MAX_NUMBERS: usize = 2 << 20;

/// How much larger the numbers of the companions are.
const LOUD: f32 = 100.0;

/// The outcome of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trial {
    /// The answer to an item was the same alone and beside others.
    Same,
    /// It was another one, or there was none: in words.
    Different(String),
    /// There was nothing to compare, for this reason.
    Untried(String),
}

/// Compares the answer to an item alone with its answer beside others.
pub(crate) fn try_beside_others(model: &Model) -> Trial {
    if model.signature().batch_axis() != BatchAxis::Stacked {
        return Trial::Same;
    }
    compared(model).unwrap_or_else(|reason| Trial::Untried(format!("it cannot be tried with made-up items: {reason}")))
}

/// An error is the reason why there is nothing to compare.
fn compared(model: &Model) -> Result<Trial, String> {
    let mut chance = SplitMix64(0x5eed);
    let (item, alone, length) = first_run(model, &mut chance)?;
    for (size, place) in RUNS {
        let mut items: Vec<Values> =
            (1..size).map(|_| made_up(model, length, LOUD, &mut chance)).collect::<Result<_, _>>()?;
        items.insert(place, item.clone());
        let outputs = match run_once(model, &items.iter().collect::<Vec<_>>()) {
            Ok(mut outputs) => outputs.swap_remove(place),
            Err(error) => return Ok(Trial::Different(format!("it cannot run {size} items at once: {error}"))),
        };
        let Some((output, difference)) = first_difference(model, &alone, &outputs) else { continue };
        // A model that draws numbers differs from itself, too.
        let again = run_alone(model, &item)?;
        if let Some((output, _)) = first_difference(model, &alone, &again) {
            return Err(format!("two runs of one item give two outputs `{output}`"));
        }
        let others = if size == 2 { "another item".to_owned() } else { format!("{} others", size - 1) };
        let text = format!("its output `{output}` for one item is another beside {others}: {difference}");
        return Ok(Trial::Different(text));
    }
    Ok(Trial::Same)
}

/// An item that the model takes, its answer alone, and the length of its open axes.
fn first_run(model: &Model, chance: &mut SplitMix64) -> Result<(Values, Values, usize), String> {
    let lengths = if model.signature().items_vary() { &LENGTHS[..] } else { &LENGTHS[..1] };
    let mut reason = None;
    for length in lengths {
        let run = made_up(model, *length, 1.0, chance).and_then(|item| Ok((run_alone(model, &item)?, item)));
        match run {
            Ok((alone, item)) => return Ok((item, alone, *length)),
            Err(error) => _ = reason.get_or_insert(error),
        }
    }
    Err(reason.unwrap_or_default())
}

fn run_alone(model: &Model, item: &Values) -> Result<Values, String> {
    let mut outputs = run_once(model, &[item]).map_err(|error| error.to_string())?;
    outputs.pop().ok_or_else(|| "a run gives no output".to_owned())
}

fn first_difference<'m>(model: &'m Model, alone: &Values, beside: &Values) -> Option<(&'m str, String)> {
    let outputs = model.signature().outputs().iter().zip(alone.iter().zip(beside));
    outputs.into_iter().find_map(|(spec, (alone, beside))| Some((spec.name(), difference(alone, beside)?)))
}

/// In words.
fn difference(alone: &Value, beside: &Value) -> Option<String> {
    match (alone, beside) {
        (Value::Tensor(alone), Value::Tensor(beside)) => {
            if (alone.dtype(), alone.shape()) != (beside.dtype(), beside.shape()) {
                return Some(format!("{:?} instead of {:?} numbers", beside.shape(), alone.shape()));
            }
            differing_numbers(alone, beside)
        }
        (Value::Float(alone), Value::Float(beside)) => differing([*alone], [*beside], tolerance(DType::F32)?),
        (Value::List(alone), Value::List(beside)) if alone.len() == beside.len() => {
            alone.iter().zip(beside).find_map(|(alone, beside)| difference(alone, beside))
        }
        (Value::Map(alone), Value::Map(beside)) if alone.keys().eq(beside.keys()) => {
            alone.values().zip(beside.values()).find_map(|(alone, beside)| difference(alone, beside))
        }
        (alone, beside) => (alone != beside).then(|| "another value".to_owned()),
    }
}

fn differing_numbers(alone: &Tensor, beside: &Tensor) -> Option<String> {
    fn floats<T: Element>(tensor: &Tensor, wide: impl Fn(T) -> f64) -> Vec<f64> {
        tensor.as_slice::<T>().map(|floats| floats.iter().map(|float| wide(*float)).collect()).unwrap_or_default()
    }
    let wide = |tensor: &Tensor| match tensor.dtype() {
        DType::F16 => floats(tensor, f16::to_f64),
        DType::BF16 => floats(tensor, bf16::to_f64),
        DType::F64 => floats(tensor, |float: f64| float),
        _ => floats(tensor, |float: f32| f64::from(float)),
    };
    match tolerance(alone.dtype()) {
        Some(tolerance) => differing(wide(alone), wide(beside), tolerance),
        // Bytes are often rounded floats: a difference of one is none.
        None if matches!(alone.dtype(), DType::U8 | DType::I8) => {
            let wraps = alone.dtype() == DType::I8;
            let widen = |byte: u8| if wraps { f64::from(byte as i8) } else { f64::from(byte) };
            let wide = |tensor: &Tensor| -> Vec<f64> { tensor.data().iter().map(|byte| widen(*byte)).collect() };
            let (alone, beside) = (wide(alone), wide(beside));
            let far = alone.iter().zip(&beside).find(|(alone, beside)| (*alone - *beside).abs() > 1.0);
            far.map(|(alone, beside)| format!("{beside} instead of {alone}"))
        }
        None => (alone.data() != beside.data()).then(|| "other numbers".to_owned()),
    }
}

/// The part of the largest number by which floats may differ; `None`: they are none.
fn tolerance(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F32 | DType::F64 => Some(1e-3),
        DType::F16 | DType::BF16 => Some(3e-2),
        _ => None,
    }
}

/// The numbers that differ most, if they differ by more than this part of the largest one.
fn differing(
    alone: impl IntoIterator<Item = f64> + Clone,
    beside: impl IntoIterator<Item = f64>,
    tolerance: f64,
) -> Option<String> {
    let largest = alone.clone().into_iter().filter(|float| float.is_finite()).fold(0.0, |a: f64, b| a.max(b.abs()));
    let allowed = largest * tolerance + 1e-6;
    let pairs = alone.into_iter().zip(beside);
    let is_far = |(alone, beside): &(f64, f64)| {
        let is_same = alone == beside || alone.is_nan() && beside.is_nan();
        // False if one of them is NaN.
        let is_near = (alone - beside).abs() <= allowed;
        !is_same && !is_near
    };
    let farthest = pairs.filter(is_far).max_by(|a, b| (a.0 - a.1).abs().total_cmp(&(b.0 - b.1).abs()));
    farthest.map(|(alone, beside)| format!("{beside:.5} instead of {alone:.5}"))
}

/// One item of random numbers. Whole numbers are 0 or 1, which most models take: as an index, a mask, a kind.
fn made_up(model: &Model, length: usize, scale: f32, chance: &mut SplitMix64) -> Result<Values, String> {
    let signature = model.signature();
    let input = |(spec, dtype): (&TensorSpec, Option<DType>)| {
        let length = |axis: &Axis| if let Axis::Fixed(length) = axis { *length } else { length };
        let shape: Vec<usize> = signature.item_axes(spec).unwrap_or_default().iter().map(length).collect();
        let count = shape.iter().try_fold(1_usize, |product, axis| product.checked_mul(*axis));
        let Some(count) = count.filter(|count| *count <= MAX_NUMBERS) else {
            return Err(format!("one of its input `{}` has more than {MAX_NUMBERS} numbers", spec.name()));
        };
        let mut made = |largest: u64| (0..count).map(|_| chance.below(largest)).collect::<Vec<u64>>();
        let value = match (spec.kind(), dtype) {
            (Kind::Numbers(DType::F16 | DType::BF16 | DType::F32 | DType::F64), Some(dtype)) => {
                let floats = made(1 << 20).into_iter().map(|number| (number as f32 / 524_288.0 - 1.0) * scale);
                numbers(&shape, floats.collect::<Vec<f32>>(), dtype)
            }
            (Kind::Numbers(DType::U8), Some(dtype)) => whole(&shape, made(256), dtype),
            (Kind::Numbers(_), Some(dtype)) => whole(&shape, made(2), dtype),
            (Kind::Texts, _) => {
                let words = made(2).into_iter().map(|bit| if bit == 0 { "a" } else { "b" });
                StrTensor::from_texts(&shape, words).ok().map(Value::StrTensor)
            }
            _ => None,
        };
        value.ok_or_else(|| format!("its input `{}` takes no numbers and no texts", spec.name()))
    };
    model.inputs().map(input).collect()
}

/// A tensor of the engine's dtype.
fn numbers<T: Element>(shape: &[usize], numbers: Vec<T>, dtype: DType) -> Option<Value> {
    cast(&Tensor::from_vec(shape, numbers).ok()?, dtype).ok().map(Value::Tensor)
}

fn whole(shape: &[usize], made: Vec<u64>, dtype: DType) -> Option<Value> {
    fn tensor<T: Element>(shape: &[usize], made: Vec<u64>, narrow: impl Fn(u64) -> T) -> Option<Value> {
        Tensor::from_vec(shape, made.into_iter().map(narrow).collect()).ok().map(Value::Tensor)
    }
    match dtype {
        DType::Bool => tensor(shape, made, |number| number == 1),
        DType::I8 => tensor(shape, made, |number| number as i8),
        DType::I16 => tensor(shape, made, |number| number as i16),
        DType::I32 => tensor(shape, made, |number| number as i32),
        DType::I64 => tensor(shape, made, |number| number as i64),
        DType::U8 => tensor(shape, made, |number| number as u8),
        DType::U16 => tensor(shape, made, |number| number as u16),
        DType::U32 => tensor(shape, made, |number| number as u32),
        DType::U64 => tensor(shape, made, |number| number),
        _ => None,
    }
}

/// Numbers by chance, the same ones each time (splitmix64).
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
