//! A pod's search list in one step: the question for the first name of the list is answered with the result of the whole
//! list, so that `example.com` takes one question for each family instead of five.
//!
//! That is safe only if the names that the client will try next are known:
//! - the client is a pod with `dnsPolicy: ClusterFirst` and without searches, servers or options of its own
//!   (the caller guarantees that by passing its namespace);
//! - the name ends in the first domain of that list, `<its namespace>.svc.<cluster domain>`, and does not exist;
//! - the part before that has fewer dots than `ndots`, so that the client tries the search list before the name itself;
//! - the question is for an address.
//!
//! The answer is that of the first name in the list that exists, after a CNAME from the question's name to it (as CoreDNS'
//! autopath). If none exists the question's name does not exist either. A client that queries one family skips names that
//! have only the other one; here such a name ends the search, so that the queries of both families have the same name.

use super::message::{Data, Record};
use super::name::Name;
use super::record_type;
use super::zone::{self, Answer, Outcome, View};

/// `options ndots:5`, which the kubelet writes into resolv.conf.
const NDOTS: usize = 5;

/// The search list of a client, if it is known.
#[derive(Clone, Copy, Debug)]
pub struct SearchList<'a> {
    pub namespace: &'a str,
    /// The node's own search domains, which follow the cluster's in pods' resolv.conf.
    pub node_domains: &'a [Name],
}

/// Answers for a name on behalf of a client that has this search list.
pub fn resolve(view: &View<'_>, list: Option<SearchList<'_>>, name: &Name, record_type: u16) -> Answer {
    let plain = zone::resolve(view, name, record_type);
    if plain.end != Outcome::NoName || !plain.records.is_empty() {
        return plain;
    }
    let Some(rest) = list.and_then(|list| rest_of_list(view, list, name, record_type)) else {
        return plain;
    };
    let mut elsewhere = Vec::new();
    for candidate in rest {
        if candidate.below(&view.zone.domain).is_none() {
            elsewhere.push(candidate);
            continue;
        }
        // A name of the cluster behind one of others would need an answer from elsewhere first.
        if !elsewhere.is_empty() {
            break;
        }
        let mut found = zone::resolve(view, &candidate, record_type);
        if found.end == Outcome::NoName && found.records.is_empty() {
            continue;
        }
        if let Some(first) = found.records.iter_mut().find(|r| r.owner.is_none()) {
            first.owner = Some(candidate.clone());
        }
        for record in found.records.iter_mut().filter(|r| r.owner.is_none()) {
            record.owner = Some(candidate.clone());
        }
        found.records.insert(0, alias(view, candidate));
        return found;
    }
    match elsewhere.is_empty() {
        true => plain,
        false => Answer::with_outcome(Outcome::Elsewhere(elsewhere)),
    }
}

/// The CNAME record from the question's name to another one.
pub fn alias(view: &View<'_>, target: Name) -> Record {
    Record {
        owner: None,
        ttl_seconds: view.zone.ttl_seconds,
        data: Data::Cname(target),
    }
}

/// The names the client would try next; `None` where that is not known.
fn rest_of_list(view: &View<'_>, list: SearchList<'_>, name: &Name, record_type: u16) -> Option<Vec<Name>> {
    if !matches!(record_type, record_type::A | record_type::AAAA) {
        return None;
    }
    let domain = &view.zone.domain;
    let svc = Name::of_labels([&b"svc"[..]], domain)?;
    let first = Name::of_labels([list.namespace.as_bytes()], &svc)?;
    let host_labels = name.below(&first)?;
    let host_labels = host_labels.as_slice();
    // One dot fewer than labels.
    if host_labels.is_empty() || host_labels.len() > NDOTS {
        return None;
    }
    let domains = [&svc, domain].into_iter().chain(list.node_domains);
    let mut rest: Vec<Name> = domains
        .filter_map(|domain| Name::of_labels(host_labels.iter().copied(), domain))
        .collect();
    rest.push(Name::of_labels(host_labels.iter().copied(), &Name::root())?);
    Some(rest)
}
