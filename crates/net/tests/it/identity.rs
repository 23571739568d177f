//! Authentication: the development authority, and callers without its certificate.

use std::fs;

use callboard_core::{App, Caller, Stage};
use callboard_net::testing::presenting;
use callboard_net::{BindError, ConnectError, Identity, IdentityError, NetConfig, QuicEdge};

use crate::common::{self, IDENTITY, ServingNode, builder, until};

fn app() -> App {
    App::new().route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase())))
}

#[test]
fn an_authority_is_created_once_and_reopened() {
    let directory = common::directory("found-again");
    let made: Vec<_> = std::thread::scope(|scope| {
        let making: Vec<_> = (0..8).map(|_| scope.spawn(|| Identity::development_in(&directory).unwrap())).collect();
        making.into_iter().map(|made| made.join().unwrap().cluster().to_owned()).collect()
    });
    assert!(made.iter().all(|cluster| *cluster == made[0]), "{made:?}");
    assert_eq!(Identity::development_in(&directory).unwrap().cluster(), made[0]);
    assert_ne!(common::identity("another").cluster(), made[0]);
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_the_key() {
    use std::os::unix::fs::PermissionsExt;
    let directory = common::directory("private");
    Identity::development_in(&directory).unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    assert_eq!(mode(&directory.join("authority.key")), 0o600);
}

/// A backup restored with other file modes, or a key written by another user.
#[cfg(unix)]
#[test]
fn a_key_that_others_can_use_is_refused() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let directory = common::directory("exposed");
    Identity::development_in(&directory).unwrap();
    let key = directory.join("authority.key");
    let refused = || {
        let error = Identity::development_in(&directory).unwrap_err();
        assert!(matches!(error, IdentityError::Exposed { .. }), "{error:?}");
        assert!(error.to_string().contains("remove"), "{error}");
    };
    for (path, open, closed) in [(&key, 0o644, 0o600), (&directory, 0o770, 0o700)] {
        fs::set_permissions(path, fs::Permissions::from_mode(open)).unwrap();
        refused();
        fs::set_permissions(path, fs::Permissions::from_mode(closed)).unwrap();
        Identity::development_in(&directory).unwrap();
    }
    let moved = directory.with_extension("elsewhere");
    fs::rename(&key, &moved).unwrap();
    symlink(&moved, &key).unwrap();
    refused();
}

#[test]
fn the_error_of_a_damaged_authority_names_the_file_and_the_remedy() {
    let directory = common::directory("damaged");
    Identity::development_in(&directory).unwrap();
    fs::write(directory.join("authority.key"), "nonsense").unwrap();
    let error = Identity::development_in(&directory).unwrap_err();
    assert!(matches!(error, IdentityError::Damaged { .. }), "{error:?}");
    assert!(error.to_string().contains("authority.key") && error.to_string().contains("remove"), "{error}");
}

#[tokio::test]
async fn the_development_identity_is_refused_beyond_loopback() {
    let address = "0.0.0.0:0".parse().unwrap();
    let error = QuicEdge::bind(address, IDENTITY.clone(), NetConfig::default()).unwrap_err();
    assert!(matches!(error, BindError::Identity(IdentityError::LoopbackOnly { .. })), "{error:?}");
    let error = builder().connect("quic://192.0.2.1:4433").await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. } | ConnectError::Identity(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_another_authority_is_refused_and_counted_and_does_not_wait() {
    let served = ServingNode::start(app()).await;
    let stranger = builder().identity(common::identity("stranger"));
    let error = stranger.connect(&served.url()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let counted = |number: u32| {
        let line = format!("callboard_net_connections_refused_total{{reason=\"unknown_authority\"}} {number}\n");
        served.edge.metrics().contains(&line)
    };
    until(|| counted(1)).await;
    // A client that trusts the node, but is not trusted by it, learns this after its own handshake.
    let unknown = builder().identity(presenting(&IDENTITY, &common::identity("unknown")));
    let error = unknown.connect(&served.url()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    until(|| counted(2)).await;
    assert_eq!(served.client().await.call::<_, String>("/shout", "a".to_owned()).await.unwrap(), "A");
}
