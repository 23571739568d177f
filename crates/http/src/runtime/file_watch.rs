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
    let check = Arc::new(move |last_print: Option<u64>| {
        let new = read();
        let new_print = print(&new);
        if last_print != Some(new_print) {
            take(new);
        }
        new_print
    });
    // The content may have changed since the start, so the first check runs at once.
    let mut last_print = None;
    loop {
        let check = Arc::clone(&check);
        match spawn_blocking(move || check(last_print)).await {
            Ok(new) => last_print = Some(new),
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
    async fn the_watch_continues_after_a_panic() {
        let (count, (sender, mut receiver)) = (AtomicU64::new(0), tokio::sync::mpsc::channel(1));
        let read = move || count.fetch_add(1, Ordering::Relaxed);
        let take = move |reading| {
            assert_ne!(reading, 0, "the first reading panics");
            let _ = sender.blocking_send(reading);
        };
        tokio::spawn(watch(Duration::from_millis(1), read, |reading| *reading, take));
        assert_eq!(receiver.recv().await, Some(1));
    }
}
