//! `ModelStreamInfer`.

use callboard_core::{App, Failure, Stage, StreamStage};
use callboard_http::{ApiKeys, RateLimit};
use futures_util::stream;

use crate::client::{INFER, STREAM, Server, config};
use crate::messages::{Choice, Infer, StreamInferred, parameters};

/// `/double` answers once, `/count` with the numbers below its input, and fails at 13.
fn app() -> App {
    let double = Stage::each("double", |number: &i64| match number {
        13 => Err(Failure::invalid_input("an unlucky number")),
        number => Ok(number * 2),
    });
    let count = StreamStage::each("count", |count: &i64| {
        let count = *count;
        stream::iter((0..count).map(|n| if n == 13 { Err(Failure::new("unlucky")) } else { Ok(n) }))
    });
    App::new().route("/double", double).route_streaming("/count", count)
}

fn request(model: &str, id: &str, number: i64) -> Infer {
    Infer { id: id.to_owned(), ..Infer::raw(model, "INT64", &[1], number.to_le_bytes().to_vec()) }
}

/// The id, the number, and whether it is the last answer of its request.
fn read(answer: StreamInferred) -> (String, Result<i64, String>, Option<bool>) {
    let inferred = answer.answer.unwrap();
    let is_final = inferred.is_final();
    if answer.error.is_empty() {
        let number = inferred.raw.first().map_or(-1, |raw| i64::from_le_bytes(raw[..].try_into().unwrap()));
        (inferred.id, Ok(number), is_final)
    } else {
        (inferred.id, Err(answer.error), is_final)
    }
}

#[tokio::test]
async fn plain_requests_are_answered_in_their_order_and_an_error_is_one_answer() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let mut stream = client.open(STREAM);
    for number in [1, 13, 3] {
        stream.send(&request("double", &number.to_string(), number)).await;
    }
    stream.send(&request("triple", "4", 4)).await;
    stream.close();
    for (id, expected) in [("1", Ok(2)), ("13", Err("an unlucky number".to_owned())), ("3", Ok(6))] {
        let (answered, number, is_final) = read(stream.next().await.unwrap());
        let is_last = expected.is_ok().then_some(true);
        assert_eq!((answered.as_str(), number, is_final), (id, expected, is_last));
    }
    let unknown = "Request for unknown model: 'triple' is not found".to_owned();
    assert_eq!(read(stream.next().await.unwrap()), ("4".to_owned(), Err(unknown), None));
    assert_eq!(stream.status().await, (0, String::new()));
}

#[tokio::test]
async fn a_model_that_streams_answers_with_all_its_outputs_and_says_which_is_the_last() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let refused = client.infer(&request("count", "", 2)).await.refused(12);
    assert_eq!(refused, "model 'count' answers with a stream: use ModelStreamInfer");
    let mut stream = client.open(STREAM);
    for count in [3, 0] {
        let mut asked = request("count", &count.to_string(), count);
        asked.parameters = parameters([("triton_enable_empty_final_response", Choice::Bool(true))]);
        stream.send(&asked).await;
    }
    stream.close();
    let mut answers = Vec::new();
    while let Some(answer) = stream.next().await {
        answers.push(read(answer));
    }
    let of = |id: &str| answers.iter().filter(|(answered, ..)| answered == id).cloned().collect::<Vec<_>>();
    let numbers =
        |id: &str| of(id).into_iter().map(|(_, number, _)| number.unwrap()).filter(|n| *n >= 0).collect::<Vec<_>>();
    assert_eq!((numbers("3"), numbers("0")), (vec![0, 1, 2], vec![]));
    for id in ["3", "0"] {
        let finals: Vec<_> = of(id).into_iter().map(|(_, _, is_final)| is_final.unwrap()).collect();
        let (last, others) = finals.split_last().unwrap();
        assert!(*last && others.iter().all(|is_final| !is_final), "{id}: {finals:?}");
    }
    assert_eq!(stream.status().await.0, 0);
}

#[tokio::test]
async fn a_stream_that_fails_tells_so_after_its_outputs() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let mut stream = client.open(STREAM);
    stream.send(&request("count", "a", 20)).await;
    for number in 0..13 {
        assert_eq!(read(stream.next().await.unwrap()), ("a".to_owned(), Ok(number), Some(false)));
    }
    assert_eq!(read(stream.next().await.unwrap()), ("a".to_owned(), Err("unlucky".to_owned()), None));
    // The stream goes on.
    stream.send(&request("double", "b", 4)).await;
    assert_eq!(read(stream.next().await.unwrap()), ("b".to_owned(), Ok(8), Some(true)));
}

#[tokio::test]
async fn the_first_error_ends_a_stream_that_asks_for_that() {
    let server = Server::start(app()).await;
    let client = server.connect().await.with("triton_grpc_error", "true");
    let mut stream = client.open(STREAM);
    stream.send(&request("double", "a", 1)).await;
    assert_eq!(read(stream.next().await.unwrap()).1, Ok(2));
    stream.send(&request("double", "b", 13)).await;
    assert_eq!(stream.status().await, (3, "an unlucky number".to_owned()));
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_calls_of_its_stream() {
    let endless = StreamStage::each("endless", |_: &i64| stream::iter((0_i64..).map(Ok)));
    let server = Server::start(App::new().route_streaming("/endless", endless)).await;
    let client = server.connect().await;
    let mut stream = client.open(STREAM);
    stream.send(&request("endless", "a", 0)).await;
    assert_eq!(read(stream.next().await.unwrap()).1, Ok(0));
    server.in_flight_becomes(1).await;
    drop(stream);
    server.in_flight_becomes(0).await;
}

#[tokio::test]
async fn a_node_that_is_withdrawn_answers_what_it_has_read() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let mut stream = client.open(STREAM);
    stream.send(&request("double", "a", 1)).await;
    assert_eq!(read(stream.next().await.unwrap()).1, Ok(2));
    server.edge.withdraw();
    assert_eq!(stream.status().await.0, 14);
}

/// Neither kind waits for the other one's turn to send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_of_both_kinds_share_a_stream() {
    let many = StreamStage::each("many", |count: &i64| stream::iter((0..*count).map(Ok)));
    let server = Server::start(app().route_streaming("/many", many)).await;
    let client = server.connect().await;
    for _ in 0..5 {
        let mut stream = client.open(STREAM);
        stream.send(&request("many", "m", 2_000)).await;
        for number in 20..40 {
            stream.send(&request("double", "d", number)).await;
        }
        stream.close();
        let (mut many, mut double) = (Vec::new(), Vec::new());
        while many.len() < 2_000 || double.len() < 20 {
            let (id, number, _) = read(stream.next().await.unwrap());
            if id == "m" { &mut many } else { &mut double }.push(number.unwrap());
        }
        assert!(many.into_iter().eq(0..2_000));
        assert!(double.into_iter().eq((20..40).map(|number| number * 2)));
    }
    server.in_flight_becomes(0).await;
}

#[tokio::test]
async fn a_long_id_is_refused_before_it_is_copied() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let long = "x".repeat(1_025);
    let refused = client.infer(&request("double", &long, 1)).await.refused(3);
    assert!(refused.contains("longer than 1,024 bytes"), "{refused}");
    client.infer(&request(&long, "", 1)).await.refused(3);
    let mut stream = client.open(STREAM);
    stream.send(&request("double", &long, 1)).await;
    stream.close();
    let (id, refused, _) = read(stream.next().await.unwrap());
    assert!(id.is_empty() && refused.unwrap_err().contains("longer than 1,024 bytes"));
    client.infer(&request("double", &long[1..], 1)).await.grpc();
    assert_eq!(server.node.client().edge().charged_bytes(), 0);
}

#[tokio::test]
async fn each_request_counts_against_the_limit_of_its_key() {
    let keys = ApiKeys::parse("web a-key-that-nobody-guesses").unwrap();
    let limited = config(|config| {
        config.api_keys = Some(keys);
        config.rate_limit = Some(RateLimit::parse("2/h").unwrap());
    });
    let server = Server::with(app(), limited.clone()).await;
    let client = server.connect().await.with("x-api-key", "a-key-that-nobody-guesses");
    // A request that is refused counts as well.
    for number in 1..=3 {
        let mut stream = client.open(STREAM);
        stream.send(&request("triple", "", 1)).await;
        stream.send(&request("triple", "", 1)).await;
        stream.close();
        if number == 1 {
            assert!(read(stream.next().await.unwrap()).1.unwrap_err().contains("triple"));
            assert!(read(stream.next().await.unwrap()).1.unwrap_err().contains("triple"));
        } else {
            assert_eq!(stream.status().await.0, 8);
        }
    }

    let server = Server::with(app(), limited).await;
    let client = server.connect().await.with("x-api-key", "a-key-that-nobody-guesses");
    let mut stream = client.open(STREAM);
    for number in 1..=3 {
        stream.send(&request("double", "", number)).await;
    }
    stream.close();
    assert_eq!(read(stream.next().await.unwrap()).1, Ok(2));
    assert_eq!(read(stream.next().await.unwrap()).1, Ok(4));
    let over = read(stream.next().await.unwrap()).1.unwrap_err();
    assert!(over.contains("over its limit"), "{over}");
    client.call(INFER, &request("double", "", 1)).await.refused(8);
}
