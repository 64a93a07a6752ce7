//! Limits of one tenant's policies. Rules beyond a limit allow nothing: policies only ever add allowances to
//! isolation, so leaving one out is safe for the pods it selects and does not touch other namespaces.

/// Peers and ports that are kept of all policies of a namespace. A policy that does not fit isolates the pods it selects and
/// allows nothing until it fits. At some 200 bytes each this is 10 MB.
pub const MAX_PEERS_PER_NAMESPACE: usize = 50_000;

/// Pairs of a peer and a port that are compiled for one pod and direction, in the order of the policies' names. It is
/// reached after some milliseconds.
pub const MAX_PEERS_PER_GROUP: usize = 10_000;

/// Different lists of ports in one chain: a new connection passes at most a few rules for each.
pub const MAX_PORT_SETS_PER_GROUP: usize = 256;

/// Port ranges in one chain, all lists together.
pub const MAX_PORT_RANGES_PER_GROUP: usize = 4096;

/// Up to so many selectors with the same ports have a rule and a shared set each; more of them share one set of their own.
pub const MAX_SETS_PER_PORT_SET: usize = 8;
