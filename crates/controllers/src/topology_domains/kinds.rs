//! The kind TopologyDomains of `placement.knarr.io/v1alpha1`: the domains of one topology key (SPEC B3).
//!
//! It is a custom resource as those of users: its CustomResourceDefinition is created when the control loops start. The scheduler
//! reads only the status.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use knarr_api::custom::{Definition, conditions};
use knarr_api::{AnyObject, Kind, Object, k8s_openapi};
use knarr_apimachinery::Error;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub const GROUP: &str = "placement.knarr.io";
const VERSION: &str = "v1alpha1";
const KIND: &str = "TopologyDomains";
const PLURAL: &str = "topologydomains";

/// The most domains of one object: clouds have a handful of zones, and the status of all of them has to fit one object.
pub const DOMAINS_MAX: usize = 64;
/// The most labels of a node template, and the most taints.
pub const LABELS_MAX: usize = 32;
pub const TAINTS_MAX: usize = 16;
/// How long a node group without nodes is remembered by default: 30 days.
const FORGET_AFTER_SECONDS: i64 = 30 * 24 * 60 * 60;

/// The domains of one topology key.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyDomains {
    #[serde(skip_serializing)]
    pub metadata: ObjectMeta,
    pub spec: Spec,
    pub status: Status,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The node label whose values are the domains.
    pub topology_key: String,
    /// Domains that exist whether they have nodes or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<DeclaredDomain>,
    /// The node label that names a node's group. A domain in which a group had nodes stays declared when they are deleted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_group_label: String,
    /// How long a group without nodes is remembered.
    pub forget_after_seconds: i64,
    /// A domain none of whose nodes has been Ready for so long is lost; without it no domain is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_after_seconds: Option<i64>,
}

impl Default for Spec {
    fn default() -> Self {
        Spec {
            topology_key: String::new(),
            domains: Vec::new(),
            node_group_label: String::new(),
            forget_after_seconds: FORGET_AFTER_SECONDS,
            lost_after_seconds: None,
        }
    }
}

/// A domain, and what a node that is added there would have.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct DeclaredDomain {
    pub name: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, Quantity>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<Domain>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// By what a domain is known; the first that holds.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub enum Source {
    /// `spec.domains`.
    Spec,
    /// A node group that has, or had, nodes there.
    NodeGroup,
    /// Its nodes: without them it is no domain.
    #[default]
    Nodes,
}

/// The state of a domain.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub enum State {
    /// It has a Ready node.
    #[default]
    Ready,
    /// It has no nodes: it counts with 0 pods.
    Absent,
    /// None of its nodes is Ready; it still counts.
    NotReady,
    /// None of its nodes has been Ready for `spec.lostAfterSeconds`: its pods do not count for the global minimum.
    Lost,
}

/// A domain as the scheduler counts it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Domain {
    pub name: String,
    pub source: Source,
    pub state: State,
    /// Whether it counts for the global minimum.
    pub counted: bool,
    pub nodes: usize,
    pub ready_nodes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_ready_nodes_since: Option<Time>,
    /// The nodes that would be added here: that of `spec.domains`, and one for each node group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_templates: Vec<NodeTemplate>,
}

/// What a node that is added to a domain would have.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTemplate {
    /// Empty for that of `spec.domains`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_group: String,
    /// Since when the group has no nodes here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_nodes_since: Option<Time>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, Quantity>,
}

impl TopologyDomains {
    pub fn kind() -> &'static Kind {
        &TOPOLOGY_DOMAINS
    }

    /// Parses an object; `None` if it is invalid.
    pub fn of(object: &Object) -> Option<Self> {
        serde_json::from_slice(object.json()).ok()
    }

    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// The object to write.
    pub fn to_object(&self) -> Result<Box<dyn AnyObject>, Error> {
        let mut json = serde_json::to_value(self).map_err(Error::internal)?;
        json["metadata"] = serde_json::to_value(&self.metadata).map_err(Error::internal)?;
        json["apiVersion"] = format!("{GROUP}/{VERSION}").into();
        json["kind"] = KIND.into();
        let decoded = Self::kind().ops.decode(json.to_string().as_bytes());
        Ok(decoded.map_err(|e| Error::internal(e.message))?.object)
    }
}

/// Made from the definition as in the API server.
static TOPOLOGY_DOMAINS: LazyLock<Kind> = LazyLock::new(|| {
    let mut crd = definition();
    let status = crd.status.get_or_insert_default();
    let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    conditions::set(status, conditions::ESTABLISHED, "True", "Known", "", now);
    match Definition::of(&crd) {
        Some(definition) => definition.stored,
        // The definition below is a constant.
        None => unreachable!("a built-in CustomResourceDefinition defines no kind"),
    }
});

/// The CustomResourceDefinition, which is created in every cluster.
pub fn definition() -> CustomResourceDefinition {
    let label_key = |description: &str| json!({"type": "string", "minLength": 1, "maxLength": 317, "description": description});
    let text = json!({"type": "string"});
    let seconds = json!({"type": "integer", "format": "int64", "minimum": 1});
    let labels = json!({"type": "object", "maxProperties": LABELS_MAX,
        "additionalProperties": {"type": "string", "maxLength": 63}});
    let taint = json!({
        "type": "object", "required": ["key", "effect"],
        "properties": {
            "key": label_key("The taint's key."),
            "value": {"type": "string", "maxLength": 63},
            "effect": {"type": "string", "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        },
    });
    let taints = json!({"type": "array", "maxItems": TAINTS_MAX, "items": taint});
    let capacity = json!({"type": "object", "maxProperties": LABELS_MAX,
        "additionalProperties": {"type": "string", "maxLength": 32}});
    let domain = json!({
        "type": "object", "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": 63, "pattern": "^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$",
                "description": "The value of the node label."},
            "labels": labels, "taints": taints, "capacity": capacity,
        },
    });
    let mut topology_key = label_key("The node label whose values are the domains.");
    topology_key["x-kubernetes-validations"] =
        json!([{"rule": "self == oldSelf", "message": "topologyKey is immutable"}]);
    let spec = json!({
        "type": "object", "required": ["topologyKey"],
        "properties": {
            "topologyKey": topology_key,
            "domains": {"type": "array", "maxItems": DOMAINS_MAX, "items": domain,
                "description": "Domains that exist whether they have nodes or not, with what a node there would have.",
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            "nodeGroupLabel": label_key("The node label that names a node's group: domains in which a group had nodes \
                stay declared without them."),
            "forgetAfterSeconds": {"type": "integer", "format": "int64", "minimum": 1, "default": FORGET_AFTER_SECONDS,
                "description": "How long a node group without nodes is remembered."},
            "lostAfterSeconds": seconds,
        },
    });
    let time = json!({"type": "string", "format": "date-time"});
    let integer = json!({"type": "integer", "format": "int64"});
    let open =
        json!({"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let domain_status = json!({
        "type": "object",
        "properties": {
            "name": text, "source": text, "state": text, "counted": {"type": "boolean"},
            "nodes": integer, "readyNodes": integer, "withoutReadyNodesSince": time, "nodeTemplates": open,
        },
    });
    let status = json!({
        "type": "object",
        "properties": {
            "observedGeneration": integer, "conditions": open,
            "domains": {"type": "array", "items": domain_status},
        },
    });
    let condition = |name: &str, field: &str| {
        json!({"name": name, "type": "string",
            "jsonPath": format!(".status.conditions[?(@.type==\"Ready\")].{field}")})
    };
    let document = json!({
        "metadata": {"name": format!("{PLURAL}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Cluster",
            "names": {"kind": KIND, "listKind": "TopologyDomainsList", "plural": PLURAL, "singular": PLURAL},
            "conversion": {"strategy": "None"},
            "versions": [{
                "name": VERSION, "served": true, "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Key", "type": "string", "jsonPath": ".spec.topologyKey"},
                    condition("Ready", "status"),
                    condition("Message", "message"),
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object", "required": ["spec"], "properties": {"spec": spec, "status": status},
                }},
            }],
        },
    });
    match serde_json::from_value(document) {
        Ok(definition) => definition,
        Err(e) => unreachable!("a definition of knarr's own does not parse: {e}"),
    }
}
