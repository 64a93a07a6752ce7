//! Which endpoint is in which slice.
//!
//! An endpoint is_kept in its slice. New ones are added to slices that are written anyway, the fullest first; the rest is added to
//! one slice that has room for all of it, and to new slices otherwise, so that few slices are written. A slice that would be
//! deleted is reused if a new one is needed. A Service without endpoints has one empty slice, the placeholder.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use knarr_api::Shared;
use knarr_api::k8s_openapi;

use super::{MAX_ENDPOINTS, Port, pod_uid};

/// The desired endpoints: for each set of ports, by pod.
pub type Desired = BTreeMap<Vec<Port>, BTreeMap<String, Endpoint>>;

/// A desired slice.
pub struct Draft<'a> {
    /// The existing slice, with its uid and resourceVersion.
    pub before: Option<&'a Shared<EndpointSlice>>,
    pub ports: Vec<Port>,
    pub endpoints: Vec<Endpoint>,
    /// The empty slice of a Service without endpoints.
    placeholder: bool,
}

impl Draft<'_> {
    fn new(ports: Vec<Port>, endpoints: Vec<Endpoint>) -> Self {
        Draft {
            before: None,
            ports,
            endpoints,
            placeholder: false,
        }
    }

    /// Whether the slice is kept.
    pub fn is_kept(&self) -> bool {
        self.placeholder || !self.endpoints.is_empty()
    }

    /// Whether the slice has to be written.
    pub fn differs(&self, labels: &BTreeMap<String, String>) -> bool {
        self.before.is_none_or(|before| {
            before.endpoints.as_deref().unwrap_or_default() != self.endpoints
                || before.metadata.labels.as_ref() != Some(labels)
                || !self.has_ports_of(before)
        })
    }

    pub fn has_ports_of(&self, slice: &EndpointSlice) -> bool {
        ports_of(slice) == self.ports.iter().cloned().collect()
    }
}

fn ports_of(slice: &EndpointSlice) -> BTreeSet<Port> {
    let ports = slice.ports.iter().flatten().map(|p| Port {
        name: p.name.clone().unwrap_or_default(),
        protocol: p.protocol.clone().unwrap_or_else(|| "TCP".into()),
        number: p.port.unwrap_or_default(),
        app_protocol: p.app_protocol.clone(),
    });
    ports.collect()
}

/// See the module. `keep_hints`: endpoints keep the hints of their existing slice.
pub fn plan<'a>(
    existing: Vec<&'a Shared<EndpointSlice>>,
    mut desired: Desired,
    labels: &BTreeMap<String, String>,
    keep_hints: bool,
) -> Vec<Draft<'a>> {
    let mut drafts: Vec<Draft<'a>> = Vec::new();
    for slice in existing {
        let has = ports_of(slice);
        let group = desired
            .iter_mut()
            .find(|(ports, _)| ports.iter().cloned().collect::<BTreeSet<Port>>() == has);
        let mut draft = Draft::new(Vec::new(), Vec::new());
        draft.before = Some(slice);
        if let Some((ports, by_pod)) = group {
            draft.ports = ports.clone();
            let kept = slice.endpoints.iter().flatten().filter_map(|before| {
                let mut endpoint = by_pod.remove(pod_uid(before))?;
                if keep_hints {
                    endpoint.hints = before.hints.clone();
                }
                Some(endpoint)
            });
            draft.endpoints = kept.collect();
        }
        drafts.push(draft);
    }
    for (ports, new) in desired {
        add_to_slices(&mut drafts, ports, new, labels);
    }
    if drafts.iter().all(|d| d.endpoints.is_empty()) {
        keep_placeholder(&mut drafts);
    }
    reuse(&mut drafts);
    drafts
}

/// Adds endpoints of one set of ports that are in no slice yet.
fn add_to_slices(
    drafts: &mut Vec<Draft<'_>>,
    ports: Vec<Port>,
    new: BTreeMap<String, Endpoint>,
    labels: &BTreeMap<String, String>,
) {
    let mut new = new.into_values();
    let mut written: Vec<&mut Draft<'_>> = drafts
        .iter_mut()
        .filter(|d| d.ports == ports && !d.endpoints.is_empty() && d.differs(labels))
        .collect();
    written.sort_by_key(|d| usize::MAX - d.endpoints.len());
    for draft in written {
        let room = MAX_ENDPOINTS.saturating_sub(draft.endpoints.len());
        draft.endpoints.extend(new.by_ref().take(room));
    }
    while new.len() > 0 {
        let room_for_all = |d: &&mut Draft<'_>| {
            d.ports == ports
                && d.is_kept()
                && d.endpoints.len() + new.len() <= MAX_ENDPOINTS
                && !d.differs(labels)
        };
        let fullest = drafts.iter_mut().filter(room_for_all);
        match fullest.max_by_key(|d| d.endpoints.len()) {
            Some(draft) => draft.endpoints.extend(new.by_ref()),
            None => {
                let endpoints = new.by_ref().take(MAX_ENDPOINTS).collect();
                drafts.push(Draft::new(ports.clone(), endpoints));
            }
        }
    }
}

/// Keeps one slice as the placeholder: an existing one if possible.
fn keep_placeholder(drafts: &mut Vec<Draft<'_>>) {
    let is_one = |d: &Draft<'_>| {
        d.before
            .is_some_and(|b| b.ports.as_ref().is_none_or(Vec::is_empty))
    };
    if drafts.is_empty() {
        drafts.push(Draft::new(Vec::new(), Vec::new()));
    }
    let at = drafts.iter().position(is_one).unwrap_or(0);
    if let Some(draft) = drafts.get_mut(at) {
        draft.ports = Vec::new();
        draft.placeholder = true;
    }
}

/// Uses slices that would be deleted as new ones.
fn reuse(drafts: &mut Vec<Draft<'_>>) {
    let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(drafts).into_iter().partition(Draft::is_kept);
    *drafts = stay;
    let mut go = go.into_iter();
    for draft in drafts.iter_mut().filter(|d| d.before.is_none()) {
        match go.next() {
            Some(reused) => draft.before = reused.before,
            None => break,
        }
    }
    drafts.extend(go);
}
