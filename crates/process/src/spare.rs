//! A spare: a child of a stage that is ready, and waits for the next replica that needs one.
//!
//! * **Taken, or ended:** another one is started, without a pause for the stage.
//! * **Failed start:** tried again after [`NEXT_TRY`]; replicas start their own children meanwhile.
//! * **Cancelled:** it is killed with its stage.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use callboard_core::{Failure, Replica};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::config::ProcessConfig;
use crate::connection::{AgreedTerms, Connection};
use crate::fork_server::ForkServer;
use crate::writer::FrameWriter;

/// The interval at which a spare is checked: an ended spare is replaced within this time and its start.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A start that fails is seldom better at once.
const NEXT_TRY: Duration = Duration::from_secs(10);

pub(crate) type ReadyChild = (Connection, FrameWriter, AgreedTerms);

/// Starts the children of a stage, and keeps the spare.
pub(crate) struct ChildStarter {
    pub(crate) config: ProcessConfig,
    /// Of the first replicas; further ones begin with the first again.
    of_replicas: Vec<(ProcessConfig, Arc<ForkServer>)>,
    spare: Arc<Spare>,
    /// The task that keeps a spare.
    keeper: OnceLock<AbortHandle>,
}

#[derive(Default)]
struct Spare {
    child: Mutex<Option<ReadyChild>>,
    /// The replica that started last. Weak: it has a client of its node.
    replica: Mutex<Weak<Replica>>,
    /// A replica started.
    is_taken: Notify,
}

impl ChildStarter {
    /// `of_replicas` has one entry at least.
    pub(crate) fn new(config: &ProcessConfig, of_replicas: Vec<(ProcessConfig, Arc<ForkServer>)>) -> Self {
        Self { config: config.clone(), of_replicas, spare: Arc::default(), keeper: OnceLock::new() }
    }

    /// A child that is ready, for a replica: the spare, or a new one.
    pub(crate) async fn start(&self, replica: &Arc<Replica>, is_streaming: bool) -> Result<ReadyChild, Failure> {
        let (config, fork_server) = &self.of_replicas[replica.index() % self.of_replicas.len()];
        // A child is pinned before it has threads, and a spare has no core.
        let keeps = config.spare && replica.core().is_none();
        let spare = if keeps { self.spare.take() } else { None };
        let child = match spare {
            Some(child) => child,
            None => Connection::start(config, fork_server, replica, is_streaming).await?,
        };
        if keeps {
            *self.spare.replica.lock() = Arc::downgrade(replica);
            self.spare.is_taken.notify_one();
            self.keeper.get_or_init(|| {
                let (config, fork_server) = (config.clone(), Arc::clone(fork_server));
                tokio::spawn(keep(Arc::clone(&self.spare), config, fork_server, is_streaming)).abort_handle()
            });
        }
        Ok(child)
    }
}

impl Drop for ChildStarter {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.abort();
        }
    }
}

impl Spare {
    fn take(&self) -> Option<ReadyChild> {
        self.child.lock().take().filter(|(connection, ..)| !connection.child.has_ended())
    }

    /// Waits until there is none.
    async fn until_gone(&self) {
        loop {
            let _ = timeout(LOOK_INTERVAL, self.is_taken.notified()).await;
            match &*self.child.lock() {
                None => return,
                Some((connection, ..)) if !connection.child.has_ended() => {}
                Some(_) => break,
            }
        }
        tracing::warn!("a spare child has ended; another one is started");
        self.child.lock().take();
    }
}

/// Starts a spare, and another one when it is taken or ends. It gets the index of the replica that started last.
async fn keep(spare: Arc<Spare>, config: ProcessConfig, fork_server: Arc<ForkServer>, is_streaming: bool) {
    loop {
        let Some(replica) = spare.replica.lock().upgrade() else {
            spare.is_taken.notified().await;
            continue;
        };
        let started = Connection::start(&config, &fork_server, &replica, is_streaming).await;
        let stage = replica.stage().clone();
        drop(replica);
        match started {
            Ok(child) => {
                *spare.child.lock() = Some(child);
                spare.until_gone().await;
            }
            Err(error) => {
                tracing::warn!(%stage, "there is no spare child: {}", error.message());
                sleep(NEXT_TRY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::process::{Signal, kill_process};

    use super::*;
    use crate::message::{self, FromChild, PROTOCOL, ReadyMessage};
    use crate::testing::{Scratch, WaitingNode};

    /// The command of a child that says that it is ready, and then waits to be killed.
    fn ready_child(spare: bool, directory: &Scratch) -> ProcessConfig {
        let worker = "test".to_owned();
        let (max_batches, ahead, methods, note, shared_memory) = (1, 0, false, None, false);
        let ready = ReadyMessage { protocol: PROTOCOL, worker, shared_memory, max_batches, ahead, methods, note };
        let head = message::encode(&FromChild::Ready(ready)).unwrap();
        let frame = [crate::frame::frame_start(&head, std::iter::empty::<usize>(), 0).unwrap()].concat();
        let file = directory.0.join("ready");
        fs::write(&file, frame).unwrap();
        let file = file.to_str().unwrap();
        ProcessConfig { spare, ..ProcessConfig::new(["sh", "-c", "cat \"$0\" >&0; exec sleep 1000", file]) }
    }

    fn starter(spare: bool, directory: &Scratch) -> ChildStarter {
        let config = ready_child(spare, directory);
        ChildStarter::new(&config, vec![(config.clone(), Arc::new(ForkServer::new(&config)))])
    }

    async fn until(mut is_so: impl FnMut() -> bool) {
        let waiting = async {
            while !is_so() {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(Duration::from_secs(20), waiting).await.expect("in time");
    }

    #[tokio::test]
    async fn only_a_stage_that_wants_a_spare_has_a_keeper_which_ends_with_it() {
        let replica = Arc::new(WaitingNode::start().await.replica);
        let directory = Scratch::new("spare");
        let (with, without) = (starter(true, &directory), starter(false, &directory));
        let _first = without.start(&replica, false).await.unwrap();
        assert!(without.keeper.get().is_none());
        let _second = with.start(&replica, false).await.unwrap();
        let (keeper, spare) = (with.keeper.get().unwrap().clone(), Arc::clone(&with.spare));
        until(|| spare.child.lock().is_some()).await;
        assert!(!keeper.is_finished());
        drop(with);
        until(|| keeper.is_finished()).await;
    }

    #[tokio::test]
    async fn a_spare_stays_until_it_is_taken_or_ends() {
        let replica = Arc::new(WaitingNode::start().await.replica);
        let directory = Scratch::new("spare");
        let (starter, spare) = (starter(false, &directory), Spare::default());
        for ends in [false, true] {
            *spare.child.lock() = Some(starter.start(&replica, false).await.unwrap());
            assert!(timeout(2 * LOOK_INTERVAL, spare.until_gone()).await.is_err(), "it lives");
            if ends {
                let pid = spare.child.lock().as_ref().unwrap().0.child.pid();
                kill_process(pid, Signal::KILL).unwrap();
                timeout(Duration::from_secs(20), spare.until_gone()).await.unwrap();
                assert!(spare.child.lock().is_none());
            } else {
                assert!(spare.take().is_some());
                timeout(Duration::from_secs(20), spare.until_gone()).await.unwrap();
            }
        }
    }
}
