//! Reads the headers of calls and outcomes without serde, if they have the form that this side writes.
//!
//! Each call has one of each, and reading them with serde took a tenth of its instructions. Any unexpected header, such
//! as one with a field of a later version, goes through serde. The results are the same.

use rmp::Marker;

use super::header::{Ask, Call, Done, Load, MAX_PAIRS, MAX_STAGES, Origin, Times};

/// A call's header.
pub(super) fn call(bytes: &[u8]) -> Option<Call> {
    let mut call = Call::default();
    whole(bytes, |reader| {
        reader.fields(|name, value| {
            match name {
                b"route" => call.route = value.text()?.to_owned(),
                b"stages" => call.stages = value.texts()?,
                b"ask" => call.ask = Some(Box::new(ask(value)?)),
                b"function" => call.function = value.flag()?,
                b"millis_left" => call.millis_left = value.number()?,
                b"priority" => call.priority = value.number()?,
                b"session" => call.session = value.number()?,
                b"credit" => call.credit = value.number()?,
                b"first_item_millis" => call.first_item_millis = value.number()?,
                b"traceparent" => call.traceparent = value.text()?.to_owned(),
                b"request_id" => call.request_id = value.text()?.to_owned(),
                b"origin" => call.origin = Some(Box::new(origin(value)?)),
                b"last" => call.last = value.flag()?,
                _ => return None,
            }
            Some(())
        })
    })?;
    Some(call)
}

fn ask(reader: &mut HeaderReader<'_>) -> Option<Ask> {
    let mut ask = Ask::default();
    reader.fields(|name, value| {
        match name {
            b"actor" => ask.actor = value.text()?.to_owned(),
            b"question" => ask.question = value.text()?.to_owned(),
            b"tell" => ask.tell = value.flag()?,
            b"key" => ask.key = Some(value.text()?.to_owned()),
            _ => return None,
        }
        Some(())
    })?;
    Some(ask)
}

fn origin(reader: &mut HeaderReader<'_>) -> Option<Origin> {
    let mut origin = Origin::default();
    reader.fields(|name, value| {
        match name {
            b"caller" => origin.caller = value.text()?.to_owned(),
            b"path" => origin.path = value.text()?.to_owned(),
            b"method" => origin.method = value.text()?.to_owned(),
            b"client" => origin.client = value.text()?.to_owned(),
            b"headers" => origin.headers = value.pairs()?,
            b"query" => origin.query = value.pairs()?,
            b"tags" => origin.tags = value.pairs()?,
            _ => return None,
        }
        Some(())
    })?;
    Some(origin)
}

/// The header of a successful outcome.
pub(super) fn done(bytes: &[u8]) -> Option<Done> {
    let mut done = Done::default();
    whole(bytes, |reader| {
        reader.fields(|name, value| {
            match name {
                b"stages" => done.stages = value.number()?,
                b"times" => done.times = times(value)?,
                b"load" => done.load = load(value)?,
                _ => return None,
            }
            Some(())
        })
    })?;
    Some(done)
}

fn times(reader: &mut HeaderReader<'_>) -> Option<Times> {
    let mut times = Times::default();
    reader.fields(|name, value| {
        match name {
            b"queue" => times.queue = value.number()?,
            b"batch" => times.batch = value.number()?,
            b"compute" => times.compute = value.number()?,
            _ => return None,
        }
        Some(())
    })?;
    Some(times)
}

fn load(reader: &mut HeaderReader<'_>) -> Option<Load> {
    let mut load = Load::default();
    reader.fields(|name, value| {
        match name {
            b"in_flight" => load.in_flight = value.number()?,
            b"queued" => load.queued = value.number()?,
            _ => return None,
        }
        Some(())
    })?;
    Some(load)
}

/// Reads the whole input.
fn whole(bytes: &[u8], read: impl FnOnce(&mut HeaderReader<'_>) -> Option<()>) -> Option<()> {
    let mut reader = HeaderReader { bytes };
    read(&mut reader)?;
    reader.bytes.is_empty().then_some(())
}

/// The rest of a header.
struct HeaderReader<'a> {
    bytes: &'a [u8],
}

impl<'a> HeaderReader<'a> {
    /// A map of at most fifteen fields without duplicates.
    fn fields(&mut self, mut field: impl FnMut(&'a [u8], &mut Self) -> Option<()>) -> Option<()> {
        let Marker::FixMap(count) = self.marker()? else { return None };
        let mut names = [&[][..]; 15];
        for place in 0..usize::from(count) {
            let name = self.text()?.as_bytes();
            if names[..place].contains(&name) {
                return None;
            }
            names[place] = name;
            field(name, self)?;
        }
        Some(())
    }

    fn number<N: TryFrom<u64>>(&mut self) -> Option<N> {
        let number = match self.marker()? {
            Marker::FixPos(number) => number.into(),
            Marker::U8 => self.byte()?.into(),
            Marker::U16 => u16::from_be_bytes(self.array()?).into(),
            Marker::U32 => u32::from_be_bytes(self.array()?).into(),
            Marker::U64 => u64::from_be_bytes(self.array()?),
            _ => return None,
        };
        number.try_into().ok()
    }

    fn flag(&mut self) -> Option<bool> {
        match self.marker()? {
            Marker::False => Some(false),
            Marker::True => Some(true),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = match self.marker()? {
            Marker::FixStr(length) => usize::from(length),
            Marker::Str8 => self.byte()?.into(),
            _ => return None,
        };
        std::str::from_utf8(self.take(length)?).ok()
    }

    fn pairs(&mut self) -> Option<Vec<(String, String)>> {
        let Marker::FixArray(count) = self.marker()? else { return None };
        let pair = |_| match self.marker()? {
            Marker::FixArray(2) => Some((self.text()?.to_owned(), self.text()?.to_owned())),
            _ => None,
        };
        (0..count).map(pair).collect()
    }

    fn texts(&mut self) -> Option<Vec<String>> {
        let Marker::FixArray(count) = self.marker()? else { return None };
        (0..count).map(|_| self.text().map(str::to_owned)).collect()
    }

    fn marker(&mut self) -> Option<Marker> {
        self.byte().map(Marker::from_u8)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(*array)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }
}

// A list marker holds at most 15 elements, fewer than a call may have.
const _: () = assert!(MAX_STAGES >= 15 && MAX_PAIRS >= 15);

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::super::frame::HEADER_LIMITS;
    use super::*;
    use crate::typed::msgpack;

    fn written(header: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        msgpack::append(&mut bytes, header).unwrap();
        bytes
    }

    fn by_serde<H: DeserializeOwned>(bytes: &[u8]) -> Option<H> {
        msgpack::from_bytes(&Bytes::copy_from_slice(bytes), &HEADER_LIMITS).ok()
    }

    fn origins() -> impl Strategy<Value = Option<Box<Origin>>> {
        let pairs = || prop::collection::vec((".{0,9}", ".{0,60}"), 0..4);
        let texts = (".{0,40}", ".{0,40}", ".{0,9}", ".{0,40}");
        let origins = (texts, pairs(), pairs(), pairs());
        prop::option::of(origins.prop_map(|((caller, path, method, client), headers, query, tags)| {
            Box::new(Origin { caller, path, method, client, headers, query, tags })
        }))
    }

    fn asks() -> impl Strategy<Value = Option<Box<Ask>>> {
        let asks = (".{0,40}", ".{0,40}", any::<bool>(), prop::option::of(".{0,40}"));
        prop::option::of(asks.prop_map(|(actor, question, tell, key)| Box::new(Ask { actor, question, tell, key })))
    }

    fn calls() -> impl Strategy<Value = Call> {
        let texts = (".{0,40}", prop::collection::vec(".{0,9}", 0..4), ".{0,60}", ".{0,40}");
        let numbers = (any::<u64>(), any::<u8>(), any::<u64>(), any::<u32>(), any::<u64>());
        let parts = (texts, numbers, any::<[bool; 2]>(), origins(), asks());
        parts.prop_map(|(texts, numbers, [function, last], origin, ask)| {
            let ((route, stages, traceparent, request_id), (millis_left, priority, session, credit, first_item_millis)) =
                (texts, numbers);
            Call {
                route,
                stages,
                ask,
                function,
                millis_left,
                priority,
                session,
                credit,
                first_item_millis,
                traceparent,
                request_id,
                origin,
                last,
            }
        })
    }

    fn outcomes() -> impl Strategy<Value = Done> {
        any::<(u32, u64, u64, u64, u32, u32)>().prop_map(|(stages, queue, batch, compute, in_flight, queued)| Done {
            stages,
            times: Times { queue, batch, compute },
            load: Load { in_flight, queued },
            response: None,
        })
    }

    /// serde reads the same from any input that is accepted here.
    fn agree(bytes: &[u8]) {
        if let Some(read) = call(bytes) {
            assert_eq!(by_serde::<Call>(bytes), Some(read));
        }
        if let Some(read) = done(bytes) {
            assert_eq!(by_serde::<Done>(bytes), Some(read));
        }
    }

    proptest! {
        #[test]
        fn reads_every_header_that_this_version_writes(header in calls(), outcome in outcomes()) {
            prop_assert_eq!(call(&written(&header)), Some(header));
            prop_assert_eq!(done(&written(&outcome)), Some(outcome));
        }

        #[test]
        fn reads_the_same_as_serde(
            header in calls(), outcome in outcomes(), at in any::<prop::sample::Index>(), byte: u8,
        ) {
            for mut bytes in [written(&header), written(&outcome)] {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                agree(&bytes);
                agree(&bytes[..at]);
                bytes.insert(at, byte);
                agree(&bytes);
            }
        }
    }

    #[test]
    fn unexpected_input_is_left_to_serde() {
        let unknown = written(&std::collections::BTreeMap::from([("route", "/a"), ("tenant", "b")]));
        assert_eq!(call(&unknown), None);
        assert_eq!(by_serde::<Call>(&unknown).unwrap().route, "/a");
        // A field that comes twice is an error there.
        let twice = [b"\x82\xa4last\xc3\xa4last\xc2".as_slice(), b"\x82\xa5route\xa0\xa5route\xa0"];
        assert!(twice.iter().all(|bytes| call(bytes).is_none() && by_serde::<Call>(bytes).is_none()));
    }
}
