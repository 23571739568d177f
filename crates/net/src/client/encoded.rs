//! Calls whose values stay encoded, for a caller with a codec of its own, such as a binding of another language.

use bytes::Bytes;
use callboard_codec::wire::Call;
use callboard_codec::{Envelope, EnvelopeDecoder};
use callboard_core::{CallError, CallOptions};

use super::call::OutputForm;
use super::{Client, Prepared, RefusalPolicy, Response, ResponseStream, replies};

/// A call with an encoded input.
#[derive(Clone, Debug, Default)]
pub struct EncodedCall {
    /// The called route, or the name of the function.
    pub route: String,
    /// The input is a map of `args` and `kwargs`, for a function.
    pub is_function: bool,
    /// The input: an envelope, which the node checks.
    pub envelope: Bytes,
    /// The call may run again, whatever its route says: it is repeated if it is lost with its connection.
    pub may_repeat: bool,
    /// The call is one of an ordered stream: it waits for room until its deadline, and for a node that went away.
    pub is_of_stream: bool,
}

/// Outputs as chunks of an envelope.
struct Encoded;

impl OutputForm for Encoded {
    type Output = Vec<Bytes>;
    const IS_ENCODED: bool = true;

    async fn read(body: EnvelopeDecoder, _route: &str) -> Result<Vec<Bytes>, CallError> {
        Ok(body.into_chunks())
    }
}

impl Client {
    /// As [`exchange`](Self::exchange), for encoded values. The output is an envelope in chunks as they were received,
    /// and is not checked.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call on the node.
    pub async fn exchange_encoded(
        &self,
        call: EncodedCall,
        options: CallOptions,
    ) -> Result<Response<Vec<Bytes>>, CallError> {
        let refusal = if call.is_of_stream { RefusalPolicy::Wait } else { RefusalPolicy::Retry };
        self.exchange_with::<Encoded>(call.into(), options, refusal).await
    }

    /// As [`exchange_streaming`](Self::exchange_streaming), for encoded values.
    pub fn exchange_encoded_streaming(&self, call: EncodedCall, options: CallOptions) -> ResponseStream<Vec<Bytes>> {
        replies::read::<Encoded>(self.clone(), call.into(), options)
    }
}

impl From<EncodedCall> for Prepared {
    fn from(call: EncodedCall) -> Self {
        let EncodedCall { route, is_function, envelope, may_repeat, .. } = call;
        let call = Call { route, function: is_function, ..Call::default() };
        Self { call, envelope: Envelope::from_bytes(envelope), may_repeat }
    }
}

#[cfg(test)]
mod tests {
    use callboard_codec::{DecodeLimits, Format, Value};
    use callboard_core::{App, ErrorKind, Stage, StreamStage};
    use callboard_identity::Identity;

    use super::*;
    use crate::{NetConfig, QuicEdge};

    fn call(route: &str, input: i64) -> EncodedCall {
        let envelope = Value::from(input).to_envelope().unwrap().into_bytes();
        EncodedCall { route: route.to_owned(), envelope, ..EncodedCall::default() }
    }

    fn read(chunks: &[Bytes]) -> Value {
        Value::decode(Format::Envelope, &chunks.concat().into(), &DecodeLimits::default()).unwrap()
    }

    #[tokio::test]
    async fn encoded_values_are_carried_as_they_are() {
        let directory = std::env::temp_dir().join(format!("callboard-encoded-{}", std::process::id()));
        let identity = Identity::development_in(&directory.join("development")).unwrap();
        std::fs::remove_dir_all(directory).unwrap();
        let edge = QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity.clone(), NetConfig::default()).unwrap();
        let count = StreamStage::each("count", |n: &i64| futures_util::stream::iter((0..*n).map(Ok)));
        let app = App::new().route("/double", Stage::each("double", |n: &i64| Ok(2 * n)));
        let node = app.route_streaming("/count", count).start().await.unwrap();
        edge.open(node.client());
        let client = Client::builder().identity(identity).connect(&format!("quic://{}", edge.address())).await.unwrap();

        let response = client.exchange_encoded(call("/double", 21), CallOptions::new()).await.unwrap();
        assert_eq!(read(&response.output), Value::from(42_i64));

        let mut outputs = client.exchange_encoded_streaming(call("/count", 3), CallOptions::new());
        for n in 0..3_i64 {
            assert_eq!(read(&outputs.next().await.unwrap().unwrap().output), Value::from(n));
        }
        assert!(outputs.next().await.is_none());

        let malformed = EncodedCall { envelope: Bytes::from_static(b"none"), ..call("/double", 1) };
        let error = client.exchange_encoded(malformed, CallOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
