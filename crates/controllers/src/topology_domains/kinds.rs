//! The kind TopologyDomains of `placement.knarr.io/v1alpha1`: the domains of one topology key (SPEC B3).
//!
//! It is a custom resource as those of users: its CustomResourceDefinition is created when the control loops start. The scheduler
//! reads only the status.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta, Time};
use knarr_api::custom::{Definition, conditions, parse_definition};
use knarr_api::{AnyObject, Kind, Object, k8s_openapi};
use knarr_apimachinery::Error;
use knarr_apimachinery::codec;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub const GROUP: &str = "placement.knarr.io";
const VERSION: &str = "v1alpha1";
const KIND: &str = "TopologyDomains";
const PLURAL: &str = "topologydomains";

/// The most domains of one object: clouds have a handful of zones, and the status of all of them has to fit one object.
pub const DOMAINS_MAX: usize = 64;
/// The most node groups and MachineDeployments of one object, of all its domains together; with [`LABELS_MAX`] labels each, the status
/// fits an object.
pub const GROUPS_MAX: usize = 64;
/// The most labels of a node template, and the most taints.
pub const LABELS_MAX: usize = 32;
pub const TAINTS_MAX: usize = 16;
/// How long a node group without nodes is remembered by default: 30 days.
const FORGET_AFTER_SECONDS: i64 = 30 * 24 * 60 * 60;
/// The longest time that can be given: ten years.
const SECONDS_MAX: i64 = 10 * 365 * 24 * 60 * 60;
/// The longest text of a quantity, such as `1048576Ki`.
pub const QUANTITY_BYTES_MAX: usize = 32;
/// The longest label value, and the longest name of a namespace or Cluster.
const LABEL_VALUE_BYTES_MAX: usize = 63;
/// The longest label key: the prefix, a slash and the name.
const LABEL_KEY_BYTES_MAX: usize = 317;
/// The form of label keys; the lengths of its parts are not checked.
const LABEL_KEY: &str = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";
/// The form of label values that are not empty, and of those that may be.
const LABEL_VALUE: &str = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";
const LABEL_VALUE_OR_EMPTY: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";
/// The most requirements of a selector, and the most values of one.
const REQUIREMENTS_MAX: usize = 32;

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
    /// The MachineDeployments of Cluster API that declare their domains, whether they have Machines or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_deployments: Option<MachineDeploymentSource>,
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
            machine_deployments: None,
            forget_after_seconds: FORGET_AFTER_SECONDS,
            lost_after_seconds: None,
        }
    }
}

/// Which MachineDeployments declare domains: those of one Cluster, this one. A management cluster has those of others, too.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineDeploymentSource {
    /// The namespace of the Cluster.
    pub namespace: String,
    /// Its name, which its MachineDeployments have as `spec.clusterName`.
    pub cluster_name: String,
    /// Of these only those with such labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
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
    /// A MachineDeployment, also one that is scaled to zero.
    MachineDeployment,
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
    /// The nodes that would be added here: that of `spec.domains`, and one for each MachineDeployment and node group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_templates: Vec<NodeTemplate>,
}

/// What a node that is added to a domain would have.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTemplate {
    /// The node group; empty for one of another source.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_group: String,
    /// The MachineDeployment, as `namespace/name`; empty for one of another source.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine_deployment: String,
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
        json["metadata"] = codec::to_plain_value(&self.metadata).map_err(Error::internal)?;
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

/// The schema of `spec.machineDeployments`.
fn machine_deployments() -> Value {
    let name = |description: &str| json!({"type": "string", "minLength": 1, "maxLength": LABEL_VALUE_BYTES_MAX, "description": description});
    let values = json!({"type": "array", "maxItems": REQUIREMENTS_MAX, "description": "For In and NotIn.",
        "items": {"type": "string", "maxLength": LABEL_VALUE_BYTES_MAX}});
    let requirement = json!({
        "type": "object", "required": ["key", "operator"],
        "properties": {
            "key": {"type": "string", "maxLength": LABEL_KEY_BYTES_MAX, "description": "The label."},
            "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                "description": "How the label's value relates to values."},
            "values": values,
        },
    });
    let selector = json!({
        "type": "object", "x-kubernetes-map-type": "atomic", "description": "Only MachineDeployments with such labels.",
        "properties": {
            "matchLabels": {"type": "object", "maxProperties": REQUIREMENTS_MAX, "description": "Labels with these values.",
                "additionalProperties": {"type": "string", "maxLength": LABEL_VALUE_BYTES_MAX}},
            "matchExpressions": {"type": "array", "maxItems": REQUIREMENTS_MAX, "items": requirement,
                "description": "Requirements on labels, all of which must be met."},
        },
    });
    json!({
        "type": "object", "required": ["namespace", "clusterName"],
        "description": "The Cluster API MachineDeployments that declare their failure domains, also when they are scaled to zero.",
        "properties": {
            "namespace": name("The namespace of the Cluster."),
            "clusterName": name("The Cluster that this one is; MachineDeployments of others declare nothing."),
            "selector": selector,
        },
    })
}

/// The schema of `spec.domains`.
fn domains() -> Value {
    let labels = json!({"type": "object", "maxProperties": LABELS_MAX,
        "description": "The labels of a node there, in addition to the topology key.",
        "additionalProperties": {"type": "string", "maxLength": LABEL_VALUE_BYTES_MAX, "pattern": LABEL_VALUE_OR_EMPTY}});
    let taint = json!({
        "type": "object", "required": ["key", "effect"],
        "properties": {
            "key": label_key("The taint's key."),
            "value": {"type": "string", "maxLength": LABEL_VALUE_BYTES_MAX, "pattern": LABEL_VALUE_OR_EMPTY},
            "effect": {"type": "string", "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        },
    });
    let taints = json!({"type": "array", "maxItems": TAINTS_MAX, "items": taint,
        "description": "The taints of a node there.",
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key", "effect"]});
    let capacity = json!({"type": "object", "maxProperties": LABELS_MAX,
    "description": "What a node there could allocate; without a resource it is assumed to be enough.",
    "additionalProperties": {"type": "string", "maxLength": QUANTITY_BYTES_MAX, "x-kubernetes-validations": [{
        "rule": "isQuantity(self) && quantity(self).sign() >= 0",
        "message": "must be a quantity that is not negative, such as 8 or 32Gi",
    }]}});
    json!({"type": "array", "maxItems": DOMAINS_MAX,
    "description": "Domains that exist whether they have nodes or not, with what a node there would have.",
    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    "items": {
        "type": "object", "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": LABEL_VALUE_BYTES_MAX, "pattern": LABEL_VALUE,
                "description": "The value of the node label."},
            "labels": labels, "taints": taints, "capacity": capacity,
        },
    }})
}

fn label_key(description: &str) -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": LABEL_KEY_BYTES_MAX, "pattern": LABEL_KEY,
        "description": description})
}

/// The schema of `spec`.
fn spec() -> Value {
    let mut topology_key = label_key("The node label whose values are the domains.");
    topology_key["x-kubernetes-validations"] =
        json!([{"rule": "self == oldSelf", "message": "topologyKey is immutable"}]);
    let contradicts = "has(d.labels) && self.topologyKey in d.labels && d.labels[self.topologyKey] != d.name";
    let no_contradiction = json!({
        "rule": format!("!has(self.domains) || !self.domains.exists(d, {contradicts})"),
        "messageExpression": "'a domain that has the label ' + self.topologyKey + ' must have its name as the value'",
        "message": "a domain that has the label of the topology key must have its name as the value",
        "fieldPath": ".domains",
    });
    json!({
        "type": "object", "required": ["topologyKey"],
        "x-kubernetes-validations": [no_contradiction],
        "properties": {
            "topologyKey": topology_key,
            "domains": domains(),
            "nodeGroupLabel": label_key("The node label that names a node's group: domains in which a group had nodes \
                stay declared without them."),
            "machineDeployments": machine_deployments(),
            "forgetAfterSeconds": {"type": "integer", "format": "int64", "minimum": 1, "maximum": SECONDS_MAX,
                "default": FORGET_AFTER_SECONDS, "description": "How long a node group without nodes is remembered."},
            "lostAfterSeconds": {"type": "integer", "format": "int64", "minimum": 1, "maximum": SECONDS_MAX,
                "description": "How long none of a domain's nodes has been Ready until it is lost; without it no domain is."},
        },
    })
}

/// The CustomResourceDefinition, which is created in every cluster.
pub fn definition() -> CustomResourceDefinition {
    let text = json!({"type": "string"});
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
                    "type": "object", "required": ["spec"], "properties": {"spec": spec(), "status": status},
                }},
            }],
        },
    });
    match parse_definition(document) {
        Ok(definition) => definition,
        Err(e) => unreachable!("a definition of knarr's own does not parse: {e}"),
    }
}
