//! The allocated CIDRs, in one ConfigMap: by node name, the node's ranges, and since when the node does not exist.
//!
//! One entry takes about 60 bytes, so a ConfigMap of 1 MiB has room for some 15 000 nodes.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::cidr::Cidr;

use super::Entries;

pub const NAMESPACE: &str = "kube-system";
pub const NAME: &str = "knarr-node-cidrs";
/// Separates the ranges of an entry from the time at which its node was first missing.
const RELEASED: &str = " released ";
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "The ranges of pod addresses that nodes have. Kept by knarr's node IPAM controller; a range of a node that was deleted \
     stays here until nothing of it can run any more.",
);

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocations(pub Entries);

/// The entry of one node: `10.244.3.0/24,fd00:0:0:3::/64 released 2026-11-23T03:00:00Z`.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub cidrs: Vec<Cidr>,
    /// When a leader first observed that the node does not exist.
    pub released: Option<Timestamp>,
}

impl Entry {
    pub fn parse(text: &str) -> Option<Self> {
        let (cidrs, released) = match text.split_once(RELEASED) {
            Some((cidrs, at)) => (cidrs, Some(at.parse().ok()?)),
            None => (text, None),
        };
        let cidrs = cidrs.split(',').map(|c| Cidr::parse(c).map(|c| c.masked()));
        let cidrs = cidrs.collect::<Option<Vec<Cidr>>>()?;
        Some(Entry { cidrs, released })
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, cidr) in self.cidrs.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{cidr}")?;
        }
        match self.released {
            Some(at) => write!(f, "{RELEASED}{at}"),
            None => Ok(()),
        }
    }
}

impl Allocations {
    /// Parses the ConfigMap. An entry that does not parse is left out; if its node has ranges they are recorded again.
    pub fn read(recorded: &ConfigMap) -> Self {
        let entries = recorded.data.iter().flatten();
        let entries = entries.filter_map(|(node, text)| Some((node.clone(), Entry::parse(text)?)));
        Allocations(entries.collect())
    }

    /// The node that has a part of this range, unless it is `except`.
    pub fn holder_of(&self, cidr: &Cidr, except: &str) -> Option<&str> {
        let mut others = self.0.iter().filter(|(node, _)| *node != except);
        let holder = others.find(|(_, entry)| entry.cidrs.iter().any(|c| c.overlaps(cidr)));
        holder.map(|(node, _)| node.as_str())
    }

    fn data(&self) -> BTreeMap<String, String> {
        let entries = self.0.iter();
        entries
            .map(|(node, entry)| (node.clone(), entry.to_string()))
            .collect()
    }

    pub fn to_config_map(&self) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                namespace: Some(NAMESPACE.into()),
                name: Some(NAME.into()),
                annotations: Some([(DESCRIPTION.0.to_string(), DESCRIPTION.1.to_string())].into()),
                ..ObjectMeta::default()
            },
            data: Some(self.data()),
            ..ConfigMap::default()
        }
    }

    /// The ConfigMap with these allocations, if it differs.
    pub fn updated(&self, recorded: &ConfigMap) -> Option<ConfigMap> {
        let data = self.data();
        if *recorded.data.as_ref().unwrap_or(&BTreeMap::new()) == data {
            return None;
        }
        let mut changed = recorded.clone();
        changed.data = Some(data);
        Some(changed)
    }
}
