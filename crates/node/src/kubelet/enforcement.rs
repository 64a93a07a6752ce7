//! Sets what all pods together may use, and what each class of service weighs.
//!
//! It follows from the admitted pods, and is set again whenever a pod starts, terminates or is resized; each minute
//! also what other programs have changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_client::events::EventType;
use knarr_kubelet::enforcement::{Portion, of_all_pods, of_classes};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tracing::warn;

use super::Shared;
use super::eviction::node_reference;
use crate::cgroup::{self, Limits};

/// Between two times at which all is set again, also what could not be set.
const RESYNC_PERIOD: Duration = Duration::from_secs(60);

/// The portion that each cgroup was set to last. Locked while portions are set.
pub(super) type AppliedPortions = Mutex<BTreeMap<String, Portion>>;

/// Keeps the portions of a node that runs on this host.
pub(super) async fn run(shared: Arc<Shared>) {
    let configuration = &shared.config.configuration;
    let all = of_all_pods(&shared.capacity, configuration);
    let mut warned = false;
    loop {
        // A limit below the current use cannot be set; eviction reduces the use.
        match set(&shared, &all).await {
            Ok(()) if warned => {}
            Ok(()) => {
                warned = true;
                let message = "Updated Node Allocatable limit across pods";
                let about = node_reference(&shared.config.node_name);
                let reason = "NodeAllocatableEnforced";
                shared
                    .recorder
                    .event(&about, EventType::Normal, reason, message.to_string());
            }
            Err(error) => {
                let path = all.group.path(configuration.cgroup_driver);
                let message = format!("Failed to update Node Allocatable Limits {path:?}: {error}");
                let about = node_reference(&shared.config.node_name);
                let reason = "FailedNodeAllocatableEnforcement";
                shared.recorder.event(&about, EventType::Warning, reason, message);
            }
        }
        shared.portions.lock().await.clear();
        update_portions(&shared, None).await;
        sleep(RESYNC_PERIOD).await;
    }
}

/// Recomputes the portions; `beginning` is a starting pod that is not in the store yet.
pub(super) async fn update_portions(shared: &Shared, beginning: Option<&core::Pod>) {
    if !shared.config.machine.is_host() {
        return;
    }
    let mut last = shared.portions.lock().await;
    let objects = shared.pods.list("");
    let known: Vec<&core::Pod> = objects.iter().filter_map(|o| o.get::<core::Pod>()).collect();
    let is_known = |pod: &&core::Pod| known.iter().any(|k| k.metadata.uid == pod.metadata.uid);
    let beginning = beginning.filter(|pod| !is_known(pod));
    for portion in of_classes(known.iter().copied().chain(beginning), &shared.huge_pages) {
        let path = portion.group.path(shared.config.configuration.cgroup_driver);
        if last.get(&path) == Some(&portion) {
            continue;
        }
        match set(shared, &portion).await {
            Ok(()) => drop(last.insert(path, portion)),
            Err(error) => warn!(path, %error, "cannot set the cgroup of a QoS class"),
        }
    }
}

async fn set(shared: &Shared, portion: &Portion) -> std::io::Result<()> {
    let limits = Limits {
        cpu_shares: super::resources::shares(portion.milli_cpu),
        memory_bytes: portion.memory_bytes,
        huge_pages: portion.huge_pages.clone(),
        ..Limits::default()
    };
    cgroup::ensure(shared.config.configuration.cgroup_driver, &portion.group, &limits).await
}
