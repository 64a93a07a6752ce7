//! The domains that MachineDeployments of Cluster API declare (`spec.machineDeployments`): the failure domain of each, with what the node of
//! a new Machine would have, by the annotations that cluster-autoscaler reads to scale from zero.
//!
//! A MachineDeployment that is scaled to zero declares its domain, and so does one that is paused: that is for a time, and pods that
//! were placed without the domain meanwhile would stay where they are. One that is being deleted declares nothing, nor does one without
//! Machines whose largest size is 0: no node follows from them. One that cannot be read declares nothing, and the condition
//! MachineDeploymentsRead names it.
//!
//! Versions v1beta1 and v1beta2 of `cluster.x-k8s.io` have the same fields here. Sources: the Cluster API book (metadata propagation, autoscaling from
//! zero) and cluster-autoscaler's provider clusterapi.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::well_known::HOSTNAME;
use knarr_api::{Kind, Object, k8s_openapi};
use knarr_apimachinery::labels::Selector;
use knarr_apimachinery::names::{label_value, qualified_name};
use knarr_apimachinery::quantity::Quantity;
use serde::Deserialize;

use super::conditions::Finding;
use super::kinds::{
    GROUPS_MAX, LABELS_MAX, MachineDeploymentSource, NodeTemplate, QUANTITY_BYTES_MAX, TAINTS_MAX,
    TopologyDomains,
};

const GROUP: &str = "cluster.x-k8s.io";
const KIND: &str = "MachineDeployment";

/// The largest number of Machines that the autoscaler may make of it.
const MAX_SIZE: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";
/// The labels of its nodes, as `key=value,key=value`.
const LABELS: &str = "capacity.cluster-autoscaler.kubernetes.io/labels";
/// Their taints, as `key=value:effect,key:effect`.
const TAINTS: &str = "capacity.cluster-autoscaler.kubernetes.io/taints";
/// The resource that [`GPU_COUNT`] is of.
const GPU_TYPE: &str = "capacity.cluster-autoscaler.kubernetes.io/gpu-type";
const GPU_COUNT: &str = "capacity.cluster-autoscaler.kubernetes.io/gpu-count";
/// Annotations with a quantity, and the resource that it is of.
const CAPACITY: [(&str, &str); 4] = [
    ("capacity.cluster-autoscaler.kubernetes.io/cpu", "cpu"),
    ("capacity.cluster-autoscaler.kubernetes.io/memory", "memory"),
    (
        "capacity.cluster-autoscaler.kubernetes.io/ephemeral-disk",
        "ephemeral-storage",
    ),
    ("capacity.cluster-autoscaler.kubernetes.io/maxPods", "pods"),
];
/// The prefix of labels that Cluster API copies from a Machine to its node.
const NODE_ROLE: &str = "node-role.kubernetes.io";
/// The same of those with such a prefix or a subdomain of it.
const NODE_LABEL_DOMAINS: [&str; 2] = ["node-restriction.kubernetes.io", "node.cluster.x-k8s.io"];
/// How many MachineDeployments that cannot be read a condition names.
const NAMED_MAX: usize = 5;
/// How much of a value that cannot be read is shown, in characters.
const SHOWN_MAX: usize = 64;

/// What is known of the MachineDeployments of the cluster.
#[derive(Debug)]
pub enum MachineDeployments {
    /// No CustomResourceDefinition of the kind is established.
    NotServed,
    /// They are not listed yet, or cannot be: those of the status stay.
    NotSynced,
    /// All of them, in the order of their keys.
    Listed(Vec<Arc<Object>>),
}

/// Whether objects of the kind are MachineDeployments.
pub fn is_kind(kind: &Kind) -> bool {
    kind.group() == GROUP && kind.kind() == KIND
}

/// The domains that the MachineDeployments of one object declare.
#[derive(Debug, Default)]
pub(super) struct Declared {
    /// The nodes that would be added, by domain, at most [`GROUPS_MAX`] together.
    pub templates: BTreeMap<String, Vec<NodeTemplate>>,
    /// `None` if the object has no `spec.machineDeployments`.
    pub finding: Option<Finding>,
}

/// Why a MachineDeployment declares nothing.
#[derive(Debug, PartialEq, thiserror::Error)]
enum Invalid {
    #[error("it does not parse")]
    Unparsable,
    #[error("spec.template.spec.failureDomain: neither it nor a label of the nodes has the domain")]
    NoDomain,
    #[error("{field}: found {found:?}, expected {expected}")]
    Value {
        field: String,
        found: String,
        expected: &'static str,
    },
}

impl Invalid {
    fn value(field: &str, found: &str, expected: &'static str) -> Self {
        Invalid::Value {
            field: field.to_string(),
            found: found.chars().take(SHOWN_MAX).collect(),
            expected,
        }
    }

    fn annotation(key: &str, found: &str, expected: &'static str) -> Self {
        Self::value(&format!("metadata.annotations[{key}]"), found, expected)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MachineDeployment {
    metadata: ObjectMeta,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    cluster_name: String,
    replicas: Option<i64>,
    template: MachineTemplate,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MachineTemplate {
    metadata: MachineMetadata,
    spec: MachineSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MachineMetadata {
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MachineSpec {
    failure_domain: Option<String>,
}

/// A domain, and a node that would be added there.
#[derive(Debug, PartialEq)]
struct DomainTemplate {
    domain: String,
    template: NodeTemplate,
}

impl MachineDeployments {
    /// The domains that those declare which the object selects.
    pub(super) fn declared(&self, domains: &TopologyDomains) -> Declared {
        let Some(source) = &domains.spec.machine_deployments else {
            return Declared::default();
        };
        let objects = match self {
            MachineDeployments::Listed(objects) => objects,
            MachineDeployments::NotServed => {
                let message = format!("no CustomResourceDefinition of {KIND} ({GROUP}) is established");
                return Declared {
                    finding: Some(Finding::new("False", "NotServed", message)),
                    ..Declared::default()
                };
            }
            MachineDeployments::NotSynced => {
                let message = "they are not listed yet; those that were read before count";
                return Declared {
                    templates: remembered(domains),
                    finding: Some(Finding::new("Unknown", "NotSynced", message)),
                };
            }
        };
        let selector = source.selector.as_ref().map(Selector::from_label_selector);
        let selector = match selector.transpose() {
            Ok(selector) => selector.unwrap_or_default(),
            Err(error) => {
                let message = format!("spec.machineDeployments.selector: {error}");
                return Declared {
                    finding: Some(Finding::new("False", "InvalidSelector", message)),
                    ..Declared::default()
                };
            }
        };
        read_all(objects, source, &selector, &domains.spec.topology_key)
    }
}

/// What the status has of them.
fn remembered(domains: &TopologyDomains) -> BTreeMap<String, Vec<NodeTemplate>> {
    let mut templates: BTreeMap<String, Vec<NodeTemplate>> = BTreeMap::new();
    for domain in &domains.status.domains {
        let of_domain = domain.node_templates.iter();
        for template in of_domain.filter(|t| !t.machine_deployment.is_empty()) {
            templates
                .entry(domain.name.clone())
                .or_default()
                .push(template.clone());
        }
    }
    templates
}

fn read_all(
    objects: &[Arc<Object>],
    source: &MachineDeploymentSource,
    selector: &Selector,
    topology_key: &str,
) -> Declared {
    let of_namespace = objects.iter().filter(|o| o.namespace() == source.namespace);
    let selected = of_namespace.filter(|o| selector.matches(o.metadata().labels.as_ref()));
    let mut templates: BTreeMap<String, Vec<NodeTemplate>> = BTreeMap::new();
    let mut invalid: Vec<String> = Vec::new();
    for object in selected {
        match read(object, &source.cluster_name, topology_key) {
            Ok(None) => {}
            Ok(Some(found)) => templates.entry(found.domain).or_default().push(found.template),
            Err(error) => invalid.push(format!("{}: {error}", object.name())),
        }
    }
    let found: usize = templates.values().map(Vec::len).sum();
    let left_out = found.saturating_sub(GROUPS_MAX);
    // The domain with the most loses one each time, so that no domain is left out for another's second.
    for _ in 0..left_out {
        if let Some(most) = templates.values_mut().max_by_key(|of| of.len()) {
            most.pop();
        }
    }
    templates.retain(|_, of| !of.is_empty());
    let declaring = found - left_out;
    let mut message = format!(
        "{declaring} MachineDeployments declare {} domains",
        templates.len()
    );
    if left_out > 0 {
        message += &format!("; {left_out} are left out: at most {GROUPS_MAX} are used");
    }
    let finding = if invalid.is_empty() {
        Finding::new("True", "Read", message)
    } else {
        let named: Vec<&str> = invalid.iter().take(NAMED_MAX).map(String::as_str).collect();
        message += &format!("; {} are not used, such as {}", invalid.len(), named.join("; "));
        Finding::new("False", "InvalidMachineDeployments", message)
    };
    Declared {
        templates,
        finding: Some(finding),
    }
}

/// `None`: it is of another Cluster, or no node follows from it.
fn read(object: &Object, cluster_name: &str, topology_key: &str) -> Result<Option<DomainTemplate>, Invalid> {
    let MachineDeployment { metadata, spec } =
        serde_json::from_slice(object.json()).map_err(|_| Invalid::Unparsable)?;
    if spec.cluster_name != cluster_name || metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let annotations = metadata.annotations.unwrap_or_default();
    if spec.replicas == Some(0) && max_size(&annotations)? == Some(0) {
        return Ok(None);
    }
    let of_machines = spec.template.metadata.labels.unwrap_or_default();
    let mut labels: BTreeMap<String, String> = of_machines
        .into_iter()
        .filter(|(key, _)| is_copied(key))
        .collect();
    labels.extend(labels_of(&annotations)?);
    labels.remove(HOSTNAME);
    // The scheduler reads the label, so that it is the domain, whatever the provider's name for it is.
    let domain = labels.remove(topology_key).or(spec.template.spec.failure_domain);
    let domain = domain.filter(|d| !d.is_empty()).ok_or(Invalid::NoDomain)?;
    if !label_value(&domain).is_empty() {
        let field = "spec.template.spec.failureDomain";
        return Err(Invalid::value(field, &domain, "the value of a node label"));
    }
    let mut taints = taints_of(&annotations)?;
    taints.truncate(TAINTS_MAX);
    let template = NodeTemplate {
        machine_deployment: format!("{}/{}", object.namespace(), object.name()),
        labels: labels.into_iter().take(LABELS_MAX).collect(),
        taints,
        capacity: capacity_of(&annotations)?,
        ..NodeTemplate::default()
    };
    Ok(Some(DomainTemplate { domain, template }))
}

/// Whether Cluster API copies a label of Machines to their nodes.
fn is_copied(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else {
        return false;
    };
    let is_of = |domain: &str| {
        let rest = prefix.strip_suffix(domain);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    prefix == NODE_ROLE || NODE_LABEL_DOMAINS.into_iter().any(is_of)
}

type Annotations = BTreeMap<String, String>;

/// An annotation that is not empty: an empty one is as none, as for the autoscaler.
fn annotation<'a>(annotations: &'a Annotations, key: &str) -> Option<&'a str> {
    let value = annotations.get(key)?.trim();
    (!value.is_empty()).then_some(value)
}

fn max_size(annotations: &Annotations) -> Result<Option<u32>, Invalid> {
    let parse = |value: &str| {
        let parsed = value.parse::<u32>();
        parsed.map_err(|_| Invalid::annotation(MAX_SIZE, value, "a number of Machines"))
    };
    annotation(annotations, MAX_SIZE).map(parse).transpose()
}

fn labels_of(annotations: &Annotations) -> Result<BTreeMap<String, String>, Invalid> {
    let mut labels = BTreeMap::new();
    let entries = annotation(annotations, LABELS)
        .into_iter()
        .flat_map(|v| v.split(','));
    for entry in entries.map(str::trim) {
        let label = entry.split_once('=').filter(|(key, value)| is_label(key, value));
        let Some((key, value)) = label else {
            return Err(Invalid::annotation(
                LABELS,
                entry,
                "labels as key=value,key=value",
            ));
        };
        labels.insert(key.to_string(), value.to_string());
    }
    Ok(labels)
}

fn is_label(key: &str, value: &str) -> bool {
    qualified_name(key).is_empty() && label_value(value).is_empty()
}

fn taints_of(annotations: &Annotations) -> Result<Vec<Taint>, Invalid> {
    let mut taints = Vec::new();
    let entries = annotation(annotations, TAINTS)
        .into_iter()
        .flat_map(|v| v.split(','));
    for entry in entries.map(str::trim) {
        let taint = taint(entry);
        let taint = taint.ok_or_else(|| {
            let expected = "taints as key=value:effect,key:effect";
            Invalid::annotation(TAINTS, entry, expected)
        });
        taints.push(taint?);
    }
    Ok(taints)
}

fn taint(entry: &str) -> Option<Taint> {
    let (of, effect) = entry.rsplit_once(':')?;
    let (key, value) = of.split_once('=').unwrap_or((of, ""));
    let is_effect = ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect);
    (is_effect && is_label(key, value)).then(|| Taint {
        key: key.to_string(),
        value: (!value.is_empty()).then(|| value.to_string()),
        effect: effect.to_string(),
        ..Taint::default()
    })
}

fn capacity_of(annotations: &Annotations) -> Result<BTreeMap<String, Wire>, Invalid> {
    let mut capacity = BTreeMap::new();
    let gpu = annotation(annotations, GPU_TYPE).map(|resource| (GPU_COUNT, resource));
    for (key, resource) in CAPACITY.into_iter().chain(gpu) {
        let Some(text) = annotation(annotations, key) else {
            continue;
        };
        let quantity = Some(text).filter(|t| t.len() <= QUANTITY_BYTES_MAX);
        let quantity = quantity.and_then(|t| Quantity::parse(t).ok());
        if quantity.is_none_or(|q| q.is_negative()) {
            let expected = "a quantity that is not negative";
            return Err(Invalid::annotation(key, text, expected));
        }
        if !qualified_name(resource).is_empty() {
            return Err(Invalid::annotation(GPU_TYPE, resource, "the name of a resource"));
        }
        capacity.insert(resource.to_string(), Wire(text.to_string()));
    }
    Ok(capacity)
}
