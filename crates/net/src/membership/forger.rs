//! A member that lies: messages for attacks on running nodes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use callboard_core::remote::splitmix64;
use foca::{Header, Member, Message, State};

use super::digest::Buckets;
use super::identity::{MAX_BUMP, MemberId};
use super::message::{Gossip, MAX_MESSAGE_BYTES, Sourced};
use super::report_codec::MAX_REPORT_BYTES;
use super::reports::Version;
use super::swim::Swim;

/// The members of one list that are made up, which is about what a message has room for.
const MADE_UP: u64 = 1_000;

/// The names that are made up: more than a node may know.
const NAMES: u64 = 5_000;

/// Makes up members, calls real ones dead, contradicts itself, speaks for others, and sends the longest messages that
/// there can be. All that it sends is drawn from its seed.
#[derive(Debug)]
pub struct GossipForger {
    own: MemberId,
    /// Those whom it calls dead.
    victims: Vec<MemberId>,
    state: u64,
    turn: u64,
}

impl GossipForger {
    /// The forger of this name, which is the one in its certificate or in its hello.
    #[must_use]
    pub fn new(name: &str, seed: u64) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let generation = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let own = MemberId { name: name.into(), address: SocketAddr::from(([127, 0, 0, 1], 1)), generation, bump: 0 };
        Self { own, victims: Vec::new(), state: seed, turn: seed % KINDS }
    }

    /// When its process began, for its hello.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.own.generation
    }

    /// The count of members that it has heard of.
    #[must_use]
    pub fn victims(&self) -> usize {
        self.victims.len()
    }

    /// Learns the members of a message that the node has sent to it.
    pub fn heard(&mut self, message: &[u8]) {
        let Ok(Sourced { source, gossip }) = Sourced::read(message) else { return };
        let listed = match gossip {
            Gossip::Swim(swim) => swim.members,
            Gossip::Members { members, .. } => members,
            _ => Vec::new(),
        };
        let listed =
            listed.into_iter().map(|member| member.id().clone()).filter(|id| !id.name.starts_with(MADE_UP_NAME));
        for id in listed.chain([source]).filter(|id| id.name != self.own.name) {
            self.victims.retain(|known| known.name != id.name);
            self.victims.truncate(99);
            self.victims.push(id);
        }
    }

    /// The next message.
    pub fn forge(&mut self) -> Bytes {
        self.turn += 1;
        let flag = self.turn.is_multiple_of(2);
        let gossip = match self.turn % KINDS {
            0 => self.list(State::Alive, 0),
            // Those were alive a moment ago.
            1 => self.list(State::Down, 1),
            2 => self.accused(State::Down),
            3 => self.accused(State::Suspect),
            4 => self.later_lives(),
            5 => return self.swim(Message::TurnUndead),
            6 => return self.swim(Message::Ping(7)),
            7 => Gossip::Versions { mask: u64::MAX, wants_answer: flag, versions: self.versions() },
            8 => Gossip::Ask(0),
            9 => Gossip::Report { version: self.number(), bytes: self.bytes(MAX_REPORT_BYTES) },
            // Asks for the whole list.
            10 => Gossip::Members { mask: u64::MAX, wants_answer: true, members: Vec::new() },
            11 => Gossip::Digest(self.number()),
            12 => Gossip::Buckets(Box::new(Buckets(std::array::from_fn(|_| self.number())))),
            13 => Gossip::Removed(self.bytes(20_000)),
            14 => {
                // Of another member.
                let source = self.victims.first().cloned().unwrap_or_else(|| self.made_up());
                return Sourced { source, gossip: Gossip::Digest(1) }.to_bytes();
            }
            _ => return self.bytes(MAX_MESSAGE_BYTES),
        };
        Sourced { source: self.own.clone(), gossip }.to_bytes()
    }

    fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        splitmix64(self.state)
    }

    fn bytes(&mut self, count: usize) -> Bytes {
        let mut bytes = BytesMut::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.number().to_le_bytes());
        }
        bytes.truncate(count);
        bytes.freeze()
    }

    /// A member at a port of this machine that nobody has.
    fn made_up(&mut self) -> MemberId {
        let (name, port) = (self.number() % NAMES, 1 + self.number() % 1_000);
        let address = SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap_or(1)));
        MemberId { name: format!("{MADE_UP_NAME}{name}").into(), address, generation: self.own.generation, bump: 0 }
    }

    fn list(&mut self, state: State, incarnation: u16) -> Gossip {
        let members = (0..MADE_UP).map(|_| Member::new(self.made_up(), incarnation, state)).collect();
        Gossip::Members { mask: u64::MAX, wants_answer: true, members }
    }

    fn accused(&self, state: State) -> Gossip {
        let members = self.victims.iter().map(|victim| Member::new(victim.clone(), u16::MAX, state)).collect();
        Gossip::Members { mask: u64::MAX, wants_answer: false, members }
    }

    /// The others, as they would be after a restart at another address.
    fn later_lives(&self) -> Gossip {
        let later = |victim: &MemberId| MemberId { bump: MAX_BUMP, address: self.own.address, ..victim.clone() };
        let members = self.victims.iter().map(|victim| Member::alive(later(victim))).collect();
        Gossip::Members { mask: u64::MAX, wants_answer: false, members }
    }

    fn swim(&mut self, message: Message<MemberId>) -> Bytes {
        let dst = self.victims.last().cloned().unwrap_or_else(|| self.own.clone());
        let members = match message {
            Message::TurnUndead => Vec::new(),
            _ => (0..100).map(|_| Member::new(self.made_up(), 0, State::Suspect)).collect(),
        };
        let header = Header { src: self.own.clone(), src_incarnation: 1, dst, message };
        let gossip = Gossip::Swim(Box::new(Swim { header, members }));
        Sourced { source: self.own.clone(), gossip }.to_bytes()
    }

    fn versions(&mut self) -> Vec<Version> {
        let mut names: Vec<(Arc<str>, u64)> =
            self.victims.iter().map(|victim| (Arc::clone(&victim.name), victim.generation)).collect();
        names.extend((0..MADE_UP).map(|_| self.made_up()).map(|id| (id.name, id.generation)));
        names.into_iter().map(|(name, generation)| Version { name, generation, version: self.number() }).collect()
    }
}

const MADE_UP_NAME: &str = "made-up-";

/// The kinds of its messages.
const KINDS: u64 = 16;

#[cfg(test)]
mod tests {
    use super::super::tests::Lone;
    use super::*;

    #[test]
    fn all_kinds_are_forged_and_the_node_goes_on() {
        let mut lone = Lone::with_members(1);
        let mut forger = GossipForger::new("node-0001", 7);
        lone.node.set_clock(forger.generation());
        let victim = Sourced { source: lone.node.own().clone(), gossip: Gossip::Digest(1) };
        forger.heard(&victim.to_bytes());
        assert_eq!(forger.victims(), 1);
        let mut invalid = 0;
        for _ in 0..5 * KINDS {
            let message = forger.forge();
            assert!(message.len() <= MAX_MESSAGE_BYTES, "{} bytes", message.len());
            invalid += usize::from(lone.node.received("node-0001", &message, lone.now).is_err());
            lone.pass(std::time::Duration::from_millis(100), &[], |_| false);
        }
        assert!((10..=15).contains(&invalid), "{invalid} of {}", 5 * KINDS);
        assert!(lone.node.members().count() <= super::super::state::MAX_MEMBERS);
    }
}
