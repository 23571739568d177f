//! Isolated stages whose outputs are streams, and what their code chooses of the response.

use std::pin::Pin;
use std::time::Duration;

use callboard_codec::Payload;
use callboard_core::{
    App, Batch, CallContext, CallError, CallOptions, ErrorKind, Failure, NotEmitted, Outputs, ResponseFields, Stage,
    StreamStage, StreamWorker,
};
use callboard_process::Isolate as _;
use futures_util::{Stream, StreamExt as _, stream};

use crate::isolate::only_this_test;

/// Counts each item up, and crashes at 99.
struct Counting;

impl StreamWorker for Counting {
    type In = u32;
    type Out = u32;

    fn call(&mut self, batch: Batch<u32>, outputs: &mut Outputs<u32>) {
        for (index, count) in batch.into_inputs().into_iter().enumerate() {
            for number in 0..count {
                if number == 99 {
                    std::process::abort();
                }
                if let Err(NotEmitted::Gone(_)) = outputs.emit(index, number) {
                    break;
                }
            }
            if count == 7 {
                outputs.fail(index, Failure::new("seven"));
            }
        }
    }
}

/// All outputs, and the error that ended them.
async fn replies(node: &callboard_core::Node, count: u32) -> (Vec<u32>, Option<CallError>) {
    let mut replies = node.client().replies::<u32, u32>("/stage", count).unwrap();
    let mut all = Vec::new();
    while let Some(reply) = replies.next().await {
        match reply {
            Ok(number) => all.push(number),
            Err(error) => return (all, Some(error)),
        }
    }
    (all, None)
}

async fn whole(node: &callboard_core::Node, count: u32) {
    let (outputs, error) = replies(node, count).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(outputs, (0..count).collect::<Vec<_>>());
}

async fn streams(stage: StreamStage<u32, u32>) {
    let node = App::new().route_streaming("/stage", stage.isolate_with(only_this_test)).start().await.unwrap();
    // More than may wait for their reader anywhere.
    whole(&node, 90).await;
    let (outputs, error) = replies(&node, 7).await;
    assert_eq!((outputs.len(), error.unwrap().message()), (7, "seven"));
    let (outputs, error) = replies(&node, 1000).await;
    assert_eq!(outputs, (0..outputs.len() as u32).collect::<Vec<_>>());
    assert_eq!(error.unwrap().kind(), ErrorKind::WorkerFailed);
    whole(&node, 3).await;
}

#[tokio::test]
async fn a_worker_streams() {
    streams(StreamStage::worker("counting", |_| Ok(Counting))).await;
}

#[tokio::test]
async fn an_asynchronous_function_streams() {
    let count = |count: &u32| {
        let count = *count;
        let numbers = (0..count).map(move |number| if number == 99 { std::process::abort() } else { Ok(number) });
        let end = (count == 7).then(|| Err(Failure::new("seven")));
        Box::pin(stream::iter(numbers.chain(end))) as Pin<Box<dyn Stream<Item = Result<u32, Failure>> + Send>>
    };
    streams(StreamStage::each("counting", count)).await;
}

/// Chooses the status 200 + `n`, and a header.
fn chosen(n: u16) -> ResponseFields {
    ResponseFields::new().with_status(200 + n).with_header("x-n", n.to_string())
}

/// What the code of an item chooses of the response reaches its own call, also from a batch.
#[tokio::test]
async fn what_the_code_of_an_item_chooses_of_the_response_reaches_its_call() {
    let choosing = Stage::batch("choosing", |batch: Batch<u16>| {
        let choose = |(index, n): (usize, &u16)| {
            // Not for the second one.
            if *n != 1 {
                batch.context(index).set_response(chosen(*n));
            }
            Ok(*n)
        };
        batch.iter().enumerate().map(choose).collect()
    });
    let choosing = choosing.max_batch_size(3).max_delay(Duration::from_secs(60)).isolate_with(only_this_test);
    let node = App::new().route("/stage", choosing).start().await.unwrap();
    let calls = (0..3).map(async |n: u16| {
        let client = node.client();
        let admission = client.edge().admit(&client.route("/stage").unwrap(), 0).unwrap();
        let submitted = client.edge().submit_unwritten(admission, Payload::new(n), CallOptions::new());
        let (_, unwritten) = submitted.await.unwrap();
        let response = unwritten.response();
        unwritten.end(Ok(()));
        response
    });
    let responses = futures_util::future::join_all(calls).await;
    assert_eq!(responses, [Some(chosen(0)), None, Some(chosen(2))]);
}

#[tokio::test]
async fn what_a_stream_chooses_of_the_response_comes_with_its_first_output_or_its_end() {
    let choosing = StreamStage::each_with_context("choosing", |n: &u16, context: &CallContext| {
        context.set_response(chosen(*n));
        stream::iter((0..*n).map(Ok::<u16, Failure>).collect::<Vec<_>>())
    });
    let choosing = choosing.isolate_with(only_this_test);
    let node = App::new().route_streaming("/stage", choosing).start().await.unwrap();
    for n in [0, 1, 5] {
        let client = node.client();
        let admission = client.edge().admit(&client.route("/stage").unwrap(), 0).unwrap();
        let mut replies = client.edge().submit_streaming(admission, Payload::new(n), CallOptions::new());
        while let Some(reply) = replies.next().await {
            assert_eq!(replies.response(), Some(&chosen(n)), "{reply:?}");
        }
        assert_eq!(replies.response(), Some(&chosen(n)));
    }
}
