//! nftables over netlink: transactions of set elements, dumps of one table, and conntrack entries deleted.
//!
//! Rules and chains are few and fixed; their text is `nft`'s business ([`script::run`]). What changes all the time are
//! elements of sets and maps, and those are encoded here directly (nfnetlink, `NFT_MSG_NEWSETELEM` and its kin), many to
//! a message and many messages to a commit.
//!
//! - [`Nftables`] is a socket in the network namespace of the thread that opened it. It lists tables and sets, dumps
//!   elements and commits batches.
//! - [`Batch`] gathers additions and deletions. A commit takes all of a batch or nothing of it.
//! - [`Set`] is a set as the kernel describes it; it is needed for encoding, because how an element is written depends on
//!   the set (a range of addresses is two elements of an interval set and one of a set of concatenations).
//! - [`Conntrack`] deletes connection tracking entries.
//!
//! Nothing here waits: the kernel has answered by the time a message is sent, so a call takes the time of the work and no
//! longer, and a call without an answer is an error. Calls hold their thread for milliseconds; async callers make them
//! from a thread that may block. All lengths in what the kernel sends are checked.

mod batch;
mod conntrack;
mod element;
mod error;
mod nftables;
mod protocol;
pub mod script;
mod set;
mod socket;
mod wire;

pub use batch::Batch;
pub use conntrack::{Conntrack, Flow, Tuple};
pub use element::{Data, Element, Elements, Verdict};
pub use error::{Error, Operation, Rejection};
pub use nftables::Nftables;
pub use nix::errno::Errno;
pub use protocol::Family;
pub use set::{DataShape, Set, SetShape};
