//! The service proxy's rules in a real kernel: a node, a client, two pods and an endpoint elsewhere, each a network
//! namespace, and packets between them (SPEC N2, N4). Needs root and `nft`.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]
#![allow(clippy::disallowed_methods, reason = "real kernels run on the real clock")]

mod affinity;
mod cluster_ip;
mod external;
mod text;
mod world;
