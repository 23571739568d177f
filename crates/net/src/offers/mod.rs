//! The routes, stages and actors that a node offers, as its callers know them, and the rules for which stages and
//! actors a peer may offer.
//!
//! The node sends the list, so it is bounded before it is read: [`MAX_OFFERS_BYTES`], [`MAX_OFFERED_STAGES`] and
//! [`MAX_OFFERED_ACTORS`]; further entries are ignored. Each call looks a name up in an ordered map, which is faster
//! here than hashing. Stages and actors that a peer may not offer are left out.

mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::wire::Offer;
use callboard_codec::{DecodeLimits, Format, Value};
use callboard_core::CallError;
use callboard_core::edge::LARGE_BYTES;
use callboard_core::remote::KINDS_PREFIX;
use callboard_identity::quoted;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;

pub use self::rules::{InvalidMemberRules, MemberRules};
use crate::offload;

/// The longest list of one node: some 2,500 routes and stages.
pub(crate) const MAX_OFFERS_BYTES: usize = 256 << 10;

/// The most stages of one node.
pub(crate) const MAX_OFFERED_STAGES: usize = 1024;

/// The most actors of one node.
pub(crate) const MAX_OFFERED_ACTORS: usize = 1024;

/// The longest name of an actor.
const MAX_ACTOR_NAME_BYTES: usize = 128;

/// Says in the welcome that a node takes questions to its actors.
pub(crate) const ACTORS: &str = "actors";

/// Longer lists are read off the transport's thread, because packets wait there. Threat: a node that sends long lists
/// often.
const LONG_OFFERS_BYTES: usize = 32 << 10;

/// The most names in one line of the log.
const LOGGED_NAMES: usize = 5;

/// The rules for offers, the counter of refused ones, and the signal of changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfferScreening {
    pub(crate) rules: Arc<MemberRules>,
    /// Stages and actors that were offered without permission.
    pub(crate) refused: Counter,
    /// Notified when a connected node has changed its offers.
    pub(crate) changed: Arc<Notify>,
}

impl OfferScreening {
    /// Logs and counts refused stages and actors that were not refused before.
    pub(crate) fn report(&self, peer: SocketAddr, member: &str, offers: &Offers, before: &Offers) {
        let new = offers.refused.difference(&before.refused).count();
        if new > 0 {
            self.refused.inc_by(new as u64);
            let (member, names) = (quoted(member), offers.refused_names());
            tracing::warn!(%peer, member, "the peer offers what it may not offer here (quic.offers): {names}");
        }
    }
}

/// The offers of a node.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    stages: BTreeMap<String, StageOffer>,
    actors: BTreeSet<String>,
    /// By name without the slash, as functions are called.
    routes: BTreeMap<String, RouteOffer>,
    /// Stages and actors that it may not offer.
    refused: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StageOffer {
    pub(crate) revision: u64,
    pub(crate) is_streaming: bool,
    pub(crate) is_idempotent: bool,
}

#[derive(Clone, Copy, Debug)]
struct RouteOffer {
    is_streaming: bool,
    is_idempotent: bool,
    /// `None` if it is the node's default.
    timeout: Option<Duration>,
}

impl Offers {
    /// Reads the list of a member; a long one off the transport's thread.
    pub(crate) async fn read(body: Bytes, member: String, rules: Arc<MemberRules>) -> Self {
        let bytes = if body.len() < LONG_OFFERS_BYTES { 0 } else { LARGE_BYTES };
        let read = offload::run(bytes, move || Ok::<_, CallError>(Self::from_envelope(&body, &member, &rules)));
        read.await.unwrap_or_default()
    }

    /// An unreadable list offers nothing.
    fn from_envelope(body: &Bytes, member: &str, rules: &MemberRules) -> Self {
        let limits = DecodeLimits { max_bytes: MAX_OFFERS_BYTES, ..DecodeLimits::default() };
        let value = Value::decode(Format::Envelope, body, &limits).ok();
        let list: Vec<Offer> = value.and_then(|value| value.deserialize().ok()).unwrap_or_default();
        let mut offers = Self::default();
        for offer in list {
            offers.add(offer, member, rules);
        }
        offers
    }

    /// Adds an offer; of two with one name the first counts.
    fn add(&mut self, offer: Offer, member: &str, rules: &MemberRules) {
        let Offer { name, stage, actor, revision, streams, idempotent, timeout_millis } = offer;
        if !stage && !actor {
            let timeout = (timeout_millis > 0).then(|| Duration::from_millis(timeout_millis));
            self.routes.entry(without_slash(&name).to_owned()).or_insert(RouteOffer {
                is_streaming: streams,
                is_idempotent: idempotent,
                timeout,
            });
            return;
        }
        if !rules.allow(member, &name) {
            self.refused.insert(name);
            return;
        }
        if actor {
            if self.actors.len() < MAX_OFFERED_ACTORS && name.len() <= MAX_ACTOR_NAME_BYTES {
                self.actors.insert(name);
            }
            return;
        }
        if self.stages.len() < MAX_OFFERED_STAGES {
            self.stages.entry(name).or_insert(StageOffer {
                revision,
                is_streaming: streams,
                is_idempotent: idempotent,
            });
        }
    }

    pub(crate) fn stage(&self, name: &str) -> Option<StageOffer> {
        self.stages.get(name).copied()
    }

    pub(crate) fn has_actor(&self, name: &str) -> bool {
        self.actors.contains(name)
    }

    /// Whether there are keyed actors, which a node offers once it has joined the others.
    pub(crate) fn has_kinds(&self) -> bool {
        self.actors.iter().any(|name| name.starts_with(KINDS_PREFIX))
    }

    /// The names of the stages, sorted.
    pub(crate) fn stages(&self) -> Vec<String> {
        self.stages.keys().cloned().collect()
    }

    /// Whether this route, or the function of this name, answers with a stream.
    pub(crate) fn is_streaming(&self, route: &str) -> bool {
        self.routes.get(without_slash(route)).is_some_and(|route| route.is_streaming)
    }

    /// Whether every stage of this route, or of the function of this name, may run again.
    pub(crate) fn may_run_again(&self, route: &str) -> bool {
        self.routes.get(without_slash(route)).is_some_and(|route| route.is_idempotent)
    }

    /// The default timeout of this route, if the offer has one.
    pub(crate) fn timeout(&self, route: &str) -> Option<Duration> {
        self.routes.get(without_slash(route)).and_then(|route| route.timeout)
    }

    /// The refused stages and actors, for a line of the log.
    fn refused_names(&self) -> String {
        let names: Vec<String> = self.refused.iter().take(LOGGED_NAMES).map(|name| quoted(name)).collect();
        let more = self.refused.len().saturating_sub(names.len());
        if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") }
    }
}

fn without_slash(route: &str) -> &str {
    route.strip_prefix('/').unwrap_or(route)
}

#[cfg(test)]
mod tests {
    use callboard_codec::Payload;

    use super::*;

    fn read(offers: Vec<Offer>, rules: &str) -> Offers {
        let body = Payload::new(offers).to_envelope().unwrap().into_bytes();
        Offers::from_envelope(&body, "left", &rules.parse().unwrap())
    }

    fn stage(name: &str, revision: u64) -> Offer {
        Offer { name: name.to_owned(), stage: true, revision, ..Offer::default() }
    }

    #[test]
    fn offers_are_found_by_name() {
        let route = Offer { name: "/a".to_owned(), streams: true, timeout_millis: 7, ..Offer::default() };
        let offers = read(vec![route, stage("a", 3), stage("a", 4)], "any");
        assert!(offers.is_streaming("/a") && offers.is_streaming("a") && !offers.is_streaming("/b"));
        assert_eq!(offers.timeout("a"), Some(Duration::from_millis(7)));
        assert_eq!(offers.stage("a").unwrap().revision, 3, "the first of two");
        assert!(offers.stage("/a").is_none() && offers.refused.is_empty());
    }

    #[test]
    fn the_number_of_stages_and_the_length_of_a_list_are_bounded() {
        let many: Vec<Offer> = (0..2_000).map(|n| stage(&format!("s{n}"), 0)).collect();
        assert_eq!(read(many.clone(), "any").stages().len(), MAX_OFFERED_STAGES);
        let too_long = many.into_iter().cycle().take(20_000).collect();
        assert_eq!(read(too_long, "any").stages().len(), 0);
        assert!(
            Offers::from_envelope(&Bytes::from_static(b"none"), "left", &MemberRules::default()).stages().is_empty()
        );
    }

    #[test]
    fn actors_are_neither_routes_nor_stages_and_their_number_and_names_are_bounded() {
        let actor = |name: &str| Offer { name: name.to_owned(), actor: true, streams: true, ..Offer::default() };
        let offers = read(vec![actor("a"), actor(&"n".repeat(129))], "left=a");
        assert!(offers.has_actor("a") && !offers.is_streaming("a") && offers.stage("a").is_none());
        assert_eq!((offers.actors.len(), offers.refused.len()), (1, 1));
        let named = |bytes| read(vec![actor(&"n".repeat(bytes))], "any").actors.len();
        assert_eq!((named(MAX_ACTOR_NAME_BYTES), named(MAX_ACTOR_NAME_BYTES + 1)), (1, 0));
        let many = (0..2_000).map(|n| actor(&n.to_string())).collect();
        assert_eq!(read(many, "any").actors.len(), MAX_OFFERED_ACTORS);
    }

    #[test]
    fn a_stage_that_a_peer_may_not_offer_is_left_out() {
        let offers = read((0..9).map(|n| stage(&format!("s{n}"), 0)).collect(), "left=s1,right=*");
        assert_eq!(offers.stages(), ["s1"]);
        assert_eq!(offers.refused.len(), 8);
        assert!(offers.refused_names().ends_with("\"s5\" and 3 more"), "{}", offers.refused_names());
    }
}
