//! The ways a request can go, and a closed loop of callers on one of them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Value;
use callboard_net::Identity;
use tokio::runtime::Handle;

use super::bare::Bare;
use super::ours::Ours;
use super::tonic_echo::Tonic;
use crate::{cpu_time, now, switches};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    BareStream,
    BareFrames,
    Route,
    Stage,
    Ask,
    Local,
    Tonic,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BareStream => "bare stream",
            Self::BareFrames => "bare frames",
            Self::Route => "route",
            Self::Stage => "stage",
            Self::Ask => "ask",
            Self::Local => "local",
            Self::Tonic => "tonic",
        }
    }
}

/// What one way did in one round.
pub(crate) struct Measured {
    requests: u64,
    took: Duration,
    /// In microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Of both ends, for each request.
    pub(crate) cpu: f64,
    /// How often a thread of either end gave way to another, for each request.
    pub(crate) switches: f64,
    /// Requests for each stream of ours that the node has answered; 0 where there was none.
    pub(crate) per_stream: f64,
}

impl Measured {
    pub(crate) fn per_second(&self) -> f64 {
        self.requests as f64 / self.took.as_secs_f64()
    }
}

/// All of them, connected.
pub(crate) struct Ways {
    bare: Arc<Bare>,
    ours: Arc<Ours>,
    tonic: Tonic,
}

impl Ways {
    /// Servers on `there`, callers where this runs.
    pub(crate) async fn start(there: &Handle) -> Self {
        let directory = std::env::temp_dir().join(format!("callboard-hop-{}", std::process::id()));
        let identity = Identity::development_in(&directory.join("development")).unwrap();
        let ways = Self {
            bare: Arc::new(Bare::start(there, &identity).await),
            ours: Arc::new(Ours::start(there, &identity).await),
            tonic: Tonic::start(there).await,
        };
        std::fs::remove_dir_all(directory).unwrap();
        ways
    }

    pub(crate) async fn load(&self, way: Way, bytes: usize, callers: usize, duration: Duration) -> Measured {
        let (cpu, switched, streams) = (cpu_time(), switches(), self.ours.streams());
        let began = now();
        let until = began + duration;
        let payload = Bytes::from(vec![7_u8; bytes]);
        let callers: Vec<_> = (0..callers)
            .map(|_| {
                let (bare, ours, mut tonic) = (Arc::clone(&self.bare), Arc::clone(&self.ours), self.tonic.clone());
                let payload = payload.clone();
                tokio::spawn(async move {
                    let value = Value::from(payload.clone());
                    // A row of numbers: tables of 64 callers would take the caches.
                    let mut latencies: Vec<u32> = Vec::with_capacity(4096);
                    loop {
                        let asked = now();
                        if asked > until {
                            return latencies;
                        }
                        match way {
                            Way::BareStream => assert_eq!(bare.stream(payload.clone()).await, bytes),
                            Way::BareFrames => assert_eq!(bare.frame(payload.clone()).await, bytes),
                            Way::Route => ours.route(&value).await,
                            Way::Stage => ours.stage(&value).await,
                            Way::Ask => ours.ask(&value).await,
                            Way::Local => ours.local(&value).await,
                            Way::Tonic => assert_eq!(tonic.call(payload.clone()).await, bytes),
                        }
                        latencies.push(u32::try_from(asked.elapsed().as_nanos()).unwrap_or(u32::MAX));
                    }
                })
            })
            .collect();
        let mut all = Vec::new();
        for caller in callers {
            all.extend(caller.await.unwrap());
        }
        let requests = all.len() as f64;
        let (took, cpu) = (began.elapsed(), (cpu_time() - cpu).as_secs_f64() * 1e6 / requests);
        let switches = switches().saturating_sub(switched) as f64 / requests;
        let per_stream = match self.ours.streams() - streams {
            0 => 0.0,
            streams => requests / streams as f64,
        };
        all.sort_unstable();
        let micros = |quantile: f64| f64::from(all[((all.len() - 1) as f64 * quantile) as usize]) / 1e3;
        Measured { requests: all.len() as u64, took, p50: micros(0.5), p99: micros(0.99), cpu, switches, per_stream }
    }

    /// How long after a caller has left its worker on the peer knows.
    pub(crate) async fn cancelled_after(&self, cancels: usize) -> Vec<Duration> {
        let mut after = Vec::with_capacity(cancels);
        for _ in 0..cancels {
            after.push(self.ours.cancel().await);
        }
        after
    }
}
