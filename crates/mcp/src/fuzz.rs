//! The properties of the reader of a host's lines, for any bytes. The fuzz target runs it on generated inputs, the
//! tests on all kept inputs.
//!
//! Besides "no panic": a request goes on as it was sent, with headers that agree with it; its arguments are a part of
//! it; a refusal is one line of JSON with a code.

use bytes::Bytes;
use serde_json::Value as Json;

use crate::rpc;
use crate::stdio::message::{Line, read};

/// Checks the properties of each line.
///
/// # Panics
///
/// If a property does not hold.
#[allow(unreachable_pub, reason = "reachable with the feature `fuzz`")]
pub fn read_host_lines(input: &[u8]) {
    for line in input.split(|byte| *byte == b'\n') {
        let line = Bytes::copy_from_slice(line);
        match read(line.clone()) {
            Line::Request(request) => {
                assert_eq!(request.message.body, line, "a node gets what the host sent");
                let message = rpc::read(&line).expect("it was read before");
                assert_eq!(message.id.as_ref(), Some(&request.id));
                let headers = &request.message.headers;
                let version = message.params.meta.as_ref().and_then(|meta| meta.version.as_deref());
                // No header can have other letters, and blanks around a value are not part of it.
                let is_plain = |text: &str| text.bytes().all(|byte| matches!(byte, b'!'..=b'~'));
                if version.is_some_and(is_plain)
                    && is_plain(&message.method)
                    && let Err(error) = crate::era::check(headers, &message)
                {
                    assert_ne!(error.code, rpc::HEADER_MISMATCH, "{error:?}");
                }
                if let Some(arguments) = message.params.arguments {
                    assert!(serde_json::from_slice::<&serde_json::value::RawValue>(&arguments).is_ok());
                    let [whole, part] = [&line, &arguments].map(|bytes| bytes.as_ptr_range());
                    assert!(whole.start <= part.start && part.end <= whole.end, "arguments are not copied");
                }
            }
            Line::Cancel(id) => assert!(!id.as_raw().get().is_empty()),
            Line::Refused(answer) => {
                let answer: Json = serde_json::from_slice(&answer).expect("an answer is JSON");
                assert!(answer["error"]["code"].is_i64(), "{answer}");
                assert!(answer["error"]["message"].as_str().is_some_and(|message| message.len() < 4096), "{answer}");
            }
            Line::Ignored => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_kept_input_holds_the_properties() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/mcp");
        let mut count = 0;
        for file in fs::read_dir(directory).unwrap() {
            read_host_lines(&fs::read(file.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count >= 6, "{count} inputs");
    }
}
