//! Decompresses a body in small steps, so that the caller can count each step before the next.
//!
//! A body that is truncated, has data after its end, or is not of its coding is an error that names the coding.

use std::io::{self, Write};

use bytes::{Buf, Bytes};
use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
#[cfg(feature = "zstd")]
use zstd::stream::raw::{DParameter, Decoder as ZstdDecoder};
#[cfg(feature = "zstd")]
use zstd::stream::zio::Writer;

use super::ContentCoding;
use crate::error::ApiError;

/// Room for one step of deflate; the other decoders have 32 KiB of their own.
const STEP_BYTES: usize = 32 * 1024;

/// The most calls of a decoder in one step.
const MAX_TURNS: usize = 64;

/// The most input of one step: empty blocks are work without output.
pub(super) const STEP_INPUT_BYTES: usize = 64 * 1024;

/// The largest window that a body may use, as a power of two: 8 MiB (RFC 9659). It is allocated.
const ZSTD_WINDOW_LOG: u32 = 23;

/// The same in bytes.
pub(crate) const MAX_WINDOW_BYTES: u64 = 1 << ZSTD_WINDOW_LOG;

/// A body that is being decompressed.
pub(crate) struct Decompressor {
    coding: ContentCoding,
    decoder: Decoder,
    /// Received and not yet decompressed.
    input: Bytes,
}

enum Decoder {
    Gzip(MultiGzDecoder<Vec<u8>>),
    /// Created with the first byte, which tells the two meanings of `deflate` apart.
    Deflate(Option<Inflate>),
    #[cfg(feature = "zstd")]
    Zstd(Writer<Vec<u8>, ZstdDecoder<'static>>),
}

struct Inflate {
    state: Decompress,
    /// Room for one step. The result is a copy of its own length, so that a short step keeps no more.
    output: Box<[u8]>,
    /// The last step filled its room: the decoder may hold more output although it took all input.
    holds_more: bool,
    is_over: bool,
}

impl Decompressor {
    pub(crate) fn new(coding: ContentCoding) -> Result<Self, ApiError> {
        let decoder = match coding {
            ContentCoding::Gzip => Decoder::Gzip(MultiGzDecoder::new(Vec::new())),
            ContentCoding::Deflate => Decoder::Deflate(None),
            #[cfg(not(feature = "zstd"))]
            ContentCoding::Zstd => return Err(ApiError::unsupported_encoding()),
            #[cfg(feature = "zstd")]
            ContentCoding::Zstd => Decoder::Zstd(zstd_decoder().map_err(|error| malformed(coding, &error))?),
        };
        Ok(Self { coding, decoder, input: Bytes::new() })
    }

    /// Takes received bytes. Earlier bytes must be decompressed first.
    pub(crate) fn push(&mut self, input: Bytes) {
        debug_assert!(self.input.is_empty());
        self.input = input;
    }

    /// The next step, or `None` if more input is needed. A step may be empty after much input without output, such as
    /// empty gzip members, so that other tasks can run.
    pub(crate) fn step(&mut self) -> Result<Option<Bytes>, ApiError> {
        let mut room = STEP_INPUT_BYTES;
        for _ in 0..MAX_TURNS {
            if self.input.is_empty() && !self.holds_more() {
                return Ok(None);
            }
            let input = &self.input[..self.input.len().min(room)];
            let (consumed, unpacked) = match &mut self.decoder {
                Decoder::Gzip(decoder) => {
                    decoder.write(input).map(|consumed| (consumed, std::mem::take(decoder.get_mut())))
                }
                Decoder::Deflate(inflate) => inflate.get_or_insert_with(|| Inflate::for_input(input)).step(input),
                #[cfg(feature = "zstd")]
                Decoder::Zstd(decoder) => {
                    decoder.write(input).map(|consumed| (consumed, std::mem::take(decoder.writer_mut())))
                }
            }
            .map_err(|error| malformed(self.coding, &error))?;
            if consumed == 0 && unpacked.is_empty() && !self.input.is_empty() {
                return Err(malformed(self.coding, &io::Error::other("more input behind its end")));
            }
            self.input.advance(consumed);
            room -= consumed;
            if !unpacked.is_empty() {
                return Ok(Some(without_spare_capacity(unpacked)));
            }
            if room == 0 {
                break;
            }
        }
        Ok(Some(Bytes::new()))
    }

    /// Whether the decoder may hold more output after it took all input.
    fn holds_more(&self) -> bool {
        matches!(self.decoder, Decoder::Deflate(Some(Inflate { holds_more: true, .. })))
    }

    /// The last step, after all input.
    pub(crate) fn finish(&mut self) -> Result<Bytes, ApiError> {
        let unpacked = match &mut self.decoder {
            Decoder::Gzip(decoder) => decoder.try_finish().map(|()| std::mem::take(decoder.get_mut())),
            Decoder::Deflate(Some(Inflate { is_over: true, .. })) => Ok(Vec::new()),
            Decoder::Deflate(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            #[cfg(feature = "zstd")]
            Decoder::Zstd(decoder) => decoder.finish().map(|()| std::mem::take(decoder.writer_mut())),
        };
        unpacked.map(without_spare_capacity).map_err(|error| malformed(self.coding, &error))
    }
}

impl Inflate {
    /// A zlib header has its method and a checksum in two bytes (RFC 1950 §2.2); a raw stream rarely looks the same.
    fn for_input(input: &[u8]) -> Self {
        let is_zlib = match input {
            [first, second, ..] => first & 0x0f == 8 && (u16::from(*first) << 8 | u16::from(*second)) % 31 == 0,
            [first] => first & 0x8f == 8,
            [] => true,
        };
        let output = vec![0; STEP_BYTES].into_boxed_slice();
        Self { state: Decompress::new(is_zlib), output, holds_more: false, is_over: false }
    }

    fn step(&mut self, input: &[u8]) -> io::Result<(usize, Vec<u8>)> {
        if self.is_over {
            return Ok((0, Vec::new()));
        }
        let (consumed, produced) = (self.state.total_in(), self.state.total_out());
        let status = self.state.decompress(input, &mut self.output, FlushDecompress::None)?;
        let (consumed, produced) =
            ((self.state.total_in() - consumed) as usize, (self.state.total_out() - produced) as usize);
        self.is_over = status == Status::StreamEnd;
        self.holds_more = produced == self.output.len() && !self.is_over;
        Ok((consumed, self.output[..produced].to_vec()))
    }
}

/// Frees the spare capacity: decompressed bytes are charged by their length.
fn without_spare_capacity(mut unpacked: Vec<u8>) -> Bytes {
    unpacked.shrink_to_fit();
    unpacked.into()
}

#[cfg(feature = "zstd")]
fn zstd_decoder() -> io::Result<Writer<Vec<u8>, ZstdDecoder<'static>>> {
    let mut decoder = ZstdDecoder::new()?;
    decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG))?;
    Ok(Writer::new(Vec::new(), decoder))
}

fn malformed(coding: ContentCoding, error: &io::Error) -> ApiError {
    ApiError::bad_coding(coding.name(), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::respond::compressor::compress;

    fn decompress(coding: ContentCoding, packed: &[u8], step: usize) -> Result<Vec<u8>, ApiError> {
        let mut decompressor = Decompressor::new(coding)?;
        let mut whole = Vec::new();
        for chunk in packed.chunks(step) {
            decompressor.push(Bytes::copy_from_slice(chunk));
            while let Some(step) = decompressor.step()? {
                assert!(step.len() <= 4 * STEP_BYTES, "{} bytes in one step", step.len());
                whole.extend_from_slice(&step);
                if step.is_empty() {
                    continue;
                }
                // The kept memory of a step is its length.
                let (length, capacity) = (step.len(), step.try_into_mut().unwrap().capacity());
                assert_eq!(capacity, length, "{coding:?}");
            }
        }
        whole.extend_from_slice(&decompressor.finish()?);
        Ok(whole)
    }

    const ALL_CODINGS: [ContentCoding; 3] = [ContentCoding::Gzip, ContentCoding::Deflate, ContentCoding::Zstd];

    #[test]
    fn compressed_bytes_are_restored_from_chunks_of_any_size() {
        let text: Vec<u8> = (0..200_000_u32).flat_map(|n| n.to_string().into_bytes()).collect();
        for coding in ALL_CODINGS {
            let packed = compress(coding, &text).unwrap();
            assert!(packed.len() < text.len() / 2, "{coding:?}");
            for step in [1, 3, 1000, usize::MAX] {
                assert_eq!(decompress(coding, &packed, step).unwrap(), text, "{coding:?} {step}");
            }
            assert_eq!(decompress(coding, &compress(coding, b"").unwrap(), 5).unwrap(), b"");
        }
    }

    #[test]
    fn a_bomb_is_decompressed_in_small_steps() {
        let zeros = vec![0; 10 << 20];
        for coding in ALL_CODINGS {
            let packed = compress(coding, &zeros).unwrap();
            assert!(packed.len() < 300_000, "{coding:?} {}", packed.len());
            assert_eq!(decompress(coding, &packed, usize::MAX).unwrap().len(), zeros.len());
        }
    }

    #[test]
    fn empty_blocks_are_read_in_small_steps() {
        let blocks = b"\0\0\0\xff\xff".repeat(200_000);
        for head in [&b"\x1f\x8b\x08\0\0\0\0\0\0\xff"[..], b""] {
            let coding = if head.is_empty() { ContentCoding::Deflate } else { ContentCoding::Gzip };
            let mut decompressor = Decompressor::new(coding).unwrap();
            decompressor.push([head, &blocks].concat().into());
            let mut steps = 0;
            while let Some(step) = decompressor.step().unwrap() {
                assert!(step.is_empty());
                steps += 1;
            }
            assert!(steps >= blocks.len() / STEP_INPUT_BYTES, "{coding:?} {steps}");
        }
    }

    #[test]
    fn a_chunk_may_end_at_any_byte() {
        let mut text: Vec<u8> = (0..100).collect();
        text.resize(50_100, 0);
        for coding in ALL_CODINGS {
            let packed = compress(coding, &text).unwrap();
            for split in 0..packed.len() {
                let mut decompressor = Decompressor::new(coding).unwrap();
                let mut length = 0;
                for part in [&packed[..split], &packed[split..]] {
                    decompressor.push(Bytes::copy_from_slice(part));
                    while let Some(step) = decompressor.step().unwrap() {
                        length += step.len();
                    }
                }
                length += decompressor.finish().unwrap_or_else(|error| panic!("{coding:?} {split}: {error:?}")).len();
                assert_eq!(length, text.len(), "{coding:?} {split}");
            }
        }
    }

    #[test]
    fn truncated_input_and_trailing_bytes_are_refused() {
        let text = b"to be or not to be, that is the question, to be or not to be";
        for coding in ALL_CODINGS {
            let packed = compress(coding, text).unwrap();
            for end in 0..packed.len() {
                assert!(decompress(coding, &packed[..end], 7).is_err(), "{coding:?} cut at {end}");
            }
            let more = [&packed[..], b"and so on and so on"].concat();
            assert!(decompress(coding, &more, usize::MAX).is_err(), "{coding:?}");
            assert!(decompress(coding, b"no such thing", usize::MAX).is_err(), "{coding:?}");
        }
    }

    #[test]
    fn gzip_may_have_several_members_and_deflate_may_lack_its_header() {
        let members =
            [compress(ContentCoding::Gzip, b"one, ").unwrap(), compress(ContentCoding::Gzip, b"two").unwrap()].concat();
        assert_eq!(decompress(ContentCoding::Gzip, &members, 4).unwrap(), b"one, two");
        let mut raw = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        raw.write_all(b"without a header").unwrap();
        assert_eq!(decompress(ContentCoding::Deflate, &raw.finish().unwrap(), 4).unwrap(), b"without a header");
    }

    #[test]
    fn empty_members_end_a_step() {
        for coding in [ContentCoding::Gzip, ContentCoding::Zstd] {
            let mut decompressor = Decompressor::new(coding).unwrap();
            decompressor.push(compress(coding, b"").unwrap().repeat(10_000).into());
            let mut steps = 0;
            while let Some(step) = decompressor.step().unwrap() {
                assert!(step.is_empty());
                steps += 1;
            }
            assert!(steps >= 100, "{coding:?}: {steps} steps");
            assert!(decompressor.finish().unwrap().is_empty());
        }
    }

    #[cfg(feature = "zstd")]
    #[test]
    fn a_window_beyond_the_limit_is_refused() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(27).unwrap();
        encoder.write_all(&vec![7; 1 << 20]).unwrap();
        encoder.flush().unwrap(); // So that the frame does not know its size, and asks for its whole window.
        let packed = encoder.finish().unwrap();
        assert!(decompress(ContentCoding::Zstd, &packed, usize::MAX).is_err());
    }
}
