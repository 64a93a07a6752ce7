//! A ReplicaSet of a Deployment as it is and as it shall be, with the annotations on its size.

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::Shared;
use knarr_api::k8s_openapi;

pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// A ReplicaSet in its current and its desired state.
pub struct PlannedReplicaSet {
    /// The current state; `None`: it has to be created.
    pub before: Option<Shared<ReplicaSet>>,
    pub now: ReplicaSet,
    /// The message of the scaling event, if it is scaled.
    pub scaled: Option<String>,
}

/// The annotations `desired-replicas` and `max-replicas` of a Deployment's ReplicaSets.
#[derive(Clone, Copy, Debug)]
pub struct SizeAnnotations {
    pub desired: i32,
    pub max: i32,
}

impl PlannedReplicaSet {
    pub fn new(set: Shared<ReplicaSet>) -> Self {
        PlannedReplicaSet {
            now: (*set).clone(),
            before: Some(set),
            scaled: None,
        }
    }

    pub fn name(&self) -> &str {
        self.now.metadata.name.as_deref().unwrap_or("")
    }

    pub fn replicas(&self) -> i32 {
        self.now.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
    }

    pub fn status_replicas(&self) -> i32 {
        self.now.status.as_ref().map_or(0, |s| s.replicas)
    }

    pub fn available(&self) -> i32 {
        self.now
            .status
            .as_ref()
            .and_then(|s| s.available_replicas)
            .unwrap_or(0)
    }

    pub fn ready(&self) -> i32 {
        self.now
            .status
            .as_ref()
            .and_then(|s| s.ready_replicas)
            .unwrap_or(0)
    }

    pub fn created(&self) -> Option<&Time> {
        self.now.metadata.creation_timestamp.as_ref()
    }

    pub fn annotation(&self, key: &str) -> Option<i32> {
        let annotations = self.now.metadata.annotations.as_ref()?;
        annotations.get(key)?.parse().ok()
    }

    /// Sets `spec.replicas` and the size annotations.
    pub fn scale(&mut self, to: i32, sizes: SizeAnnotations) {
        let from = self.replicas();
        if from != to {
            let way = if to > from { "up" } else { "down" };
            self.scaled = Some(format!(
                "Scaled {way} replica set {} from {from} to {to}",
                self.name()
            ));
            self.now.spec.get_or_insert_default().replicas = Some(to);
        }
        self.annotate_sizes(sizes);
    }

    pub fn annotate_sizes(&mut self, sizes: SizeAnnotations) {
        let annotations = self.now.metadata.annotations.get_or_insert_default();
        annotations.insert(DESIRED_REPLICAS.into(), sizes.desired.to_string());
        annotations.insert(MAX_REPLICAS.into(), sizes.max.to_string());
    }
}
