//! The APIServices of what this server itself serves, built-in groups and those that users bring: there while they are
//! served, marked as managed, and available. One that somebody else made is left as it is.

use std::collections::BTreeMap;

use futures::future::join_all;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use knarr_api::registry::API_SERVICE;
use knarr_api::{Error, Object, k8s_openapi};
use serde_json::json;

use crate::cache::change::Filter;
use crate::pipeline::Target;
use crate::pipeline::delete::DeleteRequest;
use crate::server::Server;

/// How an APIService says that it comes and goes by itself.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Its values: of built-in groups, and of those that users bring.
const ON_START: &str = "onstart";
const CONTINUOUSLY: &str = "true";
/// Who serves APIServices, which have none of their own.
pub(crate) const OWN_GROUP: &str = "apiregistration.k8s.io";
/// Of groups that users bring.
const CUSTOM_PRIORITIES: (u32, u32) = (1000, 100);

/// Where a built-in group stands among groups, and a version among those of its group.
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

/// Where a group version of this server stands, one that users bring among them.
pub(crate) fn place(group: &str, version: &str) -> (u32, u32) {
    match group {
        OWN_GROUP => (20_000, 1000),
        _ => priorities(group, version).unwrap_or(CUSTOM_PRIORITIES),
    }
}

impl Server {
    /// Makes those that are missing, and deletes those of what is served no more.
    pub(crate) async fn settle_api_services(&self) -> Result<(), Error> {
        let mut wanted = BTreeMap::new();
        let served = self.served();
        for (group, versions) in served.groups() {
            for version in versions.into_iter().filter(|_| group != OWN_GROUP) {
                wanted.insert(format!("{version}.{group}"), (group, version));
            }
        }
        let everything = Filter::everything(&API_SERVICE, "");
        let there = self.cache.of(&API_SERVICE)?.list(&everything);
        for object in &there {
            let labels = object.metadata().labels.as_ref();
            let managed = labels.and_then(|l| l.get(MANAGED));
            if wanted.remove(object.name()).is_some() || !is_managed(object, managed) {
                continue;
            }
            let target = Target::main(&API_SERVICE, "", object.name());
            match self
                .delete(&mut self.myself(), &target, &DeleteRequest::default())
                .await
            {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        let made = wanted.into_iter().map(|(name, (group, version))| {
            let (how, priorities) = match priorities(group, version) {
                Some(priorities) => (ON_START, priorities),
                None => (CONTINUOUSLY, CUSTOM_PRIORITIES),
            };
            let document = json!({
                "metadata": {"name": name, "labels": {MANAGED: how}},
                "spec": {"group": group, "version": version,
                    "groupPriorityMinimum": priorities.0, "versionPriority": priorities.1},
            });
            self.ensure(&API_SERVICE, document)
        });
        // All at once, so that they share the store's commits.
        join_all(made).await.into_iter().collect()
    }
}

/// Whether an APIService is the server's own to delete: that of a custom kind, or of a built-in version that an emulated
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
    fn every_built_in_group_has_its_place() {
        for (group, versions) in knarr_api::registry::groups() {
            for version in versions {
                let place = priorities(group, version);
                assert_eq!(place.is_some(), group != OWN_GROUP, "{group}/{version}");
            }
        }
    }
}
