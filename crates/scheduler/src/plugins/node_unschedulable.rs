//! NodeUnschedulable: a cordoned node takes only pods that tolerate that.

use k8s_openapi::api::core::v1::Taint;
use knarr_api::k8s_openapi;

use super::Refusal;
use super::taint_toleration::tolerates;
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::profile::Profile;

pub const NAME: &str = "NodeUnschedulable";

pub fn filter(_: &Profile, pod: &PodClass, node: &NodeInfo) -> Result<(), Refusal> {
    let taint = || Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    };
    if node.is_unschedulable() {
        let taint = taint();
        if !pod.tolerations().iter().any(|t| tolerates(t, &taint)) {
            return Err(Refusal::of_node(NAME, "node(s) were unschedulable"));
        }
    }
    Ok(())
}
