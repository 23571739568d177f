//! `callboard check`: starts all stages, runs the examples of every route once, and reports failures.
//!
//! It opens no port, so it can run next to a server or in a build. It does not call other nodes: an example with a
//! remote stage is reported, but is no failure.

use std::time::Duration;

use callboard_codec::{Format, Payload, Value};
use callboard_core::edge::{Admission, Route};
use callboard_core::{CallError, CallOptions, Instant, LocalClient, Replies};

use super::block_on;
use crate::error::CliError;
use crate::output;
use crate::service::{Service, check_tools, title};

/// Longer outputs are cut: the check shows that there is an output, not all of it.
const SHOWN_CHARS: usize = 160;

/// Runs the check.
pub(crate) fn run(service: Service) -> Result<(), CliError> {
    let title = title(&service.plan.target);
    block_on(async {
        let node = Service::start(service.app).await?;
        #[cfg(feature = "process")]
        for helper in &service.plan.helpers {
            output::result(format_args!("process {}: ready", helper.name.value))?;
        }
        let client = node.client();
        check_tools(&service.plan, &client)?;
        let Tally { failed, unfinished } = run_examples(&client).await?;
        let _ = node.shutdown(service.plan.settings.drain.value).await;
        match failed {
            0 if unfinished > 0 => output::result(format_args!(
                "{title}: no example failed; those with remote stages were not run to their end"
            )),
            0 => output::result(format_args!("{title}: all is well")),
            1 => Err(CliError::Failed(format!("{title}: 1 example failed"))),
            failed => Err(CliError::Failed(format!("{title}: {failed} examples failed"))),
        }
    })
}

/// The counts of failed examples, and of examples that could not run to their end here.
#[derive(Debug, Default)]
struct Tally {
    failed: usize,
    unfinished: usize,
}

/// Runs all examples of all routes.
async fn run_examples(client: &LocalClient) -> Result<Tally, CliError> {
    let mut tally = Tally::default();
    for route in client.routes() {
        let remote: Vec<String> = route.remote_stages().iter().map(ToString::to_string).collect();
        if route.examples().is_empty() {
            let also = if remote.is_empty() { String::new() } else { format!("; {}", needs_others(&remote)) };
            output::result(format_args!("{}: loaded; it has no example to run{also}", route.name()))?;
        }
        for (index, example) in route.examples().iter().enumerate() {
            let label = format!("{} example {}", route.name(), index + 1);
            match run_example(client, &route, example).await {
                Ok((answer, elapsed)) => output::result(format_args!("{label}: ok in {elapsed:.1?}: {answer}"))?,
                Err(error) if error.stage().is_some_and(|stage| remote.iter().any(|other| other == stage)) => {
                    tally.unfinished += 1;
                    output::result(format_args!("{label}: not run to its end: {}", needs_others(&remote)))?;
                }
                Err(error) => {
                    tally.failed += 1;
                    output::result(format_args!("{label}: {error}"))?;
                }
            }
        }
    }
    Ok(tally)
}

/// The reason why a route with these stages cannot be tested on one node.
fn needs_others(remote: &[String]) -> String {
    let names: Vec<String> = remote.iter().map(|name| format!("`{name}`")).collect();
    match &names[..] {
        [name] => format!("stage {name} runs on other nodes only, and cannot be tried alone"),
        names => format!("stages {} run on other nodes only, and cannot be tried alone", names.join(", ")),
    }
}

async fn run_example(
    client: &LocalClient,
    route: &std::sync::Arc<Route>,
    example: &Value,
) -> Result<(String, Duration), CallError> {
    let payload = route.input().from_value(example.clone())?;
    let admission = client.edge().admit(route, payload.size_hint() as u64)?;
    if route.streams() {
        return run_stream(client, route.name(), admission, payload).await;
    }
    let reply = client.edge().submit(admission, payload, CallOptions::new()).await?;
    let answer = reply.payload.encode(Format::Json)?;
    let timing = reply.timing;
    Ok((shortened(&String::from_utf8_lossy(&answer)), timing.queue + timing.batch + timing.compute))
}

/// Reads all outputs; shows the first.
async fn run_stream(
    client: &LocalClient,
    route: &str,
    admission: Admission,
    payload: Payload,
) -> Result<(String, Duration), CallError> {
    let began = Instant::now();
    let outputs = client.edge().submit_streaming(admission, payload, CallOptions::new());
    let mut replies = Replies::<Value>::new(route, outputs);
    let (mut first, mut count) = (String::new(), 0_u64);
    while let Some(output) = replies.next().await {
        let output = output?.encode(Format::Json)?;
        if count == 0 {
            first = format!(", the first: {}", shortened(&String::from_utf8_lossy(&output)));
        }
        count += 1;
    }
    Ok((format!("{count} outputs{first}"), began.elapsed()))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use callboard_core::{App, RouteSpec, StreamStage};
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn the_example_of_a_stream_is_read_to_its_end() {
        let count = StreamStage::each("count", |to: &u64| stream::iter((0..*to).map(Ok)));
        let app = App::new().mount(RouteSpec::streaming("/count", count).example(Value::from(3)));
        let node = app.start().await.unwrap();
        let client = node.client();
        let route = client.route("/count").unwrap();
        let (shown, _) = run_example(&client, &route, &route.examples()[0]).await.unwrap();
        assert_eq!(shown, "3 outputs, the first: 0");
        assert!(run_example(&client, &route, &Value::from("three")).await.is_err());
    }
}
