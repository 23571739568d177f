//! Three actors feed a pipeline; one of them crashes and restarts while calls run.
//!
//! `cargo run --example actors`: `dictionary` numbers words, `scorer` asks it and tells `journal`. When an actor dies,
//! the actors declared after it in the group restart as well. References stay valid.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::HashMap;

use callboard::actor::{Actor, ActorContext, ActorGroup, ActorRef, ActorSpec, ReplyPort, RestartStrategy};
use callboard::prelude::*;

/// Gives every word its fixed number.
struct Dictionary(HashMap<String, u64>);
struct Number(String, ReplyPort<u64>);

impl Actor for Dictionary {
    type Message = Number;
    async fn handle(&mut self, Number(word, answer): Number, _: &ActorContext<Self>) -> Result<(), Failure> {
        let next = self.0.len() as u64;
        answer.send(*self.0.entry(word).or_insert(next));
        Ok(())
    }
}

/// Scores a word. Some words crash it.
struct Scorer(ActorRef<Number>, ActorRef<u64>);
struct Score(String, ReplyPort<u64>);

impl Actor for Scorer {
    type Message = Score;
    async fn handle(&mut self, Score(word, answer): Score, _: &ActorContext<Self>) -> Result<(), Failure> {
        assert!(word != "poison", "a word that crashes the actor");
        let number = self.0.ask(answer.deadline(), |port| Number(word, port)).await?;
        // A full or stopped journal loses the line. No call waits for it.
        let _ = self.1.tell(number);
        answer.send(number * 10);
        Ok(())
    }
}

/// Counts the lines since its start.
struct Journal(u64);

impl Actor for Journal {
    type Message = u64;
    async fn handle(&mut self, _number: u64, _: &ActorContext<Self>) -> Result<(), Failure> {
        self.0 += 1;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dictionary = ActorSpec::new("dictionary", |_| Dictionary(HashMap::new()));
    let journal = ActorSpec::new("journal", |_| Journal(0));
    let (numbers, lines) = (dictionary.reference(), journal.reference());
    let scorer = ActorSpec::new("scorer", move |_| Scorer(numbers.clone(), lines.clone()));
    let score = Pipeline::ask("score", scorer.reference(), |word: &String, answer| Score(word.clone(), answer));
    let group = ActorGroup::new("words", RestartStrategy::RestForOne).actor(dictionary).actor(scorer).actor(journal);
    let node = App::new().actors(group).route("/score", score).start().await?;

    let (client, mut answered, mut lost) = (node.client(), 0, 0);
    for n in 0..1_000 {
        let word = if n % 300 == 299 { "poison".to_owned() } else { format!("word-{}", n % 7) };
        let outcome = client.call::<String, u64>("/score", word).await;
        answered += u32::from(outcome.is_ok());
        lost += u32::from(outcome.is_err_and(|error| error.kind() == ErrorKind::WorkerFailed));
    }
    let number = client.call::<_, u64>("/score", "word-6".to_owned()).await?;
    println!("{answered} calls answered, {lost} lost with their actor; `word-6` still scores {number}");
    // Only the three calls with `poison` are lost. The dictionary did not restart, so its numbers are the same.
    assert_eq!((answered, lost, number), (997, 3, 60));
    Ok(())
}
