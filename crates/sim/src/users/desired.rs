//! Whether the desired state has been reached, by the objects in the API.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::{Object, k8s_openapi};
use knarr_client::Error;

use super::{NAMESPACE, Users, Workload};
use crate::finding::Finding;
use crate::servers::ApiServer;
use crate::world;

impl Users {
    /// How the state differs from the desired one, if it does.
    pub async fn satisfied(&self, servers: &[Arc<ApiServer>]) -> Result<Result<(), Finding>, Error> {
        for ((workload, name), pods) in &self.desired {
            let object = match self.api.get(workload.kind(), NAMESPACE, name).await {
                Ok(object) => object,
                Err(e) if e.is_not_found() => {
                    let was_deleted =
                        *workload == Workload::Pod && self.observer.was_evicted_by_component(NAMESPACE, name);
                    if was_deleted {
                        continue;
                    }
                    return Ok(Err(Finding(format!("{workload:?} {name} has been lost"))));
                }
                Err(e) => return Err(e),
            };
            let pods = i32::try_from(*pods).unwrap_or(i32::MAX);
            if let Err(found) = of_workload(*workload, &object, pods) {
                return Ok(Err(Finding(format!("{workload:?} {name} {found}"))));
            }
        }
        for pod in self.pods().await? {
            if let Err(found) = of_pod(&pod) {
                return Ok(Err(Finding(format!("pod {} {found}", pod.name()))));
            }
        }
        let mut left = self.stray_attachment().await?;
        if left.is_none() {
            left = self.unfinished_fencing().await?;
        }
        if left.is_none() {
            left = self.missing_of_metered().await?;
        }
        if left.is_none() {
            left = self.missing_of_placed().await?;
        }
        if left.is_none() {
            left = self.missing_of_custom_resources(servers).await?;
        }
        Ok(left.map_or(Ok(()), Err))
    }
}

pub(super) fn of_workload(workload: Workload, object: &Object, pods: i32) -> Result<(), Finding> {
    let current = |observed: Option<i64>| observed == object.metadata().generation;
    let counts = |found: &[Option<i32>], of: i32, current: bool| {
        let found: Vec<i32> = found.iter().map(|n| n.unwrap_or_default()).collect();
        match current && found.iter().all(|n| *n == of) {
            true => Ok(()),
            false => Err(Finding(format!(
                "counts {found:?} pods of {of}, its status is current: {current}"
            ))),
        }
    };
    let odd = || Err(Finding("is of another kind".into()));
    match workload {
        Workload::Pod => Ok(()),
        Workload::Deployment | Workload::Single | Workload::Large => {
            let Some(deployment) = object.get::<Deployment>() else {
                return odd();
            };
            let s = deployment.status.clone().unwrap_or_default();
            let found = [s.replicas, s.updated_replicas, s.available_replicas];
            counts(&found, pods, current(s.observed_generation))
        }
        Workload::StatefulSet => {
            let Some(set) = object.get::<StatefulSet>() else {
                return odd();
            };
            let s = set.status.clone().unwrap_or_default();
            let found = [Some(s.replicas), s.ready_replicas, s.available_replicas];
            counts(&found, pods, current(s.observed_generation))?;
            match s.current_revision == s.update_revision {
                true => Ok(()),
                false => Err(Finding(format!(
                    "is at revision {:?}, not {:?}",
                    s.current_revision, s.update_revision
                ))),
            }
        }
        Workload::DaemonSet => {
            let Some(set) = object.get::<DaemonSet>() else {
                return odd();
            };
            let s = set.status.clone().unwrap_or_default();
            let found = [
                Some(s.current_number_scheduled),
                Some(s.number_ready),
                s.updated_number_scheduled,
            ];
            counts(&found, s.desired_number_scheduled, current(s.observed_generation))
        }
        Workload::Job => {
            let Some(job) = object.get::<Job>() else {
                return odd();
            };
            let status = job.status.clone().unwrap_or_default();
            let mut conditions = status.conditions.iter().flatten();
            let done =
                conditions.any(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True");
            match done {
                true => Ok(()),
                false => Err(Finding(format!(
                    "is not done: {:?} succeeded, {:?} failed, {:?} active of {pods}",
                    status.succeeded, status.failed, status.active
                ))),
            }
        }
    }
}

pub(super) fn of_pod(pod: &Object) -> Result<(), Finding> {
    if pod.metadata().deletion_timestamp.is_some() {
        return Err(Finding("does not end".into()));
    }
    let Some(typed) = pod.get::<Pod>() else {
        return Err(Finding("is of another kind".into()));
    };
    let phase = world::phase_of(typed);
    let restarts = typed.spec.as_ref().and_then(|s| s.restart_policy.as_deref());
    if phase != "Running" && !is_terminal(typed) {
        return Err(Finding(format!("is {phase:?}")));
    }
    if phase == "Running" && restarts == Some("Never") {
        return Err(Finding("is not done".into()));
    }
    Ok(())
}
