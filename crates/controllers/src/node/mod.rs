//! Nodes that are not well (SPEC S4): they are told apart from those that are, pods are kept off them, and in time asked
//! to end.
//!
//! [`health`] notices that a node has gone silent and, as fast as [`zones`] allows, gives it the taint that evicts;
//! [`taints`] turns its conditions into the other taints and takes back what no longer holds; [`eviction`] asks pods that
//! do not tolerate these to end. Nothing here removes a pod by force.

pub mod eviction;
pub mod health;
pub mod taints;
pub mod zones;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use knarr_api::k8s_openapi;

pub(crate) const NO_EXECUTE: &str = "NoExecute";
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

pub fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == type_)
}

#[cfg(test)]
mod tests;
