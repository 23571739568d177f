//! Reloads files that change, such as certificates and keys.
//!
//! Files are read periodically and compared by content, so that exchanged links, as Kubernetes uses, are seen as well.
//! The same error **twice** is reported once. Drop the watch with its listener.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;

/// The content of a file of at most this length. A longer file was named by mistake.
pub(crate) fn read_bounded(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    // A pipe or a device may never end.
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

/// Reads forever and hands new content to `take`. `print` identifies a reading, also a failed one. All three run on a
/// blocking thread.
pub(crate) async fn watch<R: 'static>(
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
    // The content of the start may be old: the first look comes at once.
    let mut seen = None;
    loop {
        let look = Arc::clone(&look);
        match spawn_blocking(move || look(seen)).await {
            Ok(new) => seen = Some(new),
            Err(panic) if panic.is_panic() => tracing::error!("a watched file could not be read, its reload panicked"),
            // Without blocking tasks the runtime is ending.
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
