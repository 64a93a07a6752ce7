//! Which pods' addresses are in which sets.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::groups::SetId;
use super::{Isolation, Policies, Profile};
use crate::nft::{Data, Elements, Key, Verdict};
use crate::policy::addresses::bytes;
use crate::policy::peers::{Labels, SetKey, Whose};
use crate::policy::pod::{Pod, PodKey, ProfileKey};
use crate::policy::ruleset::{EGRESS, INGRESS, SELF};

/// An element that pods contribute to a set: set, whether of IPv4, key.
pub(super) type Contribution = (SetId, bool, Key);

fn address_key(address: IpAddr) -> Key {
    Key::exact(bytes(address))
}

/// Address, protocol and port, each padded to 4 bytes.
fn address_and_port_key(address: IpAddr, protocol: u8, port: u16) -> Key {
    let mut key = bytes(address).into_vec();
    key.extend([protocol, 0, 0, 0]);
    key.extend(port.to_be_bytes());
    key.extend([0, 0]);
    Key::exact(key)
}

impl Policies {
    /// A pod's object was changed or deleted.
    pub(super) fn put_pod(&mut self, key: &PodKey, new: Option<Pod>) {
        let old = self.pods.get(key);
        if old == new.as_ref() {
            return;
        }
        let addresses: BTreeSet<IpAddr> = [old, new.as_ref()]
            .into_iter()
            .flatten()
            .flat_map(|pod| pod.addresses.iter().copied())
            .collect();
        let others = addresses.iter().filter_map(|address| self.owners.get(address));
        let mut affected: BTreeSet<PodKey> = others.flatten().cloned().collect();
        affected.insert(key.clone());
        self.change_pods(&affected, |this| {
            if let Some(old) = this.pods.remove(key) {
                this.leave(key, &old, new.as_ref());
            }
            if let Some(new) = new {
                this.join(key, &new);
                this.pods.insert(key.clone(), new);
            }
        });
        if let Some(sandboxes) = self.sandboxes.get(key) {
            self.dirty.extend(sandboxes.iter().cloned());
        }
    }

    /// Addresses that `next`, the pod's new state, has as well stay its own.
    fn leave(&mut self, key: &PodKey, pod: &Pod, next: Option<&Pod>) {
        for address in &pod.addresses {
            if next.is_some_and(|next| next.addresses.contains(address)) {
                continue;
            }
            if let Some(owners) = self.owners.get_mut(address) {
                owners.retain(|owner| owner != key);
                if owners.is_empty() {
                    self.owners.remove(address);
                }
            }
        }
        if let Some(profile) = self.profiles.get_mut(&pod.profile) {
            profile.pods.remove(key);
            if profile.pods.is_empty() {
                self.profiles.remove(&pod.profile);
            }
        }
    }

    fn join(&mut self, key: &PodKey, pod: &Pod) {
        for address in &pod.addresses {
            let owners = self.owners.entry(*address).or_default();
            if !owners.contains(key) {
                owners.push(key.clone());
            }
        }
        if let Some(profile) = self.profiles.get_mut(&pod.profile) {
            profile.pods.insert(key.clone());
            return;
        }
        let profile = Profile {
            pods: BTreeSet::from([key.clone()]),
            sets: self.sets_of(&pod.profile),
        };
        self.profiles.insert(pod.profile.clone(), profile);
    }

    fn sets_of(&self, profile: &ProfileKey) -> BTreeSet<SetId> {
        let of_namespace = self.namespaces.get(&profile.namespace);
        self.sets
            .of_namespace(&profile.namespace)
            .filter(|(_, set)| set.matches(&profile.namespace, of_namespace, &profile.labels))
            .map(|(id, _)| id)
            .collect()
    }

    fn profiles_of(&self, namespace: Option<&Arc<str>>) -> Vec<Arc<ProfileKey>> {
        let Some(namespace) = namespace else {
            return self.profiles.keys().cloned().collect();
        };
        let first = Arc::new(ProfileKey {
            namespace: namespace.clone(),
            labels: Labels::new(),
        });
        let of = self.profiles.range(first..).map(|(key, _)| key);
        of.take_while(|key| key.namespace == *namespace)
            .cloned()
            .collect()
    }

    /// `None`: the namespace was deleted.
    pub(super) fn put_namespace(&mut self, name: &str, labels: Option<Labels>) {
        if self.namespaces.get(name) == labels.as_ref() {
            return;
        }
        let name = self.interner.get(name);
        let profiles = self.profiles_of(Some(&name));
        let of = profiles.iter().filter_map(|key| self.profiles.get(key));
        let pods: BTreeSet<PodKey> = of.flat_map(|profile| profile.pods.iter().cloned()).collect();
        self.change_pods(&pods, |this| {
            match labels {
                Some(labels) => this.namespaces.insert(name, labels),
                None => this.namespaces.remove(&name),
            };
            for key in profiles {
                let sets = this.sets_of(&key);
                if let Some(profile) = this.profiles.get_mut(&key) {
                    profile.sets = sets;
                }
            }
        });
    }

    /// Puts the pods of a new set into it.
    pub(super) fn enroll(&mut self, id: SetId, set: &SetKey, namespace: Option<&Arc<str>>) {
        for key in self.profiles_of(namespace) {
            let of_namespace = self.namespaces.get(&key.namespace);
            if set.matches(&key.namespace, of_namespace, &key.labels)
                && let Some(profile) = self.profiles.get_mut(&key)
            {
                profile.sets.insert(id);
            }
        }
    }

    pub(super) fn expel(&mut self, id: SetId, namespace: Option<&Arc<str>>) {
        for key in self.profiles_of(namespace) {
            if let Some(profile) = self.profiles.get_mut(&key) {
                profile.sets.remove(&id);
            }
        }
    }

    /// What a pod contributes to a set.
    fn contribute(&self, key: &PodKey, pod: &Pod, id: SetId, elements: &mut BTreeSet<Contribution>) {
        let Some(set) = self.sets.key(id) else {
            return;
        };
        for address in &pod.addresses {
            if self.owner(*address) != Some(key) {
                continue;
            }
            match set {
                SetKey::Pods(_) => {
                    elements.insert((id, address.is_ipv4(), address_key(*address)));
                }
                SetKey::Blocks(_) => {}
                SetKey::NamedPort {
                    whose,
                    protocol,
                    name,
                } => {
                    let is_out = matches!(whose, Whose::Blocks(blocks) if !blocks.contains(*address));
                    if let Some(port) = pod.port(*protocol, name).filter(|_| !is_out) {
                        let key = address_and_port_key(*address, protocol.number(), port);
                        elements.insert((id, address.is_ipv4(), key));
                    }
                }
            }
        }
    }

    fn contributions(&self, pods: &BTreeSet<PodKey>) -> BTreeSet<Contribution> {
        let mut elements = BTreeSet::new();
        for key in pods {
            let Some(pod) = self.pods.get(key) else {
                continue;
            };
            let profile = self.profiles.get(&pod.profile);
            for id in profile.into_iter().flat_map(|profile| &profile.sets) {
                self.contribute(key, pod, *id, &mut elements);
            }
        }
        elements
    }

    /// Makes a change that concerns only these pods, and records the resulting elements.
    fn change_pods(&mut self, pods: &BTreeSet<PodKey>, change: impl FnOnce(&mut Self)) {
        let before = self.contributions(pods);
        change(self);
        let after = self.contributions(pods);
        for (id, is_ipv4, key) in before.difference(&after) {
            self.pending.note_member(*id, *is_ipv4, key, false);
        }
        for (id, is_ipv4, key) in after.difference(&before) {
            self.pending.note_member(*id, *is_ipv4, key, true);
        }
    }

    /// All elements of a set of peers.
    pub(super) fn elements_of(&self, id: SetId, is_ipv4: bool) -> Elements {
        let Some(set) = self.sets.key(id) else {
            return Elements::new();
        };
        if let SetKey::Blocks(ranges) = set {
            return ranges.keys(is_ipv4).map(|key| (key, None)).collect();
        }
        let mut elements = BTreeSet::new();
        for profile in self.profiles_of(set.only_namespace()) {
            let Some(profile) = self.profiles.get(&profile).filter(|p| p.sets.contains(&id)) else {
                continue;
            };
            for key in &profile.pods {
                if let Some(pod) = self.pods.get(key) {
                    self.contribute(key, pod, id, &mut elements);
                }
            }
        }
        let of_family = elements.into_iter().filter(|(_, of, _)| *of == is_ipv4);
        of_family.map(|(_, _, key)| (key, None)).collect()
    }

    /// The elements that a local address has in the fixed sets.
    pub(super) fn local_elements(&self, address: IpAddr) -> Vec<(&'static str, Key, Option<Data>)> {
        let sandbox = self.local_addresses.get(&address).and_then(|of| of.last());
        let Some(local) = sandbox.and_then(|sandbox| self.locals.get(sandbox)) else {
            return Vec::new();
        };
        let mut elements = Vec::new();
        let name = |[v4, v6]: [&'static str; 2]| if address.is_ipv4() { v4 } else { v6 };
        for (maps, isolation) in [(INGRESS, local.ingress), (EGRESS, local.egress)] {
            let verdict = match isolation {
                Isolation::Open => continue,
                Isolation::Denied => Verdict::Drop,
                Isolation::Group(group) => Verdict::Jump(group.chain().as_ref().into()),
            };
            elements.push((name(maps), address_key(address), Some(Data::Verdict(verdict))));
        }
        let twice = [bytes(address), bytes(address)].concat();
        elements.push((name(SELF), Key::exact(twice), None));
        elements
    }

    /// The same as [`Policies::change_pods`] for the fixed sets.
    pub(super) fn change_local(&mut self, addresses: &[IpAddr], change: impl FnOnce(&mut Self)) {
        let elements = |this: &Self| -> Vec<_> {
            let of = addresses.iter();
            of.flat_map(|address| this.local_elements(*address)).collect()
        };
        let before = elements(self);
        change(self);
        let after = elements(self);
        for (set, key, data) in before {
            self.pending
                .note_local(set, key.clone(), Some(data.clone()), None);
        }
        for (set, key, data) in after {
            self.pending
                .note_local(set, key.clone(), None, Some(data.clone()));
        }
    }
}
