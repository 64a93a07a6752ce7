//! NodeUnschedulable: a cordoned node takes only pods that tolerate it.

use k8s_openapi::api::core::v1::Taint;
use knarr_api::k8s_openapi;

use super::taint_toleration::tolerates;
use super::{Plugin, Refusal};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

const REASON: &str = "node(s) were unschedulable";
const TAINT_KEY: &str = "node.kubernetes.io/unschedulable";

/// See the module.
pub struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        if !node.is_unschedulable() {
            return Ok(());
        }
        let taint = Taint {
            key: TAINT_KEY.into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        if pod.tolerations().iter().any(|t| tolerates(t, &taint)) {
            return Ok(());
        }
        Err(Refusal::of_node(REASON))
    }
}
