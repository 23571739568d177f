//! A switch, and network namespaces on it. The machine's own network is not touched. They are named by the process, and
//! removed with the test.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Namespace `n` has the address 10.0.0.n.
pub(crate) struct Network {
    name: String,
    namespaces: usize,
}

impl Network {
    /// Makes them.
    ///
    /// # Errors
    ///
    /// This process may not, or a tool is missing.
    pub(crate) fn try_new(name: &str, namespaces: usize) -> Result<Self, String> {
        run(&["nft", "--version"])?;
        let network = Self { name: format!("callboard-{name}-{}", std::process::id()), namespaces };
        let switch = network.namespace(0);
        run(&["ip", "netns", "add", &switch])?;
        run(&["ip", "-n", &switch, "link", "add", "br0", "type", "bridge"])?;
        run(&["ip", "-n", &switch, "link", "set", "br0", "up"])?;
        for number in 1..=namespaces {
            let (inner, port, address) =
                (network.namespace(number), format!("p{number}"), format!("10.0.0.{number}/24"));
            run(&["ip", "netns", "add", &inner])?;
            let pair = ["type", "veth", "peer", "name", "eth0", "netns", &inner];
            run(&[&["ip", "-n", &switch, "link", "add", &port], &pair[..]].concat())?;
            run(&["ip", "-n", &switch, "link", "set", &port, "master", "br0", "up"])?;
            run(&["ip", "-n", &inner, "addr", "add", &address, "dev", "eth0"])?;
            run(&["ip", "-n", &inner, "link", "set", "eth0", "up"])?;
            run(&["ip", "-n", &inner, "link", "set", "lo", "up"])?;
        }
        Ok(network)
    }

    /// The name of a namespace; 0 is the switch.
    fn namespace(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// Drops the packets of the others that come in at a namespace, by a rule of nftables.
    pub(crate) fn drop_from(&self, others: impl IntoIterator<Item = usize>, number: usize) {
        let others: Vec<_> = others.into_iter().map(|other| format!("10.0.0.{other}")).collect();
        let chain = format!("type filter hook input priority 0; ip saddr {{ {} }} drop;", others.join(", "));
        self.nft(number, &format!("table inet cut {{ chain in {{ {chain} }}; }}"));
    }

    /// Drops this share of the packets that come in at a namespace, by chance.
    pub(crate) fn lose(&self, percent: u8, number: usize) {
        let chain =
            format!("type filter hook input priority 0; iifname \"eth0\" numgen random mod 100 < {percent} drop;");
        self.nft(number, &format!("table inet cut {{ chain in {{ {chain} }}; }}"));
    }

    /// Lets a namespace send this many kilobits a second. More waits for up to 50 ms, and is dropped then.
    pub(crate) fn throttle(&self, kilobits: u32, number: usize) {
        let rate = format!("{kilobits}kbit");
        let shape =
            ["qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", &rate, "burst", "16kb", "latency", "50ms"];
        run(&[&["tc", "-n", &self.namespace(number)], &shape[..]].concat()).unwrap();
    }

    pub(crate) fn throttle_nothing(&self, number: usize) {
        run(&["tc", "-n", &self.namespace(number), "qdisc", "delete", "dev", "eth0", "root"]).unwrap();
    }

    pub(crate) fn drop_nothing(&self, number: usize) {
        self.nft(number, "flush ruleset");
    }

    fn nft(&self, number: usize, rules: &str) {
        run(&["ip", "netns", "exec", &self.namespace(number), "nft", rules]).unwrap();
    }

    /// Does something in a namespace. Threads that it starts stay there.
    pub(crate) fn inside<T: Send>(&self, number: usize, done: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let namespace = File::open(format!("/run/netns/{}", self.namespace(number))).unwrap();
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                done()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for number in 0..=self.namespaces {
            let _ = run(&["ip", "netns", "delete", &self.namespace(number)]);
        }
    }
}

fn run(command: &[&str]) -> Result<(), String> {
    let made = Command::new(command[0]).args(&command[1..]).output();
    let made = made.map_err(|error| format!("{}: {error}", command[0]))?;
    if made.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&made.stderr).trim()))
}
