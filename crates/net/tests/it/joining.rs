//! Joining under load, and into unusable directories.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use callboard_net::testing::RawJoiner;
use callboard_net::{QuicEdge, Role, join};
use futures_util::future::join_all;

use crate::common::{self, patient, until};
use crate::lab::{Lab, builder, shout, total, url, word};

/// A rollout: three times as many join requests as are handled at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_join_requests_all_succeed() {
    let lab = Lab::start("rollout").await;
    let token = lab.token(|spec| spec.uses = 24);
    let names: Vec<String> = (0..24).map(|number| format!("node-{number:02}")).collect();
    let joined = join_all(names.iter().map(|name| lab.join(&token, name))).await;
    assert!(joined.iter().all(Result::is_ok), "{joined:?}");
    assert_eq!(lab.names(), names);
    assert_eq!((total(&lab.edge, "members_joined"), lab.counted("busy")), (24, 0));
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unusable_directory_costs_no_use_of_a_token() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let lab = Lab::start("directories").await;
    let token = lab.token(|_| {});
    let of = |name: &str| lab.directory.join(name);
    std::fs::create_dir(of("open")).unwrap();
    std::fs::set_permissions(of("open"), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(of("file"), "").unwrap();
    symlink(of("authority"), of("link")).unwrap();
    std::fs::create_dir(of("damaged")).unwrap();
    std::fs::set_permissions(of("damaged"), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(of("damaged/identity.pem"), "").unwrap();
    std::fs::set_permissions(of("damaged/identity.pem"), PermissionsExt::from_mode(0o600)).unwrap();
    let wrong: [(PathBuf, &str); 5] = [
        (of("open"), "lets others write to it"),
        (of("file"), "cannot read or write"),
        (of("file/below"), "cannot read or write"),
        (of("link/"), "is there already"),
        (of("damaged"), "is damaged"),
    ];
    for (directory, reason) in wrong {
        let error = join(&token, &lab.url(), &directory, Some("left")).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{directory:?}: {error}");
    }
    assert_eq!(lab.names(), Vec::<String>::new());
    let joined = join(&token, &lab.url(), &of("good/deep"), Some("left")).await.unwrap();
    assert_eq!(joined.name(), "left");
    // New directories are removed, and existing ones are unchanged.
    let error = join(&token, &lab.url(), &of("in-vain"), Some("right")).await.unwrap_err();
    assert_eq!(word(&error), "used_up_token");
    assert!(!of("in-vain").exists());
    let error = join(&token, &lab.url(), &of("open"), Some("right")).await.unwrap_err();
    assert!(of("open").exists(), "{error}");
}

/// Real addresses with real handshakes, as many as are accepted, which send nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_at_real_addresses_block_neither_joins_nor_renewals() {
    let mut config = patient();
    (config.tuning.max_half_open, config.tuning.max_half_open_per_address) = (64, 8);
    let lab = Lab::start_with("strangers", config).await;
    let token = lab.token(|spec| spec.uses = 9);
    let mut strangers = Vec::new();
    for last in 1..=4 {
        let from = IpAddr::from(Ipv4Addr::new(127, 9, 1, last));
        match RawJoiner::many_from(from, lab.edge.address(), &token).await {
            Some(let_in) => strangers.extend(let_in),
            None => {
                println!("skipped: this system has one address on loopback only");
                return;
            }
        }
    }
    // Up to a quarter of the limit without address validation, and the share of each address.
    assert_eq!(strangers.len(), 17 + 4 * 8);
    assert_eq!(lab.counted("too_many"), 4);
    let desk = lab.member(Role::Client, "desk").await;
    assert_eq!(shout(&builder(&desk).connect(&url(&lab.edge)).await.unwrap()).await, "A");
    let brief = lab.token(|spec| spec.certificate_life = std::time::Duration::from_secs(3));
    let member = lab.join(&brief, "left").await.unwrap();
    let _edge = QuicEdge::bind(common::loopback(), member, patient()).unwrap();
    until(|| total(&lab.edge, "members_renewed") > 0).await;
    // None of the strangers is a member.
    until(|| lab.edge.connections() == 0).await;
    drop(strangers);
}
