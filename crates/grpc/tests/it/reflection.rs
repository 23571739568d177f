//! Reflection in both versions.

use bytes::Bytes;
use callboard_core::{App, Stage};
use callboard_http::ApiKeys;
use prost::Message;

use crate::client::{Server, config};

#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(string, optional, tag = "3")]
    file: Option<String>,
    #[prost(string, optional, tag = "4")]
    symbol: Option<String>,
    #[prost(string, optional, tag = "6")]
    extensions: Option<String>,
    #[prost(string, optional, tag = "7")]
    list: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(message, optional, tag = "2")]
    asked: Option<Question>,
    #[prost(message, optional, tag = "4")]
    files: Option<Files>,
    #[prost(message, optional, tag = "6")]
    services: Option<Services>,
    #[prost(message, optional, tag = "7")]
    error: Option<Failed>,
}

#[derive(Clone, PartialEq, Message)]
struct Files {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    files: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct Services {
    #[prost(message, repeated, tag = "1")]
    services: Vec<Named>,
}

/// A service, or a file: its name is its first field.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Failed {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[tokio::test]
async fn each_question_counts_against_the_limit_of_its_key() {
    let keys = ApiKeys::parse("web a-key-that-nobody-guesses 2/h").unwrap();
    let app = App::new().route("/double", Stage::each("double", |number: &f64| Ok(number * 2.0)));
    let server = Server::with(app, config(|config| config.api_keys = Some(keys))).await;
    let client = server.connect().await.with("x-api-key", "a-key-that-nobody-guesses");
    let mut stream = client.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    let question = Question { list: Some(String::new()), ..Question::default() };
    for _ in 0..3 {
        stream.send(&question).await;
    }
    assert!(stream.next::<Answer>().await.is_some());
    assert!(stream.next::<Answer>().await.is_some());
    assert_eq!(stream.status().await.0, 8);
}

#[tokio::test]
async fn services_and_their_declarations_are_found() {
    let app = App::new().route("/double", Stage::each("double", |number: &f64| Ok(number * 2.0)));
    let server = Server::start(app).await;
    let client = server.connect().await;
    for version in ["v1", "v1alpha"] {
        let mut stream = client.open(&format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"));
        let list = Question { list: Some("*".to_owned()), ..Question::default() };
        stream.send(&list).await;
        let answer: Answer = stream.next().await.unwrap();
        let mut names: Vec<String> = answer.services.unwrap().services.into_iter().map(|named| named.name).collect();
        names.sort();
        assert_eq!((names.len(), &*names[0], answer.asked), (5, "callboard.v1.Inference", Some(list)));
        for symbol in [
            "callboard.v1.Inference",
            "callboard.v1.Inference.Call",
            "inference.ModelInferRequest.InferInputTensor",
            "inference.ModelInstanceGroup.Kind",
            "grpc.health.v1.Health.Watch",
        ] {
            stream.send(&Question { symbol: Some(symbol.to_owned()), ..Question::default() }).await;
            let answer: Answer = stream.next().await.unwrap();
            let file = Named::decode(answer.files.unwrap().files.remove(0)).unwrap().name;
            stream.send(&Question { file: Some(file), ..Question::default() }).await;
            assert_eq!(stream.next::<Answer>().await.unwrap().files.unwrap().files.len(), 1, "{symbol}");
        }
        for (question, code) in [
            (Question { symbol: Some("inference.Nothing".to_owned()), ..Question::default() }, 5),
            (Question { extensions: Some("inference.Nothing".to_owned()), ..Question::default() }, 5),
            (Question::default(), 3),
        ] {
            stream.send(&question).await;
            assert_eq!(stream.next::<Answer>().await.unwrap().error.unwrap().code, code);
        }
        stream.close();
        assert_eq!(stream.status().await.0, 0);
    }
}
