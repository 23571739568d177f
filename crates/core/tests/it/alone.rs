//! A call that is alone in its task runs itself where its stage makes batches, and no burst is torn for it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard_codec::Payload;
use callboard_core::{App, Batch, CallOptions, LocalClient, Pipeline, Stage};
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::support::serve;

/// A stage of quick batches that notes their sizes.
fn sizes(name: &str, sizes: &Arc<Mutex<Vec<usize>>>) -> Stage<u64, u64> {
    let sizes = Arc::clone(sizes);
    let stage = Stage::batch(name, move |batch: Batch<u64>| {
        sizes.lock().unwrap().push(batch.len());
        batch.iter().map(|n| Ok(*n)).collect()
    });
    stage.as_tasks().max_batch_size(32)
}

/// Makes a call as an edge does whose task makes no other one.
async fn alone(client: &LocalClient, n: u64) -> u64 {
    let edge = client.edge();
    let admission = edge.admit(&client.route("/route").unwrap(), 0).unwrap();
    let (payload, options) = (Payload::new(n), CallOptions::new());
    let (reply, outcome) = edge.submit_unwritten_of(admission, payload, options, true).await.unwrap();
    outcome.end(Ok(()));
    reply.payload.into_inner().unwrap()
}

/// Longer than quick code takes.
const A_WHILE: Duration = Duration::from_micros(21);

/// Calls one by one until the code is known to be quick. Each is a batch.
async fn warm_up(client: &LocalClient) {
    for n in 0..8 {
        assert_eq!(client.call::<u64, u64>("/route", n).await.unwrap(), n);
    }
    tokio::time::advance(A_WHILE).await;
}

#[tokio::test(start_paused = true)]
async fn it_runs_itself_a_while_after_a_batch_of_one() {
    let node = serve(sizes("sizes", &Arc::default())).await;
    let client = node.client();
    warm_up(&client).await;
    for n in 0..3 {
        assert_eq!(alone(&client, n).now_or_never(), Some(n));
        tokio::time::advance(A_WHILE).await;
    }
    assert!(client.call::<u64, u64>("/route", 7).now_or_never().is_none(), "its caller may have others");
    warm_up(&client).await;
    assert_eq!(alone(&client, 8).now_or_never(), Some(8));
    assert_eq!(alone(&client, 9).now_or_never(), None, "callers come at this moment");
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_moment_meet_in_a_batch() {
    let seen = Arc::default();
    let node = serve(sizes("sizes", &seen)).await;
    let client = node.client();
    warm_up(&client).await;
    assert_eq!(alone(&client, 0).now_or_never(), Some(0));
    seen.lock().unwrap().clear();
    join_all((0..32).map(|n| alone(&client, n))).await;
    // Its callers may come again, however long they take.
    tokio::time::advance(A_WHILE).await;
    join_all((0..32).map(|n| alone(&client, n))).await;
    assert_eq!(*seen.lock().unwrap(), [32, 32]);
}

/// They come at once, and the first of them does not know of the next.
#[tokio::test(start_paused = true)]
async fn members_of_an_ensemble_meet_in_a_batch() {
    let seen = Arc::default();
    let stage = sizes("sizes", &seen);
    // Its members share the state of the call.
    let all = Pipeline::ensemble_partial(vec![stage.clone(), stage.clone(), stage.clone()]);
    let node = App::new().route("/route", stage).route("/all", all).start().await.unwrap();
    let client = node.client();
    warm_up(&client).await;
    assert_eq!(alone(&client, 0).now_or_never(), Some(0));
    tokio::time::advance(A_WHILE).await;
    seen.lock().unwrap().clear();
    let admission = client.edge().admit(&client.route("/all").unwrap(), 0).unwrap();
    let submitted = client.edge().submit_unwritten_of(admission, Payload::new(1_u64), CallOptions::new(), true);
    submitted.await.unwrap().1.end(Ok(()));
    assert_eq!(*seen.lock().unwrap(), [3]);
}
