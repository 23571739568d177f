//! The response cache of a pure stage: equal inputs run once, callers of different keys share nothing, errors are not
//! kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::{App, CacheSettings, CallOptions, ErrorKind, Failure, Node, Priority, Stage};
use futures_util::future::join_all;
use tokio::sync::Semaphore;

const MIB: u64 = 1 << 20;

/// A stage that doubles, counts its runs, and begins a run when it gets a permit.
struct Doubler {
    runs: Arc<AtomicUsize>,
    begun: Arc<Semaphore>,
    may_end: Arc<Semaphore>,
}

impl Doubler {
    async fn start(cache: CacheSettings) -> (Self, Node) {
        let this =
            Self { runs: Arc::default(), begun: Arc::new(Semaphore::new(0)), may_end: Arc::new(Semaphore::new(0)) };
        let (runs, begun, may_end) = (Arc::clone(&this.runs), Arc::clone(&this.begun), Arc::clone(&this.may_end));
        let double = Stage::each_async("double", move |number: Arc<u64>| {
            let (begun, may_end) = (Arc::clone(&begun), Arc::clone(&may_end));
            runs.fetch_add(1, Ordering::Relaxed);
            async move {
                begun.add_permits(1);
                may_end.acquire().await.unwrap().forget();
                if *number == 13 { Err(Failure::new("unlucky")) } else { Ok(*number * 2) }
            }
        });
        let node = App::new().route("/double", double.pure().cache(cache)).start().await.unwrap();
        (this, node)
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn an_equal_input_runs_once() {
    let (double, node) = Doubler::start(CacheSettings::new(MIB)).await;
    double.may_end.add_permits(3);
    for input in [1, 1, 2, 1, 2] {
        assert_eq!(node.client().call::<u64, u64>("/double", input).await.unwrap(), input * 2);
    }
    assert_eq!(double.runs(), 2);
    let metrics = node.handle().metrics();
    for line in [
        "callboard_stage_cache_total{stage=\"double\",result=\"hit\"} 3",
        "callboard_stage_cache_total{stage=\"double\",result=\"miss\"} 2",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    assert!(!metrics.contains("callboard_stage_cache_bytes{stage=\"double\"} 0"), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn equal_inputs_at_the_same_time_run_once_and_share_an_error_that_is_not_kept() {
    let (double, node) = Doubler::start(CacheSettings::new(MIB)).await;
    for (input, expected) in [(4, Ok(8)), (13, Err(ErrorKind::Failed))] {
        let before = double.runs();
        let client = node.client();
        let calls = (0..8).map(|_| client.call::<u64, u64>("/double", input));
        let may_end = async {
            double.begun.acquire().await.unwrap().forget();
            double.may_end.add_permits(1);
        };
        let (outcomes, ()) = tokio::join!(join_all(calls), may_end);
        for outcome in outcomes {
            assert_eq!(outcome.map_err(|error| error.kind()), expected);
        }
        assert_eq!(double.runs(), before + 1);
    }
    double.may_end.add_permits(1);
    assert!(node.client().call::<u64, u64>("/double", 13).await.is_err());
    assert_eq!(double.runs(), 3, "an error is not kept");
}

#[tokio::test(start_paused = true)]
async fn a_call_does_not_wait_for_an_equal_one_of_lower_priority() {
    let (runs, may_end) = (Arc::new(std::sync::Mutex::new(Vec::new())), Arc::new(Semaphore::new(0)));
    let (begun, end) = (Arc::clone(&runs), Arc::clone(&may_end));
    let stage = Stage::each_async("double", move |number: Arc<u64>| {
        begun.lock().unwrap().push(*number);
        let end = Arc::clone(&end);
        async move {
            end.acquire().await.unwrap().forget();
            Ok(*number * 2)
        }
    });
    let stage = stage.concurrency(1).pure().cache(CacheSettings::new(MIB));
    let node = App::new().route("/double", stage).start().await.unwrap();
    let client = node.client();
    let call = async |input: u64, priority: Priority| {
        let options = CallOptions::new().with_priority(priority);
        client.call_with::<u64, u64>("/double", input, options).await.unwrap()
    };
    // 1 runs. Then 2 and 7 wait at low priority, and 7 comes at high priority, twice.
    let later = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let waiting = [(2, Priority::Low), (7, Priority::Low), (7, Priority::High), (7, Priority::High)];
        join_all(waiting.map(|(input, priority)| call(input, priority))).await
    };
    let ends = async {
        tokio::time::sleep(Duration::from_millis(2)).await;
        may_end.add_permits(9);
    };
    let (first, answers, ()) = tokio::join!(call(1, Priority::Low), later, ends);
    assert_eq!((first, answers), (2, vec![4, 14, 14, 14]));
    assert_eq!(*runs.lock().unwrap(), [1, 7, 2, 7], "the high call runs by itself, once");
    // Its answer is kept for all priorities.
    for priority in Priority::ALL {
        assert_eq!(call(7, priority).await, 14);
    }
    assert_eq!(runs.lock().unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn when_the_call_that_runs_is_cancelled_another_runs() {
    let (double, node) = Doubler::start(CacheSettings::new(MIB)).await;
    let call = |client: callboard_core::LocalClient| async move { client.call::<u64, u64>("/double", 5).await };
    let first = tokio::spawn(call(node.client()));
    double.begun.acquire().await.unwrap().forget();
    let second = tokio::spawn(call(node.client()));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(double.runs(), 1);
    first.abort();
    double.begun.acquire().await.unwrap().forget();
    double.may_end.add_permits(1);
    assert_eq!(second.await.unwrap().unwrap(), 10);
    assert_eq!(double.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn calls_with_different_attributes_share_no_answer() {
    let settings = CacheSettings::new(MIB).shared();
    let (double, node) = Doubler::start(settings).await;
    double.may_end.add_permits(9);
    let calls = [
        CallOptions::new(),
        CallOptions::new().with_query("lang", "en"),
        CallOptions::new().with_query("lang", "fr"),
        CallOptions::new().with_header("lang", "fr"),
        CallOptions::new().with_tag("lang", "fr"),
        CallOptions::new().with_path("/fr"),
        CallOptions::new().with_method("GET"),
    ];
    for (address, calls) in [("10.0.0.7", &calls), ("10.0.0.8", &calls)] {
        for options in calls {
            let options = options.clone().with_client_address(address);
            node.client().call_with::<u64, u64>("/double", 5, options).await.unwrap();
        }
    }
    assert_eq!(double.runs(), calls.len(), "the addresses of clients are none of them");
}

/// Values of any type cannot be compared.
#[tokio::test(start_paused = true)]
async fn a_call_with_extensions_gets_no_answer_of_another_call() {
    let (double, node) = Doubler::start(CacheSettings::new(MIB).shared()).await;
    double.may_end.add_permits(9);
    let with_extension = CallOptions::new().with_extension("acme");
    for options in [CallOptions::new(), with_extension.clone(), with_extension, CallOptions::new()] {
        node.client().call_with::<u64, u64>("/double", 5, options).await.unwrap();
    }
    assert_eq!(double.runs(), 3);
}

#[tokio::test(start_paused = true)]
async fn callers_with_different_keys_share_nothing_unless_told() {
    for (settings, expected) in [(CacheSettings::new(MIB), 3), (CacheSettings::new(MIB).shared(), 1)] {
        let (double, node) = Doubler::start(settings).await;
        double.may_end.add_permits(8);
        for caller in [None, Some("ada"), Some("bob"), Some("ada"), None] {
            let options = CallOptions::new();
            let options = match caller {
                Some(caller) => options.with_caller(caller),
                None => options,
            };
            let answer: u64 = node.client().call_with("/double", 6_u64, options).await.unwrap();
            assert_eq!(answer, 12);
        }
        assert_eq!(double.runs(), expected);
    }
}

// On real time: on a busy machine the watchdog moves the stage to a thread, and a paused clock does not wait for
// threads.
#[tokio::test]
async fn an_answer_larger_than_an_eighth_is_not_kept_and_evicts_nothing() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let repeat = Stage::each("repeat", move |length: &u64| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok("x".repeat(*length as usize))
    });
    let app = App::new().route("/repeat", repeat.pure().cache(CacheSettings::new(64 * 1024)));
    let node = app.start().await.unwrap();
    for length in [100, 9_000, 9_000, 100] {
        let answer: String = node.client().call("/repeat", length).await.unwrap();
        assert_eq!(answer.len() as u64, length);
    }
    assert_eq!(runs.load(Ordering::Relaxed), 3);
    for length in 1_000..1_400 {
        let _: String = node.client().call("/repeat", length).await.unwrap();
    }
    let metrics = node.handle().metrics();
    let bytes = metrics.lines().find_map(|line| line.strip_prefix("callboard_stage_cache_bytes{stage=\"repeat\"} "));
    let bytes: u64 = bytes.unwrap().parse().unwrap();
    assert!((32 * 1024..=64 * 1024).contains(&bytes), "{bytes}");
}

// On real time: on a busy machine the watchdog moves the stage to a thread, and a paused clock does not wait for
// threads.
#[tokio::test]
async fn only_a_pure_stage_keeps_answers() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let count = Stage::each("count", move |_: &u64| Ok(counted.fetch_add(1, Ordering::Relaxed) as u64));
    let node = App::new().route("/count", count.idempotent().cache(CacheSettings::new(MIB))).start().await.unwrap();
    for expected in 0..3 {
        assert_eq!(node.client().call::<u64, u64>("/count", 0).await.unwrap(), expected);
    }
}
