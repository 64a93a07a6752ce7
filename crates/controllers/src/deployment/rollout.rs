//! Replaces pods of old templates by those of the new one: gradually within maxSurge and maxUnavailable, or all at once.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_api::Shared;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;

use super::conditions::{self, PROGRESSING};
use super::planned_replica_set::{PlannedReplicaSet, SizeAnnotations};
use super::rollout_bounds::{RolloutBounds, is_rolling, rollout_bounds};
use super::{revision, template};
use crate::action::{Action, Create, Report, reference};
use crate::controller::View;
use crate::owner::controller_reference;

/// One sync of a Deployment and its ReplicaSets.
pub struct Rollout<'a> {
    pub view: &'a dyn View,
    pub now: Timestamp,
    pub deployment: &'a Shared<Deployment>,
    pub spec: &'a DeploymentSpec,
    /// The sets of other templates, the oldest first.
    pub old: Vec<PlannedReplicaSet>,
    /// The set of the current template.
    pub new: Option<PlannedReplicaSet>,
    pub status: DeploymentStatus,
    /// The revision annotation of the Deployment, once known.
    pub revision: Option<String>,
}

/// The name of the new set is taken by another one (a hash collision).
pub struct Collision;

impl Rollout<'_> {
    pub fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    pub fn all(&self) -> impl Iterator<Item = &PlannedReplicaSet> {
        self.old.iter().chain(self.new.as_ref())
    }

    pub fn sizes(&self) -> SizeAnnotations {
        let desired = self.replicas();
        SizeAnnotations {
            desired,
            max: desired + rollout_bounds(self.spec).surge,
        }
    }

    /// Sets the condition Progressing, if the Deployment has a progress deadline.
    pub fn progressing(&mut self, is: &str, reason: &str, message: String) {
        if conditions::deadline(self.spec).is_some() {
            let progress = conditions::condition(PROGRESSING, is, reason, message, self.now);
            conditions::set(&mut self.status, progress);
        }
    }

    /// The new set is being created.
    fn new_replica_set_created(&mut self, name: &str) {
        let message = format!("Created new replica set {name:?}");
        self.progressing("True", conditions::NEW_SET_CREATED, message);
    }

    /// The current template already had a set.
    fn new_replica_set_found(&mut self) {
        if conditions::find(&self.status, PROGRESSING).is_none()
            && let Some(name) = self.new.as_ref().map(|s| s.name().to_string())
        {
            let message = format!("Found new replica set {name:?}");
            self.progressing("True", conditions::NEW_SET_FOUND, message);
        }
    }

    /// Sets the revision of the new set; creates the set if there is none and `create` (upstream: getNewReplicaSet).
    pub fn get_new_replica_set(&mut self, create: bool) -> Result<(), Collision> {
        let number = revision::next(&self.old);
        if let Some(new) = &mut self.new {
            revision::annotate(&mut new.now, self.deployment, number);
            let min_ready = self.spec.min_ready_seconds.filter(|s| *s != 0);
            let spec = new.now.spec.get_or_insert_default();
            if spec.min_ready_seconds.filter(|s| *s != 0) != min_ready {
                spec.min_ready_seconds = min_ready;
            }
            self.revision = Some(revision::revision(&new.now).to_string());
            self.new_replica_set_found();
            return Ok(());
        }
        if !create {
            return Ok(());
        }
        let mut new = self.new_replica_set(number);
        if self
            .view
            .get(
                &knarr_api::registry::REPLICA_SET,
                self.deployment.object().namespace(),
                new.name(),
            )
            .is_some()
        {
            return Err(Collision);
        }
        let size = self.new_replicas(0);
        new.now.spec.get_or_insert_default().replicas = Some(size);
        new.annotate_sizes(self.sizes());
        if size > 0 {
            new.scaled = Some(format!("Scaled up replica set {} from 0 to {size}", new.name()));
        }
        self.revision = Some(number.to_string());
        self.new_replica_set_created(new.name());
        self.new = Some(new);
        Ok(())
    }

    fn new_replica_set(&self, number: i64) -> PlannedReplicaSet {
        let owner = self.deployment.object();
        let hash = template::hash(&self.spec.template, self.status.collision_count.unwrap_or(0));
        let mut template = self.spec.template.clone();
        let labels = template
            .metadata
            .get_or_insert_default()
            .labels
            .get_or_insert_default();
        labels.insert(template::POD_TEMPLATE_HASH.into(), hash.clone());
        let labels = labels.clone();
        let mut selector = self.spec.selector.clone();
        selector
            .match_labels
            .get_or_insert_default()
            .insert(template::POD_TEMPLATE_HASH.into(), hash.clone());
        let mut set = ReplicaSet {
            metadata: ObjectMeta {
                name: Some(format!("{}-{hash}", owner.name())),
                namespace: Some(owner.namespace().to_string()),
                labels: Some(labels),
                owner_references: Some(vec![controller_reference(owner)]),
                ..ObjectMeta::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(0),
                min_ready_seconds: self.spec.min_ready_seconds.filter(|s| *s != 0),
                selector,
                template: Some(template),
            }),
            status: None,
        };
        revision::annotate(&mut set, self.deployment, number);
        PlannedReplicaSet {
            before: None,
            now: set,
            scaled: None,
        }
    }

    /// The size that the new set may have now, given that it has `size` (upstream: NewRSNewReplicas).
    fn new_replicas(&self, size: i32) -> i32 {
        let desired = self.replicas();
        if !is_rolling(self.spec) {
            return desired;
        }
        let pods: i32 = self.all().map(PlannedReplicaSet::replicas).sum();
        let room = desired + rollout_bounds(self.spec).surge - pods;
        if room <= 0 {
            return size;
        }
        size + room.min(desired - size)
    }

    /// One step of a rolling update: first the new set is scaled up; if it cannot be, the old ones are scaled down.
    pub fn roll_out(&mut self) {
        let (desired, sizes) = (self.replicas(), self.sizes());
        let Some(size) = self.new.as_ref().map(PlannedReplicaSet::replicas) else {
            return;
        };
        let to = if size > desired {
            desired
        } else {
            self.new_replicas(size)
        };
        if let Some(new) = &mut self.new
            && to != size
        {
            new.scale(to, sizes);
            return;
        }
        self.scale_down_old(rollout_bounds(self.spec), sizes);
    }

    fn scale_down_old(&mut self, bounds: RolloutBounds, sizes: SizeAnnotations) {
        if self.old.iter().all(|s| s.replicas() == 0) {
            return;
        }
        let must_be_available = self.replicas() - bounds.unavailable;
        let pods: i32 = self.all().map(PlannedReplicaSet::replicas).sum();
        let new_not_available = self.new.as_ref().map_or(0, |s| s.replicas() - s.available());
        let most = pods - must_be_available - new_not_available;
        if most <= 0 {
            return;
        }
        // First the pods that are not available anyway (upstream: cleanupUnhealthyReplicas).
        let mut scaled_down = 0;
        for set in &mut self.old {
            let unhealthy = set.replicas() - set.available();
            let less = unhealthy.min(most - scaled_down);
            if set.replicas() > 0 && less > 0 {
                scaled_down += less;
                set.scale(set.replicas() - less, sizes);
            }
        }
        let available: i32 = self.all().map(PlannedReplicaSet::available).sum();
        let mut rest = available - must_be_available;
        for set in &mut self.old {
            let less = set.replicas().min(rest);
            if less > 0 {
                rest -= less;
                set.scale(set.replicas() - less, sizes);
            }
        }
    }

    /// Strategy Recreate: all old pods terminate before the first new one is created.
    pub fn recreate(&mut self) -> Result<(), Collision> {
        let sizes = self.sizes();
        let mut ending = false;
        for set in self.old.iter_mut().filter(|s| s.replicas() > 0) {
            set.scale(0, sizes);
            ending = true;
        }
        if ending || self.old_pods_running() {
            return Ok(());
        }
        self.get_new_replica_set(true)?;
        let desired = self.replicas();
        if let Some(new) = &mut self.new
            && new.replicas() != desired
        {
            new.scale(desired, sizes);
        }
        Ok(())
    }

    fn old_pods_running(&self) -> bool {
        self.old.iter().any(|set| {
            let uid = set.now.metadata.uid.as_deref().unwrap_or("");
            let pods = self.view.controlled_by_as::<Pod>(uid);
            set.status_replicas() > 0 || pods.iter().any(|p| !is_terminal(p))
        })
    }

    /// The writes of the sets.
    pub fn actions(&self) -> Vec<Action> {
        let about = reference(self.deployment.object());
        let mut actions = Vec::new();
        for set in self.new.iter().chain(&self.old) {
            match &set.before {
                None => actions.push(Action::Create(Create {
                    report: Some(Report {
                        about: about.clone(),
                        done: None,
                        failed: (
                            "ReplicaSetCreateError",
                            format!("Failed to create new replica set {:?}: ", set.name()),
                        ),
                    }),
                    ..Create::new(set.now.clone())
                })),
                Some(before) if **before != set.now => actions.push(Action::update(set.now.clone())),
                Some(_) => continue,
            }
            if let Some(message) = &set.scaled {
                actions.push(Action::event(&about, "ScalingReplicaSet", message.clone()));
            }
        }
        actions
    }
}
