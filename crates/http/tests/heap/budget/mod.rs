//! Arbitrary bodies of every media type through the whole edge, in process: admission, reading, a stage, and the
//! answer. Each call stays within the bytes that it is charged for.
//!
//! A fuzzer without another toolchain. It changes the inputs of `fuzz/seeds/budget` at random. `CALLBOARD_RUNS` sets
//! the number of inputs, `CALLBOARD_SEED` repeats a run, and `CALLBOARD_KEEP=DIRECTORY` writes there, for each form,
//! the input that came nearest to a bound.

mod input;
mod node;
mod sums;

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use self::input::{Coding, FORMS, Input};
use self::node::{Measured, Tested};
use crate::heap;
use crate::mutate::{Random, mutate};

/// The number of inputs of an ordinary test run.
const SHORT_RUN: u64 = 3000;

/// Most inputs are short, so that there are many of them.
const USUAL_BYTES: usize = 2048;

/// One in 64 inputs may be as long as [`MOST_BYTES`].
const LONG_ONE_OF: usize = 64;

const MOST_BYTES: usize = 1 << 18;

fn seeds() -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/budget");
    let mut files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

/// All panics so far, including panics that a dependency catches.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        previous(info);
    }));
}

/// Makes one call with an input, and fails the test if it exceeds a bound.
fn check(tested: &Tested, input: &Input, name: impl Fn() -> String) -> Measured {
    let panics = PANICS.load(Ordering::SeqCst);
    let measured = tested.call(input);
    let problem = measured.problem(|| tested.call(input));
    let panicked = PANICS.load(Ordering::SeqCst) > panics;
    if let Some(problem) = problem.or_else(|| panicked.then(|| "a panic".to_owned())) {
        let stored = std::env::temp_dir().join(format!("callboard-budget-{}", name().replace(['/', ' '], "-")));
        fs::write(&stored, input.bytes()).unwrap();
        panic!("{}: {problem}\n{input:?}\n{measured:?}\nstored at {}", name(), stored.display());
    }
    measured
}

#[test]
fn every_stored_input_stays_within_its_charge() {
    let _turn = heap::turn();
    count_panics();
    let tested = Tested::start();
    for (file, bytes) in seeds() {
        // As it was stored, possibly compressed.
        if let Some(input) = bytes.first().and_then(|first| Input::with_flags(&bytes, *first)) {
            check(&tested, &input, || file.file_name().unwrap().display().to_string());
        }
        // Also in pieces, as a Rust type, and compressed in each way.
        for flags in 0..=0x0f {
            let Some(input) = Input::with_flags(&bytes, flags << 4) else { continue };
            check(&tested, &input.packed(), || format!("{} with {flags:#x}", file.file_name().unwrap().display()));
        }
    }
}

/// Random runs find this form only in large chunks: a chunk and the parts copied out of it exist at the same time.
#[test]
fn a_form_in_large_chunks_stays_within_its_charge() {
    let _turn = heap::turn();
    let tested = Tested::start();
    let part =
        |n: usize| format!("--b\r\ncontent-disposition: form-data; name=\"{n}\"\r\n\r\n{}\r\n", "x".repeat(120_000));
    // The sizes of the chunks are derived from the bytes.
    for first in 0..64 {
        let parts: String = (first..first + 2).map(part).collect();
        let input = Input::with_flags(format!("\x07{parts}--b--").as_bytes(), input::IN_PIECES).unwrap();
        check(&tested, &input, || format!("a form that starts with {first}"));
    }
}

/// The path to a wrong field contains copies of its keys.
#[test]
fn a_long_wrong_key_stays_within_its_charge() {
    let _turn = heap::turn();
    let tested = Tested::start();
    for (escape, end) in [("", ""), ("\\u00e4", ""), ("", "\":1}"), ("\\n", "\":1}")] {
        for flags in 0..=0x0f {
            let text = format!("\x0a{{\"args{escape}{}{end}", "sg".repeat(100_000));
            let input = Input::with_flags(text.as_bytes(), flags << 4).unwrap();
            check(&tested, &input, || format!("a long key with {escape:?} and {end:?}"));
        }
    }
}

#[test]
fn some_stored_inputs_of_each_form_are_accepted() {
    let _turn = heap::turn();
    let tested = Tested::start();
    let mut accepted = [0; FORMS];
    for (_, bytes) in seeds() {
        let input = Input::with_flags(&bytes, 0).unwrap();
        accepted[input.form()] += usize::from(tested.call(&input).status == 200);
    }
    assert!(accepted.iter().all(|accepted| *accepted > 0), "{accepted:?}");
}

#[test]
fn every_mutated_input_stays_within_its_charge() {
    let _turn = heap::turn();
    count_panics();
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed =
        number("CALLBOARD_SEED").unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |age| age.as_secs()));
    let runs = number("CALLBOARD_RUNS").unwrap_or(SHORT_RUN);
    println!("CALLBOARD_SEED={seed} CALLBOARD_RUNS={runs}");
    let tested = Tested::start();
    let corpus: Vec<Vec<u8>> = seeds().into_iter().map(|(_, bytes)| bytes).filter(|bytes| !bytes.is_empty()).collect();
    let mut random = Random::new(seed);
    let (mut nearest, mut statuses) = (Nearest::default(), std::collections::BTreeMap::new());
    let start = std::time::Instant::now();
    for number in 0..runs {
        let input = change(&corpus, &mut random);
        let measured = check(&tested, &input, || format!("input {number} of CALLBOARD_SEED={seed}"));
        *statuses.entry(measured.status).or_insert(0_u64) += 1;
        nearest.note(&input, &measured);
    }
    let rate = runs as f64 / start.elapsed().as_secs_f64();
    println!("{runs} inputs, {rate:.0} a second; by status {statuses:?}");
    nearest.print(std::env::var_os("CALLBOARD_KEEP").map(PathBuf::from));
}

/// Derives an input from a stored one: changed, and compressed before or after the change.
fn change(corpus: &[Vec<u8>], random: &mut Random) -> Input {
    let max_bytes = if random.below(LONG_ONE_OF) == 0 { MOST_BYTES } else { USUAL_BYTES };
    let mut bytes = corpus[random.below(corpus.len())].clone();
    let changes = random.below(5);
    // A change after compression is mostly refused at once; a change before it gives another body.
    let is_packed_first = random.below(4) == 0;
    let flags = (random.below(16) << 4) as u8;
    if is_packed_first {
        bytes = Input::with_flags(&bytes, flags).unwrap().packed().bytes().to_vec();
    }
    (0..=changes).for_each(|_| mutate(&mut bytes, random, max_bytes));
    let input = Input::with_flags(&bytes, flags).unwrap();
    if is_packed_first || input.coding() == Coding::None { input } else { input.packed() }
}

/// How near the inputs came to their bounds, by form.
#[derive(Default)]
struct Nearest([[(f64, Vec<u8>); 3]; FORMS]);

impl Nearest {
    fn note(&mut self, input: &Input, measured: &Measured) {
        for (nearest, share) in self.0[input.form()].iter_mut().zip(measured.shares()) {
            if share > nearest.0 {
                *nearest = (share, input.bytes().to_vec());
            }
        }
    }

    fn print(&self, keep: Option<PathBuf>) {
        for (form, bounds) in self.0.iter().enumerate() {
            let shares = bounds.each_ref().map(|(share, _)| (share * 100.0).round() / 100.0);
            println!("{:>12}: of its bounds on heap, held, time {shares:?}", input::NAMES[form]);
            for (bound, (share, bytes)) in ["heap", "held", "time"].iter().zip(bounds) {
                if let Some(keep) = keep.as_ref().filter(|_| *share > 0.0) {
                    fs::write(keep.join(format!("{}-{bound}", input::NAMES[form])), bytes).unwrap();
                }
            }
        }
    }
}
