//! The main example on all test pictures of the model, through the real binary over HTTP.

use std::fs;

use serde_json::{Value, json};

use crate::support::Server;

#[test]
fn every_held_out_picture_gets_the_prediction_of_the_training_script() {
    let server = Server::digits(&[]);
    let heldout = fs::read_to_string("examples/digits/heldout.jsonl").unwrap();
    let mut pictures = 0;
    for (number, line) in heldout.lines().enumerate() {
        let recorded: Value = serde_json::from_str(line).unwrap();
        let body = json!({ "image": recorded["png"] }).to_string();
        let request = "POST /digits HTTP/1.1\r\ncontent-type: application/json";
        let answer = server.request(request, body.as_bytes());
        assert_eq!(answer.status, 200, "picture {number}: {answer:?}");
        let reply: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(reply["label"], recorded["prediction"].to_string(), "picture {number}");
        pictures += 1;
    }
    assert_eq!(pictures, 360);
}
