//! Bodies that no honest client sends, built by hand where libraries refuse to write them.

pub(crate) mod arrow;
pub(crate) mod msgpack;
pub(crate) mod npy;
pub(crate) mod zip;

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::ZlibEncoder;
use flate2::write::{DeflateEncoder, GzEncoder};

pub(crate) const MIB: usize = 1 << 20;

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(bytes).and_then(|()| packed.finish()).expect("a vector takes all")
}

pub(crate) fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
    packed.write_all(bytes).and_then(|()| packed.finish()).expect("a vector takes all")
}

/// This many zeros as a zlib stream.
pub(crate) fn zlib(zeros: usize) -> Vec<u8> {
    let mut packed = Vec::new();
    let zeros = std::io::repeat(0).take(zeros as u64);
    ZlibEncoder::new(zeros, Compression::best()).read_to_end(&mut packed).expect("zeros to pack");
    packed
}

/// `open` repeated `levels` times, `core`, and `close` as often.
pub(crate) fn nested(open: &str, levels: usize, core: &str, close: &str) -> Vec<u8> {
    [&open.repeat(levels), core, &close.repeat(levels)].concat().into_bytes()
}
