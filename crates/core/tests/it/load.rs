//! Callers that call without pause, and stages that count their workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use callboard_core::{Batch, Failure, LocalClient, Replica, Stage, Worker};
use tokio::task::JoinHandle;

/// Callers that call without pause, and their answers.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<u64>>>,
}

impl Load {
    pub(crate) fn on(client: &LocalClient, route: &'static str) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let callers = (0..8).map(|_| tokio::spawn(keep_calling(client.clone(), route, Arc::clone(&over)))).collect();
        Self { over, callers }
    }

    /// All answers; every call must have one.
    pub(crate) async fn end(self) -> Vec<u64> {
        self.over.store(true, Ordering::SeqCst);
        let mut answers = Vec::new();
        for caller in self.callers {
            answers.extend(caller.await.expect("no call may fail"));
        }
        answers
    }
}

async fn keep_calling(client: LocalClient, route: &'static str, over: Arc<AtomicBool>) -> Vec<u64> {
    let mut answers = Vec::new();
    while !over.load(Ordering::SeqCst) {
        answers.push(client.call::<u64, u64>(route, 0).await.unwrap());
        tokio::task::yield_now().await;
    }
    answers
}

/// A worker that counts its live instances, and the instances that have cleaned up.
pub(crate) struct Counted {
    pub(crate) answer: u64,
    pub(crate) counts: Counts,
}

#[derive(Clone, Default)]
pub(crate) struct Counts {
    pub(crate) alive: Arc<AtomicUsize>,
    cleaned: Arc<AtomicUsize>,
}

impl Counts {
    pub(crate) fn alive(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }

    pub(crate) fn cleaned(&self) -> usize {
        self.cleaned.load(Ordering::SeqCst)
    }

    pub(crate) fn stage(&self, name: &str, answer: u64) -> Stage<u64, u64> {
        let counts = self.clone();
        Stage::worker(name, move |_: &Replica| {
            counts.alive.fetch_add(1, Ordering::SeqCst);
            Ok(Counted { answer, counts: counts.clone() })
        })
    }
}

impl Worker for Counted {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        batch.iter().map(|n| Ok(n + self.answer)).collect()
    }

    fn cleanup(&mut self) {
        self.counts.cleaned.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn answering(name: &str, answer: u64) -> Stage<u64, u64> {
    Stage::each(name, move |n: &u64| Ok(n + answer))
}

pub(crate) struct Healthy;

impl Worker for Healthy {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        batch.iter().map(|n| Ok(*n)).collect()
    }
}
