//! Messages that a key sends itself later, on virtual time.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::actor::{AskError, Question};
use crate::clock;
use crate::keyed::timers::MAX_TIMERS;
use crate::keyed::{Answers, KeyContext, KeyTimer, Keyed, KeyedSpec, Stored};
use crate::testing::MemoryStore;
use crate::{App, Failure, Node};

const SECOND: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(10);

/// What has happened, in its order.
#[derive(Default, Serialize, Deserialize)]
struct Log(Vec<String>);

struct Recorder {
    log: Stored<Log>,
    timers: Vec<KeyTimer>,
    began: clock::Instant,
}

impl Keyed for Recorder {
    type State = Log;

    fn stored(&mut self) -> &mut Stored<Log> {
        &mut self.log
    }
}

macro_rules! questions {
    ($($name:ident($($field:ty),*) = $word:literal -> $answer:ty,)*) => {
        $(
            #[derive(Serialize, Deserialize)]
            struct $name($($field),*);

            impl Question for $name {
                const NAME: &str = $word;
                type Answer = $answer;
            }
        )*
    };
}

questions! {
    Note(String) = "note" -> u64,
    NoteLater(u64, String) = "note_later" -> (),
    NoteAgain(u64) = "note_again" -> (),
    Slow(u64) = "slow" -> (),
    CancelAll() = "cancel_all" -> (),
    Crash() = "crash" -> (),
    Read() = "read" -> Vec<String>,
    Unknown() = "unknown" -> (),
    SetUnknown() = "set_unknown" -> String,
}

impl Answers<Note> for Recorder {
    async fn answer(&mut self, Note(text): Note, _: &KeyContext) -> Result<u64, Failure> {
        let at = self.began.elapsed().as_secs();
        self.log.0.push(format!("{text} at {at}"));
        Ok(at)
    }
}

impl Answers<NoteLater> for Recorder {
    async fn answer(&mut self, NoteLater(after, text): NoteLater, context: &KeyContext) -> Result<(), Failure> {
        self.timers.push(context.tell_after(SECOND * after as u32, Note(text))?);
        Ok(())
    }
}

/// Sets a timer for the same at once, this often.
impl Answers<NoteAgain> for Recorder {
    async fn answer(&mut self, NoteAgain(times): NoteAgain, context: &KeyContext) -> Result<(), Failure> {
        self.log.0.push(format!("timer {times}"));
        if times > 0 {
            context.tell_after(Duration::ZERO, NoteAgain(times - 1))?;
        }
        Ok(())
    }
}

impl Answers<Slow> for Recorder {
    async fn answer(&mut self, Slow(seconds): Slow, _: &KeyContext) -> Result<(), Failure> {
        tokio::time::sleep(SECOND * seconds as u32).await;
        Ok(())
    }
}

impl Answers<CancelAll> for Recorder {
    async fn answer(&mut self, _: CancelAll, _: &KeyContext) -> Result<(), Failure> {
        self.timers.drain(..).for_each(|timer| timer.cancel());
        Ok(())
    }
}

impl Answers<Crash> for Recorder {
    async fn answer(&mut self, _: Crash, _: &KeyContext) -> Result<(), Failure> {
        panic!("as asked")
    }
}

impl Answers<Read> for Recorder {
    async fn answer(&mut self, _: Read, _: &KeyContext) -> Result<Vec<String>, Failure> {
        Ok(self.log.0.clone())
    }
}

impl Answers<SetUnknown> for Recorder {
    async fn answer(&mut self, _: SetUnknown, context: &KeyContext) -> Result<String, Failure> {
        let refused = context.tell_after(SECOND, Unknown()).map(drop).unwrap_err().to_string();
        let never = context.tell_after(Duration::MAX, Read()).map(drop).unwrap_err().to_string();
        Ok(format!("{refused}; {never}"))
    }
}

async fn start(store: &MemoryStore) -> Node {
    let began = clock::now();
    let load = move |_, log| async move { Ok(Recorder { log, timers: Vec::new(), began }) };
    let spec = KeyedSpec::new("recorder", Arc::new(store.clone()), load).idle_after(IDLE);
    let spec = spec.accepts::<Note>().accepts::<NoteLater>().accepts::<NoteAgain>().accepts::<Slow>();
    let spec = spec.accepts::<CancelAll>().accepts::<Crash>().accepts::<Read>().accepts::<SetUnknown>();
    App::new().keyed(spec).start().await.unwrap()
}

async fn ask<Q: Question>(node: &Node, question: Q) -> Q::Answer {
    node.keyed("recorder").ask("ann", 100 * SECOND, question).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_timer_is_handled_when_it_is_due_keeps_its_key_active_and_is_saved() {
    let store = MemoryStore::new();
    let node = start(&store).await;
    ask(&node, NoteLater(30, "late".to_owned())).await;
    ask(&node, NoteLater(3, "soon".to_owned())).await;
    tokio::time::sleep(25 * SECOND).await;
    assert_eq!(node.keyed("recorder").active(), 1, "it is not passivated although it has been idle for long");
    tokio::time::sleep(6 * SECOND).await;
    tokio::time::sleep(2 * IDLE).await;
    assert_eq!(node.keyed("recorder").active(), 0, "no timer waits any more");
    assert_eq!(ask(&node, Read()).await, ["soon at 3", "late at 30"], "read from the store");
}

#[tokio::test(start_paused = true)]
async fn a_timer_waits_for_the_message_in_hand_and_takes_turns_with_those_that_wait() {
    let node = start(&MemoryStore::new()).await;
    ask(&node, NoteLater(1, "timer".to_owned())).await;
    ask(&node, NoteLater(2, "timer".to_owned())).await;
    let recorder = node.keyed("recorder");
    let told = |text: &str| Note(text.to_owned());
    recorder.tell("ann", SECOND, Slow(5)).await.unwrap();
    recorder.tell("ann", SECOND, told("told")).await.unwrap();
    recorder.tell("ann", SECOND, told("told")).await.unwrap();
    let log = ask(&node, Read()).await;
    assert_eq!(log, ["timer at 5", "told at 5", "timer at 5", "told at 5"]);

    recorder.tell("ann", SECOND, NoteAgain(100)).await.unwrap();
    let log = ask(&node, Read()).await;
    assert!(log.len() < 10, "timers without end hold no message up: {log:?}");
}

#[tokio::test(start_paused = true)]
async fn timers_are_cancelled_and_end_with_their_instance() {
    let node = start(&MemoryStore::new()).await;
    ask(&node, NoteLater(5, "cancelled".to_owned())).await;
    ask(&node, CancelAll()).await;
    ask(&node, NoteLater(5, "crashed".to_owned())).await;
    let crashed = node.keyed("recorder").ask("ann", SECOND, Crash()).await;
    assert!(matches!(crashed, Err(AskError::Crashed { .. })), "{crashed:?}");
    ask(&node, NoteLater(5, "passivated".to_owned())).await;
    assert!(node.keyed("recorder").passivate("ann"));
    while node.keyed("recorder").active() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(6 * SECOND).await;
    assert!(ask(&node, Read()).await.is_empty());
    // The key of cancelled timers is idle.
    ask(&node, NoteLater(3_600, "cancelled".to_owned())).await;
    ask(&node, CancelAll()).await;
    tokio::time::sleep(2 * IDLE).await;
    assert_eq!(node.keyed("recorder").active(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_sent_later_is_refused_at_once() {
    let node = start(&MemoryStore::new()).await;
    let refused = ask(&node, SetUnknown()).await;
    assert!(refused.contains("accept no `unknown`") && refused.contains("a timer after"), "{refused}");
    for _ in 0..MAX_TIMERS {
        ask(&node, NoteLater(60, "note".to_owned())).await;
    }
    let recorder = node.keyed("recorder");
    let refused = recorder.ask("ann", SECOND, NoteLater(60, "one more".to_owned())).await;
    assert!(matches!(&refused, Err(AskError::Failed(failure)) if failure.to_string().contains("full")), "{refused:?}");
    tokio::time::sleep(61 * SECOND).await;
    ask(&node, NoteLater(60, "again".to_owned())).await;
}
