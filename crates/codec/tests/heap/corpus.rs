//! Replays every stored input (made by hand, by other software or by a fuzzer) through the properties of every decoder.

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fuzz::TARGETS;
use crate::heap;
use crate::mutate::{Random, mutate};

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

/// Panics so far, also caught ones: a panic of a dependency is caught, but is a defect.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(info);
    }));
}

/// Each decoder gets every input, its own and those of the other decoders.
#[test]
fn every_decoder_withstands_every_input() {
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
                // The panic names the property; this names the input.
                let outcome = panic::catch_unwind(|| run(&input));
                assert!(outcome.is_ok(), "{name} panicked on {}", file.display());
                assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a caught panic in {name}, on {}", file.display());
            }
        }
    }
}

/// Seeds that are all refused at the first byte would test nothing.
#[test]
fn every_decoder_has_seeds_that_it_accepts() {
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

/// A small fuzzer without another toolchain: changes inputs of the corpus at random, and makes them longer than a
/// fuzzer would. `CALLBOARD_MUTATIONS` sets the count, `CALLBOARD_SEED` repeats a run.
#[test]
fn no_mutated_input_takes_more_heap_than_it_is_charged() {
    let _turn = heap::turn();
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed =
        number("CALLBOARD_SEED").unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |age| age.as_secs()));
    let runs = number("CALLBOARD_MUTATIONS").unwrap_or(300);
    println!("CALLBOARD_SEED={seed}");
    let corpus: Vec<Vec<u8>> = files(&root().join("../../fuzz/seeds/budget"))
        .iter()
        .map(|file| fs::read(file).expect("can be read"))
        .collect();
    let (_, run) = TARGETS.into_iter().find(|(name, _)| *name == "budget").expect("is a target");
    let mut random = Random::new(seed);
    for number in 0..runs {
        let mut input = corpus[random.below(corpus.len())].clone();
        (0..=random.below(4)).for_each(|_| mutate(&mut input, &mut random, MAX_MUTATED_BYTES));
        let outcome = panic::catch_unwind(|| run(&input));
        if outcome.is_err() {
            let path = std::env::temp_dir().join(format!("callboard-budget-{seed}-{number}"));
            fs::write(&path, &input).expect("can be written");
            panic!("mutation {number} of seed {seed} is kept at {}", path.display());
        }
    }
}

/// The longest generated input.
const MAX_MUTATED_BYTES: usize = 1 << 18;

/// Targets of other crates, whose own tests replay their seeds.
const OTHERS: [&str; 7] = ["oip", "gossip", "removals", "grpc", "relay", "openai", "mcp"];

/// The list of targets, the fuzz crate and the seed directories agree.
#[test]
fn every_decoder_has_its_fuzz_target() {
    let _turn = heap::turn();
    let manifest = fs::read_to_string(root().join("../../fuzz/Cargo.toml")).expect("the fuzz crate");
    let declared: Vec<&str> =
        manifest.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')).skip(1).collect();
    let ours: Vec<&str> = declared.into_iter().filter(|name| !OTHERS.contains(name)).collect();
    assert_eq!(ours, TARGETS.map(|(name, _)| name));
}
