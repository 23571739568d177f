//! Pictures that are drawn here, through the whole stage.

use std::io::Cursor;

use callboard_codec::{Map, Tensor, Value};
use callboard_core::{ErrorKind, Failure};
use image::{DynamicImage, GrayImage, ImageFormat, Rgb, RgbImage};
use ndarray::array;
use proptest::prelude::*;
use serde_json::json;

use super::config::{ImageConfig, Plan, Resize};
use super::decode::Raster;
use super::resize::resize;
use super::stage::run;

const FORMATS: [ImageFormat; 5] =
    [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Gif, ImageFormat::Bmp, ImageFormat::WebP];

fn plan(config: serde_json::Value) -> Plan {
    serde_json::from_value::<ImageConfig>(config).unwrap().plan().unwrap()
}

fn refused_plan(config: serde_json::Value) -> String {
    match serde_json::from_value::<ImageConfig>(config) {
        Ok(config) => config.plan().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

fn encode(picture: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    picture.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// 3 × 2 pixels, each channel a digit: rgb 1 2 3, 4 5 6, ...
fn small() -> RgbImage {
    RgbImage::from_fn(3, 2, |x, y| {
        let first = (1 + 3 * (x + 3 * y)) as u8;
        Rgb([first, first + 1, first + 2])
    })
}

/// A picture with enough in it to be cut short in many places.
fn large() -> RgbImage {
    RgbImage::from_fn(64, 48, |x, y| Rgb([(x * 4) as u8, (y * 5) as u8, (x * y) as u8]))
}

fn bytes(bytes: Vec<u8>) -> Value {
    Value::Bytes(bytes.into())
}

fn tensor(picture: Vec<u8>, config: serde_json::Value) -> Tensor {
    let value = run(&bytes(picture), &plan(config)).unwrap();
    value.as_tensor().unwrap().clone()
}

fn refused(picture: &[u8]) -> Failure {
    let failure = run(&bytes(picture.to_vec()), &plan(json!({}))).unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::InvalidInput);
    failure
}

#[test]
fn layouts_put_the_same_pixels_in_their_order() {
    let png = || encode(small(), ImageFormat::Png);
    let chw = tensor(png(), json!({ "dtype": "u8" }));
    assert_eq!(chw.shape(), [3, 2, 3]);
    assert_eq!(chw.as_slice::<u8>().unwrap()[..6], [1, 4, 7, 10, 13, 16]);
    let hwc = tensor(png(), json!({ "dtype": "u8", "layout": "hwc" }));
    assert_eq!(hwc.shape(), [2, 3, 3]);
    assert_eq!(hwc.as_slice::<u8>().unwrap()[..6], [1, 2, 3, 4, 5, 6]);
    let flat = tensor(png(), json!({ "dtype": "u8", "layout": "flat" }));
    assert_eq!((flat.shape(), flat.data()), (&[18][..], chw.data()));
    let hw = tensor(png(), json!({ "dtype": "u8", "layout": "hw", "color": "grey" }));
    assert_eq!(hw.shape(), [2, 3]);
}

#[test]
fn values_are_scaled_and_normalised_per_channel() {
    let picture = RgbImage::from_pixel(1, 1, Rgb([0, 51, 255]));
    let png = || encode(picture.clone(), ImageFormat::Png);
    assert_eq!(tensor(png(), json!({})), Tensor::from_array(array![[[0.0_f32]], [[0.2]], [[1.0]]]));
    let config = json!({ "scale": 0.0625, "mean": [0, 1, 2], "std": [2] });
    assert_eq!(tensor(png(), config), Tensor::from_array(array![[[0.0_f32]], [[1.09375]], [[6.96875]]]));
}

#[test]
fn the_default_scale_is_a_division_by_255_to_the_last_bit() {
    let picture = GrayImage::from_fn(256, 1, |x, _| image::Luma([x as u8]));
    let tensor = tensor(encode(picture, ImageFormat::Png), json!({ "color": "grey" }));
    let expected: Vec<f32> = (0..=255u8).map(|value| f32::from(value) / 255.0).collect();
    assert_eq!(tensor.as_slice::<f32>().unwrap(), expected);
}

#[test]
fn every_format_gives_the_same_picture() {
    for format in FORMATS {
        let pixels = tensor(encode(large(), format), json!({ "dtype": "u8", "layout": "hwc" }));
        assert_eq!(pixels.shape(), [48, 64, 3], "{format:?}");
        let distances = pixels.as_slice::<u8>().unwrap().iter().zip(large().into_raw()).map(|(a, b)| a.abs_diff(b));
        let mean = distances.map(f64::from).sum::<f64>() / (48.0 * 64.0 * 3.0);
        let lossy = matches!(format, ImageFormat::Jpeg | ImageFormat::Gif);
        assert!(mean <= if lossy { 16.0 } else { 0.0 }, "{format:?}: {mean}");
    }
}

#[test]
fn an_enlarged_picture_made_small_again_is_what_it_was() {
    let dots = GrayImage::from_fn(8, 8, |x, y| image::Luma([(x * 31 + y * 4) as u8]));
    let large = GrayImage::from_fn(80, 80, |x, y| *dots.get_pixel(x / 10, y / 10));
    for method in ["area", "nearest"] {
        let config = json!({ "color": "grey", "width": 8, "height": 8, "resize": method, "scale": 1 });
        let small = tensor(encode(large.clone(), ImageFormat::Png), config);
        let values: Vec<u8> = small.as_slice::<f32>().unwrap().iter().map(|value| *value as u8).collect();
        assert_eq!(values, dots.as_raw()[..], "{method}");
        assert!(small.as_slice::<f32>().unwrap().iter().all(|value| value.fract() == 0.0), "{method}");
    }
}

/// Expected values are Pillow's for the same picture in mode F (area: by hand).
#[test]
fn resampling_agrees_with_pillow() {
    let rows = [[0, 50, 100, 200, 250, 30, 60], [10, 20, 90, 110, 130, 240, 5], [255, 0, 255, 0, 255, 0, 255]];
    let picture = Raster { width: 7, height: 3, channels: 1, data: rows.concat() };
    let expected: [(Resize, usize, usize, &[f32]); 9] = [
        (Resize::Nearest, 3, 2, &[50.0, 200.0, 30.0, 0.0, 0.0, 0.0]),
        (Resize::Bilinear, 3, 2, &[38.571, 148.015, 104.598, 102.857, 117.132, 140.759]),
        (Resize::Bicubic, 3, 2, &[27.493, 159.424, 101.804, 102.581, 120.110, 141.686]),
        (Resize::Lanczos, 3, 2, &[17.479, 165.399, 102.181, 102.713, 116.311, 144.823]),
        (Resize::Area, 3, 1, &[69.048, 147.143, 114.524]),
        (Resize::Bilinear, 4, 1, &[56.871, 106.571, 155.486, 105.544]),
        (Resize::Bilinear, 7, 3, &[]),
        (Resize::Lanczos, 7, 3, &[]),
        (Resize::Area, 7, 3, &[]),
    ];
    for (method, width, height, values) in expected {
        let resized = resize(&picture, width, height, method);
        assert_eq!((resized.width, resized.height), (width, height));
        // Nothing given: the same size is the same picture.
        let same: Vec<f32> = picture.data.iter().map(|value| f32::from(*value)).collect();
        let values = if values.is_empty() { &same } else { values };
        for (actual, expected) in resized.data.iter().zip(values) {
            assert!((actual - expected).abs() < 0.01, "{method:?} {width} x {height}: {:?}", resized.data);
        }
    }
}

/// A picture and what Pillow makes of it, written by `tests/fixtures/pillow.py`.
#[derive(serde::Deserialize)]
struct PillowFixture {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
    cases: Vec<PillowCase>,
}

#[derive(serde::Deserialize)]
struct PillowCase {
    resize: Resize,
    width: usize,
    height: usize,
    values: Vec<f32>,
}

#[test]
fn a_larger_picture_is_resized_as_pillow_does_it() {
    let fixture = include_str!("../../tests/fixtures/pillow.json");
    let PillowFixture { width, height, pixels, cases } = serde_json::from_str(fixture).unwrap();
    let picture = Raster { width, height, channels: 1, data: pixels };
    for PillowCase { resize: method, width, height, values } in cases {
        let resized = resize(&picture, width, height, method);
        assert_eq!(resized.data.len(), values.len());
        for (actual, expected) in resized.data.iter().zip(&values) {
            assert!((actual - expected).abs() < 0.01, "{method:?} {width} x {height}: {actual} for {expected}");
        }
    }
}

#[test]
fn a_picture_of_one_row_needs_no_more_memory_than_a_square_one() {
    // 65,535 × 1 to 224 × 224: an intermediate picture as wide as the one and as high as the other would have 14
    // million values.
    let long = Raster { width: 65_535, height: 1, channels: 1, data: vec![7_u8; 65_535] };
    let resized = resize(&long, 224, 224, Resize::Bilinear);
    assert!(resized.data.iter().all(|value| (value - 7.0).abs() < 1e-3));
    let high = Raster { width: 1, height: 65_535, channels: 1, data: vec![7_u8; 65_535] };
    assert_eq!(resize(&high, 224, 224, Resize::Lanczos).data.len(), 224 * 224);
}

#[test]
fn a_photograph_is_turned_upright() {
    let jpeg = encode(RgbImage::new(16, 8), ImageFormat::Jpeg);
    // APP1 with the least of EXIF: one entry, orientation 6 (turn right).
    let exif = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    let mut turned = jpeg[..2].to_vec();
    turned.extend([0xff, 0xe1]);
    turned.extend((exif.len() as u16 + 2).to_be_bytes());
    turned.extend(exif);
    turned.extend(&jpeg[2..]);
    assert_eq!(tensor(turned.clone(), json!({})).shape(), [3, 16, 8]);
    assert_eq!(tensor(turned, json!({ "orient": false })).shape(), [3, 8, 16]);
}

#[test]
fn an_item_is_bytes_or_a_map_with_bytes_or_base64() {
    let png = encode(small(), ImageFormat::Png);
    let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &png);
    let map = |value: Value| Value::Map(Map::from_iter([("note", Value::from("for people")), ("image", value)]));
    let plan = plan(json!({}));
    let expected = run(&bytes(png.clone()), &plan).unwrap();
    assert_eq!(run(&map(bytes(png)), &plan).unwrap(), expected);
    assert_eq!(run(&map(Value::from(format!("data:image/png;base64,{base64}"))), &plan).unwrap(), expected);
    assert_eq!(run(&map(Value::from(base64)), &plan).unwrap(), expected);
}

#[test]
fn a_picture_whose_head_is_beyond_all_limits_is_told_the_limit() {
    let failure = refused(&png_of(i32::MAX as u32, i32::MAX as u32));
    assert!(failure.message().contains("max_pixels = 16777216"), "{}", failure.message());
}

#[test]
fn an_item_without_a_picture_says_what_is_there_instead() {
    let told = |item: Value| run(&item, &plan(json!({ "field": "photo" }))).unwrap_err().message().to_owned();
    let map = |key: &str, value: Value| Value::Map(Map::from_iter([(key, value)]));
    assert_eq!(told(map("foto", Value::Null)), "`photo` is missing, there is `foto`");
    assert_eq!(told(Value::Map(Map::new())), "`photo` is missing, there is nothing");
    assert_eq!(told(map("photo", Value::from(7))), "`photo` expected bytes, or base64 as text, got int");
    assert_eq!(told(Value::from("text")), "`photo` expected bytes, or base64 as text, got str");
    let not_base64 = told(map("photo", Value::from("no base64!")));
    assert!(not_base64.starts_with("`photo` is not base64: "), "{not_base64}");
    let many: Map = (0..1000).map(|i| (format!("{i}{}", "k".repeat(100)), i)).collect();
    assert!(told(Value::Map(many)).len() < 400);
}

#[test]
fn what_is_no_picture_says_so() {
    assert_eq!(refused(b"").message(), "`image` is empty");
    assert_eq!(refused(b"<svg/>").message(), "`image` is not a PNG, JPEG, GIF, BMP or WebP picture");
    let mut damaged = encode(large(), ImageFormat::Png);
    damaged[100] ^= 0xff;
    let told = refused(&damaged).message().to_owned();
    assert!(told.starts_with("`image` cannot be read as PNG: ") && !told.contains('\n'), "{told}");
}

#[test]
fn a_picture_cut_short_anywhere_says_so() {
    for format in FORMATS {
        let whole = encode(large(), format);
        // From behind the signature to before the pixels' end; what follows them (a checksum, a trailer) may be
        // missing.
        for length in (24..whole.len() - 8).step_by(53) {
            let told = refused(&whole[..length]).message().to_owned();
            let name =
                if format == ImageFormat::WebP { "WebP".to_owned() } else { format!("{format:?}").to_uppercase() };
            assert_eq!(told, format!("`image` is cut short: the {name} data ends too early"), "{length}");
        }
    }
}

#[test]
fn a_thumbnail_inside_does_not_make_half_a_jpeg_whole() {
    let (jpeg, thumbnail) = (encode(large(), ImageFormat::Jpeg), encode(small(), ImageFormat::Jpeg));
    let mut nested = jpeg[..2].to_vec();
    nested.extend([0xff, 0xe2]);
    nested.extend((thumbnail.len() as u16 + 2).to_be_bytes());
    nested.extend(&thumbnail);
    nested.extend(&jpeg[2..]);
    assert_eq!(tensor(nested.clone(), json!({})).shape(), [3, 48, 64]);
    let half = &nested[..nested.len() - 200];
    assert_eq!(refused(half).message(), "`image` is cut short: the JPEG data ends too early");
}

/// PNG's checksum (PNG specification, annex D).
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)))
    };
    !bytes.iter().fold(!0, step)
}

fn with_bytes(mut picture: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    picture[at..at + bytes.len()].copy_from_slice(bytes);
    picture
}

/// A PNG of a few bytes that declares another size.
fn png_of(width: u32, height: u32) -> Vec<u8> {
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    let png = with_bytes(encode(small(), ImageFormat::Png), 16, &size);
    let checksum = crc32(&png[12..29]);
    with_bytes(png, 29, &checksum.to_be_bytes())
}

#[test]
fn a_bomb_is_refused_by_its_header_and_the_limit_named() {
    let failure = refused(&png_of(60_000, 60_000));
    assert_eq!(failure.message(), "`image` declares 60000 x 60000 pixels, the limit is max_pixels = 16777216");
    let jpeg = encode(small(), ImageFormat::Jpeg);
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    let bombs = [
        with_bytes(encode(small(), ImageFormat::Gif), 6, &[0xff; 4]),
        with_bytes(encode(small(), ImageFormat::Bmp), 18, &[0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0]),
        with_bytes(jpeg, frame + 5, &[0xff; 4]),
        with_bytes(encode(small(), ImageFormat::WebP), 21, &[0xfe, 0xbf, 0xff, 0x0f]),
    ];
    for bomb in bombs {
        let told = refused(&bomb).message().to_owned();
        assert!(told.contains("the limit is max_pixels = 16777216"), "{told}");
    }
}

#[test]
fn the_limit_is_the_configured_one() {
    let png = encode(small(), ImageFormat::Png);
    assert!(run(&bytes(png.clone()), &plan(json!({ "max_pixels": 6 }))).is_ok());
    let failure = run(&bytes(png), &plan(json!({ "max_pixels": 5 }))).unwrap_err();
    assert_eq!(failure.message(), "`image` declares 3 x 2 pixels, the limit is max_pixels = 5");
}

#[test]
fn sides_without_end_and_without_length_are_refused() {
    let told = refused(&png_of(1 << 23, 2)).message().to_owned();
    assert_eq!(told, "`image` declares 8388608 x 2 pixels, the limit is 65535 for a side");
    let told = refused(&png_of(0, 2)).message().to_owned();
    assert!(told.starts_with("`image` "), "{told}");
}

#[test]
fn configurations_that_contradict_themselves_name_the_key() {
    assert_eq!(refused_plan(json!({ "width": 8 })), "`height`: is missing, `width` is there");
    assert_eq!(refused_plan(json!({ "height": 8 })), "`width`: is missing, `height` is there");
    assert_eq!(
        refused_plan(json!({ "width": 9, "height": 9, "max_pixels": 80 })),
        "`width`: 9 x 9 pixels are more than max_pixels = 80"
    );
    assert_eq!(refused_plan(json!({ "mean": [1, 2] })), "`mean`: 2 numbers for 3 channels");
    assert_eq!(refused_plan(json!({ "std": [1, 0, 1] })), "`std`: must not be 0");
    assert_eq!(refused_plan(json!({ "scale": 0 })), "`scale`: 0 leaves nothing of the picture");
    assert_eq!(refused_plan(json!({ "dtype": "u8", "mean": [1] })), "`mean`: is not applied to dtype = \"u8\"");
    assert_eq!(refused_plan(json!({ "layout": "hw" })), "`layout`: `hw` has no channels and needs color = \"grey\"");
    assert_eq!(refused_plan(json!({ "field": "" })), "`field`: must not be empty");
    assert!(refused_plan(json!({ "with": 8 })).contains("unknown field `with`"));
    assert!(refused_plan(json!({ "resize": "cubic" })).contains("unknown variant `cubic`"));
}

#[test]
fn the_types_tell_the_field_and_the_shape() {
    let config = json!({ "field": "photo", "color": "grey", "width": 6, "height": 4 });
    let config: ImageConfig = serde_json::from_value(config).unwrap();
    let input = super::input_type(&config);
    assert_eq!(input.schema()["properties"]["photo"]["contentEncoding"], "base64");
    assert_eq!(input.schema()["required"], json!(["photo"]));
    assert_eq!(input.raw_body().unwrap().field, "photo");
    let output = super::output_type(&config).schema().clone();
    assert_eq!(
        (&output["minItems"], &output["items"]["minItems"], &output["items"]["items"]["minItems"]),
        (&json!(1), &json!(4), &json!(6))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_damaged_picture_is_a_tensor_or_an_invalid_input(
        format in prop::sample::select(&FORMATS[..]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut picture = encode(small(), format);
        for (at, byte) in damage {
            let at = at.index(picture.len());
            picture[at] = byte;
        }
        let config = json!({ "width": 5, "height": 5, "max_pixels": 4096 });
        if let Err(failure) = run(&bytes(picture), &plan(config)) {
            prop_assert_eq!(failure.kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn resampling_stays_within_the_values_that_were_there(
        (width, height, data) in (1usize..20, 1usize..20).prop_flat_map(|(width, height)| {
            (Just(width), Just(height), prop::collection::vec(any::<u8>(), width * height))
        }),
        (new_width, new_height) in (1usize..20, 1usize..20),
        method in prop::sample::select(&[Resize::Nearest, Resize::Area, Resize::Bilinear][..]),
    ) {
        let (least, most) = (*data.iter().min().unwrap(), *data.iter().max().unwrap());
        let picture = Raster { width, height, channels: 1, data };
        let resized = resize(&picture, new_width, new_height, method);
        prop_assert_eq!(resized.data.len(), new_width * new_height);
        for value in resized.data {
            prop_assert!(f32::from(least) - 0.01 <= value && value <= f32::from(most) + 0.01, "{}", value);
        }
    }
}
