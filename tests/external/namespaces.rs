//! Three nodes in network namespaces of their own, whose lines are cut, carry packets one way only, or lose them.
//!
//! The namespaces hang on a bridge in a fourth one: the machine's own network is not touched. They are named by the
//! process, and removed with the test.

#![allow(clippy::print_stdout, reason = "the figures of a test")]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::nodes::{Calls, Identities, Load, Member, file_with, pause, wait_until};
use crate::process::run;
use crate::tool::NAMESPACES;

/// Silence is noticed after 0.9 s; the rest is for a busy machine.
const LONGEST: Duration = Duration::from_secs(3);

/// A switch, and a namespace for each node: node `n` has the address 10.0.0.n.
struct Network {
    nodes: usize,
    /// The next one has the same names. Released after the namespaces are gone.
    _only: MutexGuard<'static, ()>,
}

impl Network {
    /// `None` if the tools are not required.
    fn of(nodes: usize) -> Option<Self> {
        NAMESPACES.if_required(|| {
            run(Command::new("nft").arg("--version"))?;
            static ONLY: Mutex<()> = Mutex::new(());
            let network = Self { nodes, _only: ONLY.lock().unwrap_or_else(PoisonError::into_inner) };
            network.make()?;
            Ok(network)
        })
    }

    fn make(&self) -> Result<(), String> {
        let switch = Self::switch();
        ip(&["netns", "add", &switch])?;
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "br0", "up"])?;
        for number in 1..=self.nodes {
            let (node, port, address) = (Self::node(number), format!("p{number}"), format!("10.0.0.{number}/24"));
            ip(&["netns", "add", &node])?;
            ip(&["-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &node])?;
            ip(&["-n", &switch, "link", "set", &port, "master", "br0", "up"])?;
            ip(&["-n", &node, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &node, "link", "set", "eth0", "up"])?;
            ip(&["-n", &node, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    fn switch() -> String {
        format!("callboard-{}-switch", std::process::id())
    }

    fn node(number: usize) -> String {
        format!("callboard-{}-{number}", std::process::id())
    }

    /// Cuts the line of a node, or mends it.
    fn set_line(&self, number: usize, state: &str) {
        ip(&["-n", &Self::switch(), "link", "set", &format!("p{number}"), state]).unwrap();
    }

    /// Drops packets that come in at a node, by a rule of nftables.
    fn drop_at(&self, number: usize, which: &str) {
        let rules = format!("table inet loss {{ chain in {{ type filter hook input priority 0; {which} drop; }}; }}");
        self.nft(number, &["nft", &rules]);
    }

    fn drop_nothing_at(&self, number: usize) {
        self.nft(number, &["nft", "flush", "ruleset"]);
    }

    fn nft(&self, number: usize, command: &[&str]) {
        ip(&[&["netns", "exec", &Self::node(number)], command].concat()).unwrap();
    }

    /// Runs there what this command runs here.
    fn command(&self, number: usize, inner: &Command) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &Self::node(number)]).arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.current_dir(inner.get_current_dir().unwrap()).stdin(std::process::Stdio::null());
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for number in 1..=self.nodes {
            let _ = ip(&["netns", "delete", &Self::node(number)]);
        }
        let _ = ip(&["netns", "delete", &Self::switch()]);
    }
}

fn ip(args: &[&str]) -> Result<String, String> {
    run(Command::new("ip").args(args))
}

/// Moves this thread into the namespace of a node.
fn enter(number: usize) {
    let namespace = File::open(format!("/run/netns/{}", Network::node(number))).unwrap();
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// Does something in the namespace of a node.
fn inside<T: Send>(number: usize, done: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            enter(number);
            done()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The nodes: both others run the stages that the second one calls.
struct Nodes([Member; 3]);

impl Nodes {
    fn start(network: &Network) -> Self {
        let identities = Identities::cluster(&["second", "third"]);
        let shared = file_with(&["shared", "once"], &[]);
        let caller = file_with(&[], &["shared", "once"]);
        let mut number = 0;
        let nodes = [("authority", &shared), ("second", &caller), ("third", &shared)].map(|(name, file)| {
            number += 1;
            let (quic, join): (_, &[&str]) =
                (format!("10.0.0.{number}:4433"), if number == 1 { &[] } else { &["10.0.0.1:4433"] });
            Member::start(network.command(number, &identities.command(name, file, &quic, join)))
        });
        let nodes = Self(nodes);
        nodes.wait_for_one_view();
        let second = &nodes.0[1].http;
        inside(2, || ["shared", "once"].iter().for_each(|stage| second.wait_for_stage(stage)));
        nodes
    }

    fn wait_for_one_view(&self) {
        for (number, node) in (1..).zip(&self.0) {
            let http = &node.http;
            inside(number, || http.wait_for_members(2));
        }
    }

    fn metric(&self, number: usize, name: &str) -> u64 {
        let http = &self.0[number - 1].http;
        inside(number, || http.metric(name))
    }

    fn deaths(&self) -> u64 {
        (1..=3).map(|number| self.metric(number, "callboard_net_members_down_total")).sum()
    }

    /// A load on a stage through the second node.
    fn load(&self, stage: &str, happens: impl FnOnce(&Calls)) -> Calls {
        Load { http: &self.0[1].http, stage, enter: &|| enter(2) }.run(happens)
    }

    /// The same; no call may fail or take longer.
    fn load_without_loss(&self, what: &str, longest: Duration, happens: impl FnOnce(&Calls)) {
        let calls = self.load("shared", happens);
        let (failed, slowest) = (calls.failed.lock().unwrap(), calls.slowest());
        println!("{what}: {} calls, the slowest {slowest:.2?}, {} failed", calls.answered(), failed.len());
        assert!(failed.is_empty(), "{what}: {failed:?}");
        assert!(slowest <= longest, "{what}: {slowest:?}");
    }
}

#[test]
fn a_cut_node_costs_no_idempotent_call_and_no_other_one_runs_twice() {
    let Some(network) = Network::of(3) else { return };
    let nodes = Nodes::start(&network);
    nodes.load_without_loss("cut", LONGEST, |calls| {
        let calls_of_once = nodes.load("once", |_| {
            calls.wait_for_more();
            let cut = Instant::now();
            network.set_line(1, "down");
            wait_until(|| match nodes.metric(2, "callboard_net_members_up") {
                1 => Ok(()),
                up => Err(format!("{up} are up")),
            });
            println!("the second node calls it down after {:.2?}", cut.elapsed());
        });
        network.set_line(1, "up");
        nodes.wait_for_one_view();
        let executed = [1, 3].map(|number| nodes.metric(number, "callboard_stage_batch_size_sum{stage=\"once\"}"));
        let made = calls_of_once.answered() + calls_of_once.failed.lock().unwrap().len();
        println!("{} of {made} calls that may run once failed", made - calls_of_once.answered());
        // One more made the nodes known to each other.
        assert!(executed.iter().sum::<u64>() <= made as u64 + 1, "{executed:?} of {made}");
    });
}

#[test]
fn a_line_that_carries_one_way_only_costs_no_idempotent_call() {
    let Some(network) = Network::of(3) else { return };
    let nodes = Nodes::start(&network);
    // The first node is not silent, because its packets arrive. The second node gives the connection up after 3 s
    // without an acknowledgement.
    nodes.load_without_loss("one way", Duration::from_secs(3) + LONGEST, |calls| {
        calls.wait_for_more();
        network.drop_at(1, "ip saddr 10.0.0.2");
        wait_until(|| match nodes.metric(2, "callboard_net_peers_connected") {
            1 => Ok(()),
            connected => Err(format!("{connected} are connected")),
        });
        // Longer than a suspicion: the third node speaks for the first one.
        pause(Duration::from_secs(5));
        assert_eq!(nodes.deaths(), 0);
        network.drop_nothing_at(1);
        nodes.wait_for_one_view();
    });
}

#[test]
fn a_fifth_of_all_packets_may_be_lost() {
    let Some(network) = Network::of(3) else { return };
    let nodes = Nodes::start(&network);
    nodes.load_without_loss("20 % loss", LONGEST, |calls| {
        calls.wait_for_more();
        (1..=3).for_each(|number| network.drop_at(number, "iifname \"eth0\" numgen random mod 100 < 20"));
        pause(Duration::from_secs(8));
        (1..=3).for_each(|number| network.drop_nothing_at(number));
        assert_eq!(nodes.deaths(), 0);
        nodes.wait_for_one_view();
    });
}
