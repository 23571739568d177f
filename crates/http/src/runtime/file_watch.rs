//! Files that are read again when they change, such as certificates and keys.
//!
//! They are looked at now and then and compared by content, so that links which are exchanged, as Kubernetes does, are seen as
//! well. What is wrong **twice** is told once. Whoever watches is **dropped** with the listener that it is for.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;

/// The content of a file. One that is longer was named by mistake.
pub(crate) fn read_bounded(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    // Of a pipe or device nobody knows whether anything ever comes.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut content = Vec::new();
    File::open(path)?.take(most_bytes + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most_bytes {
        return Err(io::Error::other(format!("it has more than {most_bytes} bytes")));
    }
    Ok(content)
}

/// Reads for ever, and gives what is new to `take`. `print` tells one reading from another, failed ones included. All three run on a
/// thread that may take its time over a large file.
pub(crate) async fn keep_fresh<R: 'static>(
    interval: Duration,
    read: impl Fn() -> R + Send + Sync + 'static,
    print: impl Fn(&R) -> u64 + Send + Sync + 'static,
    take: impl Fn(R) + Send + Sync + 'static,
) {
    let look = Arc::new(move |seen: Option<u64>| {
        let new = read();
        let new_print = print(&new);
        if seen != Some(new_print) {
            take(new);
        }
        new_print
    });
    // What was read at the start may be old by now: the first look is for that.
    let mut seen = None;
    loop {
        let look = Arc::clone(&look);
        match spawn_blocking(move || look(seen)).await {
            Ok(new) => seen = Some(new),
            Err(panic) if panic.is_panic() => tracing::error!("a file that is looked at again and again was not taken"),
            // A blocking task that cannot be had is a runtime that ends.
            Err(_) => return,
        }
        tokio::time::sleep(interval).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_reading_that_panics_is_not_the_last() {
        let (readings, (taken, mut takes)) = (AtomicU64::new(0), tokio::sync::mpsc::channel(1));
        let read = move || readings.fetch_add(1, Ordering::Relaxed);
        let take = move |reading| {
            assert_ne!(reading, 0, "the first one is not to be taken");
            let _ = taken.blocking_send(reading);
        };
        tokio::spawn(watch(Duration::from_millis(1), read, |reading| *reading, take));
        assert_eq!(takes.recv().await, Some(1));
    }
}
