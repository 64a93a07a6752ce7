//! The APIServices of the groups that this server itself serves, built-in ones and those of custom resources: they
//! exist while the group is served, are marked as managed, and are Available. An APIService that a user created is left
//! as it is.

use std::collections::BTreeMap;

use futures::future::join_all;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use knarr_api::registry::API_SERVICE;
use knarr_api::{Object, k8s_openapi};
use knarr_apimachinery::Error;
use serde_json::json;

use crate::cache::change::Filter;
use crate::loopback::LoopbackClient;
use crate::request::Target;

/// The label of an APIService that the server manages (kube-aggregator `AutoRegisterManagedLabel`).
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Its values: for built-in groups, and for groups of custom resources.
const ON_START: &str = "onstart";
const CONTINUOUSLY: &str = "true";
/// The group of APIServices, for which there is no APIService.
pub(crate) const OWN_GROUP: &str = "apiregistration.k8s.io";
/// Of groups of custom resources.
const CUSTOM_PRIORITIES: (u32, u32) = (1000, 100);

/// `groupPriorityMinimum` and `versionPriority` of a built-in group version.
fn priorities(group: &str, version: &str) -> Option<(u32, u32)> {
    let of_group = match group {
        "" => 18_000,
        "apps" => 17_800,
        "events.k8s.io" => 17_750,
        "authentication.k8s.io" => 17_700,
        "authorization.k8s.io" => 17_600,
        "autoscaling" => 17_500,
        "batch" => 17_400,
        "certificates.k8s.io" => 17_300,
        "networking.k8s.io" => 17_200,
        "policy" => 17_100,
        "rbac.authorization.k8s.io" => 17_000,
        "storage.k8s.io" => 16_800,
        "admissionregistration.k8s.io" | "apiextensions.k8s.io" => 16_700,
        "scheduling.k8s.io" => 16_600,
        "coordination.k8s.io" => 16_500,
        "node.k8s.io" => 16_300,
        "discovery.k8s.io" | "resource.k8s.io" => 16_200,
        "flowcontrol.apiserver.k8s.io" => 16_100,
        _ => return None,
    };
    let of_version = match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("resource.k8s.io" | "flowcontrol.apiserver.k8s.io", _) => 21,
        _ => 15,
    };
    Some((of_group, of_version))
}

/// `groupPriorityMinimum` and `versionPriority` of a group version of this server, custom resources included.
pub(crate) fn priorities_of(group: &str, version: &str) -> (u32, u32) {
    match group {
        OWN_GROUP => (20_000, 1000),
        _ => priorities(group, version).unwrap_or(CUSTOM_PRIORITIES),
    }
}

/// Registers the groups that this server serves, as kube-aggregator's autoregister controller does. See the module.
#[derive(Clone)]
pub(crate) struct ApiServiceRegistration {
    client: LoopbackClient,
}

impl ApiServiceRegistration {
    pub fn new(client: LoopbackClient) -> Self {
        ApiServiceRegistration { client }
    }

    /// Creates those that are missing, and deletes those of groups that are no longer served.
    pub async fn reconcile(&self) -> Result<(), Error> {
        let mut missing = BTreeMap::new();
        let served = self.client.cache().served();
        for (group, versions) in served.groups() {
            for version in versions.into_iter().filter(|_| group != OWN_GROUP) {
                missing.insert(format!("{version}.{group}"), (group, version));
            }
        }
        let everything = Filter::everything(&API_SERVICE, "");
        let existing = self.client.cache().of(&API_SERVICE)?.list(&everything);
        for object in &existing {
            let labels = object.metadata().labels.as_ref();
            let managed = labels.and_then(|l| l.get(MANAGED));
            if missing.remove(object.name()).is_some() || !is_managed(object, managed) {
                continue;
            }
            let target = Target::main(&API_SERVICE, "", object.name());
            self.client.delete_if_exists(&target).await?;
        }
        let created = missing.into_iter().map(|(name, (group, version))| {
            let (how, priorities) = match priorities(group, version) {
                Some(priorities) => (ON_START, priorities),
                None => (CONTINUOUSLY, CUSTOM_PRIORITIES),
            };
            let document = json!({
                "metadata": {"name": name, "labels": {MANAGED: how}},
                "spec": {"group": group, "version": version,
                    "groupPriorityMinimum": priorities.0, "versionPriority": priorities.1},
            });
            self.client.ensure(&API_SERVICE, document)
        });
        // All at once, so that they share the store's commits.
        join_all(created).await.into_iter().collect()
    }
}

/// Whether the server may delete an APIService: one of custom resources, or of a built-in version that an emulated
/// version does not serve.
fn is_managed(object: &Object, how: Option<&String>) -> bool {
    let spec = object
        .get::<APIService>()
        .and_then(|service| service.spec.as_ref());
    match how.map(String::as_str) {
        Some(CONTINUOUSLY) => true,
        Some(ON_START) => spec.is_some_and(|spec| {
            let group = spec.group.as_deref().unwrap_or_default();
            let version = spec.version.as_deref().unwrap_or_default();
            spec.service.is_none() && priorities(group, version).is_some()
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_group_has_priorities() {
        for (group, versions) in knarr_api::registry::groups() {
            for version in versions {
                let priorities_of = priorities(group, version);
                assert_eq!(priorities_of.is_some(), group != OWN_GROUP, "{group}/{version}");
            }
        }
    }
}
