//! Frames are written and read as documented, in chunks of any size, and every false length is refused by name.

use std::fs;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use callboard_codec::wire::{
    Call, Credit, Done, Fail, FrameHead, FrameKind, FrameLimits, FramePart, FrameReader, FrameRun, Goaway, Hello, Join,
    Load, LooseFrame, MAX_PAIRS, MAX_STAGES, Offer, Origin, PRELUDE_BYTES, ResponseHead, Times, Unreachable, VERSION,
    Welcome, WireError, cancel_frame, frame_head,
};
use callboard_codec::{DecodeLimits, Format, Map, Value};
use proptest::prelude::*;
use serde::de::{DeserializeOwned, Deserializer, Visitor};

/// A frame that was read whole.
#[derive(Debug)]
struct Frame {
    head: FrameHead,
    body: Bytes,
}

fn read(chunks: impl IntoIterator<Item = Bytes>, limits: FrameLimits) -> Result<Vec<Frame>, WireError> {
    let mut reader = FrameReader::new(limits);
    let (mut frames, mut body): (Vec<Frame>, BytesMut) = (Vec::new(), BytesMut::new());
    for chunk in chunks {
        reader.push(chunk);
        while let Some(part) = reader.next_part()? {
            match part {
                FramePart::Head(head) => frames.push(Frame { head, body: Bytes::new() }),
                FramePart::Body { bytes, last } => {
                    body.extend_from_slice(&bytes);
                    if last {
                        frames.last_mut().expect("a head precedes it").body = body.split().freeze();
                    }
                }
            }
        }
    }
    reader.finish().map(|()| frames)
}

fn transcript(name: &str) -> Bytes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/wire").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

fn read_transcript(name: &str) -> Vec<Frame> {
    read([transcript(name)], FrameLimits::default()).expect("a transcript of frames")
}

fn value(body: &Bytes) -> Value {
    Value::decode(Format::Envelope, body, &DecodeLimits::default()).expect("an envelope")
}

fn header<H: DeserializeOwned + Default>(frame: &Frame) -> H {
    frame.head.header().unwrap_or_else(|error| panic!("{}: {error:?}", frame.head.kind))
}

#[test]
fn a_caller_of_version_1_is_understood() {
    let frames = read_transcript("v1-caller.bin");
    let kinds: Vec<_> = frames.iter().map(|frame| (frame.head.kind, frame.head.entry)).collect();
    let calls = [(FrameKind::Call, 0), (FrameKind::Call, 1), (FrameKind::Call, 2)];
    assert_eq!(kinds[0], (FrameKind::Hello, 0));
    assert_eq!(kinds[1..4], calls);
    assert_eq!(kinds[4..], [(FrameKind::Call, 3), (FrameKind::Credit, 2), (FrameKind::Cancel, 1)]);

    let hello: Hello = header(&frames[0]);
    assert_eq!((hello.min_version, hello.max_version, hello.cluster.as_str()), (1, 1, "dev"));
    let first = Call { route: "/shout".to_owned(), millis_left: 500, priority: 1, ..Call::default() };
    assert_eq!(header::<Call>(&frames[1]), first);
    assert_eq!(value(&frames[1].body), Value::from("hello"));
    let stages = vec!["decode".to_owned(), "scale".to_owned()];
    let second = Call { stages, millis_left: 70_000, session: 1 << 63, ..Call::default() };
    assert_eq!(header::<Call>(&frames[2]), second);
    let third = header::<Call>(&frames[3]);
    assert!(third.function);
    assert_eq!((third.credit, third.first_item_millis), (8, 9));
    let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    let origin = Origin {
        caller: "web".to_owned(),
        path: "/shout".to_owned(),
        headers: pair("x-city", "Lima"),
        query: pair("q", "7"),
        tags: pair("tenant", "acme"),
        ..Origin::default()
    };
    assert_eq!(header::<Call>(&frames[4]).origin.as_deref(), Some(&origin));
    assert_eq!(header::<Credit>(&frames[5]).items, 4);
}

#[test]
fn a_node_of_version_1_is_understood() {
    let frames = read_transcript("v1-node.bin");
    let welcome: Welcome = header(&frames[0]);
    assert_eq!((welcome.version, welcome.node.as_str(), welcome.generation, welcome.draining), (1, "a", 7, false));
    let offers: Vec<Offer> = value(&frames[0].body).deserialize().expect("offers");
    assert_eq!((offers[0].name.as_str(), offers[0].idempotent), ("/shout", true));

    assert_eq!(value(&frames[1].body), Value::Int(0));
    let done: Done = header(&frames[2]);
    assert_eq!((done.times, done.load), (Times { queue: 1, batch: 2, compute: 300 }, Load { in_flight: 5, queued: 0 }));
    let fail: Fail = header(&frames[3]);
    assert_eq!((fail.kind.as_str(), fail.started, fail.status), ("failed", true, 418));
    assert_eq!(value(&frames[3].body), Value::Map(Map::from_iter([("why", Value::from("x"))])));
    let refused: Fail = header(&frames[4]);
    assert_eq!((refused.started, refused.retry_after_millis), (false, 250));
    assert_eq!(header::<Done>(&frames[5]), Done::default());
    assert_eq!(header::<Goaway>(&frames[6]).reason, "draining");
}

/// The frames before a certificate exists: a join request, a renewal, and the answer to either.
#[test]
fn frames_of_joining_members_are_understood() {
    let frames = read_transcript("v1-join.bin");
    let kinds: Vec<_> = frames.iter().map(|frame| frame.head.kind).collect();
    assert_eq!(kinds, [FrameKind::Join, FrameKind::Renew, FrameKind::Certificate, FrameKind::Fail]);
    let text = |text: &str| text.to_owned();
    let join = Join { cluster: text("lab-01"), token: text("0a1b"), name: text("left"), proof: text("ff00") };
    assert_eq!(header::<Join>(&frames[0]), join);
    assert_eq!(frames[1].body, Bytes::from_static(b"-----BEGIN CERTIFICATE REQUEST-----\n"));
    assert_eq!(frames[2].body, Bytes::from_static(b"-----BEGIN CERTIFICATE-----\n"));
    assert_eq!(header::<Fail>(&frames[3]).error_type.as_deref(), Some("used_up_token"));
}

/// The fields of a header, as its type requests them from a deserializer.
fn fields<H: DeserializeOwned>() -> Vec<&'static str> {
    struct FieldRecorder<'a>(&'a mut Vec<&'static str>);

    impl<'de> Deserializer<'de> for FieldRecorder<'_> {
        type Error = serde::de::value::Error;

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Self::Error> {
            self.0.extend(fields);
            self.deserialize_any(visitor)
        }

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(serde::de::Error::custom("only the names are wanted"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq
            tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names = Vec::new();
    let _ = H::deserialize(FieldRecorder(&mut names));
    names
}

#[test]
fn the_page_names_every_field_of_every_header() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/wire.md")).expect("the page");
    let of_done = [fields::<Done>(), fields::<Times>(), fields::<Load>(), fields::<ResponseHead>()].concat();
    let kinds = [
        ("hello", fields::<Hello>()),
        ("welcome", [fields::<Welcome>(), fields::<Offer>()].concat()),
        ("call", [fields::<Call>(), fields::<Origin>()].concat()),
        ("done", of_done),
        ("fail", fields::<Fail>()),
        ("credit", fields::<Credit>()),
        ("goaway", fields::<Goaway>()),
        ("join", fields::<Join>()),
        ("unreachable", fields::<Unreachable>()),
    ];
    for (kind, fields) in kinds {
        let row = page.lines().find(|line| line.split('|').nth(2).is_some_and(|cell| cell.trim() == kind));
        let row = row.unwrap_or_else(|| panic!("the page has no row of {kind}"));
        assert!(!fields.is_empty(), "{kind}");
        for field in fields {
            assert!(row.contains(&format!("`{field}`")), "the row of {kind} does not name {field}: {row}");
        }
    }
}

#[test]
fn fields_of_a_later_version_are_skipped() {
    let frames = read_transcript("later-caller.bin");
    assert_eq!(header::<Hello>(&frames[0]).max_version, 9);
    let call = Call { route: "/shout".to_owned(), millis_left: 500, ..Call::default() };
    assert_eq!(header::<Call>(&frames[1]), call);
}

/// The recorded bytes of another implementation equal ours.
#[test]
fn a_call_is_written_as_in_the_transcript() {
    let body = Value::from("hello").to_envelope().expect("has one").into_bytes();
    let call = Call { route: "/shout".to_owned(), millis_left: 500, priority: 1, ..Call::default() };
    let mut written = frame_head(FrameKind::Call, 0, &call, body.len()).expect("fits").to_vec();
    written.extend_from_slice(&body);
    let all = transcript("v1-caller.bin");
    assert!(all.windows(written.len()).any(|window| window == written), "{written:02x?}");
    assert!(all.ends_with(&cancel_frame(1)));
    // In one piece the frame is the same, whatever its place.
    let loose = LooseFrame::new(FrameKind::Call, &call, std::slice::from_ref(&body)).expect("fits");
    assert_eq!(loose.len(), written.len());
    let mut changed = LooseFrame::new(FrameKind::Call, &Call { millis_left: 70_000, ..call }, &[body]).expect("fits");
    changed
        .change_header(FrameKind::Call, |call: &mut Call| call.millis_left = 500)
        .expect("it is the header of a call");
    let wrong = changed.change_header(FrameKind::Call, |_: &mut Vec<u8>| ());
    assert!(matches!(wrong, Err(WireError::Header { .. })), "{wrong:?}");
    let (mut run, mut placed) = (Vec::new(), Vec::new());
    changed.append_to(&mut run, 0);
    assert_eq!(run, written);
    loose.append_to(&mut placed, 0x0102);
    assert_eq!(placed[6..8], [0x02, 0x01]);
    assert_eq!((&placed[..6], &placed[8..]), (&written[..6], &written[8..]));
}

#[test]
fn an_added_flag_gives_the_same_frame_as_an_original_one() {
    let body = Value::from("hello").to_envelope().expect("has one").into_bytes();
    let call = Call { route: "/shout".to_owned(), millis_left: 500, ..Call::default() };
    let frame = |call: &Call| LooseFrame::new(FrameKind::Call, call, std::slice::from_ref(&body)).expect("fits");
    let (mut added, mut there) = (frame(&call), Vec::new());
    added.add_flag("last");
    frame(&Call { last: true, ..call }).append_to(&mut there, 0);
    let mut run = there.clone();
    added.append_to(&mut run, 0);
    assert_eq!(run, there.repeat(2));
}

#[test]
fn a_run_of_frames_keeps_their_order_in_few_pieces() {
    let done = |load| Done { load: Load { in_flight: load, queued: 0 }, ..Done::default() };
    let (small, large) = (Bytes::from(vec![1; 100]), Bytes::from(vec![2; 8 << 10]));
    let (mut run, mut alone) = (FrameRun::default(), Vec::new());
    for (entry, body) in [&small, &small, &large, &small].into_iter().enumerate() {
        let header = done(entry as u32);
        run.push(FrameKind::Done, entry as u16, &header, std::slice::from_ref(body)).expect("fits");
        alone.extend_from_slice(&frame_head(FrameKind::Done, entry as u16, &header, body.len()).expect("fits"));
        alone.extend_from_slice(body);
    }
    let too_long = Fail { message: "x".repeat(100_000), ..Fail::default() };
    run.push(FrameKind::Fail, 9, &too_long, &[]).expect_err("every reader refuses it");
    assert_eq!(run.bytes(), alone.len());
    let pieces = run.into_pieces();
    assert_eq!(pieces.concat(), alone);
    assert_eq!(pieces.len(), 3, "large pieces are not copied");
    assert_eq!(pieces[1].as_ptr(), large.as_ptr());
}

/// Each false length, its byte, and its error.
#[test]
fn every_false_field_of_a_prelude_is_refused_by_name() {
    let good = frame_head(FrameKind::Goaway, 0, &Goaway::default(), 0).expect("fits").to_vec();
    let lie = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        read([bytes.into()], FrameLimits { max_body_bytes: 1000, ..FrameLimits::default() })
            .expect_err("a lie")
            .to_string()
    };
    assert_eq!(lie(0, b'X'), "not a frame: the magic number is [58, 42, 51]");
    assert_eq!(lie(3, 2), format!("frame version 2: this side speaks {VERSION}"));
    assert_eq!(lie(4, 99), "frame of the unknown kind 99");
    assert_eq!(lie(5, 1), "frame with the unknown flags 0x01");
    assert_eq!(lie(10, 1), format!("header of {} bytes exceeds max_header_bytes = 65536", 65_536 + good.len() - 20));
    assert_eq!(lie(19, 0xff), format!("body of {} bytes exceeds max_body_bytes = 1000", 0xff_u64 << 56));
    assert_eq!(lie(12, 3), "the stream ended 3 bytes before the end of a frame");
}

#[test]
fn an_invalid_header_names_its_field() {
    let head = frame_head(FrameKind::Call, 0, &Map::from_iter([("route", 3)]), 0).expect("fits");
    let frames = read([head], FrameLimits::default()).expect("frames");
    let error = frames[0].head.header::<Call>().expect_err("no text");
    let WireError::Header { kind: "call", source } = error else { panic!("{error:?}") };
    assert!(source.path().contains("route"), "{source}");
}

/// Nested lists, as deep as the longest header allows.
#[test]
fn a_header_bomb_is_refused() {
    let mut bytes = b"\x81\xa1x".to_vec();
    bytes.extend(vec![0x91; 60_000]);
    let mut stream = frame_head(FrameKind::Call, 0, &Value::Null, 0).expect("fits").to_vec();
    stream.truncate(PRELUDE_BYTES);
    stream[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    stream.extend(bytes);
    let frames = read([stream.into()], FrameLimits::default()).expect("a head");
    assert!(frames[0].head.header::<Call>().is_err());
}

#[test]
fn nothing_is_read_after_an_error() {
    let mut reader = FrameReader::new(FrameLimits::default());
    reader.push(Bytes::from(vec![0; PRELUDE_BYTES]));
    assert!(matches!(reader.next_part(), Err(WireError::NotAFrame { .. })));
    reader.push(transcript("v1-caller.bin"));
    assert!(matches!(reader.next_part(), Err(WireError::Refused)));
    assert!(matches!(reader.finish(), Err(WireError::Refused)));
}

#[test]
fn a_header_that_readers_would_refuse_is_not_written() {
    let call = Call { route: "x".repeat(70_000), ..Call::default() };
    let error = frame_head(FrameKind::Call, 0, &call, 0).expect_err("too long");
    assert!(matches!(error, WireError::HeaderTooLarge { max: 65_536, .. }), "{error}");
}

proptest! {
    /// Any chunking gives the same result, and a stream that is cut inside a frame is incomplete.
    #[test]
    fn chunks_of_any_size_give_the_same_frames(
        cuts in proptest::collection::vec(1_usize..90, 1..20), short in 0_usize..400,
    ) {
        let whole = transcript("v1-node.bin");
        let plain = read([whole.clone()], FrameLimits::default()).unwrap();
        let mut rest = whole.clone();
        let chunks = cuts.iter().cycle().map_while(|cut| {
            (!rest.is_empty()).then(|| rest.split_to(rest.len().min(*cut)))
        });
        let chunked = read(chunks, FrameLimits::default()).unwrap();
        prop_assert_eq!(plain.len(), chunked.len());
        for (plain, chunked) in plain.iter().zip(&chunked) {
            prop_assert_eq!((plain.head.kind, plain.head.entry, &plain.body), (chunked.head.kind, chunked.head.entry, &chunked.body));
        }
        let ends: Vec<usize> = plain.iter().scan(0, |end, frame| {
            let head = &whole[*end + 8..*end + 12];
            let header = u32::from_le_bytes(head.try_into().unwrap()) as usize;
            *end += PRELUDE_BYTES + header + frame.body.len();
            Some(*end)
        }).collect();
        let cut = whole.slice(..short.min(whole.len()));
        let complete = cut.is_empty() || ends.contains(&cut.len());
        prop_assert_eq!(read([cut], FrameLimits::default()).is_ok(), complete);
    }
}

/// A chunk of one byte may keep a whole datagram in memory: unread bytes must be copied out of it.
#[test]
fn a_head_in_small_pieces_retains_none_of_its_chunks() {
    let call = Call { route: "/".repeat(1_000), ..Call::default() };
    let head = frame_head(FrameKind::Call, 0, &call, 0).expect("fits");
    let mut reader = FrameReader::new(FrameLimits::default());
    for byte in &head[..head.len() - 1] {
        let datagram = Bytes::from(vec![*byte; 1_200]);
        reader.push(datagram.slice(..1));
        assert!(matches!(reader.next_part(), Ok(None)));
        assert!(datagram.is_unique());
    }
    assert!(matches!(reader.finish(), Err(WireError::Truncated { missing: 1 })));
    reader.push(head.slice(head.len() - 1..));
    let Ok(Some(FramePart::Head(read))) = reader.next_part() else { panic!("the frame is complete") };
    assert_eq!(read.header::<Call>().expect("is one"), call);
}

/// A reader without a limit reports the largest body, and then nothing more.
#[test]
fn an_end_within_the_header_of_an_endless_body_is_truncated() {
    let mut prelude = frame_head(FrameKind::Goaway, 0, &Goaway::default(), 0).expect("fits")[..PRELUDE_BYTES].to_vec();
    prelude[12..].fill(0xff);
    let mut reader = FrameReader::new(FrameLimits { max_body_bytes: usize::MAX, ..FrameLimits::default() });
    reader.push(prelude.into());
    assert!(matches!(reader.next_part(), Ok(None)));
    assert!(matches!(reader.finish(), Err(WireError::Truncated { missing: u64::MAX })));
}

#[test]
fn a_failure_without_the_field_may_have_run() {
    let was_started = |fail: Value| {
        let head = frame_head(FrameKind::Fail, 0, &fail, 0).expect("fits");
        let frames = read([head], FrameLimits::default()).expect("are frames");
        header::<Fail>(&frames[0]).started
    };
    assert!(was_started(Value::from(Map::from_iter([("kind", Value::from("unavailable"))]))));
    assert!(!was_started(Value::from(Map::from_iter([("started", Value::from(false))]))));
}

/// A name of one byte allocates twenty-four: the longest header would take 1.5 MB.
#[test]
fn the_number_of_stages_that_a_call_names_is_bounded() {
    let read = |count: usize| {
        let stages = Map::from_iter([("stages", Value::from(vec![Value::from(""); count]))]);
        let head = frame_head(FrameKind::Call, 0, &stages, 0).expect("fits");
        let frames = read([head], FrameLimits::default()).expect("frames");
        frames[0].head.header::<Call>().map(|call| call.stages.len()).map_err(|error| match error {
            WireError::Header { source, .. } => source.to_string(),
            error => panic!("{error:?}"),
        })
    };
    assert_eq!(read(MAX_STAGES), Ok(MAX_STAGES));
    let error = read(MAX_STAGES + 1).expect_err("too many");
    assert!(error.contains("stages") && read(60_000).is_err(), "{error}");
}

#[test]
fn the_number_of_pairs_that_a_call_carries_is_bounded() {
    for field in ["headers", "query", "tags"] {
        let read = |count: usize| {
            let pairs = vec![Value::from(vec![Value::from(""), Value::from("")]); count];
            let origin = Map::from_iter([(field, Value::from(pairs))]);
            let header = Map::from_iter([("origin", Value::Map(origin))]);
            let head = frame_head(FrameKind::Call, 0, &header, 0).expect("fits");
            let frames = read([head], FrameLimits::default()).expect("frames");
            frames[0].head.call().map(|_| ()).map_err(|error| match error {
                WireError::Header { source, .. } => source.to_string(),
                error => panic!("{error:?}"),
            })
        };
        assert_eq!(read(MAX_PAIRS), Ok(()));
        let error = read(MAX_PAIRS + 1).expect_err("too many");
        assert!(error.contains(field) && error.contains("a list of at most 64") && read(20_000).is_err(), "{error}");
    }
}
