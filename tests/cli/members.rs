//! Clusters of real processes: one name makes a cluster, its nodes may go and come back, and callers notice nothing.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::nodes::{Identities, Member, file_with, hold, under_load};
use crate::support::{failure, run};

const ANY: &str = "127.0.0.1:0";

/// The seed is killed under load; the others go on, and a fourth node joins through the second.
fn the_seed_may_go(identities: &Identities) {
    let start = |name, local: &[&str], remote: &[&str], join: &[&str]| {
        Member::start(identities.command(name, &file_with(local, remote), ANY, join))
    };
    let seed = start("authority", &["first", "shared"], &[], &[]);
    let second = start("second", &["second"], &["shared", "third"], &[&seed.quic]);
    let third = start("third", &["third", "shared"], &["second"], &[&seed.quic]);
    [&seed, &second, &third].iter().for_each(|node| node.http.wait_for_members(2));
    second.http.wait_for_stage("shared");
    under_load(&second, "shared", |calls| {
        calls.wait_for_more();
        seed.server.signal("KILL");
        second.http.wait_for_stage("third");
        third.http.wait_for_stage("second");
        [&second, &third].iter().for_each(|node| node.http.wait_for_members(1));
        let fourth = start("fourth", &["fourth"], &["second", "third"], &[&second.quic]);
        [&second, &third, &fourth].iter().for_each(|node| node.http.wait_for_members(2));
        ["second", "third"].iter().for_each(|stage| fourth.http.wait_for_stage(stage));
    });
}

#[test]
fn a_killed_seed_costs_no_call_and_the_others_take_new_nodes_in() {
    the_seed_may_go(&Identities::development());
}

#[test]
fn a_killed_seed_costs_no_call_in_a_cluster_with_an_authority() {
    the_seed_may_go(&Identities::cluster(&["second", "third", "fourth"]));
}

/// Ends each of three nodes in turn by a signal, under a load through a fourth one, and starts it again with the
/// command line of its first start; the first one names nobody. No call fails; returns how long their slowest and p99
/// took, and the p99 before.
fn each_of_three_ends(signal: &str, code: Option<i32>) -> [Duration; 3] {
    let identities = Identities::development();
    let start = |local: &[&str], remote: &[&str], quic: &str, join: &[&str]| {
        Member::start(identities.command("", &file_with(local, remote), quic, join))
    };
    let worker = |quic: &str, join: &[&str]| start(&["shared"], &[], quic, join);
    let seed = worker(ANY, &[]);
    let named = seed.quic.clone();
    let mut workers = [seed, worker(ANY, &[&named]), worker(ANY, &[&named])];
    let gateway = start(&[], &["shared"], ANY, &[&named]);
    gateway.http.wait_for_members(3);
    gateway.http.wait_for_stage("shared");
    let (mut seen, mut before) = (0, Duration::ZERO);
    let calls = under_load(&gateway, "shared", |calls| {
        (0..30).for_each(|_| calls.wait_for_more());
        before = calls.p99(&mut seen);
        for at in 0..workers.len() {
            calls.wait_for_more();
            let ending = &mut workers[at];
            ending.server.signal(signal);
            assert_eq!(ending.server.wait(), code, "{:#?}", ending.server.stderr_lines);
            calls.wait_for_more();
            let join: &[&str] = if at == 0 { &[] } else { &[&named] };
            *ending = worker(&ending.quic.clone(), join);
            workers.iter().chain([&gateway]).for_each(|node| node.http.wait_for_members(3));
        }
    });
    [calls.slowest(), calls.p99(&mut seen), before]
}

#[test]
fn three_nodes_are_restarted_in_turn_and_no_call_fails() {
    let [_, p99, before] = each_of_three_ends("TERM", Some(0));
    hold("rolling restart of three, p99, at most twice as before", p99, before * 2);
}

#[test]
fn any_of_three_nodes_may_be_killed_and_no_call_fails() {
    let [slowest, ..] = each_of_three_ends("KILL", None);
    hold("kill -9 of each of three, slowest call", slowest, Duration::from_millis(500));
}

/// A copied directory: the later one is used, and the earlier one again once that has gone.
#[test]
fn of_two_nodes_with_one_name_the_later_one_is_used_until_it_ends() {
    let identities = Identities::cluster(&["worker"]);
    let gateway = Member::start(identities.command("authority", &file_with(&["first"], &["shared"]), ANY, &[]));
    let worker = || Member::start(identities.command("worker", &file_with(&["shared"], &[]), ANY, &[&gateway.quic]));
    let mut earlier = worker();
    gateway.http.wait_for_members(1);
    gateway.http.wait_for_stage("shared");
    let later = worker();
    earlier.server.wait_for("a peer cannot be connected, and waiting does not help: ");
    assert!(earlier.http.metric("callboard_net_peer_name_conflicts_total") > 0);
    later.http.wait_for_members(1);
    gateway.http.wait_for_members(1);
    gateway.http.wait_for_stage("shared");
    drop(later);
    earlier.server.wait_for("connected to a peer");
    gateway.http.wait_for_stage("shared");
}

#[test]
fn a_name_without_an_address_is_a_warning_and_the_node_goes_on() {
    let identities = Identities::development();
    let nowhere = "nowhere.invalid:4433";
    let first = identities.command("", &file_with(&["first"], &["second"]), ANY, &[nowhere]);
    let mut first = Member::start(first);
    first.server.wait_until_printed("a named node has no address yet, and is resolved again");
    first.http.wait_for_stage("first");
    let second = identities.command("", &file_with(&["second"], &["first"]), ANY, &[nowhere, &first.quic]);
    let second = Member::start(second);
    first.http.wait_for_stage("second");
    second.http.wait_for_stage("first");
}

/// Forwards datagrams between a port of its own and a node, as an address translation does: each caller gets a port.
struct Translation {
    address: String,
    is_over: Arc<AtomicBool>,
}

impl Translation {
    /// Of a node that is going to listen at this address.
    fn of(node: &str) -> Self {
        let outside = UdpSocket::bind(ANY).unwrap();
        let (address, is_over) = (outside.local_addr().unwrap().to_string(), Arc::new(AtomicBool::new(false)));
        let (node, ended) = (node.to_owned(), Arc::clone(&is_over));
        thread::spawn(move || forward(&outside, &node, &ended));
        Self { address, is_over }
    }
}

impl Drop for Translation {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

fn forward(outside: &UdpSocket, node: &str, is_over: &Arc<AtomicBool>) {
    let (mut inside, mut packet) = (std::collections::HashMap::new(), vec![0; 65_536]);
    outside.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    while !is_over.load(Ordering::SeqCst) {
        let Ok((length, caller)) = outside.recv_from(&mut packet) else { continue };
        let socket = inside.entry(caller).or_insert_with(|| {
            let socket = Arc::new(UdpSocket::bind(ANY).unwrap());
            socket.connect(node).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let (answers, outside, ended) = (Arc::clone(&socket), outside.try_clone().unwrap(), Arc::clone(is_over));
            thread::spawn(move || {
                let mut packet = vec![0; 65_536];
                while !ended.load(Ordering::SeqCst) {
                    if let Ok(length) = answers.recv(&mut packet) {
                        let _ = outside.send_to(&packet[..length], caller);
                    }
                }
            });
            socket
        });
        let _ = socket.send(&packet[..length]);
    }
}

/// An address of loopback that nobody has now.
fn free_address() -> String {
    UdpSocket::bind(ANY).unwrap().local_addr().unwrap().to_string()
}

/// A third node, which knows the first one from the second only, calls it through the translation.
#[test]
fn a_node_is_reached_at_the_address_that_it_advertises() {
    let identities = Identities::development();
    let second = Member::start(identities.command("", &file_with(&["second"], &["first"]), ANY, &[]));
    let listens = free_address();
    let translation = Translation::of(&listens);
    let mut first = identities.command("", &file_with(&["first"], &[]), &listens, &[&second.quic]);
    first.args(["--advertise", &translation.address]);
    let mut first = Member::start(first);
    first.server.wait_until_printed(&format!("other nodes reach it at {}", translation.address));
    let mut third = Member::start(identities.command("", &file_with(&[], &["first"]), ANY, &[&second.quic]));
    third.server.wait_until_printed(&format!("connected to a peer peer={}", translation.address));
    [&second, &third].iter().for_each(|node| node.http.wait_for_stage("first"));
    [&first, &second, &third].iter().for_each(|node| node.http.wait_for_members(2));
}

#[test]
fn a_node_that_others_cannot_connect_is_told_the_address_and_the_reason() {
    let identities = Identities::development();
    let second = Member::start(identities.command("", &file_with(&["second"], &["first"]), ANY, &[]));
    let closed = free_address();
    let mut first = identities.command("", &file_with(&["first"], &["second"]), ANY, &[&second.quic]);
    first.args(["--advertise", &closed]);
    let mut first = Member::start(first);
    first.http.wait_for_stage("second");
    let line = first.server.wait_for("another node cannot connect to this one at its address");
    let warning = format!("{} {line}", first.server.stderr_lines.last().unwrap());
    assert!(warning.contains(&closed) && warning.contains(&second.quic) && warning.contains("refused"), "{warning}");
}

#[test]
fn the_settings_of_a_cluster_are_explained_and_wrong_ones_are_refused() {
    let serve = |args: &[&str]| crate::support::callboard(["serve", "examples/digits"].iter().chain(args));
    let explained = run(&[
        "serve",
        "examples/digits",
        "--quic",
        ANY,
        "--advertise",
        "node-1.example:4433",
        "--membership",
        "far",
        "--explain",
    ]);
    let text = String::from_utf8(explained.stdout).unwrap();
    for (key, value) in [("quic.advertise", "node-1.example:4433"), ("quic.membership", "far")] {
        let row = text.lines().find(|line| line.contains(key)).unwrap_or_else(|| panic!("no {key}: {text}"));
        assert!(row.contains(value), "{row}");
    }
    for wrong in ["0.0.0.0:4433", "[::]:4433", "192.0.2.7:0", "224.0.0.1:4433", "192.0.2.7"] {
        let (line, code) = failure(serve(&["--quic", ANY, "--advertise", wrong]));
        assert!(
            code == 2 && line.contains("the address of this node for others as HOST:PORT"),
            "{wrong}: {code} {line}"
        );
    }
    let (line, code) = failure(serve(&["--advertise", "127.0.0.1:4433"]));
    assert!(code == 2 && line.contains("an address for other nodes needs a port that stays"), "{code} {line}");
    let (line, code) = failure(serve(&["--membership", "middle"]));
    assert!(code == 2 && line.contains("one of \"near\", \"far\""), "{code} {line}");
}
