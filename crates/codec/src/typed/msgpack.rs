//! MessagePack straight into and out of a Rust type, by rmp-serde: the fast path, with no [`Value`](crate::Value)
//! between.
//!
//! An input that rmp-serde refuses is read again as a value. That finds the field at fault, and also accepts a type in
//! its JSON form: rmp-serde expects an `IpAddr` or `Uuid` as bytes, while the schema of a route has text.

use bytes::Bytes;
use rmp_serde::decode::Error;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::error::{DecodeError, EncodeError};
use crate::limits::DecodeLimits;
use crate::metered::{Metered, refusal};
use crate::msgpack::{check, decode};
use crate::out::ChargedBuffer;
use crate::serde_impls::uniform::{UniformSerializer, located};

/// Writes the type by its own `Serialize`, structs as maps.
pub(crate) fn to_bytes<T: Serialize>(value: &T) -> Result<Bytes, EncodeError> {
    let mut out = ChargedBuffer::new(FIRST_ROOM);
    let written = write(&mut out, value);
    out.check()?;
    written.map_err(|error| unwritable(value, &error))?;
    Ok(out.into_bytes()?)
}

/// Writes the type in the form that all formats share.
pub(crate) fn write<T: Serialize>(out: &mut ChargedBuffer, value: &T) -> Result<(), rmp_serde::encode::Error> {
    value.serialize(UniformSerializer::msgpack(&mut rmp_serde::Serializer::new(out).with_struct_map()))
}

/// The error of a type that could not be written, with its place.
pub(crate) fn unwritable<T: Serialize>(value: &T, error: &rmp_serde::encode::Error) -> EncodeError {
    located(value, error, |_| Ok(()))
}

/// Most answers fit into this.
const FIRST_ROOM: usize = 128;

/// Appends a header, one of our own types.
pub(crate) fn append<T: Serialize>(out: &mut Vec<u8>, value: &T) -> Result<(), EncodeError> {
    let written = rmp_serde::encode::write_named(out, value);
    written.map_err(|error| EncodeError::new(std::any::type_name::<T>(), error.to_string()))
}

/// Reads the type by its own `Deserialize`.
pub(crate) fn from_bytes<T: DeserializeOwned>(bytes: &Bytes, limits: &DecodeLimits) -> Result<T, DecodeError> {
    limits.check_bytes(bytes.len())?;
    if may_exceed(bytes.len(), limits) && check(bytes, limits).is_err() {
        // Reading it as a value fails at the same place, with its path.
        return decode(bytes, limits)?.deserialize();
    }
    match (whole(bytes, limits), refusal(limits.depth())) {
        // Checked also after success: an untagged enum tries its next variant after a refusal.
        (_, Some(refused)) if refused.limit().is_none_or(|limit| limit.name != "max_depth") => Err(refused),
        // Reading it as a value gives the place.
        (_, Some(refused)) => Err(decode(bytes, limits).err().unwrap_or(refused)),
        (Some(value), None) => Ok(value),
        (None, None) => decode(bytes, limits)?.deserialize(),
    }
}

/// Whether an input of this length could reach a limit that rmp-serde does not have. Most requests are too small for
/// that.
fn may_exceed(len: usize, limits: &DecodeLimits) -> bool {
    len > limits.max_elements.min(limits.max_string_bytes)
}

/// The type, if it is all of the input.
fn whole<T: DeserializeOwned>(bytes: &[u8], limits: &DecodeLimits) -> Option<T> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
    // rmp-serde counts leaves as a separate level.
    deserializer.set_max_depth(limits.depth() + 1);
    let value = T::deserialize(Metered::new(&mut deserializer, limits.depth())).ok()?;
    // It does not report its position; reading one more value shows whether the input is at its end.
    match IgnoredAny::deserialize(&mut deserializer) {
        Err(Error::InvalidMarkerRead(_)) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::account::{Account, ChargeError, charged_to};

    #[test]
    fn an_input_no_longer_than_its_limits_is_not_checked_first() {
        let limits = DecodeLimits { max_elements: 9, max_string_bytes: 9, ..DecodeLimits::default() };
        for limits in
            [DecodeLimits { max_elements: 5, ..limits.clone() }, DecodeLimits { max_string_bytes: 5, ..limits }]
        {
            assert!(!may_exceed(5, &limits) && may_exceed(6, &limits), "{limits:?}");
        }
    }

    /// A value has only texts as keys, so this is read at once or not at all.
    #[test]
    fn the_deepest_input_is_read_at_once() {
        type Nested = BTreeMap<u32, Vec<u8>>;
        let input = Bytes::from_static(b"\x81\x01\x91\x07");
        // The input is longer than a text may be, so it is checked first.
        let read = |max_depth| {
            from_bytes::<Nested>(&input, &DecodeLimits { max_depth, max_string_bytes: 3, ..DecodeLimits::default() })
        };
        assert_eq!(read(2).unwrap(), Nested::from([(1, vec![7])]));
        assert!(read(1).is_err());
    }

    #[test]
    fn forms_that_only_rmp_serde_reads_are_read() {
        #[derive(Debug, PartialEq, Deserialize)]
        enum Choice {
            Plain,
        }
        let address = std::net::IpAddr::from([10, 0, 0, 1]);
        let compact = rmp_serde::to_vec(&address).unwrap().into();
        let limits = DecodeLimits::default();
        assert_eq!(from_bytes::<std::net::IpAddr>(&compact, &limits).unwrap(), address);
        let by_number = Bytes::from_static(b"\x81\x01\x81\xa5Plain\xc0");
        let choices = from_bytes::<BTreeMap<u32, Choice>>(&by_number, &limits).unwrap();
        assert_eq!(choices, BTreeMap::from([(1, Choice::Plain)]));
    }

    #[test]
    fn an_input_that_the_account_refuses_is_not_read_again() {
        struct Full(AtomicUsize);
        impl Account for Full {
            fn charge(&self, _: usize) -> Result<(), ChargeError> {
                self.0.fetch_add(1, Ordering::Relaxed);
                Err(ChargeError::too_large("bytes", 0))
            }
            fn refund(&self, _: usize) {}
        }
        let input = to_bytes(&vec![7_u64; 1000]).unwrap();
        let full = Arc::new(Full(AtomicUsize::new(0)));
        let account: Arc<dyn Account> = full.clone();
        let refused = charged_to(&account, || from_bytes::<Vec<u64>>(&input, &DecodeLimits::default()).unwrap_err());
        assert_eq!(refused.limit().map(|limit| limit.name), Some("bytes"));
        assert_eq!(full.0.load(Ordering::Relaxed), 2, "a step, and then only the missing bytes");
    }
}
