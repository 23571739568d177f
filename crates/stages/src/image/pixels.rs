//! From pixels to the tensor of one sample: the values' scale, the order of the axes.

use callboard_codec::{Element, Tensor, TensorError};

use super::config::{Layout, Output, Plan};
use super::decode::Raster;
use super::resize::resize;

/// The tensor of a decoded picture.
pub(super) fn to_tensor(picture: &Raster<u8>, plan: &Plan) -> Result<Tensor, TensorError> {
    let size = plan.size.filter(|size| *size != (picture.width, picture.height));
    let resized = size.map(|(width, height)| resize(picture, width, height, plan.resize));
    match (&plan.output, resized) {
        (Output::U8, None) => arrange(picture, plan.layout),
        (Output::U8, Some(resized)) => arrange(&map(&resized, |value| value.round() as u8), plan.layout),
        (Output::F32 { scale, mean, std }, resized) => {
            let picture = resized.unwrap_or_else(|| map(picture, f32::from));
            arrange(&normalize(picture, *scale, mean, std), plan.layout)
        }
    }
}

fn map<A: Copy, B>(picture: &Raster<A>, change: impl Fn(A) -> B) -> Raster<B> {
    let data = picture.data.iter().map(|value| change(*value)).collect();
    Raster { width: picture.width, height: picture.height, channels: picture.channels, data }
}

/// `(x · scale − mean) / std`. The product is rounded to f32 once, so that 1/255 is the division by 255 of training
/// scripts; the rest is in f32, as there.
fn normalize(mut picture: Raster<f32>, scale: f64, mean: &[f32], std: &[f32]) -> Raster<f32> {
    for pixel in picture.data.chunks_exact_mut(picture.channels) {
        for ((value, mean), std) in pixel.iter_mut().zip(mean).zip(std) {
            *value = ((f64::from(*value) * scale) as f32 - mean) / std;
        }
    }
    picture
}

fn arrange<T: Element>(picture: &Raster<T>, layout: Layout) -> Result<Tensor, TensorError> {
    let Raster { width, height, channels, ref data } = *picture;
    let planes = || (0..channels).flat_map(|channel| data.iter().skip(channel).step_by(channels).copied()).collect();
    match layout {
        Layout::Chw => Tensor::from_vec(&[channels, height, width], planes()),
        Layout::Hwc => Tensor::from_vec(&[height, width, channels], data.clone()),
        Layout::Hw => Tensor::from_vec(&[height, width], data.clone()),
        Layout::Flat => Tensor::from_vec(&[channels * height * width], planes()),
    }
}
