//! Three actors of the program's own feed a pipeline; one of them crashes and comes back while calls run.
//!
//! Run with `cargo run --example actors`. `dictionary` numbers the words it hears, `scorer` asks it and tells `journal`. They
//! are one group: those declared after the one that died start again with it. The references stay good all the time.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::HashMap;

use callboard::prelude::*;
use callboard::ractor::{Actor, ActorProcessingErr, ActorRef};
use callboard::{ActorGroup, ActorSpec, Answer, Deadline, Instant, Mail, Pipeline, Ref, Strategy};

type Handled = Result<(), ActorProcessingErr>;

/// Gives every word a number, the same one each time.
struct Dictionary;
struct Number(String, Answer<u64>);

impl Actor for Dictionary {
    type Msg = Mail<Number>;
    type State = HashMap<String, u64>;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Self::Msg>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        Ok(HashMap::new())
    }

    async fn handle(&self, _: ActorRef<Self::Msg>, mail: Self::Msg, words: &mut Self::State) -> Handled {
        let Number(word, answer) = mail.open();
        let next = words.len() as u64;
        answer.send(*words.entry(word).or_insert(next));
        Ok(())
    }
}

/// Scores a word, and does not survive some.
struct Scorer {
    dictionary: Ref<Number>,
    journal: Ref<u64>,
}
struct Score(String, Answer<u64>);

impl Actor for Scorer {
    type Msg = Mail<Score>;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Self::Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(&self, _: ActorRef<Self::Msg>, mail: Self::Msg, (): &mut ()) -> Handled {
        let Score(word, answer) = mail.open();
        assert!(word != "poison", "that word was too much");
        let number = self.dictionary.ask(answer.deadline(), |port| Number(word, port)).await?;
        // A journal that is full or down loses a line, and nobody waits for it.
        let _ = self.journal.tell(number);
        answer.send(number * 10);
        Ok(())
    }
}

/// Counts the lines of this life.
struct Journal;

impl Actor for Journal {
    type Msg = Mail<u64>;
    type State = u64;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Self::Msg>, (): ()) -> Result<u64, ActorProcessingErr> {
        Ok(0)
    }

    async fn handle(&self, _: ActorRef<Self::Msg>, _mail: Self::Msg, lines: &mut u64) -> Handled {
        *lines += 1;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    std::panic::set_hook(Box::new(|_| {}));
    let dictionary = ActorSpec::new("dictionary", |_| (Dictionary, ()));
    let journal = ActorSpec::new("journal", |_| (Journal, ()));
    let (numbers, lines) = (dictionary.reference(), journal.reference());
    let scorer =
        ActorSpec::new("scorer", move |_| (Scorer { dictionary: numbers.clone(), journal: lines.clone() }, ()));
    let asked = scorer.reference();
    let group = ActorGroup::new("words", Strategy::RestForOne).actor(dictionary).actor(scorer).actor(journal);

    let lower = Stage::each("lower", |word: &String| Ok(word.to_lowercase()));
    let score = Pipeline::ask("score", asked.clone(), |word: &String, answer| Score(word.clone(), answer));
    let node = App::new().actors(group).route("/score", Pipeline::from(lower).then(score)).start().await?;
    let client = node.client();

    let (mut answered, mut lost) = (0, 0);
    for n in 0..1_000 {
        let word = if n % 300 == 299 { "POISON".to_owned() } else { format!("Word-{}", n % 7) };
        match client.call::<String, u64>("/score", word).await {
            Ok(_) => answered += 1,
            Err(error) => lost += u32::from(error.kind() == ErrorKind::WorkerFailed),
        }
    }
    println!("{answered} calls answered, {lost} lost with their actor");
    // Numbers live in the dictionary, which did not start again.
    let deadline = Deadline::after(Instant::now(), Duration::from_secs(1));
    let number = asked.ask(deadline, |answer| Score("word-6".to_owned(), answer)).await?;
    println!("`word-6` still scores {number}");
    for actor in node.describe().actors {
        println!("{}: {:?}, started again {} times", actor.name, actor.state, actor.restarts);
    }
    // Three are poisonous; each may take along the one that came before its actor's end was known.
    assert_eq!((answered + lost, number), (1_000, 60));
    assert!((3..=6).contains(&lost), "{lost} lost");
    let _ = node.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
