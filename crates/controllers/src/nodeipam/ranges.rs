//! The cluster CIDRs, and their free ranges.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_apimachinery::cidr::Cidr;

use super::Allocations;

/// How long the ranges of a deleted node stay allocated. A node that is cut off terminates at-most-one pods within
/// its grace period; other pods may run there longer, but their ranges are free after this time.
pub const QUARANTINE: SignedDuration = SignedDuration::from_mins(10);
/// The largest difference of a cluster CIDR's and its nodes' prefix lengths, as in Kubernetes: 65 536 nodes.
const MAX_DIFFERENCE: u8 = 16;

/// A cluster CIDR, and the prefix length of a node's range in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClusterCidr {
    cidr: Cidr,
    node_prefix: u8,
}

/// The configuration of the range allocator.
#[derive(Clone, Debug)]
pub struct Config {
    cluster: Vec<ClusterCidr>,
    service: Vec<Cidr>,
    /// How long the ranges of a deleted node stay allocated ([`QUARANTINE`]).
    pub quarantine: SignedDuration,
}

/// The values of kube-controller-manager's flags.
#[derive(Clone, Debug)]
pub struct Flags {
    /// `--cluster-cidr`: one range, or one of each family, the primary first.
    pub cluster_cidrs: Vec<String>,
    /// `--node-cidr-mask-size-ipv4`.
    pub node_cidr_mask_size_ipv4: u8,
    /// `--node-cidr-mask-size-ipv6`.
    pub node_cidr_mask_size_ipv6: u8,
    /// `--service-cluster-ip-range`: no node gets any of these.
    pub service_cidrs: Vec<String>,
}

impl Default for Flags {
    fn default() -> Self {
        Flags {
            cluster_cidrs: Vec::new(),
            node_cidr_mask_size_ipv4: 24,
            node_cidr_mask_size_ipv6: 64,
            service_cidrs: Vec::new(),
        }
    }
}

impl TryFrom<&Flags> for Config {
    /// All errors, each with its flag.
    type Error = Vec<String>;

    fn try_from(flags: &Flags) -> Result<Self, Vec<String>> {
        let mut errors = Vec::new();
        let mut cluster: Vec<ClusterCidr> = Vec::new();
        for text in &flags.cluster_cidrs {
            let Some(cidr) = Cidr::parse(text).map(|c| c.masked()) else {
                errors.push(format!("--cluster-cidr: {text:?} is not an address range"));
                continue;
            };
            let (flag, node_prefix) = if cidr.is_ipv6() {
                ("--node-cidr-mask-size-ipv6", flags.node_cidr_mask_size_ipv6)
            } else {
                ("--node-cidr-mask-size-ipv4", flags.node_cidr_mask_size_ipv4)
            };
            let from = cidr.prefix_len();
            let to = (from + MAX_DIFFERENCE).min(if cidr.is_ipv6() { 128 } else { 32 });
            if !(from..=to).contains(&node_prefix) {
                errors.push(format!(
                    "{flag}: {node_prefix} must be from {from} to {to} for --cluster-cidr {cidr}"
                ));
            }
            cluster.push(ClusterCidr { cidr, node_prefix });
        }
        let v6 = cluster.iter().filter(|c| c.cidr.is_ipv6()).count();
        if cluster.is_empty() || v6 > 1 || cluster.len() - v6 > 1 {
            errors.push("--cluster-cidr: expected one range, or one of each IP family".into());
        }
        let mut service = Vec::new();
        for text in &flags.service_cidrs {
            match Cidr::parse(text) {
                Some(cidr) => service.push(cidr.masked()),
                None => errors.push(format!("--service-cidr: {text:?} is not an address range")),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Config {
            cluster,
            service,
            quarantine: QUARANTINE,
        })
    }
}

impl Config {
    /// Whether this range is in the cluster CIDR of its family.
    pub(super) fn contains(&self, cidr: &Cidr) -> bool {
        let mut cluster = self.cluster.iter();
        cluster.any(|c| c.cidr == *cidr || c.cidr.strictly_contains(cidr))
    }

    /// Whether a node's ranges have the form of allocated ones.
    pub(super) fn fits(&self, cidrs: &[Cidr]) -> bool {
        cidrs.len() == self.cluster.len()
            && cidrs.iter().zip(&self.cluster).all(|(has, of)| {
                self.contains(has)
                    && has.is_ipv6() == of.cidr.is_ipv6()
                    && has.prefix_len() == of.node_prefix
                    && !self.service.iter().any(|s| s.overlaps(has))
            })
    }

    pub(super) fn to_text(&self) -> String {
        let shown: Vec<String> = self.cluster.iter().map(|c| c.cidr.to_string()).collect();
        shown.join(",")
    }

    /// The free ranges of each cluster CIDR: without Service CIDRs and nodes' ranges.
    pub(super) fn free(&self, allocations: &Allocations) -> Vec<FreeRanges<'_>> {
        let mut free: Vec<FreeRanges<'_>> = self.cluster.iter().map(FreeRanges::new).collect();
        let taken = allocations.0.values().flat_map(|entry| &entry.cidrs);
        for cidr in self.service.iter().chain(taken) {
            free.iter_mut().for_each(|f| f.take(cidr));
        }
        free
    }
}

/// Every range of a cluster CIDR is allocated.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no /{prefix} of the cluster CIDR {cluster_cidr} is left")]
pub(super) struct NoneLeft {
    prefix: u8,
    cluster_cidr: Cidr,
}

/// The free ranges of one cluster CIDR.
pub(super) struct FreeRanges<'a> {
    of: &'a ClusterCidr,
    taken: Vec<bool>,
    /// All ranges before this one are allocated.
    next: usize,
}

impl<'a> FreeRanges<'a> {
    fn new(of: &'a ClusterCidr) -> Self {
        // At most 65 536, by MAX_DIFFERENCE.
        let parts = 1usize << (of.node_prefix - of.cidr.prefix_len());
        FreeRanges {
            of,
            taken: vec![false; parts],
            next: 0,
        }
    }

    fn take(&mut self, cidr: &Cidr) {
        let Some(parts) = self.of.cidr.subranges_overlapping(self.of.node_prefix, cidr) else {
            return;
        };
        let last = self.taken.len() - 1;
        let index = |n: u128| usize::try_from(n).unwrap_or(last).min(last);
        self.taken[index(*parts.start())..=index(*parts.end())].fill(true);
    }

    /// Allocates the next range.
    pub(super) fn next(&mut self) -> Result<Cidr, NoneLeft> {
        let none = NoneLeft {
            prefix: self.of.node_prefix,
            cluster_cidr: self.of.cidr,
        };
        let found = self.taken.iter().skip(self.next).position(|taken| !taken);
        let at = found.map(|n| self.next + n).ok_or(none)?;
        let cidr = self
            .of
            .cidr
            .subrange(self.of.node_prefix, at as u128)
            .ok_or(none)?;
        self.taken[at] = true;
        self.next = at + 1;
        Ok(cidr)
    }
}
