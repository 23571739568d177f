//! `callboard call quic://…`: one call to a node over QUIC; its outputs go to stdout as JSON, a line each.
//!
//! Errors are printed as over HTTP. The exit code is 4 for an error of the caller, 5 for an error of the function or
//! the node, and 1 if there is no answer.

use std::io::Write;
use std::time::Duration;

use callboard_codec::{Format, Value};
use callboard_core::{CallError, CallOptions};
use callboard_net::{CallFailure, Client, Prepared, QuicUrl};

use super::block_on;
use super::call::{CallArgs, too_many};
use crate::client::RequestArgs;
use crate::client::payload::BodySource;
use crate::error::CliError;
use crate::identity::identity;
use crate::signals::Signals;
use crate::{output, plain};

/// Makes the call and prints its outputs.
pub(super) fn run(args: &CallArgs, url: &QuicUrl) -> Result<(), CliError> {
    let RequestArgs { timeout, cluster, .. } = &args.request;
    let prepared = prepared(&args.request)?;
    block_on(async {
        let (address, wait) = (url.to_string(), START_UP_WAIT.min(*timeout));
        let mut builder = Client::builder().start_up_wait(wait);
        let identity = cluster.as_deref().map(|directory| identity(Some(directory))).transpose()?;
        if let Some(identity) = &identity {
            builder = builder.identity(identity.clone());
        }
        let mut signals =
            Signals::listen().map_err(|error| CliError::because("could not listen for signals", &error))?;
        let taken_back = |signal: &str| CliError::Failed(format!("{signal}: the call was taken back"));
        let client = tokio::select! {
            biased;
            client = builder.connect(&address) => client.map_err(|error| CliError::because(url, &error))?,
            signal = signals.next() => return Err(taken_back(signal)),
        };
        let outcome = tokio::select! {
            biased;
            outcome = call(&client, args, prepared) => outcome,
            signal = signals.next() => Err(taken_back(signal)),
        };
        // Tells the node at once, instead of leaving it to the idle timeout.
        client.close().await;
        if let Some(identity) = &identity {
            // A certificate in the last third of its life is being renewed: the renewal may finish.
            identity.wait_for_renewal(SETTLED_WITHIN).await;
        }
        outcome
    })
}

/// The call to make.
fn prepared(request: &RequestArgs) -> Result<Prepared, CliError> {
    let calls = match &request.source {
        BodySource::Nothing => BodySource::Arguments(Vec::new()).prepared(&request.route)?,
        source => source.prepared(&request.route)?,
    };
    let [call] = <[_; 1]>::try_from(calls).map_err(|calls| too_many(calls.len()))?;
    Ok(call)
}

/// A route with one output is a stream of one output.
async fn call(client: &Client, args: &CallArgs, prepared: Prepared) -> Result<(), CliError> {
    let options = CallOptions::new().with_timeout(args.request.timeout);
    let mut place = None;
    let mut outputs = client.exchange_streaming::<Value>(prepared, options);
    while let Some(returned) = outputs.next().await {
        let output = returned.map_err(refusal)?.output;
        // The file is opened late: an existing one is not emptied by a failed call.
        let place = match &mut place {
            Some(place) => place,
            none => none.insert(args.open_output()?),
        };
        if print(&output, place)?.is_closed() {
            break;
        }
    }
    Ok(())
}

/// The limit of waiting for a renewal.
const SETTLED_WITHIN: Duration = Duration::from_secs(2);

/// How long the call waits for a node that is just starting.
const START_UP_WAIT: Duration = Duration::from_secs(3);

fn print(output: &Value, place: &mut impl Write) -> Result<output::OutputState, CliError> {
    let encoded = output.encode(Format::Json).map_err(|error| CliError::because("the reply has no JSON", &error))?;
    let line = [&encoded[..], b"\n"].concat();
    output::piece(place, &line)
}

/// The error with its exit code. Its details are printed before.
fn refusal(error: CallError) -> CliError {
    for (path, message) in fields(&error) {
        output::note(format_args!("  {}: {}", plain::line(&path), plain::line(&message)));
    }
    let lines = [
        ("stage", error.stage().map(str::to_owned)),
        ("error type", error.error_type().map(str::to_owned)),
        ("remote trace", error.remote_trace().map(str::to_owned)),
        ("retry after", error.retry_after().map(|after| format!("{after:?}"))),
    ];
    for (label, value) in lines {
        if let Some(value) = value {
            output::note(format_args!("  {label}: {}", plain::indented(&value)));
        }
    }
    match CallFailure::classify(&error) {
        CallFailure::NoSuchRoute | CallFailure::Request => {
            CliError::Answered { status: 400, message: error.to_string() }
        }
        CallFailure::NeverStarted | CallFailure::ConnectionLost => CliError::Failed(error.to_string()),
        _ => CliError::Answered { status: 500, message: error.to_string() },
    }
}

/// The invalid fields of the input, and why.
fn fields(error: &CallError) -> Vec<(String, String)> {
    let text = |field: &Value, name: &str| match field {
        Value::Map(field) => field.get(name).and_then(Value::as_str).unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    match error.details() {
        Some(Value::Map(details)) => match details.get("fields") {
            Some(Value::List(fields)) => {
                fields.iter().map(|field| (text(field, "path"), text(field, "message"))).collect()
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}
