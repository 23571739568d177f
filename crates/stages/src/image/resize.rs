//! Resizes a picture by separable resampling, as Pillow does.
//!
//! Each axis has a table of taps: the old pixels of a new one, and their weights. Kernels that
//! interpolate are widened by the factor of shrinking, so that no old pixel is skipped (Pillow's `Resample.c`,
//! <https://github.com/python-pillow/Pillow>). Unlike there, values are not rounded between the two axes.
//!
//! `image::imageops::resize` is not used: its intermediate picture is as wide as the old one and as high as the new
//! one, so that a legal picture of 65,535 × 1 pixels would take gigabytes. Here the axis that shrinks most goes first.

use std::f64::consts::PI;

use super::config::Resize;
use super::decode::Raster;

/// The picture in `width` × `height`, values within 0 … 255.
pub(super) fn resize(picture: &Raster<u8>, width: usize, height: usize, method: Resize) -> Raster<f32> {
    let columns = taps(picture.width, width, method);
    let rows = taps(picture.height, height, method);
    // The number of values of each order's first step: the longer of the old and new lengths of its axis, times the
    // other axis.
    let across_first = picture.height * picture.width.max(width);
    let down_first = picture.width * picture.height.max(height);
    let mut resized = if across_first <= down_first {
        resample_columns(&resample_rows(picture, &columns), &rows)
    } else {
        resample_rows(&resample_columns(picture, &rows), &columns)
    };
    // The cubic and the sinc overshoot at hard edges.
    resized.data.iter_mut().for_each(|value| *value = value.clamp(0.0, 255.0));
    resized
}

/// The old pixels of a new one: `weights[i]` of the old pixel `start + i`, divided by their sum.
struct Taps {
    start: usize,
    weights: Vec<f64>,
    total: f64,
}

fn taps(old: usize, new: usize, method: Resize) -> Vec<Taps> {
    let ratio = old as f64 / new as f64;
    let tap = |index: usize| match method {
        Resize::Nearest => single((index as f64 + 0.5) * ratio, old),
        Resize::Area => covered(index as f64 * ratio, (index + 1) as f64 * ratio, old),
        Resize::Bilinear => weighted((index as f64 + 0.5) * ratio, ratio, old, 1.0, triangle),
        Resize::Bicubic => weighted((index as f64 + 0.5) * ratio, ratio, old, 2.0, cubic),
        Resize::Lanczos => weighted((index as f64 + 0.5) * ratio, ratio, old, 3.0, lanczos),
    };
    (0..new).map(tap).collect()
}

fn single(center: f64, old: usize) -> Taps {
    Taps { start: (center as usize).min(old - 1), weights: vec![1.0], total: 1.0 }
}

/// The old pixels between two places, each by how much of it lies there.
fn covered(from: f64, to: f64, old: usize) -> Taps {
    let start = (from as usize).min(old - 1);
    let end = (to.ceil() as usize).clamp(start + 1, old);
    let overlap = |pixel: usize| to.min((pixel + 1) as f64) - from.max(pixel as f64);
    // Rounding may leave a sliver of a neighbour, or nothing of the pixel itself.
    let weights: Vec<f64> = (start..end).map(|pixel| overlap(pixel).max(0.0)).collect();
    Taps::try_new(start, weights).unwrap_or_else(|| single(from, old))
}

fn weighted(center: f64, ratio: f64, old: usize, support: f64, kernel: fn(f64) -> f64) -> Taps {
    let scale = ratio.max(1.0);
    let reach = support * scale;
    let start = ((center - reach + 0.5).max(0.0) as usize).min(old - 1);
    let end = ((center + reach + 0.5).max(0.0) as usize).clamp(start + 1, old);
    let weights = (start..end).map(|pixel| kernel((pixel as f64 + 0.5 - center) / scale)).collect();
    Taps::try_new(start, weights).unwrap_or_else(|| single(center, old))
}

impl Taps {
    /// `None` when the weights cannot be divided by their sum.
    fn try_new(start: usize, weights: Vec<f64>) -> Option<Self> {
        let total: f64 = weights.iter().sum();
        (total > f64::EPSILON).then_some(Self { start, weights, total })
    }
}

fn triangle(x: f64) -> f64 {
    (1.0 - x.abs()).max(0.0)
}

/// Keys' cubic convolution with a = −1/2, as in Pillow.
fn cubic(x: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        (1.5 * x - 2.5) * x * x + 1.0
    } else if x < 2.0 {
        ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    } else {
        0.0
    }
}

fn lanczos(x: f64) -> f64 {
    if x.abs() < 3.0 { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) }
}

/// Another width.
fn resample_rows<T: Copy + Into<f64>>(picture: &Raster<T>, columns: &[Taps]) -> Raster<f32> {
    let (channels, row_len) = (picture.channels, picture.width * picture.channels);
    let mut data = Vec::with_capacity(picture.height * columns.len() * channels);
    for row in picture.data.chunks_exact(row_len) {
        for taps in columns {
            for channel in 0..channels {
                let old = row[taps.start * channels + channel..].iter().step_by(channels);
                let sum: f64 = taps.weights.iter().zip(old).map(|(weight, value)| weight * (*value).into()).sum();
                data.push((sum / taps.total) as f32);
            }
        }
    }
    Raster { width: columns.len(), height: picture.height, channels, data }
}

/// Another height.
fn resample_columns<T: Copy + Into<f64>>(picture: &Raster<T>, rows: &[Taps]) -> Raster<f32> {
    let row_len = picture.width * picture.channels;
    let mut data = Vec::with_capacity(rows.len() * row_len);
    let mut sums = vec![0.0_f64; row_len];
    for taps in rows {
        sums.fill(0.0);
        let old = picture.data[taps.start * row_len..].chunks_exact(row_len);
        for (weight, row) in taps.weights.iter().zip(old) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * (*value).into());
        }
        data.extend(sums.iter().map(|sum| (sum / taps.total) as f32));
    }
    Raster { width: picture.width, height: rows.len(), channels: picture.channels, data }
}
