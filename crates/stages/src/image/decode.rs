//! Decodes a picture. The declared size is checked before pixels are allocated.

use std::io::{self, Cursor};

use callboard_codec::NotBase64;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder as _, ImageError, ImageFormat, ImageReader, Limits};

use super::complete::{is_whole_jpeg, is_whole_webp};
use super::config::{Color, Plan};

/// The longest side that is read, JPEG's own limit. A picture of one row and millions of columns is legal PNG, but
/// would make tables of that length.
pub(super) const MAX_SIDE: u32 = 65_535;

/// The most bytes of one pixel in the formats that are read: 16 bits of red, green, blue and alpha.
const MAX_PIXEL_BYTES: u64 = 8;

/// Working memory of a decoder: tables, rows, metadata of usual length.
const WORKING_BYTES: u64 = 8 * 1024 * 1024;

/// An error in a picture. The message for the caller starts with the field's name.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidImage {
    #[error("is missing, there is {keys}")]
    Missing { keys: String },
    #[error("expected bytes, or base64 as text, got {got}")]
    NotBytes { got: &'static str },
    #[error("is {0}")]
    NotBase64(NotBase64),
    #[error("is empty")]
    Empty,
    #[error("is not a PNG, JPEG, GIF, BMP or WebP picture")]
    UnknownFormat,
    #[error("declares {width} x {height} pixels, the limit is max_pixels = {max_pixels}")]
    TooManyPixels { width: u32, height: u32, max_pixels: u64 },
    #[error("declares {width} x {height} pixels, the limit is {MAX_SIDE} for a side")]
    SideTooLong { width: u32, height: u32 },
    #[error("needs more memory than a picture of max_pixels = {max_pixels}")]
    TooMuchMemory { max_pixels: u64 },
    #[error("has no pixels: it declares {width} x {height}")]
    NoPixels { width: u32, height: u32 },
    #[error("is cut short: the {format} data ends too early")]
    Truncated { format: &'static str },
    #[error("cannot be read as {format}: {reason}")]
    Broken { format: &'static str, reason: String },
}

impl InvalidImage {
    /// Whether the item has no picture at all: it is not of the stage's input type.
    pub(super) fn is_mismatch(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::NotBytes { .. })
    }

    /// A name for programs.
    pub(super) fn error_type(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing_input",
            Self::NotBytes { .. } | Self::NotBase64(_) => "wrong_input",
            Self::TooManyPixels { .. } | Self::SideTooLong { .. } | Self::TooMuchMemory { .. } => "image_too_large",
            Self::Truncated { .. } => "image_truncated",
            Self::Empty | Self::UnknownFormat | Self::NoPixels { .. } | Self::Broken { .. } => "invalid_image",
        }
    }
}

/// The pixels of a picture: rows of interleaved channels.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Raster<T> {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) channels: usize,
    pub(super) data: Vec<T>,
}

/// Decodes a picture into the plan's colours.
pub(super) fn decode(bytes: &[u8], plan: &Plan) -> Result<Raster<u8>, InvalidImage> {
    if bytes.is_empty() {
        return Err(InvalidImage::Empty);
    }
    let format = image::guess_format(bytes).ok().and_then(Format::from_image).ok_or(InvalidImage::UnknownFormat)?;
    format.check_whole(bytes)?;
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format.format);
    reader.limits(limits(plan));
    let mut decoder = reader.into_decoder().map_err(|error| format.explain(error, plan))?;
    let (width, height) = decoder.dimensions();
    check_size(width, height, plan)?;
    let orientation = if plan.orient {
        decoder.orientation().map_err(|error| format.explain(error, plan))?
    } else {
        Orientation::NoTransforms
    };
    let picture = DynamicImage::from_decoder(decoder).map_err(|error| format.explain(error, plan))?;
    Ok(into_raster(picture, orientation, plan.color))
}

/// Limits for a decoder's own allocations; the pixels are checked separately.
fn limits(plan: &Plan) -> Limits {
    let mut limits = Limits::default();
    limits.max_alloc = Some(plan.max_pixels.saturating_mul(MAX_PIXEL_BYTES).saturating_add(WORKING_BYTES));
    limits
}

fn check_size(width: u32, height: u32, plan: &Plan) -> Result<(), InvalidImage> {
    let max_pixels = plan.max_pixels;
    match u64::from(width) * u64::from(height) {
        0 => Err(InvalidImage::NoPixels { width, height }),
        pixels if pixels > max_pixels => Err(InvalidImage::TooManyPixels { width, height, max_pixels }),
        _ if width.max(height) > MAX_SIDE => Err(InvalidImage::SideTooLong { width, height }),
        _ => Ok(()),
    }
}

/// Converts the colours before it turns the picture: turning needs a second picture, which is then smaller.
fn into_raster(picture: DynamicImage, orientation: Orientation, color: Color) -> Raster<u8> {
    let mut picture = match color {
        Color::Rgb => DynamicImage::from(picture.into_rgb8()),
        Color::Grey => DynamicImage::from(picture.into_luma8()),
    };
    picture.apply_orientation(orientation);
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    Raster { width, height, channels: color.channels(), data: picture.into_bytes() }
}

/// A format that is read, with its name for people.
#[derive(Clone, Copy)]
struct Format {
    format: ImageFormat,
    name: &'static str,
}

impl Format {
    fn from_image(format: ImageFormat) -> Option<Self> {
        let name = match format {
            ImageFormat::Png => "PNG",
            ImageFormat::Jpeg => "JPEG",
            ImageFormat::Gif => "GIF",
            ImageFormat::Bmp => "BMP",
            ImageFormat::WebP => "WebP",
            _ => return None,
        };
        Some(Self { format, name })
    }

    fn explain(self, error: ImageError, plan: &Plan) -> InvalidImage {
        match error {
            // A decoder may check the declared size before we do.
            ImageError::Limits(_) => InvalidImage::TooMuchMemory { max_pixels: plan.max_pixels },
            error if is_early_end(&error) => InvalidImage::Truncated { format: self.name },
            error => InvalidImage::Broken { format: self.name, reason: one_line(&error) },
        }
    }

    fn check_whole(self, bytes: &[u8]) -> Result<(), InvalidImage> {
        let is_whole = match self.format {
            ImageFormat::Jpeg => is_whole_jpeg(bytes),
            ImageFormat::WebP => is_whole_webp(bytes),
            _ => true,
        };
        if is_whole { Ok(()) } else { Err(InvalidImage::Truncated { format: self.name }) }
    }
}

/// Decoders report an early end in different ways: most with `UnexpectedEof`, the GIF decoder with its own error, whose
/// type `image` does not export.
fn is_early_end(error: &ImageError) -> bool {
    match error {
        ImageError::IoError(error) => error.kind() == io::ErrorKind::UnexpectedEof,
        ImageError::Decoding(error) => {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            cause.is_some_and(|cause| cause == "Unexpected End of File")
        }
        _ => false,
    }
}

fn one_line(error: &ImageError) -> String {
    let words = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(200).collect()
}
