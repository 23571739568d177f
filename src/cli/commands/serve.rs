//! `callboard serve`: starts the node, opens the door, and ends in good order.
//!
//! The end, in one paragraph: the first signal makes the node unready, closes the listener and lets every connection finish
//! the request it has in hand; when the last one is gone, or the drain time is over, the node stops its workers. A second signal does not wait for
//! any of that. The exit code says whether everybody got an answer.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use callboard_core::{Drained, Node};
use callboard_http::Edge;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use super::super::error::CliError;
use super::super::service::{Service, api_info, http_config};
use super::super::signals::Signals;
use super::super::{example, output};
use super::block_on;

/// Serves until told to stop.
pub(crate) fn run(service: Service) -> Result<(), CliError> {
    block_on(serve(service))
}

async fn serve(Service { app, plan }: Service) -> Result<(), CliError> {
    let begun = Instant::now();
    let mut signals = Signals::listen().map_err(|error| CliError::because("could not listen for signals", &error))?;
    // The port first: that it is in use should be known before a model takes its time to load.
    let (listener, address) = bind(plan.settings.http.value).await?;
    let node = tokio::select! {
        node = Service::start(app) => node?,
        signal = signals.next() => return Err(CliError::Failed(format!("{signal} before the start was complete"))),
    };
    let edge = Edge::try_new(node.client(), http_config(&plan.settings), api_info(&plan.target))
        .map_err(|error| CliError::because("not started", &error))?;
    output::note(example::welcome(&plan, &node.client(), address, begun.elapsed()));

    let (stop, stopped) = oneshot::channel::<()>();
    let mut serving = tokio::spawn(callboard_http::serve_edge(listener, edge, async {
        // An error says that the sender is gone, which is the end as well.
        let _ = stopped.await;
    }));
    let signal = tokio::select! {
        signal = signals.next() => signal,
        ended = &mut serving => return Err(ended_by_itself(ended)),
    };

    output::note(format_args!("{signal}: finishing what is in hand; another signal ends at once"));
    node.withdraw();
    let _ = stop.send(());
    tokio::select! {
        biased;
        signal = signals.next() => Err(CliError::Failed(format!("{signal} again: ended at once"))),
        outcome = finish(serving, node, plan.settings.drain.value) => outcome,
    }
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), CliError> {
    let listener = TcpListener::bind(address).await;
    let bound = listener.and_then(|listener| listener.local_addr().map(|address| (listener, address)));
    bound.map_err(|error| CliError::because(format_args!("could not listen on {address}"), &error))
}

/// Waits for the edge, then for the node, both within the drain time.
async fn finish(mut serving: JoinHandle<()>, node: Node, drain: Duration) -> Result<(), CliError> {
    let end = tokio::time::Instant::now() + drain;
    // Counted here and not by the node at its own end: cutting the connections takes their calls with them.
    let unfinished = match tokio::time::timeout_at(end, &mut serving).await {
        Ok(_ended) => 0,
        Err(_elapsed) => node.describe().in_flight,
    };
    serving.abort();
    let drained = node.shutdown(end.saturating_duration_since(tokio::time::Instant::now())).await;
    match (unfinished, drained) {
        (0, Drained::Completely) => {
            output::note("stopped");
            Ok(())
        }
        (0, Drained::TimedOut { in_flight: unfinished }) | (unfinished, _) => {
            let calls = if unfinished == 1 { "call" } else { "calls" };
            Err(CliError::Failed(format!("the drain time was over with {unfinished} {calls} unfinished")))
        }
    }
}

fn ended_by_itself(ended: Result<(), JoinError>) -> CliError {
    match ended {
        Ok(()) => CliError::Failed("the http edge stopped by itself".to_owned()),
        Err(error) => CliError::because("the http edge stopped by itself", &error),
    }
}
