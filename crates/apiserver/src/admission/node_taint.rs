//! TaintNodesByCondition: a new node is tainted not-ready until its kubelet reports it ready.

use k8s_openapi::api::core::v1::{Node, Taint};
use knarr_api::well_known::NOT_READY;
use knarr_api::{AnyObject, k8s_openapi};

pub(super) fn mutate(object: &mut dyn AnyObject) {
    let Some(node) = object.as_any_mut().downcast_mut::<Node>() else {
        return;
    };
    let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
    if !taints
        .iter()
        .any(|t| t.key == NOT_READY && t.effect == "NoSchedule")
    {
        taints.push(Taint {
            key: NOT_READY.into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        });
    }
}
