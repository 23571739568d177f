//! Trouble of members, in real processes: seeds of another cluster, a member that starts again all the time.

use crate::nodes::{Identities, Member, file_with, under_load};

const ANY: &str = "127.0.0.1:0";

#[test]
fn a_seed_of_another_cluster_is_named_in_the_log_and_the_node_goes_on_with_the_others() {
    let (ours, theirs) = (Identities::cluster(&["second"]), Identities::cluster(&["other"]));
    let start = |identities: &Identities, name: &str, local: &[&str], remote: &[&str], join: &[&str]| {
        Member::start(identities.command(name, &file_with(local, remote), ANY, join))
    };
    let stranger = start(&theirs, "authority", &["second"], &[], &[]);
    let seed = start(&ours, "authority", &["first"], &["second"], &[]);
    let mut second = start(&ours, "second", &["second"], &["first"], &[&stranger.quic, &seed.quic]);
    second.server.wait_until_printed(&format!(
        "a peer cannot be connected, and waiting does not help: unknown_authority: the certificate is not of this \
         cluster's authority: join the cluster (`callboard cluster join`) and name that identity (`--cluster DIR`); \
         without one, be the same user on the same machine peer={}",
        stranger.quic
    ));
    [&seed, &second].iter().for_each(|node| node.http.wait_for_members(1));
    second.http.wait_for_stage("first");
    seed.http.wait_for_stage("second");
    // The stranger knows nobody, and has run nothing for them.
    stranger.http.wait_for_members(0);
    assert_eq!(stranger.http.metric("callboard_net_streams_total"), 0);
    let warned = second.server.stderr_lines.iter().filter(|line| line.contains("waiting does not help")).count();
    assert_eq!(warned, 1, "{:#?}", second.server.stderr_lines);
}

/// As a process that dies soon after each of its starts, and has a supervisor.
#[test]
fn a_member_that_is_killed_ten_times_in_a_row_costs_no_call_and_no_other_member() {
    let identities = Identities::cluster(&["restless", "gateway"]);
    let start = |name: &str, quic: &str, join: &[&str]| {
        let (local, remote): (&[&str], &[&str]) =
            if name == "gateway" { (&[], &["shared"]) } else { (&["shared"], &[]) };
        Member::start(identities.command(name, &file_with(local, remote), quic, join))
    };
    let seed = start("authority", ANY, &[]);
    let join = seed.quic.clone();
    let mut restless = start("restless", ANY, &[&join]);
    let gateway = start("gateway", ANY, &[&join]);
    gateway.http.wait_for_members(2);
    gateway.http.wait_for_stage("shared");
    under_load(&gateway, "shared", |calls| {
        for _ in 0..10 {
            calls.wait_for_more();
            restless.server.signal("KILL");
            assert_eq!(restless.server.wait(), None);
            restless = start("restless", &restless.quic.clone(), &[&join]);
        }
        [&seed, &restless, &gateway].iter().for_each(|node| node.http.wait_for_members(2));
    });
    // One name is one member, however often it has started, and nobody has called the others down.
    for node in [&seed, &gateway] {
        assert!(node.http.metric("callboard_net_members_down_total") <= 10);
        assert_eq!(node.http.metric("callboard_net_peer_name_conflicts_total"), 0);
    }
}
