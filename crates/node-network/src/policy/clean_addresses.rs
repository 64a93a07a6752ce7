//! Which addresses of this node have no conntrack entries of an earlier pod. Decides only; [`super::flows`] deletes.
//!
//! An entry lets packets pass as those of an established connection, whatever the policies say. So a pod may be attached
//! without a dump of the conntrack table only if its addresses are *clean*: a dump that began after the last sandbox with
//! the address was detached has deleted its entries, and none can have been confirmed since.
//!
//! The kernel confirms an entry, that is makes it visible to later packets, only when its first packet has passed the
//! hooks `input` or `postrouting`. Between a detach and the next attach no packet with a pod's address passes them, and an
//! unconfirmed entry is freed with its packet:
//!
//! - A detached sandbox has no link: DEL sets it down, which removes the route to the address, and the link is deleted after DEL's
//!   answer but before the sandbox is detached. When the kernel has answered the deletion, no packet is under way that was routed
//!   before. Until then the sandbox is attached, and no other one gets its address.
//! - A forwarded packet *to* the address has the pod CIDR's unreachable route, in both families. So has a packet to a
//!   Service or host port that is translated to the address (a stale endpoint): it is routed after the translation. A
//!   local process gets an error from `connect` or `sendto`, or the translated packet is dropped where it is routed again.
//! - A packet *from* the address cannot come from another pod, and from any other link it is dropped before connection
//!   tracking while no route leads to the address (the chain `from-pods` of the table `knarr-pods`).
//! - When it is attached, the address is isolated by a committed change before there is a route to it. Then on its
//!   policies decide on each new entry.
//!
//! In doubt an address is not clean, and its attachment waits for a dump:
//!
//! - at first, and outside of the ranges with an unreachable route: [`CleanAddresses::set_unreachable`];
//! - where that route had to be set again because another program deleted it. Until that is seen, as after a deletion of
//!   the policies' own table, a new entry may be wrong;
//! - the network address of a range, which is the node's own end of the tunnel and whose flows are kept;
//! - while another sandbox has it;
//! - until a dump has succeeded.
//!
//! Pods in the host network have none of these addresses. The pods of the earlier bridge network have, and are not attached
//! here: where there are leases of it, no range is given.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use knarr_network::routes::gateway;

use crate::routes::Unreachable;

/// Detached addresses that are kept one by one: those of a CIDR of the default size several times. If there are more, as
/// when no dump succeeds, all ranges are dumped for.
const MAX_FREED: usize = 4096;

/// Addresses whose flows are to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleAddresses {
    pub addresses: BTreeSet<IpAddr>,
    /// All addresses of these ranges …
    pub ranges: Vec<IpNet>,
    /// … but these.
    pub except: BTreeSet<IpAddr>,
}

impl StaleAddresses {
    pub fn contains(&self, address: IpAddr) -> bool {
        let is_in_range = || self.ranges.iter().any(|range| range.contains(&address));
        self.addresses.contains(&address) || (is_in_range() && !self.except.contains(&address))
    }

    /// Whether there can be any of the family.
    pub fn has_family(&self, is_ipv4: bool) -> bool {
        let has_address = self.addresses.iter().any(|address| address.is_ipv4() == is_ipv4);
        has_address || self.ranges.iter().any(|range| range.addr().is_ipv4() == is_ipv4)
    }
}

/// What the next dump is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Nothing,
    /// Later attachments.
    Later,
    /// An attachment that waits for it.
    Waiting,
}

/// See the module. There is one dump at a time; they are numbered from 1 in the order in which they begin.
#[derive(Debug, Default)]
pub(super) struct CleanAddresses {
    unreachable: Unreachable,
    /// Each with the first dump whose success makes it clean.
    ranges: BTreeMap<IpNet, u64>,
    /// The addresses of sandboxes.
    attached: BTreeMap<Arc<str>, Vec<IpAddr>>,
    /// How many attached sandboxes have each address.
    used: BTreeMap<IpAddr, usize>,
    /// Addresses in these ranges that were detached, each with the first dump whose success makes it clean.
    freed: BTreeMap<IpAddr, u64>,
    /// Addresses of attachments that wait for the next dump.
    requested: BTreeSet<IpAddr>,
    /// The number of the last dump that has begun.
    begun: u64,
    /// The number of the last dump that has succeeded.
    succeeded: u64,
}

impl CleanAddresses {
    /// In these ranges there are only packets from and to addresses of attached sandboxes, from now on. Nothing is known of
    /// them if they are others than before, or had no unreachable route for a while.
    pub fn set_unreachable(&mut self, unreachable: &Unreachable) {
        if self.unreachable != *unreachable {
            self.unreachable = unreachable.clone();
            self.forget();
        }
    }

    /// Nothing is clean until the next dump.
    fn forget(&mut self) {
        let next = self.begun + 1;
        let ranges = self.unreachable.ranges.iter();
        self.ranges = ranges.map(|range| (range.trunc(), next)).collect();
        // Those in the ranges are among the unused ones.
        self.freed.clear();
    }

    /// Whether the sandbox's addresses are clean. If not, [`CleanAddresses::request`] is called once it is isolated.
    pub fn attach(&mut self, sandbox: &Arc<str>, addresses: &[IpAddr]) -> bool {
        self.detach(sandbox);
        let is_clean = addresses.iter().all(|address| self.is_clean(*address));
        for address in addresses {
            self.freed.remove(address);
            *self.used.entry(*address).or_default() += 1;
        }
        self.attached.insert(sandbox.clone(), addresses.to_vec());
        is_clean
    }

    /// The sandbox's link and routes were deleted before.
    pub fn detach(&mut self, sandbox: &str) {
        for address in self.attached.remove(sandbox).unwrap_or_default() {
            let others = self.used.get(&address).map_or(0, |count| count - 1);
            if others > 0 {
                self.used.insert(address, others);
                continue;
            }
            self.used.remove(&address);
            // Of others nothing is known after a dump either.
            if self.ranges.keys().any(|range| range.contains(&address)) {
                self.freed.insert(address, self.begun + 1);
            }
        }
        if self.freed.len() > MAX_FREED {
            self.forget();
        }
    }

    fn is_clean(&self, address: IpAddr) -> bool {
        let is_deleted = |(range, first): (&IpNet, &u64)| {
            *first <= self.succeeded && range.contains(&address) && gateway(range) != address
        };
        self.ranges.iter().any(is_deleted)
            && !self.used.contains_key(&address)
            && !self.freed.contains_key(&address)
    }

    /// The number of the dump that deletes these addresses' flows: one that has not begun yet.
    pub fn request(&mut self, addresses: &[IpAddr]) -> u64 {
        self.requested.extend(addresses);
        self.begun + 1
    }

    pub fn need(&self) -> Need {
        let is_unknown = |first: &u64| *first > self.succeeded;
        match self.requested.is_empty() {
            false => Need::Waiting,
            true if !self.freed.is_empty() || self.ranges.values().any(is_unknown) => Need::Later,
            true => Need::Nothing,
        }
    }

    /// Begins a dump, for all that is needed. [`CleanAddresses::finish`] ends it.
    pub fn begin(&mut self) -> StaleAddresses {
        self.begun += 1;
        let mut addresses = std::mem::take(&mut self.requested);
        addresses.extend(self.freed.keys());
        let unknown = self.ranges.iter().filter(|(_, first)| **first > self.succeeded);
        let ranges: Vec<IpNet> = unknown.map(|(range, _)| *range).collect();
        let mut except: BTreeSet<IpAddr> = ranges.iter().map(gateway).collect();
        if !ranges.is_empty() {
            except.extend(self.used.keys());
        }
        StaleAddresses {
            addresses,
            ranges,
            except,
        }
    }

    /// The number of the dump. What was requested of one that failed is not repeated.
    pub fn finish(&mut self, has_succeeded: bool) -> u64 {
        if has_succeeded {
            self.succeeded = self.begun;
            // Later ones were detached since it began.
            self.freed.retain(|_, first| *first > self.succeeded);
        }
        self.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn unreachable(ranges: &[&str], set: u64) -> Unreachable {
        Unreachable {
            ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            set,
        }
    }

    /// One step of a history.
    enum Step {
        Ranges(&'static [&'static str], u64),
        /// The sandbox, its addresses, whether they are clean.
        Attach(&'static str, &'static [&'static str], bool),
        Detach(&'static str),
        Begin,
        Succeed,
        Fail,
        Needs(Need),
    }

    use Step::{Attach, Begin, Detach, Fail, Needs, Ranges, Succeed};

    const V4: &[&str] = &["10.1.0.0/24"];
    const BOTH: &[&str] = &["10.1.0.0/24", "fd00:1::/64"];
    const A: &[&str] = &["10.1.0.2"];
    const A_BOTH: &[&str] = &["10.1.0.2", "fd00:1::2"];

    fn run(case: &str, steps: &[Step]) -> CleanAddresses {
        let mut clean = CleanAddresses::default();
        for (number, step) in steps.iter().enumerate() {
            let at = format!("{case}, step {number}");
            match step {
                Ranges(ranges, set) => clean.set_unreachable(&unreachable(ranges, *set)),
                Attach(sandbox, addresses, expected) => {
                    let addresses: Vec<IpAddr> = addresses.iter().map(|address| ip(address)).collect();
                    let is_clean = clean.attach(&Arc::from(*sandbox), &addresses);
                    assert_eq!(is_clean, *expected, "{at}");
                }
                Detach(sandbox) => clean.detach(sandbox),
                Begin => {
                    clean.begin();
                }
                Succeed => {
                    clean.finish(true);
                }
                Fail => {
                    clean.finish(false);
                }
                Needs(need) => assert_eq!(clean.need(), *need, "{at}"),
            }
        }
        clean
    }

    #[test]
    fn n6_an_address_is_clean_only_after_a_dump_that_began_after_its_last_use() {
        for (case, steps) in [
            (
                "nothing is known without a range",
                vec![
                    Attach("a", A, false),
                    Detach("a"),
                    Needs(Need::Nothing),
                    Begin,
                    Succeed,
                    Attach("a", A, false),
                ],
            ),
            (
                "a range is clean after its dump",
                vec![
                    Ranges(V4, 0),
                    Needs(Need::Later),
                    Begin,
                    Attach("a", A, false),
                    Succeed,
                    Needs(Need::Nothing),
                    Attach("b", &["10.1.0.3"], true),
                    Attach("c", &["10.2.0.3"], false),
                    Attach("d", &["10.1.0.4", "fd00:1::4"], false),
                ],
            ),
            (
                "both families",
                vec![Ranges(BOTH, 0), Begin, Succeed, Attach("a", A_BOTH, true)],
            ),
            (
                "the dump fails",
                vec![
                    Ranges(V4, 0),
                    Begin,
                    Fail,
                    Needs(Need::Later),
                    Attach("a", A, false),
                ],
            ),
            (
                "attached right after detach",
                vec![
                    Ranges(V4, 0),
                    Begin,
                    Succeed,
                    Attach("a", A, true),
                    Detach("a"),
                    Needs(Need::Later),
                    Attach("b", A, false),
                    Needs(Need::Nothing),
                ],
            ),
            (
                "attached while its flows are deleted, and again after that",
                vec![
                    Ranges(V4, 0),
                    Begin,
                    Succeed,
                    Attach("a", A, true),
                    Detach("a"),
                    Begin,
                    Attach("b", A, false),
                    Succeed,
                    Detach("b"),
                    Attach("c", A, false),
                ],
            ),
            (
                "attached and detached while its flows are deleted",
                vec![
                    Ranges(V4, 0),
                    Begin,
                    Succeed,
                    Attach("a", A, true),
                    Detach("a"),
                    Begin,
                    Attach("b", A, false),
                    Detach("b"),
                    Succeed,
                    Needs(Need::Later),
                    Attach("c", A, false),
                ],
            ),
            (
                "detached, dumped, attached",
                vec![
                    Ranges(V4, 0),
                    Begin,
                    Succeed,
                    Attach("a", A, true),
                    Detach("a"),
                    Begin,
                    Fail,
                    Begin,
                    Succeed,
                    Needs(Need::Nothing),
                    Attach("b", A, true),
                ],
            ),
            (
                "in use before the ranges were known",
                vec![
                    Attach("a", A, false),
                    Ranges(V4, 0),
                    Begin,
                    Detach("a"),
                    Succeed,
                    Attach("b", A, false),
                ],
            ),
            (
                "a sandbox is attached again with another address",
                vec![
                    Ranges(V4, 0),
                    Begin,
                    Succeed,
                    Attach("a", A, true),
                    Attach("a", &["10.1.0.3"], true),
                    Needs(Need::Later),
                    Attach("b", A, false),
                ],
            ),
            (
                "a sandbox is attached again with its own address",
                vec![
                    Ranges(V4, 0),
                    Begin,
                    Succeed,
                    Attach("a", A, true),
                    Attach("a", A, false),
                ],
            ),
            (
                "two sandboxes with one address",
                vec![
                    Ranges(V4, 0),
                    Begin,
                    Succeed,
                    Attach("a", A, true),
                    Attach("b", A, false),
                    Detach("a"),
                    Needs(Need::Nothing),
                    Begin,
                    Succeed,
                    Attach("c", A, false),
                    Detach("b"),
                    Detach("c"),
                    Needs(Need::Later),
                    Begin,
                    Succeed,
                    Attach("d", A, true),
                ],
            ),
            (
                "the unreachable route was missing",
                vec![
                    Ranges(V4, 0),
                    Begin,
                    Succeed,
                    Ranges(V4, 0),
                    Needs(Need::Nothing),
                    Ranges(V4, 1),
                    Needs(Need::Later),
                    Attach("a", A, false),
                ],
            ),
            (
                "the unreachable route was missing during the dump",
                vec![
                    Ranges(V4, 0),
                    Begin,
                    Ranges(V4, 1),
                    Succeed,
                    Needs(Need::Later),
                    Attach("a", A, false),
                ],
            ),
            (
                "another range, and back",
                vec![
                    Ranges(V4, 0),
                    Begin,
                    Succeed,
                    Ranges(&["10.2.0.0/24"], 1),
                    Begin,
                    Succeed,
                    Attach("a", A, false),
                    Attach("b", &["10.2.0.2"], true),
                    Detach("a"),
                    Needs(Need::Nothing),
                    Ranges(V4, 2),
                    Attach("a", A, false),
                ],
            ),
            (
                "the network address is the node's",
                vec![Ranges(V4, 0), Begin, Succeed, Attach("a", &["10.1.0.0"], false)],
            ),
        ] {
            run(case, &steps);
        }
    }

    #[test]
    fn n6_a_dump_deletes_the_flows_of_what_is_not_in_use() {
        let mut clean = run(
            "attached",
            &[Attach("a", A, false), Attach("b", &["10.1.0.9"], false)],
        );
        clean.set_unreachable(&unreachable(BOTH, 0));
        let stale = clean.begin();
        for (address, expected) in [
            ("10.1.0.0", false),
            ("10.1.0.1", true),
            ("10.1.0.2", false),
            ("10.1.0.3", true),
            ("10.1.1.3", false),
            ("fd00:1::", false),
            ("fd00:1::2", true),
            ("fd00:2::2", false),
        ] {
            assert_eq!(stale.contains(ip(address)), expected, "{address}");
        }
        assert_eq!([true, false].map(|is_ipv4| stale.has_family(is_ipv4)), [true; 2]);
        clean.finish(true);
        clean.detach("a");
        assert_eq!(clean.request(&[ip("10.1.0.9")]), 2);
        let stale = clean.begin();
        assert_eq!(stale.addresses, BTreeSet::from([ip("10.1.0.2"), ip("10.1.0.9")]));
        assert_eq!((stale.ranges.len(), stale.except.len()), (0, 0));
        assert!(!stale.contains(ip("10.1.0.3")));
        assert_eq!(
            [true, false].map(|is_ipv4| stale.has_family(is_ipv4)),
            [true, false]
        );
    }

    #[test]
    fn n6_a_request_is_answered_by_a_dump_that_begins_after_it() {
        let mut clean = run("ranges", &[Ranges(V4, 0), Begin]);
        let (first, second) = (clean.request(&[ip("10.1.0.2")]), clean.request(&[ip("10.1.0.3")]));
        assert_eq!((first, second), (2, 2), "they share the next one");
        assert_eq!(clean.finish(true), 1);
        assert_eq!(clean.need(), Need::Waiting);
        assert_eq!(clean.begin().addresses.len(), 2);
        assert_eq!(clean.need(), Need::Nothing, "it is under way");
        assert_eq!(clean.request(&[ip("10.1.0.4")]), 3);
        assert_eq!(clean.finish(false), 2);
        assert_eq!(clean.begin().addresses, BTreeSet::from([ip("10.1.0.4")]));
    }

    #[test]
    fn n6_more_detached_addresses_than_are_kept_are_those_that_are_not_in_use() {
        let mut clean = run("ranges", &[Ranges(&["10.0.0.0/8"], 0), Begin, Succeed]);
        let count = u32::try_from(MAX_FREED).unwrap() + 1;
        for number in 0..count {
            let address = IpAddr::from((0x0a01_0000 + number).to_be_bytes());
            assert!(clean.attach(&"a".into(), &[address]), "{address}");
        }
        clean.detach("a");
        assert_eq!(clean.freed.len(), 0);
        let stale = clean.begin();
        assert_eq!((stale.addresses.len(), stale.ranges.len()), (0, 1));
        assert!(stale.contains(ip("10.1.0.0")));
        clean.finish(true);
        assert!(clean.attach(&"a".into(), &[ip("10.1.0.0")]));
    }
}
