//! `callboard check`: starts everything, runs the examples of every route once, and says what is wrong.
//!
//! It listens on no port, so it can run beside a server and in a build.

use std::time::Duration;

use callboard_codec::{Format, Value};
use callboard_core::{CallError, CallOptions, LocalClient, Route};

use super::super::error::CliError;
use super::super::output;
use super::super::service::{Service, title};
use super::block_on;

/// Longer outputs are cut: a check tells that there is one, not all of it.
const SHOWN_CHARS: usize = 160;

/// Runs the check.
pub(crate) fn run(service: Service) -> Result<(), CliError> {
    let title = title(&service.plan.target);
    block_on(async {
        let node = Service::start(service.app).await?;
        let client = node.client();
        let failed = run_examples(&client).await?;
        let _ = node.shutdown(service.plan.settings.drain.value).await;
        match failed {
            0 => output::result(format_args!("{title}: all is well")),
            1 => Err(CliError::Failed(format!("{title}: 1 example failed"))),
            failed => Err(CliError::Failed(format!("{title}: {failed} examples failed"))),
        }
    })
}

/// Runs all examples of all routes; tells how many failed.
async fn run_examples(client: &LocalClient) -> Result<usize, CliError> {
    let mut failed = 0;
    for route in client.routes() {
        if route.examples().is_empty() {
            output::result(format_args!("{}: loaded; it has no example to run", route.name()))?;
        }
        for (index, example) in route.examples().iter().enumerate() {
            let what = format!("{} example {}", route.name(), index + 1);
            match run_example(client, &route, example).await {
                Ok((answer, took)) => output::result(format_args!("{what}: ok in {took:.1?}: {answer}"))?,
                Err(error) => {
                    failed += 1;
                    output::result(format_args!("{what}: {error}"))?;
                }
            }
        }
    }
    Ok(failed)
}

async fn run_example(
    client: &LocalClient,
    route: &std::sync::Arc<Route>,
    example: &Value,
) -> Result<(String, Duration), CallError> {
    let payload = route.input().from_value(example.clone())?;
    let admission = client.admit(route, payload.size_hint() as u64)?;
    let reply = client.submit(admission, payload, CallOptions::new()).await?;
    let answer = reply.payload.encode(Format::Json)?;
    let timing = reply.timing;
    Ok((shortened(&String::from_utf8_lossy(&answer)), timing.queue + timing.batch + timing.compute))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
