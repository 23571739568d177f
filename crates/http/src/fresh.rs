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
        return Err(io::Error::other("it is no regular file"));
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
        // A blocking task that cannot be had is a runtime that ends.
        let Ok(new) = spawn_blocking(move || look(seen)).await else { return };
        seen = Some(new);
        tokio::time::sleep(interval).await;
    }
}
