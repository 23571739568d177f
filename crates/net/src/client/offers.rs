//! What a node offers, as its callers know it: routes and stages by their names.
//!
//! It is told by the node, so it is bounded before it is read: [`MAX_OFFERS_BYTES`] and [`MAX_OFFERED_STAGES`]; what is beyond is passed
//! over. Each call looks a name up, so it is a map and no list; an ordered one, where the look costs less than a hash. Stages that a peer
//! may not offer are none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::wire::Offer;
use callboard_codec::{DecodeLimits, Format, Value};
use callboard_core::CallError;
use prometheus_client::metrics::counter::Counter;

use crate::cluster::OfferRules;
use crate::{contained, refusal};

/// What one node may say of what it offers. Some 2,500 routes and stages.
pub(crate) const MAX_OFFERS_BYTES: usize = 256 << 10;

/// The stages among them.
pub(crate) const MAX_OFFERED_STAGES: usize = 1024;

/// A list that takes longer to read than a packet may wait. Threat: a node that says a lot, and often.
const LONG_OFFERS_BYTES: usize = 32 << 10;

/// As many names as a line of the log has.
const TOLD_NAMES: usize = 5;

/// What a node may offer, and who is told of what it may not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screening {
    pub(crate) rules: Arc<OfferRules>,
    /// Stages that were offered and not allowed.
    pub(crate) refused: Counter,
}

impl Screening {
    /// Says what is not taken of an offer, unless it was not taken before.
    pub(super) fn tell(&self, peer: SocketAddr, member: &str, offers: &Offers, before: &Offers) {
        let new = offers.refused.difference(&before.refused).count();
        if new > 0 {
            self.refused.inc_by(new as u64);
            let (member, stages) = (refusal::quoted(member), offers.refused_names());
            tracing::warn!(%peer, member, "offers stages that it may not offer here (quic.offers): {stages}");
        }
    }
}

/// What a node offers.
#[derive(Debug, Default)]
pub(super) struct Offers {
    stages: BTreeMap<String, StageOffer>,
    /// By their names without the slash, as functions are called.
    routes: BTreeMap<String, RouteOffer>,
    /// Stages that it may not offer.
    pub(super) refused: BTreeSet<String>,
}

/// What a node says of a stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageOffer {
    pub(crate) revision: u64,
    pub(crate) streams: bool,
    pub(crate) idempotent: bool,
}

/// What it says of a route.
#[derive(Clone, Copy, Debug)]
struct RouteOffer {
    streams: bool,
    idempotent: bool,
    /// Where it has one of its own.
    timeout: Option<Duration>,
}

impl Offers {
    /// Reads what a member offers; a long list where packets do not wait for it.
    pub(super) async fn read(body: Bytes, member: String, rules: Arc<OfferRules>) -> Self {
        let bytes = if body.len() < LONG_OFFERS_BYTES { 0 } else { contained::LARGE_BYTES };
        let read = contained::run(bytes, move || Ok::<_, CallError>(Self::of(&body, &member, &rules)));
        read.await.unwrap_or_default()
    }

    /// What cannot be read offers nothing.
    fn of(body: &Bytes, member: &str, rules: &OfferRules) -> Self {
        let limits = DecodeLimits { max_bytes: MAX_OFFERS_BYTES, ..DecodeLimits::default() };
        let value = Value::decode(Format::Envelope, body, &limits).ok();
        let list: Vec<Offer> = value.and_then(|value| value.deserialize().ok()).unwrap_or_default();
        let mut offers = Self::default();
        for offer in list {
            offers.take(offer, member, rules);
        }
        offers
    }

    /// Of two of one name the first counts.
    fn take(&mut self, offer: Offer, member: &str, rules: &OfferRules) {
        let Offer { name, stage, revision, streams, idempotent, timeout_millis } = offer;
        if !stage {
            let timeout = (timeout_millis > 0).then(|| Duration::from_millis(timeout_millis));
            self.routes.entry(without_slash(&name).to_owned()).or_insert(RouteOffer { streams, idempotent, timeout });
            return;
        }
        if !rules.allow(member, &name) {
            self.refused.insert(name);
            return;
        }
        if self.stages.len() < MAX_OFFERED_STAGES {
            self.stages.entry(name).or_insert(StageOffer { revision, streams, idempotent });
        }
    }

    pub(super) fn stage(&self, name: &str) -> Option<StageOffer> {
        self.stages.get(name).copied()
    }

    /// The names of the stages, in their order.
    pub(super) fn stages(&self) -> Vec<String> {
        self.stages.keys().cloned().collect()
    }

    /// Whether this route, or the function of this name, answers with many outputs.
    pub(super) fn streams(&self, route: &str) -> bool {
        self.routes.get(without_slash(route)).is_some_and(|route| route.streams)
    }

    /// Whether all that runs for this route, or the function of this name, may run twice.
    pub(super) fn may_run_again(&self, route: &str) -> bool {
        self.routes.get(without_slash(route)).is_some_and(|route| route.idempotent)
    }

    /// How long calls of this route may take, where that is said.
    pub(super) fn timeout(&self, route: &str) -> Option<Duration> {
        self.routes.get(without_slash(route)).and_then(|route| route.timeout)
    }

    /// The stages that were refused, for a line of the log.
    pub(super) fn refused_names(&self) -> String {
        let names: Vec<String> = self.refused.iter().take(TOLD_NAMES).map(|name| refusal::quoted(name)).collect();
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
        Offers::of(&body, "left", &rules.parse().unwrap())
    }

    fn stage(name: &str, revision: u64) -> Offer {
        Offer { name: name.to_owned(), stage: true, revision, ..Offer::default() }
    }

    #[test]
    fn what_is_offered_is_found_by_its_name() {
        let route = Offer { name: "/a".to_owned(), streams: true, timeout_millis: 7, ..Offer::default() };
        let offers = read(vec![route, stage("a", 3), stage("a", 4)], "any");
        assert!(offers.streams("/a") && offers.streams("a") && !offers.streams("/b"));
        assert_eq!(offers.timeout("a"), Some(Duration::from_millis(7)));
        assert_eq!(offers.stage("a").unwrap().revision, 3, "the first of two");
        assert!(offers.stage("/a").is_none() && offers.refused.is_empty());
    }

    #[test]
    fn stages_are_so_many_at_most_and_a_list_so_long() {
        let many: Vec<Offer> = (0..2_000).map(|n| stage(&format!("s{n}"), 0)).collect();
        assert_eq!(read(many.clone(), "any").stages().len(), MAX_OFFERED_STAGES);
        let too_long = many.into_iter().cycle().take(20_000).collect();
        assert_eq!(read(too_long, "any").stages().len(), 0);
        assert!(Offers::of(&Bytes::from_static(b"none"), "left", &OfferRules::default()).stages().is_empty());
    }

    #[test]
    fn what_a_peer_may_not_offer_is_none_of_its_stages() {
        let offers = read((0..9).map(|n| stage(&format!("s{n}"), 0)).collect(), "left=s1,right=*");
        assert_eq!(offers.stages(), ["s1"]);
        assert_eq!(offers.refused.len(), 8);
        assert!(offers.refused_names().ends_with("\"s5\" and 3 more"), "{}", offers.refused_names());
    }
}
