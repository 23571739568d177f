//! The counts of a route, as numbers.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::{CallOptions, ErrorKind, Failure, Stage};

use crate::support::serve;

#[tokio::test(start_paused = true)]
async fn calls_of_a_route_are_counted_with_their_times() {
    let stage = Stage::each_async("nap", |seconds: Arc<u64>| async move {
        tokio::time::sleep(Duration::from_secs(*seconds)).await;
        if *seconds == 2 { Err(Failure::new("not two")) } else { Ok(*seconds) }
    });
    let node = serve(stage).await;
    let client = node.client();
    let call = |seconds: u64| client.call::<u64, u64>("/route", seconds);
    call(1).await.unwrap();
    call(3).await.unwrap();
    assert_eq!(call(2).await.unwrap_err().kind(), ErrorKind::Failed);
    let options = CallOptions::new().with_timeout(Duration::from_secs(5));
    let late = client.call_with::<u64, u64>("/route", 60, options).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);

    let counted = client.route("/route").unwrap().statistics();
    let seconds = Duration::from_secs;
    assert_eq!((counted.succeeded, counted.succeeded_time), (2, seconds(4)));
    assert_eq!((counted.failed, counted.failed_time.as_secs()), (2, 7));
    let [stage] = &counted.stages[..] else { panic!("one stage: {counted:?}") };
    assert_eq!((stage.name.to_string().as_str(), stage.entries, stage.batches), ("nap", 4, 4));
    assert!(stage.compute_time >= seconds(6), "{stage:?}");
}
