//! Members whose clock differs from the authority's, or is set while they serve, and members whose directory has a new
//! identity by the time of renewal.

use std::time::{Duration, Instant};

use callboard_net::testing::{ahead, with_own_clock};
use callboard_net::{Identity, JoinError, QuicEdge, Role, join};

use crate::common::{self, LONG, patient, until};
use crate::lab::{Lab, builder, serve, shout, total, url, word};

/// Three quarters of a life ahead: each new certificate is due for renewal at once, with a quarter left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_clock_is_ahead_is_renewed_seldom_and_without_effect_on_calls() {
    let lab = Lab::start("ahead").await;
    let life = Duration::from_secs(200);
    let brief = lab.token(|spec| spec.certificate_life = life);
    let joined = lab.join(&brief, "left").await.unwrap();
    let started = Instant::now();
    let (edge, _node) = serve(ahead(&joined, life.mul_f64(0.75))).await;
    let desk = lab.member(Role::Client, "desk").await;
    let calling = builder(&desk).connect(&url(&edge)).await.unwrap();
    // The member also calls: its own connections end by its own clock.
    let called = builder(&ahead(&joined, life.mul_f64(0.75))).connect(&url(&lab.edge)).await.unwrap();
    let mut calls = 0;
    let renewing = async {
        while total(&edge, "certificate_renewals") < 2 {
            assert_eq!((shout(&calling).await, shout(&called).await), ("A".to_owned(), "A".to_owned()));
            calls += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, renewing).await.expect("two renewals happen");
    assert!(calls > 10, "{calls}");
    // One at once, and then one per twentieth of a lifetime, by both renewers at most.
    let most = 2 * (2 + started.elapsed().as_secs() / (life.as_secs() / 20));
    let renewed = total(&lab.edge, "members_renewed");
    assert!((2..=most).contains(&renewed), "{renewed} renewals, and {most} suffice");
    assert_eq!(total(&edge, "certificate_renewals_failed"), 0);
}

/// The process keeps its member identity, and does not overwrite the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_with_a_replaced_identity_directory_keeps_its_identity_and_writes_nothing() {
    let lab = Lab::start("elsewhere").await;
    let brief = lab.token(|spec| {
        spec.uses = 2;
        spec.certificate_life = Duration::from_secs(200);
    });
    let directory = lab.directory.join("member");
    let url = lab.url();
    let joined = join(&brief, &url, &directory, Some("left")).await.unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    join(&lab.token(|_| {}), &url, &directory, Some("right")).await.unwrap();
    let due = ahead(&joined, Duration::from_secs(150));
    let edge = QuicEdge::bind(common::loopback(), due, patient()).unwrap();
    until(|| total(&edge, "certificate_renewals_failed") > 0).await;
    assert_eq!((joined.name().as_str(), total(&edge, "certificate_renewals")), ("left", 0));
    assert_eq!(Identity::open(&directory).unwrap().name(), "right");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joining_replaces_an_expired_identity_but_not_a_valid_one() {
    let lab = Lab::start("again").await;
    let token = lab.token(|spec| spec.uses = 2);
    let brief = lab.token(|spec| spec.certificate_life = Duration::from_secs(6));
    let directory = lab.directory.join("member");
    let first = join(&brief, &lab.url(), &directory, Some("left")).await.unwrap();
    let error = join(&token, &lab.url(), &directory, Some("right")).await.unwrap_err();
    if !first.time_left().is_zero() {
        let message = error.to_string();
        assert!(message.contains("the identity of left in lab-") && message.contains("still valid"), "{message}");
        assert_eq!(lab.names(), ["left"], "nothing was asked for");
    }
    until(|| first.time_left().is_zero()).await;
    let error = Identity::open(&directory).unwrap_err();
    assert!(error.to_string().contains("has expired"), "{error}");
    assert_eq!(join(&token, &lab.url(), &directory, Some("right")).await.unwrap().name(), "right");
    let error = join(&token, &lab.url(), &lab.directory.join("authority"), None).await.unwrap_err();
    assert!(matches!(error, JoinError::Identity(_)) && error.to_string().contains("is there already"), "{error}");
}

const HOUR: i64 = 3_600;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_by_an_hour_under_a_member_renews_it_early_and_ends_no_call() {
    let lab = Lab::start("clock").await;
    let token = lab.token(|spec| spec.certificate_life = Duration::from_secs(80 * 60));
    let (member, set) = with_own_clock(&lab.join(&token, "left").await.unwrap());
    let (edge, _node) = serve(member.clone()).await;
    let desk = lab.member(Role::Client, "desk").await;
    let calling = builder(&desk).connect(&url(&edge)).await.unwrap();
    let called = builder(&member).connect(&url(&lab.edge)).await.unwrap();
    let both = async || assert_eq!((shout(&calling).await, shout(&called).await), ("A".to_owned(), "A".to_owned()));
    both().await;

    set(HOUR);
    // The edge and the client of the member each renew it once, one after the other, and pause for minutes then.
    until(|| total(&edge, "certificate_renewals") == 2).await;
    both().await;
    // Back to the right time, and further: no renewal is due then, and what is open stays.
    for ahead in [0, -HOUR] {
        set(ahead);
        both().await;
    }
    assert_eq!(total(&lab.edge, "members_renewed"), 2);
    assert_eq!(total(&edge, "certificate_renewals_failed"), 0);
    // All certificates of the others are of the future for it.
    let error = builder(&member).connect(&url(&lab.edge)).await.unwrap_err();
    assert!(error.to_string().contains("not valid yet"), "{error}");
    set(0);
    let again = builder(&member).connect(&url(&lab.edge)).await.unwrap();
    assert_eq!(shout(&again).await, "A");
    both().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_by_an_hour_under_an_authority_spends_no_token_and_ends_no_call() {
    let lab = Lab::start("clock-of-authority").await;
    let (authority, set) = with_own_clock(&Identity::open(&lab.directory.join("authority")).unwrap());
    let (edge, _node) = serve(authority).await;
    let token = lab.token(|spec| spec.expires_in = Duration::from_secs(30 * 60));
    let desk = lab.member(Role::Client, "desk").await;
    let calling = builder(&desk).connect(&url(&edge)).await.unwrap();
    let join_it =
        async |name: &str| join(&token, &url(&edge).parse().unwrap(), &lab.directory.join(name), Some(name)).await;

    set(HOUR);
    let error = join_it("left").await.unwrap_err();
    assert_eq!(word(&error), "expired_token", "{error}");
    assert_eq!(shout(&calling).await, "A");
    // Its own clock is behind: the token is of its past, and the certificate of the client of its future.
    set(-HOUR);
    assert_eq!(shout(&calling).await, "A");
    let error = builder(&desk).connect(&url(&edge)).await.unwrap_err();
    assert!(error.to_string().contains("not valid yet"), "{error}");
    set(0);
    assert_eq!(join_it("left").await.unwrap().name(), "left");
    assert_eq!(shout(&builder(&desk).connect(&url(&edge)).await.unwrap()).await, "A");
}
