//! The predictions of `knarr whatif`, compared with what the controllers and the scheduler then do (SPEC B2), on
//! clusters where the order in which pods are created makes no difference.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_client::{DeleteOptions, Object};
use knarr_scheduler::Scheduler;
use knarr_scheduler::whatif::{Change, Snapshot};
use serde_json::json;
use tokio::time::sleep;

use super::churn::{Churn, ZONE};

const HISTORIES: u64 = 6;

/// The effect of a change: pods that are newly scheduled, that newly wait, that are not created again.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    placed: usize,
    pending: usize,
    gone: usize,
}

async fn objects(churn: &Churn) -> Vec<Arc<Object>> {
    let mut all = Vec::new();
    for kind in [
        &registry::NODE,
        &registry::NAMESPACE,
        &registry::POD,
        &registry::REPLICA_SET,
        &registry::DEPLOYMENT,
        &registry::SERVICE,
        &registry::PRIORITY_CLASS,
        &registry::POD_DISRUPTION_BUDGET,
    ] {
        all.extend(churn.cluster.list(kind, "").await);
    }
    all
}

/// The assigned and the waiting pods, by UID.
async fn pods(churn: &Churn) -> (Vec<String>, Vec<String>) {
    let all = churn.cluster.list(&registry::POD, "default").await;
    let all = all.iter().filter(|o| o.metadata().deletion_timestamp.is_none());
    let (assigned, wait): (Vec<_>, Vec<_>) = all.partition(|o| {
        let pod: Option<&Pod> = o.get();
        pod.and_then(|p| p.spec.as_ref()?.node_name.as_ref()).is_some()
    });
    let uids = |of: Vec<&Arc<Object>>| of.into_iter().map(|o| o.uid().to_string()).collect();
    (uids(assigned), uids(wait))
}

async fn wait(churn: &Churn, seconds: usize) {
    for _ in 0..seconds {
        sleep(Duration::from_secs(1)).await;
        churn.kubelets().await;
    }
}

/// A cluster of equal nodes and equal pods, of which some are bare.
async fn cluster(seed: u64) -> Churn {
    let mut churn = Churn::new(seed).await;
    let nodes = 3 + churn.chance.below(3);
    for n in 0..nodes {
        churn.node_of(&format!("n{n}"), &format!("z{}", n % 2), "4").await;
    }
    // On some, no two pods of one app are close to each other; on others resources are scarce.
    let apart = seed.is_multiple_of(2);
    let apps = if apart { 1 } else { 2 };
    for n in 0..apps {
        let app = format!("app{n}");
        let term =
            json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}});
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
        let affinity = if apart {
            json!({"podAntiAffinity": required})
        } else {
            json!({})
        };
        let spec = json!({
            "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false, "affinity": affinity,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
        });
        let most = if apart { nodes } else { 2 * nodes };
        let deployment = json!({
            "metadata": {"namespace": "default", "name": app},
            "spec": {
                "replicas": 1 + churn.chance.below(most), "selector": {"matchLabels": {"app": app}},
                "template": {"metadata": {"labels": {"app": app}}, "spec": spec},
            },
        });
        churn.create(&registry::DEPLOYMENT, deployment).await;
    }
    let bare = json!({
        "metadata": {"namespace": "default", "name": "bare", "labels": {"app": "bare"}},
        "spec": {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]},
    });
    churn.create(&registry::POD, bare).await;
    wait(&churn, 15).await;
    churn
}

async fn drain(churn: &Churn, node: &str) {
    churn
        .change(
            &registry::NODE,
            node,
            "",
            json!({"spec": {"unschedulable": true}}),
        )
        .await;
    for object in churn.cluster.list(&registry::POD, "default").await {
        let pod: &Pod = object.get().unwrap();
        if pod.spec.as_ref().unwrap().node_name.as_deref() != Some(node) {
            continue;
        }
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"namespace": "default", "name": object.name()},
        });
        let api = &churn.cluster.api;
        api.create_subresource(&registry::POD, "default", object.name(), "eviction", eviction)
            .await
            .unwrap();
    }
}

async fn lose_zone(churn: &Churn, zone: &str) {
    for node in churn.cluster.list(&registry::NODE, "").await {
        if node.metadata().labels.as_ref().is_some_and(|l| l[ZONE] == zone) {
            churn
                .cluster
                .api
                .delete(&registry::NODE, "", node.name(), DeleteOptions::default())
                .await
                .unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn b2_what_is_said_of_a_drain_a_lost_zone_and_a_scale_is_what_then_happens() {
    for seed in 0..HISTORIES {
        let mut churn = cluster(seed).await;
        let node = format!("n{}", churn.chance.below(3));
        let zone = format!("z{}", churn.chance.below(2));
        let replicas = churn.chance.below(12);
        let change = match seed % 3 {
            0 => Change::Drain {
                node: node.as_str().into(),
            },
            1 => Change::LoseZone { zone: zone.clone() },
            _ => Change::Scale {
                kind: "Deployment".into(),
                namespace: "default".into(),
                name: "app0".into(),
                replicas: replicas as usize,
            },
        };
        let snapshot = Snapshot::new(
            Scheduler::default(),
            &objects(&churn).await,
            Timestamp::UNIX_EPOCH,
        );
        let said = snapshot.what_if(&change).unwrap();
        let said = Outcome {
            placed: said.placements.len(),
            pending: said.pending.len(),
            gone: said.gone.len(),
        };
        let (assigned_before, waited) = pods(&churn).await;
        match seed % 3 {
            0 => drain(&churn, &node).await,
            1 => lose_zone(&churn, &zone).await,
            _ => {
                let scale = json!({"spec": {"replicas": replicas}});
                churn.change(&registry::DEPLOYMENT, "app0", "", scale).await;
            }
        }
        // Pods of deleted nodes are collected after a quarantine.
        wait(&churn, 90).await;
        let (assigned, wait) = pods(&churn).await;
        let new = |now: &[String], before: &[String]| now.iter().filter(|uid| !before.contains(uid)).count();
        let total = |a: &[String], b: &[String]| a.len() + b.len();
        let happened = Outcome {
            placed: new(&assigned, &assigned_before),
            pending: new(&wait, &waited),
            gone: total(&assigned_before, &waited).saturating_sub(total(&assigned, &wait)),
        };
        assert_eq!(said, happened, "seed {seed}: {change:?}");
    }
}
