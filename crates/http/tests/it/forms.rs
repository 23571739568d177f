//! What the parts of a form may cost together, and where one has to begin.

use callboard_http::HttpConfig;
use tokio::io::AsyncWriteExt;

use crate::support::app::app;
use crate::support::{Answer, Server, config};

const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=xyz");

fn part(name: &str, more: &str, content: &str) -> String {
    format!("--xyz\r\nContent-Disposition: form-data; name=\"{name}\"{more}\r\n\r\n{content}\r\n")
}

fn refused(answer: &Answer) -> (u16, String, String) {
    let problem = answer.problem();
    let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
    (answer.status, text("error_type"), text("message"))
}

#[tokio::test]
async fn all_parts_together_become_no_more_than_one_body_may() {
    let server = Server::of_app(app(), config(|c| c.decode.max_elements = 1_000)).await;
    let list = format!("[{}0]", "0,".repeat(399));
    let json = "\r\nContent-Type: application/json";
    let parts =
        |count: usize| (0..count).map(|n| part(&format!("p{n}"), json, &list)).collect::<String>() + "--xyz--\r\n";
    let mut client = server.connect().await;
    assert_eq!(client.post("/size", &[FORM], parts(2)).await.status, 200);
    let (status, error_type, message) = refused(&client.post("/size", &[FORM], parts(3)).await);
    assert_eq!((status, error_type.as_str()), (400, "decode_limit_exceeded"));
    assert!(message.starts_with("part `p2`") && message.contains("max_elements"), "{message}");
}

#[tokio::test]
async fn a_form_that_does_not_come_to_a_part_is_refused_before_it_has_come() {
    let server = Server::of_app(app(), HttpConfig::default()).await;
    let endless_head = part("a", "\r\nX-More: ", "").trim_end().to_owned();
    let second = part("a", "", "1") + "--xyz\r\nContent-Disposition: form-data; name=\"b\"; more=";
    for begin in [String::new(), endless_head, second] {
        let mut client = server.connect().await;
        let head = "POST /size HTTP/1.1\r\nhost: test\r\ncontent-length: 20000000\r\ncontent-type:";
        client.send(format!("{head} {}\r\n\r\n{begin}", FORM.1)).await;
        // As much as it takes and no more: the rest is still announced.
        let (mut reading, mut writing) = client.socket.into_split();
        let sending = tokio::spawn(async move {
            let piece = "x".repeat(1000);
            for _ in 0..100 {
                if writing.write_all(piece.as_bytes()).await.is_err() {
                    break;
                }
            }
            writing
        });
        let mut said = [0; 12];
        let answered = tokio::io::AsyncReadExt::read_exact(&mut reading, &mut said);
        tokio::time::timeout(crate::support::PATIENCE / 4, answered).await.expect("refused while it comes").unwrap();
        assert_eq!(&said, b"HTTP/1.1 400");
        drop(sending.await);
    }
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn an_honest_form_may_have_a_preamble_large_parts_and_come_in_whatever_pieces() {
    let server = Server::of_app(app(), HttpConfig::default()).await;
    let file = "; filename=\"f\"\r\nContent-Type: application/octet-stream";
    let large = "x".repeat(300_000);
    let form =
        ["a word before\r\n", &part("first", file, &large), &part("second", "", "two"), &part("third", file, &large)];
    let form = form.concat() + "--xyz--\r\nand behind";
    for size in [97, 5_000, form.len()] {
        let mut client = server.connect().await;
        let head = "POST /size HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\ncontent-type:";
        client.send(format!("{head} {}\r\n\r\n", FORM.1)).await;
        let pieces = form
            .as_bytes()
            .chunks(size)
            .flat_map(|piece| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
        client.send(pieces.collect::<Vec<u8>>()).await;
        client.send("0\r\n\r\n").await;
        let answer = client.answer().await;
        let expected = serde_json::json!({ "first": "300000 bytes", "second": "two", "third": "300000 bytes" });
        assert_eq!((answer.status, answer.json()), (200, expected), "{size}");
    }
}
