//! The kinds of `placement.knarr.io/v1alpha1`: RebalancePolicy, for the pods of its namespace, and ClusterRebalancePolicy, for all.
//!
//! They are custom resources as those of users: each has a CustomResourceDefinition, created when the control loops start, so
//! that kubectl explains, validates and prints them like any other. Both have the same fields ([`super::schema`]); the spec is
//! read by [`crate::policy::rebalance_policy`], the status is written by the controller only.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use knarr_api::custom::{Definition, conditions, parse_definition};
use knarr_api::{AnyObject, Kind, Object, k8s_openapi};
use knarr_apimachinery::Error;
use knarr_apimachinery::codec;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::schema;
use crate::snapshot::Workload;

pub const GROUP: &str = "placement.knarr.io";
const VERSION: &str = "v1alpha1";

/// A policy of either kind: one without a namespace is a ClusterRebalancePolicy.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct RebalancePolicy {
    #[serde(skip_serializing)]
    pub metadata: ObjectMeta,
    /// As the user wrote it, with the schema's defaults.
    pub spec: Value,
    pub status: PolicyStatus,
}

/// What the controller found, planned and did. It is also its memory: nothing else survives a restart.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many moves the last plan had.
    pub moves: usize,
    pub moves_last_hour: usize,
    /// Pods that violate a rule of the policy and stay.
    pub pods_not_moved: usize,
    /// The first moves of the last plan, at most [`schema::PLANNED_MOVES_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub planned_moves: Vec<PlannedMove>,
    /// The moves of the last hour and those whose replacements are not Ready, at most [`schema::RECENT_MOVES_MAX`], oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent_moves: Vec<RecentMove>,
    /// Workloads that were moved for the same rule again and again, and are not moved any more for now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_workloads: Vec<String>,
    /// After an eviction that was rejected: no pod is evicted before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_time: Option<Time>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A move of the last plan.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlannedMove {
    pub namespace: String,
    pub pod: String,
    pub from: String,
    /// Empty: the pod has finished and is only deleted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to: String,
    /// The rule, and how its violation changes.
    pub why: String,
}

/// A move that was carried out. It is written before the eviction: a crash between them counts a move too many, never one too few.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecentMove {
    pub time: Time,
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    pub from: String,
    /// Where the plan saw the replacement; empty: a finished pod was deleted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub to: String,
    pub workload_kind: String,
    pub workload_name: String,
    pub rule: String,
    /// How many moves of the workload for this rule the plan had, this one included.
    pub planned: usize,
    /// Pods of the workload before its wave, terminating and finished ones excepted.
    pub pods_before: usize,
    /// How many of them were Ready.
    pub ready_before: usize,
    /// Whether its eviction was requested and waits until it is replaced (surge-first eviction).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub surging: bool,
    /// Whether the replacement is Ready, or no longer waited for.
    pub replaced: bool,
}

impl RecentMove {
    pub fn workload(&self) -> Workload {
        Workload {
            namespace: self.namespace.clone(),
            kind: self.workload_kind.clone(),
            name: self.workload_name.clone(),
        }
    }
}

impl RebalancePolicy {
    /// Parses an object; `None` if it is invalid.
    pub fn of(object: &Object) -> Option<Self> {
        serde_json::from_slice(object.json()).ok()
    }

    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Empty for a ClusterRebalancePolicy.
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub fn kind(&self) -> &'static Kind {
        let [cluster, namespaced] = kinds();
        if self.namespace().is_empty() {
            cluster
        } else {
            namespaced
        }
    }

    /// For events about it.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.kind().api_version()),
            kind: Some(self.kind().kind().to_string()),
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
            uid: self.metadata.uid.clone(),
            resource_version: self.metadata.resource_version.clone(),
            field_path: None,
        }
    }

    /// The object to write.
    pub fn to_object(&self) -> Result<Box<dyn AnyObject>, Error> {
        let mut json = serde_json::to_value(self).map_err(Error::internal)?;
        json["metadata"] = codec::to_plain_value(&self.metadata).map_err(Error::internal)?;
        json["apiVersion"] = format!("{GROUP}/{VERSION}").into();
        json["kind"] = self.kind().kind().into();
        let decoded = self.kind().ops.decode(json.to_string().as_bytes());
        Ok(decoded.map_err(|e| Error::internal(e.message))?.object)
    }
}

/// ClusterRebalancePolicy and RebalancePolicy.
pub fn kinds() -> [&'static Kind; 2] {
    let [cluster, namespaced] = &*KINDS;
    [cluster, namespaced]
}

/// Made from the definitions as in the API server.
static KINDS: LazyLock<[Kind; 2]> = LazyLock::new(|| {
    definitions().map(|mut crd| {
        let status = crd.status.get_or_insert_default();
        let now = Timestamp::UNIX_EPOCH;
        conditions::set(status, conditions::ESTABLISHED, "True", "Known", "", now);
        match Definition::of(&crd) {
            Some(definition) => definition.stored,
            // The definitions below are constants.
            None => unreachable!("a built-in CustomResourceDefinition defines no kind"),
        }
    })
});

/// The two CustomResourceDefinitions, which are created in every cluster: ClusterRebalancePolicy, RebalancePolicy.
pub fn definitions() -> [CustomResourceDefinition; 2] {
    [
        definition("ClusterRebalancePolicy", "clusterrebalancepolicies", "Cluster"),
        definition("RebalancePolicy", "rebalancepolicies", "Namespaced"),
    ]
}

fn definition(kind: &str, plural: &str, scope: &str) -> CustomResourceDefinition {
    let column = |name: &str, of: &str, path: &str| json!({"name": name, "type": of, "jsonPath": path});
    let document = json!({
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": scope,
            "names": {
                "kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                "singular": kind.to_lowercase(),
            },
            "conversion": {"strategy": "None"},
            "versions": [{
                "name": VERSION, "served": true, "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("DryRun", "boolean", ".spec.dryRun"),
                    column("Moves", "integer", ".status.moves"),
                    column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
                    column("Reason", "string", ".status.conditions[?(@.type==\"Progressing\")].reason"),
                    column("Age", "date", ".metadata.creationTimestamp"),
                ],
                "schema": {"openAPIV3Schema": schema::policy(scope == "Namespaced")},
            }],
        },
    });
    match parse_definition(document) {
        Ok(definition) => definition,
        Err(e) => unreachable!("a definition of knarr's own does not parse: {e}"),
    }
}
