//! Server-sent events to the data of each, for a stream that arrives in any pieces. Pure.
//!
//! Source: WHATWG HTML, "Server-sent events", §9.2.6. Only `data` matters here; comments and other fields are dropped.

use thiserror::Error;

/// An event that is too large to be held.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("an event has more than {limit} bytes")]
pub(super) struct EventTooLong {
    limit: usize,
}

#[derive(Debug)]
pub(super) struct EventReader {
    limit: usize,
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    is_after_return: bool,
}

impl EventReader {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, line: Vec::new(), data: Vec::new(), has_data: false, is_after_return: false }
    }

    /// The data of the events that end in this piece.
    ///
    /// # Errors
    ///
    /// An event beyond the limit. The reader is of no use then.
    pub(super) fn push(&mut self, mut piece: &[u8]) -> Result<Vec<Vec<u8>>, EventTooLong> {
        let mut events = Vec::new();
        while let Some(first) = piece.first() {
            if std::mem::take(&mut self.is_after_return) && *first == b'\n' {
                piece = &piece[1..];
                continue;
            }
            let end = piece.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let text = &piece[..end.unwrap_or(piece.len())];
            if text.len() + self.line.len() + self.data.len() > self.limit {
                return Err(EventTooLong { limit: self.limit });
            }
            self.line.extend_from_slice(text);
            let Some(end) = end else { break };
            self.is_after_return = piece[end] == b'\r';
            piece = &piece[end + 1..];
            events.extend(self.line_ended());
        }
        Ok(events)
    }

    /// Takes the line; an empty one ends the event.
    fn line_ended(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let is_event = std::mem::take(&mut self.has_data);
            let data = std::mem::take(&mut self.data);
            return is_event.then_some(data);
        }
        let value = match line.strip_prefix(b"data:") {
            Some(value) => value.strip_prefix(b" ").unwrap_or(value),
            None if line == b"data" => b"",
            None => return None,
        };
        if std::mem::replace(&mut self.has_data, true) {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<String> {
        let mut reader = EventReader::new(1000);
        let events = pieces.iter().flat_map(|piece| reader.push(piece).unwrap());
        events.map(|event| String::from_utf8(event).unwrap()).collect()
    }

    #[test]
    fn data_lines_of_an_event_are_joined_and_the_rest_is_dropped() {
        let text = b": comment\n\ndata: one\nid: 7\ndata:two\r\n\r\nevent: x\n\ndata\r\rdata: cut";
        assert_eq!(read(&[text]), ["one\ntwo", ""]);
        assert_eq!(EventReader::new(4).push(b"data: one"), Err(EventTooLong { limit: 4 }));
    }

    proptest! {
        #[test]
        fn the_pieces_of_a_stream_do_not_matter(
            bytes in vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'd'), Just(b' '), any::<u8>()], 0..200),
            events in vec("[^\r\n]{0,20}", 0..5),
            cut in 0..300_usize,
        ) {
            let mut stream = bytes;
            stream.extend(b"\n\n");
            for event in &events {
                stream.extend(format!("data: {event}\n\n").bytes());
            }
            let whole = EventReader::new(1000).push(&stream).unwrap();
            let (begin, end) = stream.split_at(cut.min(stream.len()));
            let mut reader = EventReader::new(1000);
            let mut parts = reader.push(begin).unwrap();
            parts.extend(reader.push(end).unwrap());
            prop_assert_eq!(&parts, &whole);
            let mut single = EventReader::new(1000);
            let singly: Vec<_> = stream.iter().flat_map(|byte| single.push(&[*byte]).unwrap()).collect();
            prop_assert_eq!(&singly, &whole);
            let last = &whole[whole.len() - events.len()..];
            prop_assert!(last.iter().map(|event| String::from_utf8_lossy(event)).eq(events.iter().map(String::as_str)));
        }
    }
}
