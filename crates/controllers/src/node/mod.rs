//! Node lifecycle (SPEC S4): nodes that are not ready are noticed and tainted, and in time their pods are deleted.
//!
//! [`health`] notices that a node no longer reports and, at the rate that [`zones`] allows, gives it the NoExecute taint;
//! [`taints`] sets the other taints by the node's conditions and removes those that no longer hold; [`eviction`] deletes pods
//! that do not tolerate the taints. Nothing here removes a pod by force.

pub mod eviction;
pub mod health;
pub mod taints;
pub mod zones;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use knarr_api::k8s_openapi;

pub const NO_EXECUTE: &str = "NoExecute";
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

pub fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == type_)
}

#[cfg(test)]
mod tests;
