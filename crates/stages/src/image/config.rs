//! The settings of the `image` stage, and the checked plan made from them.

use std::num::{NonZeroU16, NonZeroU32};

use serde::Deserialize;

use crate::error::StageConfigError;

/// A photograph of 12 million pixels passes; decoding takes 64 MiB for most pictures and 192 MiB at worst.
const DEFAULT_MAX_PIXELS: NonZeroU32 = NonZeroU32::new(1 << 24).expect("not zero");

/// Bytes of 0 … 255 to 0 … 1, what most models are trained on.
const DEFAULT_SCALE: f64 = 1.0 / 255.0;

/// How pictures become tensors. In `callboard.toml` these are the keys of a stage of kind `image`.
///
/// The default is `f32 [3, height, width]` of 0 … 1 in the picture's own size. Use the settings of the training; a
/// difference costs accuracy without an error.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImageConfig {
    /// The key of the picture in a map or form. Default `image`.
    pub field: String,
    /// The channels. Default `rgb`.
    pub color: Color,
    /// The width to resize to, in pixels. Goes with `height`; by default pictures keep their size, which only models
    /// with free axes can take.
    pub width: Option<NonZeroU16>,
    /// The height to resize to, in pixels. The sides are stretched independently.
    pub height: Option<NonZeroU16>,
    /// How pixels are computed when the size changes. Default `bilinear`.
    pub resize: Resize,
    /// Whether a photograph is turned upright as its EXIF data says. Default true. Turn it off for a model that was
    /// trained without it, and for pixels that must match another decoder's.
    pub orient: bool,
    /// The factor of each value of 0 … 255. Default 1/255. Not for `dtype = "u8"`.
    pub scale: Option<f64>,
    /// The mean, subtracted after scaling: one number, or one per channel. Default none. Not for `dtype = "u8"`.
    pub mean: Vec<f32>,
    /// The divisor of the difference: one number, or one per channel. Default none. Not for `dtype = "u8"`.
    pub std: Vec<f32>,
    /// The order of the axes. Default `chw`.
    pub layout: Layout,
    /// The element type. Default `f32`.
    pub dtype: PixelType,
    /// The most pixels that a picture may declare; one more is an `InvalidInput` that names this limit. Default
    /// 16,777,216. Decoding takes 4 to 12 bytes for each, in every replica.
    pub max_pixels: NonZeroU32,
}

impl Default for ImageConfig {
    fn default() -> Self {
        Self {
            field: "image".to_owned(),
            color: Color::default(),
            width: None,
            height: None,
            resize: Resize::default(),
            orient: true,
            scale: None,
            mean: Vec::new(),
            std: Vec::new(),
            layout: Layout::default(),
            dtype: PixelType::default(),
            max_pixels: DEFAULT_MAX_PIXELS,
        }
    }
}

/// The channels of a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Color {
    /// Red, green, blue.
    #[default]
    Rgb,
    /// One channel of brightness: 0.2126 red + 0.7152 green + 0.0722 blue (Rec. 709). Grey pictures keep their values.
    #[serde(alias = "gray")]
    Grey,
}

/// How a pixel of the new size is computed from the old ones. All but `nearest` look at every pixel when they shrink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Resize {
    /// The pixel at its centre. Fast, keeps hard edges, loses thin lines.
    Nearest,
    /// The mean over the area that it covers. Exact where the old size is a multiple of the new one.
    Area,
    /// A triangle of twice its width, as Pillow's `BILINEAR` and most training pipelines.
    #[default]
    Bilinear,
    /// A cubic of four times its width, as Pillow's `BICUBIC`.
    Bicubic,
    /// A windowed sinc of six times its width, as Pillow's `LANCZOS`.
    Lanczos,
}

/// The order of the axes of one sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Layout {
    /// `[channels, height, width]`: a batch is NCHW.
    #[default]
    Chw,
    /// `[height, width, channels]`: a batch is NHWC.
    Hwc,
    /// `[height, width]`, for grey only.
    Hw,
    /// `[channels · height · width]`, in the order of `chw`.
    Flat,
}

/// The element type of the tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PixelType {
    /// Scaled and normalised.
    #[default]
    F32,
    /// 0 … 255 as they are, for models that scale by themselves.
    U8,
}

impl Color {
    pub(super) fn channels(self) -> usize {
        match self {
            Self::Rgb => 3,
            Self::Grey => 1,
        }
    }
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) field: String,
    pub(super) color: Color,
    pub(super) size: Option<(usize, usize)>,
    pub(super) resize: Resize,
    pub(super) orient: bool,
    pub(super) layout: Layout,
    pub(super) output: Output,
    pub(super) max_pixels: u64,
}

/// The conversion of the values.
#[derive(Clone, Debug)]
pub(super) enum Output {
    /// `(x · scale − mean) / std`, mean and std per channel.
    F32 { scale: f64, mean: Vec<f32>, std: Vec<f32> },
    /// Rounded.
    U8,
}

impl ImageConfig {
    pub(super) fn plan(&self) -> Result<Plan, StageConfigError> {
        if self.field.is_empty() {
            return Err(StageConfigError::invalid("field", "must not be empty"));
        }
        if self.layout == Layout::Hw && self.color != Color::Grey {
            return Err(StageConfigError::invalid("layout", "`hw` has no channels and needs color = \"grey\""));
        }
        Ok(Plan {
            field: self.field.clone(),
            color: self.color,
            size: self.size()?,
            resize: self.resize,
            orient: self.orient,
            layout: self.layout,
            output: self.output()?,
            max_pixels: u64::from(self.max_pixels.get()),
        })
    }

    fn size(&self) -> Result<Option<(usize, usize)>, StageConfigError> {
        let (width, height) = match (self.width, self.height) {
            (Some(width), Some(height)) => (width.get(), height.get()),
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(StageConfigError::invalid("height", "is missing, `width` is there")),
            (None, Some(_)) => return Err(StageConfigError::invalid("width", "is missing, `height` is there")),
        };
        if u64::from(width) * u64::from(height) > u64::from(self.max_pixels.get()) {
            let reason = format!("{width} x {height} pixels are more than max_pixels = {}", self.max_pixels);
            return Err(StageConfigError::invalid("width", reason));
        }
        Ok(Some((usize::from(width), usize::from(height))))
    }

    fn output(&self) -> Result<Output, StageConfigError> {
        if self.dtype == PixelType::U8 {
            let given =
                [("scale", self.scale.is_some()), ("mean", !self.mean.is_empty()), ("std", !self.std.is_empty())];
            return match given.into_iter().find(|(_, given)| *given) {
                Some((key, _)) => Err(StageConfigError::invalid(key, "is not applied to dtype = \"u8\"")),
                None => Ok(Output::U8),
            };
        }
        let scale = self.scale.unwrap_or(DEFAULT_SCALE);
        if !scale.is_finite() || scale == 0.0 {
            return Err(StageConfigError::invalid("scale", format!("{scale} leaves nothing of the picture")));
        }
        let mean = self.per_channel("mean", &self.mean, 0.0)?;
        let std = self.per_channel("std", &self.std, 1.0)?;
        if std.contains(&0.0) {
            return Err(StageConfigError::invalid("std", "must not be 0"));
        }
        Ok(Output::F32 { scale, mean, std })
    }

    fn per_channel(&self, key: &'static str, given: &[f32], default: f32) -> Result<Vec<f32>, StageConfigError> {
        if given.iter().any(|number| !number.is_finite()) {
            return Err(StageConfigError::invalid(key, "must be finite"));
        }
        let channels = self.color.channels();
        match *given {
            [] => Ok(vec![default; channels]),
            [one] => Ok(vec![one; channels]),
            _ if given.len() == channels => Ok(given.to_vec()),
            _ => Err(StageConfigError::invalid(key, format!("{} numbers for {channels} channels", given.len()))),
        }
    }
}
