//! The properties of the decoder of a relay's requests, for any bytes.
//!
//! Besides "no panic": no more values than were counted and paid for, and what was read can be written and read again.

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Payload, Value};

use super::read::SendMessage;
use super::write;

/// Checks the properties.
///
/// # Panics
///
/// If a property does not hold.
#[allow(unreachable_pub, reason = "reachable with the feature `fuzz`")]
pub fn decode_relay_request(input: &[u8]) {
    let limits = DecodeLimits::default();
    let Ok(message) = SendMessage::read(Bytes::copy_from_slice(input)) else { return };
    let Ok(counted) = message.count(&limits) else { return };
    // The key and the length of each.
    assert!(counted.values <= input.len() / 2, "{counted:?} in {} bytes", input.len());
    let Ok(call) = message.decode(&limits) else { return };
    let values: Vec<Value> = call.args.into_iter().chain(call.kwargs.into_iter().map(|(_, value)| value)).collect();
    let nodes: usize = values.iter().map(nodes).sum();
    assert!(nodes <= counted.values, "{nodes} values, and {counted:?}");
    // A list around them may be too deep.
    let Ok(pieces) = write::response(&Payload::new(Value::List(values))) else { return };
    let mut again = pieces.concat();
    // The field of a response as one of a request.
    again[0] = 2 << 3 | 2;
    let again = SendMessage::read(again.into()).and_then(|message| message.decode(&limits)).expect("it was written");
    assert_eq!(again.args.iter().map(self::nodes).sum::<usize>(), nodes + 1);
}

/// The values in a value, with itself.
fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::List(items) | Value::Tuple(items) => items.iter().map(nodes).sum(),
        Value::Map(map) => map.values().map(nodes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn seeds() -> Vec<Vec<u8>> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/relay");
        let mut paths: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
    }

    /// Every kept input, also without its end, and with one byte more.
    #[test]
    fn the_decoder_withstands_every_stored_input() {
        let seeds = seeds();
        assert!(seeds.len() >= 8, "{}", seeds.len());
        for seed in seeds {
            (0..=seed.len()).for_each(|end| decode_relay_request(&seed[..end]));
            decode_relay_request(&[seed.as_slice(), b"\0"].concat());
        }
    }

    #[test]
    fn most_stored_inputs_are_accepted() {
        let is_taken = |seed: &Vec<u8>| {
            let message = SendMessage::read(seed.clone().into());
            message.and_then(|message| message.decode(&DecodeLimits::default())).is_ok()
        };
        let (seeds, taken) = (seeds().len(), seeds().iter().filter(|seed| is_taken(seed)).count());
        assert!(2 * taken > seeds, "{taken} of {seeds}");
    }

    proptest! {
        /// Seeds with random changes: closer to valid inputs than random bytes.
        #[test]
        fn the_decoder_withstands_mutated_inputs(which: usize, changes in vec((any::<usize>(), any::<u8>()), 1..8)) {
            let seeds = seeds();
            let mut input = seeds[which % seeds.len()].clone();
            for (at, byte) in changes {
                let at = at % input.len();
                input[at] = byte;
            }
            decode_relay_request(&input);
        }

        #[test]
        fn the_decoder_withstands_random_inputs(input in vec(any::<u8>(), 0..300)) {
            decode_relay_request(&input);
        }
    }
}
