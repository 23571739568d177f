//! Keyed classes: the node has the state of each key, and a replica computes what a method makes of it.
//!
//! ```text
//! POST /cart/ann/add ──► step ──► instance of `ann`, one in the cluster ──► @keyed/cart-:key-add ──► a replica
//!                                 has the state, saves what has changed ◄── state and output ◄───────┘
//! ```
//!
//! * **In order:** the instance handles one call at a time, so the next one begins with the state of the last one.
//! * **Crash:** a call whose replica dies, or whose method raises, has no new state: the key goes on with the last one.
//! * **Forgotten:** a method that deletes its state leaves a key that was never asked.
//! * **Late:** a call that is late has no new state. One whose caller has left is handled to its end.
//!
//! The replica keeps objects with their states, so it seldom reads one. They are a cache: losing one changes no result.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Encoded, Format, Map, Value};
use callboard_core::actor::Question;
use callboard_core::edge::off_the_runtime;
use callboard_core::keyed::{Answers, KeyContext, Keyed, KeyedSpec, SavePolicy, StateStore, Stored};
use callboard_core::{App, CallContext, CallError, Deadline, Failure, Pipeline, split_route_name};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use crate::frame::limits;

/// What a class with `@keyed` says of its objects.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct PythonKeyed {
    /// The class: its file, and its name there.
    pub source: String,
    /// The kind of its keyed actors.
    pub kind: String,
    /// How long an answered change may be unsaved; `None` if it is saved before its answer leaves.
    pub save_every_ms: Option<u64>,
    /// How long a key stays active after its last call.
    pub idle_after_ms: u64,
    /// The most active keys on a node.
    pub max_active: usize,
}

/// The largest state of a key.
const MAX_STATE_BYTES: usize = 1 << 20;

/// What the bytes of a state are saved with.
const ENVELOPE_BYTES: usize = 64;

/// The parameter of each route of such a class that is the key.
const KEY: &str = "key";

impl PythonKeyed {
    /// The route that computes a method of such a class for a key. No edge serves it.
    #[must_use]
    pub fn route_of(stage: &str) -> String {
        format!("@keyed/{stage}")
    }

    /// The app with the kind, whose states are in `store`.
    pub fn add_to(&self, app: App, store: Arc<dyn StateStore>) -> App {
        let load = |_, state: Stored<Value>| async { Ok(Object(state)) };
        let save = self.save_every_ms.map(|every| SavePolicy::Relaxed { every: Duration::from_millis(every) });
        let kind = KeyedSpec::new(&self.kind, store, load)
            .save(save.unwrap_or(SavePolicy::Durable))
            .idle_after(Duration::from_millis(self.idle_after_ms))
            .max_active(self.max_active)
            .max_state_bytes(MAX_STATE_BYTES + ENVELOPE_BYTES)
            // A call ends at its deadline, with a failure. A crash would drop what is not saved yet.
            .handle_within(2 * Deadline::MAX_TIMEOUT);
        app.keyed(kind.accepts::<MethodCall>())
    }

    /// The step of a route of such a class: `route` is its name, with the parameter of the key, and `stage` computes
    /// it.
    #[must_use]
    pub fn step(&self, route: &str, stage: &str) -> Pipeline<Value, Value> {
        let (route, stage) = (route.to_owned(), stage.to_owned());
        let asked = Pipeline::ask_key_with(&self.kind, move |input: &Value, context: &CallContext| {
            let key = key_in(&route, context.path().unwrap_or_default())?;
            let input = Value::Bytes(context.convert(|| input.encode(Format::Envelope))??);
            Ok((key, MethodCall { stage: stage.clone(), input }))
        });
        asked.map("output", checked).of_values()
    }
}

/// The output of a replica is written by other people's code, also on another node: it is checked as the output of any
/// child is, and decoded where it is read, at the expense of the call.
fn checked(output: &Value) -> Result<Encoded, Failure> {
    let Value::Bytes(output) = output else {
        return Err(Failure::new(format!("a replica answered with a value of type {}", output.kind())));
    };
    let limits = limits(output.len() as u64);
    let encoded = off_the_runtime(output.len(), || Encoded::read(output, &limits));
    encoded.map_err(|error| Failure::new(format!("the output of a replica cannot be read: {error}")))
}

/// The key in a path that this route takes. There may be more segments before it, such as the prefix of a proxy. A door
/// that calls the route by its name has another path, which holds no key.
fn key_in(route: &str, path: &str) -> Result<String, Failure> {
    let needs = || Failure::invalid_input(format!("a call of `{route}` needs the key in its path"));
    let mut found = None;
    let mut segments = path.rsplit('/');
    for expected in split_route_name(route).1.trim_start_matches('/').rsplit('/') {
        let segment = segments.next().filter(|segment| !segment.is_empty()).ok_or_else(needs)?;
        match expected.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(KEY) => found = Some(segment),
            Some(_) => {}
            None if percent_decode_str(segment).eq(percent_decode_str(expected)) => {}
            None => return Err(needs()),
        }
    }
    let segment = found.filter(|segment| !segment.contains(['{', '}'])).ok_or_else(needs)?;
    let key = percent_decode_str(segment).decode_utf8();
    Ok(key.map_err(|_| Failure::invalid_input("the key is no text in UTF-8"))?.into_owned())
}

/// One call of a method.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MethodCall {
    /// The stage that computes the method.
    stage: String,
    /// The input, as an envelope.
    input: Value,
}

impl Question for MethodCall {
    const NAME: &str = "callboard.call";
    type Answer = Value;
}

/// The state of one key.
///
/// Bytes that the class reads; null before its first change.
struct Object(Stored<Value>);

impl Keyed for Object {
    type State = Value;

    fn stored(&mut self) -> &mut Stored<Value> {
        &mut self.0
    }
}

impl Answers<MethodCall> for Object {
    async fn answer(
        &mut self,
        MethodCall { stage, input }: MethodCall,
        context: &KeyContext,
    ) -> Result<Value, Failure> {
        let call: [(&str, Value); 3] =
            [("key", context.key().into()), ("state", Value::clone(&self.0)), ("input", input)];
        let (route, call) = (PythonKeyed::route_of(&stage), Value::Map(Map::from_iter(call)));
        let options = context.options().clone().with_deadline(context.deadline());
        let answer: Result<Value, CallError> = context.asker_client().call_with(&route, call, options).await;
        let Value::Map(mut answer) = answer? else { return Err(Failure::new("a replica answered without a state")) };
        if answer.remove("forgotten").is_some() {
            self.0.forget();
        }
        if let Some(Value::Bytes(state)) = answer.remove("state") {
            // Also one that is saved later: until then it is in memory.
            if state.len() > MAX_STATE_BYTES {
                let message =
                    format!("the state has {} bytes, more than {MAX_STATE_BYTES}: its change is dropped", state.len());
                return Err(Failure::new(message));
            }
            // A copy: the answer's buffer may be memory of the replica, and is larger.
            *self.0 = Value::Bytes(state.to_vec().into());
        }
        answer.remove("output").ok_or_else(|| Failure::new("a replica answered without an output"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_a_segment_of_the_path_from_its_end() {
        let key = |route: &str, path: &str| key_in(route, path).map_err(|failure| failure.to_string());
        for (route, path, expected) in [
            ("/cart/{key}/add", "/cart/ann/add", "ann"),
            ("/cart/{key}", "/proxy/cart/a%2Fb%C3%A4", "a/bä"),
            ("/cart/{key}/{item}", "/cart/ann/tea", "ann"),
            ("GET /cart/{key}", "/cart/ann", "ann"),
        ] {
            assert_eq!(key(route, path).as_deref(), Ok(expected), "{path}");
        }
        for path in ["", "/add", "/cart//add", "/v2/models/x/infer", "/other/ann/add", "/cart/{key}/add"] {
            assert_eq!(
                key("/cart/{key}/add", path).unwrap_err(),
                "a call of `/cart/{key}/add` needs the key in its path"
            );
        }
        assert_eq!(key("/cart/{key}", "/cart/%ff").unwrap_err(), "the key is no text in UTF-8");
    }

    #[test]
    fn the_output_of_a_replica_is_checked_before_anything_decodes_it() {
        let written = |value: Value| Value::Bytes(value.encode(Format::Envelope).unwrap());
        let refused = |output: &Value| checked(output).unwrap_err().to_string();
        assert_eq!(**checked(&written("tea".into())).unwrap().value().unwrap(), Value::from("tea"));
        assert_eq!(refused(&Value::from(7)), "a replica answered with a value of type int");
        // A megabyte that becomes 44 MB of values.
        let long = refused(&written(Value::List(vec![Value::Null; 1_100_000])));
        assert!(long.contains("cannot be read") && long.contains("max_elements"), "{long}");
        let cut = refused(&Value::Bytes(vec![0; 3].into()));
        assert!(cut.contains("cannot be read"), "{cut}");
    }

    /// The answer of a replica: what it makes of the state.
    fn computed(call: &Value) -> Result<Value, Failure> {
        let Value::Map(call) = call else { return Err(Failure::new("no call")) };
        let (Some(key), Some(state), Some(Value::Bytes(input))) =
            (call.get("key"), call.get("state"), call.get("input"))
        else {
            return Err(Failure::new("a part is missing"));
        };
        let input = Value::decode(Format::Envelope, input, &Default::default())?;
        let bytes = |value: &Value| Ok::<_, Failure>(Value::Bytes(value.encode(Format::Envelope)?));
        let told = bytes(&Value::List(vec![key.clone(), state.clone(), input.clone()]))?;
        let answer: Vec<(&str, Value)> = match input {
            Value::Int(length) => vec![("output", told), ("state", Value::Bytes(vec![7; length as usize].into()))],
            Value::Str(word) if &*word == "forget" => vec![("output", told), ("forgotten", Value::Bool(true))],
            Value::Str(word) if &*word == "no output" => Vec::new(),
            Value::Str(word) if &*word == "no map" => return Ok(Value::Null),
            _ => vec![("output", told)],
        };
        Ok(Value::Map(Map::from_iter(answer)))
    }

    #[tokio::test]
    async fn a_key_has_the_state_that_its_replica_makes_until_it_is_forgotten_or_too_large() {
        let class = PythonKeyed {
            source: "app.py:Cart".to_owned(),
            kind: "cart".to_owned(),
            save_every_ms: None,
            idle_after_ms: 60_000,
            max_active: 8,
        };
        let store = Arc::new(callboard_core::testing::MemoryStore::new());
        let start = async || {
            let app = class.add_to(App::new(), store.clone());
            let app = app.route(&PythonKeyed::route_of("add"), callboard_core::Stage::each("add", computed));
            app.route("/cart/{key}/add", class.step("/cart/{key}/add", "add")).start().await.unwrap()
        };
        let ask_of = async |node: &callboard_core::Node, key: &str, input: Value| {
            let options = callboard_core::CallOptions::new().with_path(format!("/cart/{key}/add"));
            node.client().call_with::<Value, Value>("/cart/{key}/add", input, options).await
        };
        let node = start().await;
        let ask = async |key: &str, input: Value| ask_of(&node, key, input).await;
        let told = |key: &str, state: Value, input: Value| Value::List(vec![key.into(), state, input]);
        let state = |length: usize| Value::Bytes(vec![7; length].into());
        assert_eq!(ask("ann", 3.into()).await.unwrap(), told("ann", Value::Null, 3.into()));
        assert_eq!(ask("ann", "look".into()).await.unwrap(), told("ann", state(3), "look".into()));
        assert_eq!(ask("bob", "look".into()).await.unwrap(), told("bob", Value::Null, "look".into()));
        assert_eq!(ask("ann", "forget".into()).await.unwrap(), told("ann", state(3), "forget".into()));
        assert_eq!(ask("ann", "look".into()).await.unwrap(), told("ann", Value::Null, "look".into()));
        // The largest state, and one byte more.
        let most = MAX_STATE_BYTES as i64;
        assert!(ask("ann", most.into()).await.is_ok());
        let error = ask("ann", (most + 1).into()).await.unwrap_err();
        assert_eq!(error.message(), "the state has 1048577 bytes, more than 1048576: its change is dropped");
        assert_eq!(ask("ann", "look".into()).await.unwrap(), told("ann", state(MAX_STATE_BYTES), "look".into()));
        for (input, reason) in [("no output", "answered without an output"), ("no map", "answered without a state")] {
            let error = ask("ann", input.into()).await.unwrap_err();
            assert!(error.message().contains(reason), "{error}");
        }
        drop(node);
        let looked = ask_of(&start().await, "ann", "look".into()).await;
        assert_eq!(looked.unwrap(), told("ann", state(MAX_STATE_BYTES), "look".into()), "it was saved");
    }
}
