//! NodeUnschedulable: a cordoned node accepts only pods that tolerate `node.kubernetes.io/unschedulable`.

use k8s_openapi::api::core::v1::Taint;
use knarr_api::k8s_openapi;

use super::UnschedulableStatus;
use super::taint_toleration::tolerates;
use crate::node_info::NodeInfo;
use crate::pod_info::PodClass;
use crate::profile::Profile;

pub const NAME: &str = "NodeUnschedulable";

pub fn filter(_: &Profile, pod: &PodClass, node: &NodeInfo) -> Result<(), UnschedulableStatus> {
    let taint = || Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    };
    if node.is_unschedulable() {
        let taint = taint();
        if !pod.tolerations().iter().any(|t| tolerates(t, &taint)) {
            return Err(UnschedulableStatus::unresolvable(
                NAME,
                "node(s) were unschedulable",
            ));
        }
    }
    Ok(())
}
