//! The kinds of `safety.knarr.io/v1alpha1`: FencingPolicy (how lost nodes are fenced) and NodeFencing (the fencing of one node).
//!
//! They are custom resources as those of users: each has a CustomResourceDefinition, created when the control loops start, so
//! that kubectl explains, validates and prints them like any other.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta, Time};
use knarr_api::custom::{Definition, conditions, parse_definition};
use knarr_api::{AnyObject, Kind, Object, k8s_openapi};
use knarr_apimachinery::Error;
use knarr_apimachinery::codec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::controller::View;

pub const GROUP: &str = "safety.knarr.io";
const VERSION: &str = "v1alpha1";
/// The only namespace whose Secrets are used for agents. The fencing controller may read no others.
pub const SECRETS: &str = "knarr-fencing";

/// How lost nodes are fenced.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FencingPolicy {
    #[serde(skip_serializing)]
    pub metadata: ObjectMeta,
    pub spec: PolicySpec,
    pub status: PolicyStatus,
}

/// Whether its agents accept their parameters.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// What is wrong with the policy; empty if nothing is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Parameters that their agents do not know, as `agent: parameter`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_parameters: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicySpec {
    /// The nodes that the policy is for; an empty selector selects all nodes.
    pub node_selector: Option<LabelSelector>,
    /// Whether lost nodes are fenced without a user's request.
    pub automatic: bool,
    /// The pods that a node is fenced for: `AtMostOne` (only pods that must not run twice) or `Any`.
    pub workloads: String,
    /// How long a node must have been Unknown before it is fenced.
    pub unreachable_seconds: i64,
    /// Fencings at the same time.
    pub max_concurrent: usize,
    /// Fencings that are started within an hour.
    pub max_per_hour: usize,
    /// While more of its nodes are lost, fencing waits: more likely this server is cut off.
    pub max_lost_percent: usize,
    /// The time until the next attempt after all levels have failed.
    pub retry_seconds: i64,
    /// Whether a node is switched on again once its pods have been released. If not, a user has to switch it on.
    pub automatic_return: bool,
    /// Attempted in this order, until one succeeds.
    pub levels: Vec<Level>,
}

impl Default for PolicySpec {
    fn default() -> Self {
        PolicySpec {
            node_selector: None,
            automatic: true,
            workloads: "AtMostOne".into(),
            unreachable_seconds: 60,
            max_concurrent: 1,
            max_per_hour: 3,
            max_lost_percent: 50,
            retry_seconds: 300,
            automatic_return: false,
            levels: Vec::new(),
        }
    }
}

/// Agents that must all succeed, in this order.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Level {
    pub name: String,
    /// `off` (the default) or `reboot`.
    pub action: String,
    pub agents: Vec<Agent>,
}

/// A program that speaks the fence-agent convention.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Agent {
    /// Its name in the server's directory of agents, such as `fence_ipmilan`.
    pub agent: String,
    /// The agent's parameters for every node.
    pub parameters: BTreeMap<String, String>,
    /// Further parameters by node name; without an entry the agent gets `plug=<node name>`.
    pub node_parameters: BTreeMap<String, BTreeMap<String, String>>,
    /// Further parameters, from a Secret.
    pub secret_ref: Option<SecretRef>,
    pub timeout_seconds: i64,
    /// Retries after the first run.
    pub retries: usize,
}

impl Default for Agent {
    fn default() -> Self {
        Agent {
            agent: String::new(),
            parameters: BTreeMap::new(),
            node_parameters: BTreeMap::new(),
            secret_ref: None,
            timeout_seconds: 60,
            retries: 2,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct SecretRef {
    pub namespace: String,
    pub name: String,
}

/// The fencing of one node, from the request until the node is Ready again.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeFencing {
    #[serde(skip_serializing)]
    pub metadata: ObjectMeta,
    pub spec: FencingSpec,
    pub status: FencingStatus,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FencingSpec {
    pub node_name: String,
    /// The uid of the Node; another Node of the same name is not fenced.
    #[serde(rename = "nodeUID", skip_serializing_if = "String::is_empty")]
    pub node_uid: String,
    /// The FencingPolicy; if empty, the first one by name that selects the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub policy: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Whether the policy requested it, and not a user. An automatic fencing is cancelled when the node reports again.
    pub automatic: bool,
}

/// The phase of a fencing. From `Fenced` on, the node's pods are released.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub enum Phase {
    /// Waits for a policy, or for a limit.
    #[default]
    Pending,
    /// Agents are running.
    Fencing,
    /// No level succeeded; nothing is released. It is attempted again.
    Failed,
    /// There is evidence that nothing of the node runs or reaches its storage.
    Fenced,
    /// The node is being unfenced.
    Returning,
    /// The node is Ready again.
    Returned,
    /// The fencing is no longer needed.
    Cancelled,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FencingStatus {
    pub phase: Phase,
    /// What the fencing waits for, and what a user can do.
    pub message: String,
    /// The level that fenced it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The node's last heartbeat when it was fenced: any later one shows that it runs again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// When all levels are attempted again, or the agents' `on` is run again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_time: Option<Time>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// An action of an agent and its result.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    pub agent: String,
    pub action: String,
    pub time: Time,
    /// `succeeded`, `says off`, `timed out after 60 s`, …
    pub outcome: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
}

/// A type of this module and its kind.
pub trait Custom: DeserializeOwned + Serialize {
    fn kind() -> &'static Kind;
    fn metadata(&self) -> &ObjectMeta;

    /// Parses an object; `None` if it is invalid.
    fn of(object: &Object) -> Option<Self> {
        serde_json::from_slice(object.json()).ok()
    }

    /// The object to write.
    fn to_object(&self) -> Result<Box<dyn AnyObject>, Error> {
        let mut json = serde_json::to_value(self).map_err(Error::internal)?;
        json["metadata"] = codec::to_plain_value(self.metadata()).map_err(Error::internal)?;
        json["apiVersion"] = format!("{GROUP}/{VERSION}").into();
        json["kind"] = Self::kind().kind().into();
        let decoded = Self::kind().ops.decode(json.to_string().as_bytes());
        Ok(decoded.map_err(|e| Error::internal(e.message))?.object)
    }
}

/// The objects of a kind, each parsed once while it does not change: most are finished fencings.
#[derive(Debug)]
pub struct Parsed<T>(BTreeMap<String, (Arc<Object>, Option<T>)>);

impl<T> Default for Parsed<T> {
    fn default() -> Self {
        Parsed(BTreeMap::new())
    }
}

impl<T: Custom> Parsed<T> {
    /// All current objects in the order of their names, without those that do not parse.
    pub fn parse(&mut self, view: &dyn View) -> Vec<&T> {
        let objects = view.list(T::kind(), "");
        let mut before = std::mem::take(&mut self.0);
        for object in objects {
            let name = object.name().to_string();
            let known = before.remove(&name);
            let known = known.filter(|(parsed, _)| parsed.json() == object.json());
            let parsed = known.unwrap_or_else(|| (object.clone(), T::of(&object)));
            self.0.insert(name, parsed);
        }
        self.0
            .values()
            .filter_map(|(_, parsed)| parsed.as_ref())
            .collect()
    }
}

impl Custom for FencingPolicy {
    fn kind() -> &'static Kind {
        &KINDS[0]
    }
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Custom for NodeFencing {
    fn kind() -> &'static Kind {
        &KINDS[1]
    }
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// Made from the definitions as in the API server.
static KINDS: LazyLock<[Kind; 2]> = LazyLock::new(|| {
    definitions().map(|mut crd| {
        let status = crd.status.get_or_insert_default();
        let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        conditions::set(status, conditions::ESTABLISHED, "True", "Known", "", now);
        match Definition::of(&crd) {
            Some(definition) => definition.stored,
            // The definitions below are constants.
            None => unreachable!("a built-in CustomResourceDefinition defines no kind"),
        }
    })
});

/// The two CustomResourceDefinitions, which are created in every cluster.
pub fn definitions() -> [CustomResourceDefinition; 2] {
    let seconds =
        |default: i64| json!({"type": "integer", "format": "int64", "minimum": 0, "default": default});
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let agent = json!({
        "type": "object", "required": ["agent"],
        "properties": {
            "agent": {"type": "string", "pattern": "^fence_[A-Za-z0-9_.-]+$",
                "description": "The program's name in the server's directory of fence agents, such as fence_ipmilan."},
            "parameters": texts,
            "nodeParameters": {"type": "object", "additionalProperties": texts,
                "description": "By node name. Without an entry the agent gets plug=<node name>."},
            "secretRef": {"type": "object", "required": ["namespace", "name"],
                "description": "More parameters, from a Secret of the one namespace that is kept for them.",
                "properties": {"namespace": {"type": "string", "enum": [SECRETS]}, "name": text}},
            "timeoutSeconds": {"type": "integer", "format": "int64", "minimum": 1, "default": 60},
            "retries": {"type": "integer", "format": "int64", "minimum": 0, "default": 2},
        },
    });
    let policy = json!({
        "type": "object", "required": ["levels"],
        "properties": {
            "nodeSelector": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "automatic": {"type": "boolean", "default": true},
            "workloads": {"type": "string", "enum": ["AtMostOne", "Any"], "default": "AtMostOne"},
            "unreachableSeconds": seconds(60),
            "maxConcurrent": {"type": "integer", "format": "int64", "minimum": 1, "default": 1},
            "maxPerHour": {"type": "integer", "format": "int64", "minimum": 1, "default": 3},
            "maxLostPercent": {"type": "integer", "format": "int64", "minimum": 1, "maximum": 100, "default": 50},
            "retrySeconds": seconds(300),
            "automaticReturn": {"type": "boolean", "default": false},
            "levels": {"type": "array", "minItems": 1, "items": {
                "type": "object", "required": ["agents"],
                "properties": {
                    "name": text,
                    "action": {"type": "string", "enum": ["off", "reboot"], "default": "off"},
                    "agents": {"type": "array", "minItems": 1, "items": agent},
                },
            }},
        },
    });
    let fencing = json!({
        "type": "object", "required": ["nodeName"],
        "properties": {
            "nodeName": text, "nodeUID": text, "policy": text, "reason": text,
            "automatic": {"type": "boolean", "default": false},
        },
        "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "spec is immutable"}],
    });
    let time = json!({"type": "string", "format": "date-time"});
    let open =
        json!({"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let status = json!({
        "type": "object",
        "properties": {
            "phase": text, "message": text, "level": {"type": "integer", "format": "int64"},
            "startTime": time, "completionTime": time, "lastHeartbeatTime": time, "nextTryTime": time,
            "evidence": open, "conditions": open,
        },
    });
    let column = |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path});
    let age = json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"});
    [
        definition(
            "FencingPolicy",
            "fencingpolicies",
            json!({"spec": policy, "status": {"type": "object", "properties": {
                "message": text, "observedGeneration": {"type": "integer", "format": "int64"},
                "unknownParameters": {"type": "array", "items": text},
            }}}),
            json!([
                column("Workloads", ".spec.workloads"),
                column("Message", ".status.message"),
                age
            ]),
        ),
        definition(
            "NodeFencing",
            "nodefencings",
            json!({"spec": fencing, "status": status}),
            json!([
                column("Node", ".spec.nodeName"),
                column("Phase", ".status.phase"),
                column("Message", ".status.message"),
                age
            ]),
        ),
    ]
}

fn definition(kind: &str, plural: &str, properties: Value, columns: Value) -> CustomResourceDefinition {
    let document = json!({
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Cluster",
            "names": {
                "kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                "singular": kind.to_lowercase(),
            },
            "conversion": {"strategy": "None"},
            "versions": [{
                "name": VERSION, "served": true, "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "required": ["spec"], "properties": properties,
                }},
            }],
        },
    });
    match parse_definition(document) {
        Ok(definition) => definition,
        Err(e) => unreachable!("a definition of knarr's own does not parse: {e}"),
    }
}
