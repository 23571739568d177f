//! Replays every input that is kept, whether made by hand, by other software or by a fuzzer, through every decoder's properties.

#![cfg(feature = "arrow")]

#[path = "common/fuzz.rs"]
mod fuzz;
#[path = "common/heap.rs"]
mod heap;

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use fuzz::TARGETS;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut found: Vec<_> =
        entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()).collect();
    found.sort();
    found
}

/// Panics so far, those included that are caught on their way: a dependency that panics is bridled, but not trusted.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(info);
    }));
}

/// Each decoder gets every input, its own and those of the others.
#[test]
fn every_decoder_bears_every_input() {
    let _turn = heap::turn();
    count_panics();
    let seeds = root().join("../../fuzz/seeds");
    let own = TARGETS.map(|(name, _)| seeds.join(name));
    let golden = ["arrow", "msgpack", "npy", "npz", "wire", ""].map(|name| root().join("tests/golden").join(name));
    for directory in own.iter().chain(&golden) {
        let files = files(directory);
        assert!(!files.is_empty(), "no input in {}", directory.display());
        for file in files {
            let input = fs::read(&file).expect("can be read");
            for (name, run) in TARGETS {
                // A panic says which property; this says which input.
                let outcome = panic::catch_unwind(|| run(&input));
                assert!(outcome.is_ok(), "{name} does not bear {}", file.display());
                assert_eq!(PANICS.load(Ordering::SeqCst), 0, "something in {name} panicked at {}", file.display());
            }
        }
    }
}

/// Seeds that are all refused at their first byte would test nothing.
#[test]
fn every_decoder_has_seeds_that_it_takes() {
    use callboard_codec::{DecodeLimits, Format, Value};
    let _turn = heap::turn();
    for (name, _) in TARGETS {
        let format = match name {
            "json" => Format::Json,
            "msgpack" => Format::Msgpack,
            "envelope" | "envelope_chunks" => Format::Envelope,
            "npy" => Format::Npy,
            "npz" => Format::Npz,
            "arrow_stream" => Format::ArrowStream,
            "arrow_file" => Format::ArrowFile,
            _ => continue,
        };
        let files = files(&root().join("../../fuzz/seeds").join(name));
        let taken = |file: &&PathBuf| {
            let input = fs::read(file).expect("can be read");
            Value::decode(format, &input.into(), &DecodeLimits::default()).is_ok()
        };
        assert!(files.iter().filter(taken).count() >= 2, "{name}");
    }
}

/// Targets of other crates, whose own tests replay their seeds.
const OTHERS: [&str; 1] = ["oip"];

/// The list of targets, the fuzz crate and the directories of seeds are the same.
#[test]
fn every_decoder_has_its_fuzz_target() {
    let manifest = fs::read_to_string(root().join("../../fuzz/Cargo.toml")).expect("the fuzz crate");
    let declared: Vec<&str> =
        manifest.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')).skip(1).collect();
    let ours: Vec<&str> = declared.into_iter().filter(|name| !OTHERS.contains(name)).collect();
    assert_eq!(ours, TARGETS.map(|(name, _)| name));
}
