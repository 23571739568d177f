//! The lines of a host, of a bounded length.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// A line without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadLine {
    Whole(Bytes),
    /// Its bytes were not kept.
    TooLong {
        limit: usize,
    },
}

#[derive(Debug)]
pub(super) struct LineReader<R> {
    input: BufReader<R>,
    limit: usize,
    /// The begin of the line that is being read.
    line: Vec<u8>,
    is_too_long: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(super) fn new(input: R, limit: usize) -> Self {
        Self { input: BufReader::new(input), limit, line: Vec::new(), is_too_long: false }
    }

    /// The next line; `None` at the end of the input. A last line without its end counts.
    ///
    /// # Cancellation
    ///
    /// No byte is lost.
    pub(super) async fn next(&mut self) -> io::Result<Option<ReadLine>> {
        loop {
            let arrived = self.input.fill_buf().await?;
            let (end, is_over) = (arrived.iter().position(|byte| *byte == b'\n'), arrived.is_empty());
            let piece = &arrived[..end.unwrap_or(arrived.len())];
            if piece.len() > self.limit - self.line.len() {
                self.is_too_long = true;
                // Also gives the memory back.
                self.line = Vec::new();
            }
            if !self.is_too_long {
                self.line.extend_from_slice(piece);
            }
            let taken = piece.len() + usize::from(end.is_some());
            self.input.consume(taken);
            if is_over && self.line.is_empty() && !self.is_too_long {
                return Ok(None);
            }
            if end.is_some() || is_over {
                let line = std::mem::take(&mut self.line);
                let whole = ReadLine::Whole(line.into());
                let is_too_long = std::mem::take(&mut self.is_too_long);
                return Ok(Some(if is_too_long { ReadLine::TooLong { limit: self.limit } } else { whole }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_have_a_bound_and_the_last_needs_no_end() {
        let mut lines = LineReader::new(&b"1234\n12345\n\n123456789\n12\r\n123"[..], 4);
        let mut read = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            read.push(match line {
                ReadLine::Whole(line) => String::from_utf8(line.to_vec()).unwrap(),
                ReadLine::TooLong { limit } => format!("over {limit}"),
            });
        }
        assert_eq!(read, ["1234", "over 4", "", "over 4", "12\r", "123"]);
    }
}
