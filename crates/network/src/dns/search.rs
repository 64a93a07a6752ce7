//! A pod's search list in one step: the question for the first name of the list is answered with what the whole list
//! comes to, so that `example.com` costs one question a family instead of five.
//!
//! That is safe where the name the client will try next is known, and only there:
//! - the client is a pod with `dnsPolicy: ClusterFirst` and without searches, servers or options of its own
//!   (the caller vouches for that by naming its namespace);
//! - the name ends in the first domain of that list, `<its namespace>.svc.<cluster domain>`, and does not exist;
//! - what stands before that has fewer dots than `ndots`, so that the client goes down the list before it asks for the name itself;
//! - an address is asked for.
//!
//! The answer is that of the first name in the list that exists, behind a CNAME from the asked name to it (as CoreDNS'
//! autopath). Where none exists the asked name does not either, as without all this. A client that wanted one family only passes over
//! names that have the other one alone; here such a name ends the search, so that both families of one look-up have the
//! same name.

use super::message::{Data, Record};
use super::name::Name;
use super::record_type;
use super::zone::{self, Answer, End, View};

/// `options ndots:5`, which the kubelet writes into resolv.conf.
const NDOTS: usize = 5;

/// Who asks, as far as it is safe to know better than the client.
#[derive(Clone, Copy, Debug)]
pub struct SearchList<'a> {
    pub namespace: &'a str,
    /// The node's own search domains, which stand behind the cluster's in pods' resolv.conf.
    pub node_domains: &'a [Name],
}

/// Answers for a name on behalf of a client that has this search list.
pub fn resolve(view: &View<'_>, list: Option<SearchList<'_>>, name: &Name, record_type: u16) -> Answer {
    let plain = zone::resolve(view, name, record_type);
    if plain.end != End::NoName || !plain.records.is_empty() {
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
        if found.end == End::NoName && found.records.is_empty() {
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
        false => Answer::ending(End::Elsewhere(elsewhere)),
    }
}

/// The record that leads from the asked name to another one.
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
    let asked = name.below(&first)?;
    let asked = asked.as_slice();
    // One dot fewer than labels.
    if asked.is_empty() || asked.len() > NDOTS {
        return None;
    }
    let domains = [&svc, domain].into_iter().chain(list.node_domains);
    let mut rest: Vec<Name> = domains
        .filter_map(|domain| Name::of_labels(asked.iter().copied(), domain))
        .collect();
    rest.push(Name::of_labels(asked.iter().copied(), &Name::root())?);
    Some(rest)
}
