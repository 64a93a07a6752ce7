//! The VolumeAttachments that a node holds for its pods (SPEC S7).

use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kinds::persistent_volume::{ATTACHER, IN_USE};

use super::*;

/// A node crashed with a pod that used a volume, and the pod was deleted meanwhile. The API cannot be reached when
/// the kubelet collects the pod's leftovers.
#[tokio::test(start_paused = true)]
async fn s7_a_deleted_pods_volume_is_released_when_the_api_is_reachable_again() {
    let world = World::new();
    let held = json!({
        "metadata": {"name": "knarr-v", "finalizers": [IN_USE]},
        "spec": {"attacher": ATTACHER, "nodeName": "n1", "source": {"persistentVolumeName": "v"}},
    });
    let held: VolumeAttachment = serde_json::from_value(held).unwrap();
    world.api.create_as(held).await.unwrap();
    let marks = world.config().root_dir.join("pods/gone/attached");
    std::fs::create_dir_all(&marks).unwrap();
    std::fs::write(marks.join("knarr-v"), "v").unwrap();
    let is_cut_off = Arc::new(AtomicBool::new(true));
    let cut_off = is_cut_off.clone();
    world.api.intercept(move |request| {
        let attachments = request.kind.plural() == "volumeattachments";
        (attachments && cut_off.load(Ordering::SeqCst)).then(|| Error::unavailable("no way to it"))
    });
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    let is_held = async || {
        let attachment = world.api.get_as::<VolumeAttachment>("", "knarr-v").await;
        let finalizers = attachment.unwrap().metadata.finalizers.clone();
        finalizers.is_some_and(|f| !f.is_empty())
    };
    sleep(Duration::from_secs(200)).await;
    is_cut_off.store(false, Ordering::SeqCst);
    assert!(is_held().await);
    sleep(Duration::from_secs(200)).await;
    assert!(!is_held().await);
    assert!(!world.config().root_dir.join("pods/gone").exists());
}
