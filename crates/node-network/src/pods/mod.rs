//! The network of the pods of this node (SPEC N1, N8): knarr as its own CNI plugin.
//!
//! containerd runs the plugin ([`knarr_cni`]) for every sandbox; the plugin is a thin client of the node's agent ([`Server`]),
//! which does all of it: addresses, interfaces, routes, host ports, bandwidth.
//!
//! A pod has a point-to-point link to the node, not a bridge:
//!
//! - A veth pair; `eth0` is created in the pod's network namespace, its peer on the host is `knarr` and ten digits of the
//!   sandbox id. Both have a permanent neighbour entry for the other side, so neither ARP nor neighbour discovery is spoken.
//! - Addresses are `/32` and `/128` out of the node's pod CIDRs. The default routes lead to `169.254.1.1` and `fe80::1`,
//!   which no interface has: they only name the hardware address of the host's side.
//! - The host has one route for each address of a pod. Packets of a pod pass only if they come from an address whose
//!   route leads back to its interface, so a pod cannot send from another's address, and the moment the routes are there is
//!   the moment from which a pod can send at all.
//!
//! Guarantees: an address belongs to one sandbox at a time, until the runtime has removed that sandbox (DEL), or does
//! not list it any more ([`Server::reconcile`]), and the kernel has deleted its link. `ADD` answers when the network works, and
//! has reverted everything when it does not. `DEL` answers when no packet passes any more and the host ports are free; the link is
//! deleted after that ([`removal`]). Nothing depends on the agent while pods run: it may be stopped, killed and started again.
//!
//! The state is recorded twice: in files ([`records`]) and in the kernel (links have their sandbox's id as an alias).
//! Files need not survive a loss of power, as no sandbox does; each carries its boot id, and those of an earlier boot
//! are removed at the start. Nothing is therefore synced to disk.

mod addresses;
mod attach;
mod bandwidth;
mod host_ports;
mod kernel;
mod reconcile;
mod records;
mod registry;
mod removal;
mod remove;
mod server;
mod table;

pub use addresses::{Addresses, Exhausted};
pub use host_ports::Error as HostPortError;
pub(crate) use kernel::pod_links::GROUP;
pub use kernel::sysctl::Error as SysctlError;
pub use knarr_cni::kernel::netlink::Error as NetlinkError;
pub use knarr_cni::sandbox::{HostPort, PodName, Protocol, SandboxId};
pub use reconcile::Sandbox;
pub use records::Error as RecordError;
pub use registry::{Attachment, Pods};
pub use remove::{RemoveError, remove_all};
pub use server::{BeforeUp, Config, EarlierNetwork, NoHook, NodeNetwork, Server, StartError};
