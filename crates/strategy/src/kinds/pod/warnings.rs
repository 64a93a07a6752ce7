//! Warnings about valid but probably unintended values, sent in the `Warning` header (`pkg/api/pod/warnings.go`).

mod volumes;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, Pod, PodAffinityTerm, PodSpec, PodTemplateSpec, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kinds::pod::{APP_ARMOR_ANNOTATION, app_armor_profile, unknown_preemption_values};
use knarr_apimachinery::field::Path;
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;

use super::text;
use super::validation::{SECCOMP_CONTAINER, SECCOMP_POD, every_container};
use crate::kinds::warnings::{deprecated_label, ip_warning};

const DEPRECATED_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];

/// Warnings about a new Pod.
pub(super) fn pod_warnings(pod: &Pod) -> Vec<String> {
    let mut warnings = Vec::new();
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let messages = names::dns1123_label(text(&pod.metadata.name));
    if !messages.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS \
             label is recommended: [{}]",
            messages.join(" ")
        ));
    }
    meta_and_spec_warnings(&pod.metadata, spec, &Path::new(""), &mut warnings);
    warnings
}

/// Warnings about a new Pod that are sent even if the request is rejected.
pub(super) fn early_pod_warnings(pod: &Pod) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(spec) = &pod.spec {
        app_armor(&pod.metadata, spec, &mut warnings);
    }
    warnings
}

/// Warnings about a template at `path`, which is `template` or `spec.template` depending on the kind.
pub fn pod_template_warnings(template: &PodTemplateSpec, path: &Path) -> Vec<String> {
    let mut warnings = Vec::new();
    let empty = (ObjectMeta::default(), PodSpec::default());
    let meta = template.metadata.as_ref().unwrap_or(&empty.0);
    let spec = template.spec.as_ref().unwrap_or(&empty.1);
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|c| c.app_armor_profile.as_ref());
    meta_and_spec_warnings(meta, spec, path, &mut warnings);
    for (container, _) in every_container(spec, &path.child("spec")) {
        let own = container
            .security_context
            .as_ref()
            .and_then(|c| c.app_armor_profile.as_ref());
        let key = format!("{APP_ARMOR_ANNOTATION}{}", container.name);
        if let (None, Some(annotation)) = (own, annotation(meta, &key))
            && (of_pod.is_none() || of_pod != app_armor_profile(annotation).as_ref())
        {
            warnings.push(app_armor_warning(
                &path.child("metadata").child("annotations").key(&key),
            ));
        }
    }
    warnings
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

fn app_armor_warning(path: &Path) -> String {
    format!("{path}: deprecated since v1.30; use the \"appArmorProfile\" field instead")
}

/// Preparation has copied the annotation into the field before: if both agree, or the annotation is invalid, the user set the
/// annotation.
fn app_armor(meta: &ObjectMeta, spec: &PodSpec, warnings: &mut Vec<String>) {
    for (container, _) in every_container(spec, &Path::new("spec")) {
        let own = container
            .security_context
            .as_ref()
            .and_then(|c| c.app_armor_profile.as_ref());
        let key = format!("{APP_ARMOR_ANNOTATION}{}", container.name);
        let Some(annotation) = annotation(meta, &key) else {
            continue;
        };
        let from_annotation = app_armor_profile(annotation);
        let is_from_annotation = match own {
            Some(own) => from_annotation.as_ref() == Some(own),
            None => from_annotation.is_none(),
        };
        if is_from_annotation {
            warnings.push(app_armor_warning(
                &Path::new("metadata").child("annotations").key(&key),
            ));
        }
    }
}

/// Warnings for pods and templates (`warningsForPodSpecAndMeta`); `path` is that of the object with metadata and spec.
fn meta_and_spec_warnings(meta: &ObjectMeta, spec: &PodSpec, path: &Path, warnings: &mut Vec<String>) {
    let at = path.child("spec");
    deprecated_node_label_warnings(spec, &at, warnings);
    for (i, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let at = at.child("topologySpreadConstraints").index(i);
        if let Some(deprecation) = deprecated_label(&constraint.topology_key) {
            let key = at.child("topologyKey");
            warnings.push(format!("{key}: {} is {deprecation}", constraint.topology_key));
        }
        if constraint.label_selector.is_none() {
            warnings.push(null_selector_warning(&at));
        }
    }
    let annotations_at = path.child("metadata").child("annotations");
    for (key, deprecation) in DEPRECATED_ANNOTATIONS {
        if annotation(meta, key).is_some() {
            warnings.push(format!("{}: {deprecation}", annotations_at.key(key)));
        }
    }
    volumes::volumes(spec, &at.child("volumes"), warnings);
    duplicates(
        spec.host_aliases.iter().flatten().map(|a| a.ip.as_str()),
        |i, ip| {
            format!(
                "{}: duplicate ip {ip:?}",
                at.child("hostAliases").index(i).child("ip")
            )
        },
        warnings,
    );
    let secret = |i| at.child("imagePullSecrets").index(i).child("name");
    let secrets: Vec<&str> = spec
        .image_pull_secrets
        .iter()
        .flatten()
        .map(|s| s.name.as_str())
        .collect();
    duplicates(
        secrets.iter().copied(),
        |i, name| format!("{}: duplicate name {name:?}", secret(i)),
        warnings,
    );
    for (i, _) in secrets.iter().enumerate().filter(|(_, name)| name.is_empty()) {
        warnings.push(format!("{}: invalid empty name \"\"", secret(i)));
    }
    fractions(spec.overhead.as_ref(), &at.child("overhead"), warnings);
    let has_seccomp = spec
        .security_context
        .as_ref()
        .is_some_and(|c| c.seccomp_profile.is_some());
    if !has_seccomp && annotation(meta, SECCOMP_POD).is_some() {
        warnings.push(seccomp_warning(&annotations_at.key(SECCOMP_POD)));
    }
    let containers = every_container(spec, &at);
    for (c, at) in &containers {
        container(c, at, meta, &annotations_at, warnings);
    }
    ports(containers.iter().map(|(c, at)| (c.as_ref(), at)), warnings);
    if spec.termination_grace_period_seconds.is_some_and(|s| s < 0) {
        warnings.push(format!(
            "{}: must be >= 0; negative values are invalid and will be treated as 1",
            at.child("terminationGracePeriodSeconds")
        ));
    }
    pod_affinity(spec, &at.child("affinity"), warnings);
    addresses(spec, &at, warnings);
    let unknown = unknown_preemption_values(meta.annotations.as_ref());
    warnings.extend(
        unknown
            .iter()
            .map(|u| format!("{}: {u}", annotations_at.key(u.annotation))),
    );
}

fn null_selector_warning(path: &Path) -> String {
    format!(
        "{}: a null labelSelector results in matching no pod",
        path.child("labelSelector")
    )
}

fn seccomp_warning(path: &Path) -> String {
    format!("{path}: non-functional in v1.27+; use the \"seccompProfile\" field instead")
}

fn duplicates<'a>(
    values: impl Iterator<Item = &'a str>,
    warning: impl Fn(usize, &str) -> String,
    warnings: &mut Vec<String>,
) {
    let mut seen = Vec::new();
    for (i, value) in values.enumerate() {
        if seen.contains(&value) {
            warnings.push(warning(i, value));
        }
        seen.push(value);
    }
}

fn deprecated_node_label_warnings(spec: &PodSpec, path: &Path, warnings: &mut Vec<String>) {
    for key in spec.node_selector.iter().flat_map(|s| s.keys()) {
        if let Some(deprecation) = deprecated_label(key) {
            warnings.push(format!("{}: {deprecation}", path.child("nodeSelector").key(key)));
        }
    }
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let at = path.child("affinity").child("nodeAffinity");
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let required_at = at
        .child("requiredDuringSchedulingIgnoredDuringExecution")
        .child("nodeSelectorTerms");
    let mut terms = Vec::new();
    for (i, term) in required.iter().flat_map(|r| &r.node_selector_terms).enumerate() {
        terms.push((term, false, required_at.index(i)));
    }
    let preferred = affinity.into_iter().flat_map(|a| {
        a.preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten()
    });
    for (i, term) in preferred.enumerate() {
        let at = at
            .child("preferredDuringSchedulingIgnoredDuringExecution")
            .index(i);
        terms.push((&term.preference, true, at.child("preference")));
    }
    for (term, check_values, at) in terms {
        for (i, expression) in term.match_expressions.iter().flatten().enumerate() {
            let at = at.child("matchExpressions").index(i);
            if let Some(deprecation) = deprecated_label(&expression.key) {
                warnings.push(format!(
                    "{}: {} is {deprecation}",
                    at.child("key"),
                    expression.key
                ));
            }
            for (j, value) in expression
                .values
                .iter()
                .flatten()
                .enumerate()
                .filter(|_| check_values)
            {
                for message in names::label_value(value) {
                    warnings.push(format!(
                        "{}: {value} is invalid, {message}",
                        at.child("values").index(j)
                    ));
                }
            }
        }
    }
}

fn is_fraction(amount: &Wire) -> bool {
    Quantity::of(amount).is_ok_and(|q| q.milli_value() % 1000 != 0)
}

fn fraction_warning(path: &Path, amount: &Wire) -> String {
    format!(
        "{path}: fractional byte value {:?} is invalid, must be an integer",
        amount.0
    )
}

fn fractions(list: Option<&BTreeMap<String, Wire>>, path: &Path, warnings: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        if let Some(amount) = list.and_then(|l| l.get(name)).filter(|q| is_fraction(q)) {
            warnings.push(fraction_warning(&path.key(name), amount));
        }
    }
}

fn container(
    c: &Container,
    path: &Path,
    meta: &ObjectMeta,
    annotations_at: &Path,
    warnings: &mut Vec<String>,
) {
    let key = format!("{SECCOMP_CONTAINER}{}", c.name);
    let has_seccomp = c
        .security_context
        .as_ref()
        .is_some_and(|c| c.seccomp_profile.is_some());
    if !has_seccomp && annotation(meta, &key).is_some() {
        warnings.push(seccomp_warning(&annotations_at.key(&key)));
    }
    if let Some(resources) = &c.resources {
        let at = path.child("resources");
        for name in ["memory", "ephemeral-storage"] {
            for (field, list) in [("limits", &resources.limits), ("requests", &resources.requests)] {
                let amount = list.as_ref().and_then(|l| l.get(name));
                if let Some(amount) = amount.filter(|q| is_fraction(q)) {
                    warnings.push(fraction_warning(&at.child(field).key(name), amount));
                }
            }
        }
    }
    let mut seen = Vec::new();
    for (i, variable) in c.env.iter().flatten().enumerate() {
        let reference = format!("$({})", variable.name);
        let value = text(&variable.value);
        // A value that refers to the previous one of the same name is not reported.
        let builds_on_it = variable.value_from.is_none() && value != reference && value.contains(&reference);
        if seen.contains(&variable.name.as_str()) && !builds_on_it {
            warnings.push(format!(
                "{}: hides previous definition of {:?}, which may be dropped when using apply",
                path.child("env").index(i),
                variable.name
            ));
        }
        seen.push(variable.name.as_str());
    }
}

fn ports<'a>(containers: impl Iterator<Item = (&'a Container, &'a Path)>, warnings: &mut Vec<String>) {
    let mut all: Vec<(&ContainerPort, Path)> = Vec::new();
    let mut names = Vec::new();
    for (container, path) in containers {
        for (i, port) in container.ports.iter().flatten().enumerate() {
            let at = path.child("ports").index(i);
            let (host_port, ip) = (port.host_port.unwrap_or(0), text(&port.host_ip));
            if !ip.is_empty() && host_port == 0 {
                warnings.push(format!(
                    "{at}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} \
                     HostIP:{ip}}}",
                    text(&port.name),
                    port.container_port,
                    text(&port.protocol)
                ));
            }
            let same = |other: &ContainerPort| {
                other.container_port == port.container_port && other.protocol == port.protocol
            };
            for (other, other_at) in all.iter().filter(|(other, _)| same(other)) {
                let (other_host_port, other_ip) = (other.host_port.unwrap_or(0), text(&other.host_ip));
                let relation = if (ip, host_port) == (other_ip, other_host_port) {
                    "duplicate"
                } else if host_port == 0 || other_host_port == 0 {
                    "overlapping"
                } else if host_port == other_host_port && ip.is_empty() != other_ip.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                warnings.push(format!("{at}: {relation} port definition with {other_at}"));
            }
            if !text(&port.name).is_empty() {
                names.push((text(&port.name), at.clone()));
            }
            all.push((port, at));
        }
    }
    for (i, (name, at)) in names.iter().enumerate() {
        if let Some((_, first)) = names[..i].iter().find(|(other, _)| other == name) {
            warnings.push(format!(
                "{at}: duplicate port name {name:?} with {first}, services and probes that select ports by name \
                 will use {first}"
            ));
        }
    }
}

fn pod_affinity(spec: &PodSpec, path: &Path, warnings: &mut Vec<String>) {
    let Some(affinity) = &spec.affinity else {
        return;
    };
    let mut check = |required: Option<&Vec<PodAffinityTerm>>,
                     preferred: Option<&Vec<WeightedPodAffinityTerm>>,
                     at: Path| {
        let required_at = at.child("requiredDuringSchedulingIgnoredDuringExecution");
        for (i, term) in required.into_iter().flatten().enumerate() {
            if term.label_selector.is_none() {
                warnings.push(null_selector_warning(&required_at.index(i)));
            }
        }
        let preferred_at = at.child("preferredDuringSchedulingIgnoredDuringExecution");
        for (i, term) in preferred.into_iter().flatten().enumerate() {
            if term.pod_affinity_term.label_selector.is_none() {
                warnings.push(null_selector_warning(
                    &preferred_at.index(i).child("podAffinityTerm"),
                ));
            }
        }
    };
    if let Some(a) = &affinity.pod_affinity {
        check(
            a.required_during_scheduling_ignored_during_execution.as_ref(),
            a.preferred_during_scheduling_ignored_during_execution.as_ref(),
            path.child("podAffinity"),
        );
    }
    if let Some(a) = &affinity.pod_anti_affinity {
        check(
            a.required_during_scheduling_ignored_during_execution.as_ref(),
            a.preferred_during_scheduling_ignored_during_execution.as_ref(),
            path.child("podAntiAffinity"),
        );
    }
}

/// Warns about IPv6 addresses that are not in canonical form.
fn addresses(spec: &PodSpec, path: &Path, warnings: &mut Vec<String>) {
    let servers = spec
        .dns_config
        .iter()
        .flat_map(|c| c.nameservers.iter().flatten());
    let servers_at = path.child("dnsConfig").child("nameservers");
    let aliases = spec.host_aliases.iter().flatten();
    let aliases_at = path.child("hostAliases");
    let given = servers
        .enumerate()
        .map(|(i, ip)| (servers_at.index(i), ip))
        .chain(
            aliases
                .enumerate()
                .map(|(i, a)| (aliases_at.index(i).child("ip"), &a.ip)),
        );
    for (at, ip) in given {
        warnings.extend(ip_warning(&at, ip));
    }
}
