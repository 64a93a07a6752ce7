//! The verdicts of the policies of one pod on its connections with many peers: those of [`Policies::explain`], without
//! their reasons. What does not depend on the peer is computed once.

use std::net::IpAddr;

use super::pod::{Pod, PodKey};
use super::spec::{Direction, Rule};
use super::state::Policies;
use crate::catalog::Protocol;

/// Whether the policies of one end allow a connection to each of the destination's `N` ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortVerdicts<const N: usize> {
    /// The pod is the destination.
    pub ingress: [bool; N],
    /// The pod is the source.
    pub egress: [bool; N],
}

/// The rules that apply to one pod; `None` in a direction in which nothing isolates it.
#[derive(Debug)]
pub struct PodVerdicts<'a> {
    policies: &'a Policies,
    own: (&'a PodKey, &'a Pod),
    address: IpAddr,
    ingress: Option<Vec<&'a Rule>>,
    egress: Option<Vec<&'a Rule>>,
}

impl Policies {
    /// For the pod that has the address by the API; `None` if that is not this pod.
    pub fn verdicts_of(&self, key: &PodKey, address: IpAddr) -> Option<PodVerdicts<'_>> {
        let own = self.pod_at(address).filter(|(owner, _)| *owner == key)?;
        let rules = |direction| {
            let mut all: Option<Vec<&Rule>> = None;
            for (_, policy) in self.policies_of(&key.namespace) {
                if let Some(rules) = policy.rules(direction)
                    && policy.selects(&own.1.profile.labels)
                {
                    all.get_or_insert_default().extend(rules);
                }
            }
            all
        };
        Some(PodVerdicts {
            policies: self,
            own,
            address,
            ingress: rules(Direction::Ingress),
            egress: rules(Direction::Egress),
        })
    }
}

impl PodVerdicts<'_> {
    /// `None` for an address of the other family, and for one of the pod itself: no policy counts then.
    pub fn with<const N: usize>(
        &self,
        peer: IpAddr,
        protocol: Protocol,
        ports: [u16; N],
    ) -> Option<PortVerdicts<N>> {
        if peer.is_ipv4() != self.address.is_ipv4() {
            return None;
        }
        let other = self.policies.pod_at(peer);
        if other.is_some_and(|(key, _)| key == self.own.0) {
            return None;
        }
        let allowed = |rules: Option<&[&Rule]>, destination: Option<&Pod>| {
            let Some(rules) = rules else { return [true; N] };
            let mut allowed = [false; N];
            for rule in rules {
                if !self.policies.has_peer(rule, other, peer) {
                    continue;
                }
                for (allowed, port) in allowed.iter_mut().zip(ports) {
                    *allowed |= rule.has_port(destination, protocol, port);
                }
            }
            allowed
        };
        Some(PortVerdicts {
            ingress: allowed(self.ingress.as_deref(), Some(self.own.1)),
            egress: allowed(self.egress.as_deref(), other.map(|(_, pod)| pod)),
        })
    }
}
