//! The service proxy: the endpoints of connections to Services, and the nftables elements for them (SPEC N2, N3, N4).
//!
//! [`skeleton()`] is the fixed text of the table of one family: chains, rules, sets and maps, the same however many
//! Services there are. [`Proxy`] turns a changed Service into the elements to remove and to add. The driver's work:
//!
//! 1. On start run [`skeleton()`] of both families through `nft -f`. It is idempotent: rules are replaced in one
//!    transaction, elements stay. Set what [`sysctls`] names.
//! 2. Read the tables' own maps, call [`Proxy::adopt`] for each family (so that endpoints keep the slots they have in
//!    the kernel), then [`Proxy::apply`] for every Service of the catalog, dropping the changes, and bring the kernel
//!    from what was read to what [`Proxy::visit`] yields. [`layout::LEARNED`] is written by the kernel alone: leave its
//!    elements.
//! 3. For every changed [`ServiceKey`](crate::catalog::ServiceKey) call [`Proxy::apply`] and commit the [`Change`].
//!    Removals go first and into the same transaction as the additions: an element whose data changes is both. The
//!    change of one Service belongs into one transaction per family. Then delete [`Change::stale_udp`].
//!    An element's chain is always there: all chains are the skeleton's.
//! 4. When the node's facts change, call [`Proxy::set_node`] and, if it returns true, [`Proxy::apply`] for every Service. When
//!    the configuration changes, [`Proxy::set_config`], the skeleton again, and [`Proxy::apply`] for every Service.
//!
//! # Where things are
//!
//! From a Service to elements: [`categorize`] chooses the endpoints that this node uses, terminating ones as a fallback (KEP-1669); `program.rs`
//! gives each frontend ([`frontend`]: cluster IP, external IP, node port) its endpoints in [`slots`], and renders the elements; `state.rs` keeps
//! the programs of all Services and compares the old one with the new. [`explain`](mod@explain) and [`packet`] are for users and tests.
//!
//! # Layout
//!
//! A *frontend* is what clients connect to: address, protocol and port (a Service's cluster IP, external IP or load
//! balancer IP), or protocol and port alone (a node port). A new connection's frontend is matched once in
//! `services` or `node-ports`, whose verdict is a chain named for the number of endpoints; that chain's one rule picks a
//! slot at random and rewrites the destination to what `endpoints` has for (frontend, slot). Up to
//! [`slots::EXACT`] endpoints there is a chain for each number. Above it there is one for each power of two; a slot
//! that is empty is drawn again ([`slots::TRIES`] times), so that slots are never filled twice, the load is even, and a
//! change of one endpoint changes one or two elements.
//!
//! Whether the source is masqueraded is decided after routing, by the frontend that conntrack keeps as the original
//! destination. No packet mark is used, so marks of others survive. Session affinity is a map that the kernel fills:
//! (client, frontend) to an id of the endpoint, which counts only while `affinity-endpoints` has that id.
//!
//! # Next to other users of nftables and iptables
//!
//! Only tables named by [`Config::table`] are touched. Rejections happen before other tables' filter chains (priority
//! dstnat + 10). An accept in one table does not overrule a drop in another: where another table's forward chain drops by
//! policy (Docker, ufw, firewalld), that table must let the pod network through; Services add nothing to what plain
//! traffic between pods needs there.

pub mod categorize;
pub mod change;
pub mod config;
pub mod explain;
pub mod frontend;
pub mod layout;
pub mod packet;
mod program;
pub mod skeleton;
pub mod slots;
mod state;
#[cfg(test)]
mod tests;
pub mod timeouts;

pub use change::{Change, Element, Family, StaleUdp, TableChange};
pub use config::{Config, NodeFacts};
pub use explain::explain;
pub use program::HealthCheck;
pub use skeleton::{affinity_chains, skeleton, sysctls};
pub use state::Proxy;
