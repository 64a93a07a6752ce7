//! What is allowed but probably not meant: told in the `Warning` header (`pkg/api/pod/warnings.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, KeyToPath, Pod, PodAffinityTerm, PodSpec, PodTemplateSpec, Volume,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::prepare::{APP_ARMOR_ANNOTATION, app_armor_profile};
use super::text;
use super::validation::{SECCOMP_CONTAINER, SECCOMP_POD, every_container};
use crate::field::Path;
use crate::kinds::warnings::{deprecated_label, ip_warning};
use crate::names;
use crate::quantity::Quantity;

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
    let words = names::dns1123_label(text(&pod.metadata.name));
    if !words.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS \
             label is recommended: [{}]",
            words.join(" ")
        ));
    }
    about(&pod.metadata, spec, &Path::new(""), &mut warnings);
    warnings
}

/// Warnings about a new Pod that are told even if it is refused.
pub(super) fn early_pod_warnings(pod: &Pod) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(spec) = &pod.spec {
        app_armor(&pod.metadata, spec, &mut warnings);
    }
    warnings
}

/// Warnings about a template at `path` (`template` or `spec.template`, as its kind says it).
pub fn pod_template_warnings(template: &PodTemplateSpec, path: &Path) -> Vec<String> {
    let mut warnings = Vec::new();
    let empty = (ObjectMeta::default(), PodSpec::default());
    let meta = template.metadata.as_ref().unwrap_or(&empty.0);
    let spec = template.spec.as_ref().unwrap_or(&empty.1);
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|c| c.app_armor_profile.as_ref());
    about(meta, spec, path, &mut warnings);
    for (container, _) in every_container(spec, &path.child("spec")) {
        let own = container
            .security_context
            .as_ref()
            .and_then(|c| c.app_armor_profile.as_ref());
        let key = format!("{APP_ARMOR_ANNOTATION}{}", container.name);
        if let (None, Some(annotation)) = (own, annotation(meta, &key))
            && (of_pod.is_none() || of_pod != app_armor_profile(annotation).as_ref())
        {
            warnings.push(app_armor_words(
                &path.child("metadata").child("annotations").key(&key),
            ));
        }
    }
    warnings
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

fn app_armor_words(path: &Path) -> String {
    format!("{path}: deprecated since v1.30; use the \"appArmorProfile\" field instead")
}

/// By now the field has been filled from the annotation: where it says the same, or could not be filled, the
/// annotation was what the user gave.
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
        let meant = app_armor_profile(annotation);
        let told = match own {
            Some(own) => meant.as_ref() == Some(own),
            None => meant.is_none(),
        };
        if told {
            warnings.push(app_armor_words(
                &Path::new("metadata").child("annotations").key(&key),
            ));
        }
    }
}

/// What pods and templates are told alike; `path` is where the object with metadata and spec stands.
fn about(meta: &ObjectMeta, spec: &PodSpec, path: &Path, warnings: &mut Vec<String>) {
    let at = path.child("spec");
    labels_of_nodes(spec, &at, warnings);
    for (i, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let at = at.child("topologySpreadConstraints").index(i);
        if let Some(words) = deprecated_label(&constraint.topology_key) {
            let key = at.child("topologyKey");
            warnings.push(format!("{key}: {} is {words}", constraint.topology_key));
        }
        if constraint.label_selector.is_none() {
            warnings.push(matches_nothing(&at));
        }
    }
    let annotations_at = path.child("metadata").child("annotations");
    for (key, words) in DEPRECATED_ANNOTATIONS {
        if annotation(meta, key).is_some() {
            warnings.push(format!("{}: {words}", annotations_at.key(key)));
        }
    }
    volumes(spec, &at.child("volumes"), warnings);
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
        warnings.push(seccomp_words(&annotations_at.key(SECCOMP_POD)));
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
}

fn matches_nothing(path: &Path) -> String {
    format!(
        "{}: a null labelSelector results in matching no pod",
        path.child("labelSelector")
    )
}

fn seccomp_words(path: &Path) -> String {
    format!("{path}: non-functional in v1.27+; use the \"seccompProfile\" field instead")
}

fn duplicates<'a>(
    values: impl Iterator<Item = &'a str>,
    words: impl Fn(usize, &str) -> String,
    warnings: &mut Vec<String>,
) {
    let mut seen = Vec::new();
    for (i, value) in values.enumerate() {
        if seen.contains(&value) {
            warnings.push(words(i, value));
        }
        seen.push(value);
    }
}

fn labels_of_nodes(spec: &PodSpec, path: &Path, warnings: &mut Vec<String>) {
    for key in spec.node_selector.iter().flat_map(|s| s.keys()) {
        if let Some(words) = deprecated_label(key) {
            warnings.push(format!("{}: {words}", path.child("nodeSelector").key(key)));
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
            if let Some(words) = deprecated_label(&expression.key) {
                warnings.push(format!("{}: {} is {words}", at.child("key"), expression.key));
            }
            for (j, value) in expression
                .values
                .iter()
                .flatten()
                .enumerate()
                .filter(|_| check_values)
            {
                for words in names::label_value(value) {
                    warnings.push(format!(
                        "{}: {value} is invalid, {words}",
                        at.child("values").index(j)
                    ));
                }
            }
        }
    }
}

fn volumes(spec: &PodSpec, path: &Path, warnings: &mut Vec<String>) {
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    for (i, v) in volumes.iter().enumerate() {
        let gone = [
            (
                v.photon_persistent_disk.is_some(),
                "photonPersistentDisk",
                "deprecated in v1.11, non-functional in v1.16+",
            ),
            (
                v.git_repo.is_some(),
                "gitRepo",
                "deprecated in v1.11, and disabled by default in v1.33+",
            ),
            (
                v.scale_io.is_some(),
                "scaleIO",
                "deprecated in v1.16, non-functional in v1.22+",
            ),
            (
                v.flocker.is_some(),
                "flocker",
                "deprecated in v1.22, non-functional in v1.25+",
            ),
            (
                v.storageos.is_some(),
                "storageOS",
                "deprecated in v1.22, non-functional in v1.25+",
            ),
            (
                v.quobyte.is_some(),
                "quobyte",
                "deprecated in v1.22, non-functional in v1.25+",
            ),
            (
                v.glusterfs.is_some(),
                "glusterfs",
                "deprecated in v1.25, non-functional in v1.26+",
            ),
            (
                v.cephfs.is_some(),
                "cephfs",
                "deprecated in v1.28, non-functional in v1.31+",
            ),
            (
                v.rbd.is_some(),
                "rbd",
                "deprecated in v1.28, non-functional in v1.31+",
            ),
        ];
        for (_, field, words) in gone.into_iter().filter(|(given, ..)| *given) {
            warnings.push(format!("{}: {words}", path.index(i).child(field)));
        }
        let template = v
            .ephemeral
            .as_ref()
            .and_then(|e| e.volume_claim_template.as_ref());
        if let Some(resources) = template.and_then(|t| t.spec.resources.as_ref()) {
            let at = path
                .index(i)
                .child("ephemeral")
                .child("volumeClaimTemplate")
                .child("spec");
            for (field, list) in [("requests", &resources.requests), ("limits", &resources.limits)] {
                let storage = list.as_ref().and_then(|l| l.get("storage"));
                if let Some(amount) = storage.filter(|q| is_fraction(q)) {
                    let at = at.child("resources").child(field).key("storage");
                    warnings.push(fraction_words(&at, amount));
                }
            }
        }
    }
    for volume in volumes {
        overlapping_paths(volume, warnings);
    }
}

/// A file of a volume and where it comes from.
struct Target<'a> {
    path: &'a str,
    from: String,
}

impl Target<'_> {
    fn shown(&self) -> String {
        if self.from.is_empty() {
            format!("{:?}", self.path)
        } else {
            format!("{:?} ({})", self.path, self.from)
        }
    }
}

/// Two files at one path, or a file where another needs a directory.
fn overlapping_paths(volume: &Volume, warnings: &mut Vec<String>) {
    fn keys<'a>(items: Option<&'a Vec<KeyToPath>>, from: &str) -> Vec<Target<'a>> {
        let target = |item: &'a KeyToPath| Target {
            path: item.path.as_str(),
            from: from.to_string(),
        };
        items.into_iter().flatten().map(target).collect()
    }
    fn files<'a>(
        items: Option<&'a Vec<k8s_openapi::api::core::v1::DownwardAPIVolumeFile>>,
        from: &str,
    ) -> Vec<Target<'a>> {
        let target = |item: &'a k8s_openapi::api::core::v1::DownwardAPIVolumeFile| Target {
            path: item.path.as_str(),
            from: from.to_string(),
        };
        items.into_iter().flatten().map(target).collect()
    }
    if let Some(v) = &volume.config_map {
        let of = format!("ConfigMap {:?}", v.name);
        overlaps(&volume.name, &of, keys(v.items.as_ref(), ""), warnings);
    }
    if let Some(v) = &volume.secret {
        let of = format!("Secret {:?}", text(&v.secret_name));
        overlaps(&volume.name, &of, keys(v.items.as_ref(), ""), warnings);
    }
    if let Some(v) = &volume.downward_api {
        overlaps(&volume.name, "DownwardAPI", files(v.items.as_ref(), ""), warnings);
    }
    let mut all = Vec::new();
    for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
        if *source == Default::default() {
            warnings.push(format!(
                "volume {:?} (Projected) has no sources provided",
                volume.name
            ));
        } else if let Some(v) = &source.config_map {
            all.extend(keys(v.items.as_ref(), &format!("ConfigMap {:?}", v.name)));
        } else if let Some(v) = &source.secret {
            all.extend(keys(v.items.as_ref(), &format!("Secret {:?}", v.name)));
        } else if let Some(v) = &source.downward_api {
            all.extend(files(v.items.as_ref(), "DownwardAPI"));
        } else if let Some(v) = &source.service_account_token {
            all.push(Target {
                path: &v.path,
                from: "ServiceAccountToken".into(),
            });
        }
    }
    overlaps(&volume.name, "Projected", all, warnings);
}

fn overlaps(volume: &str, of: &str, mut targets: Vec<Target<'_>>, warnings: &mut Vec<String>) {
    for target in &mut targets {
        target.path = target.path.trim_end_matches('/');
    }
    let inside =
        |path: &str, of: &str| path == of || path.strip_prefix(of).is_some_and(|rest| rest.starts_with('/'));
    for (i, target) in targets.iter().enumerate().filter(|(_, t)| !t.path.is_empty()) {
        for other in targets[..i].iter().filter(|t| !t.path.is_empty()) {
            if inside(target.path, other.path) || inside(other.path, target.path) {
                warnings.push(format!(
                    "volume {volume:?} ({of}): overlapping paths: {} with {}",
                    target.shown(),
                    other.shown()
                ));
            }
        }
    }
}

fn is_fraction(amount: &Wire) -> bool {
    Quantity::of(amount).is_ok_and(|q| q.milli_value() % 1000 != 0)
}

fn fraction_words(path: &Path, amount: &Wire) -> String {
    format!(
        "{path}: fractional byte value {:?} is invalid, must be an integer",
        amount.0
    )
}

fn fractions(list: Option<&BTreeMap<String, Wire>>, path: &Path, warnings: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        if let Some(amount) = list.and_then(|l| l.get(name)).filter(|q| is_fraction(q)) {
            warnings.push(fraction_words(&path.key(name), amount));
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
        warnings.push(seccomp_words(&annotations_at.key(&key)));
    }
    if let Some(resources) = &c.resources {
        let at = path.child("resources");
        for name in ["memory", "ephemeral-storage"] {
            for (field, list) in [("limits", &resources.limits), ("requests", &resources.requests)] {
                let amount = list.as_ref().and_then(|l| l.get(name));
                if let Some(amount) = amount.filter(|q| is_fraction(q)) {
                    warnings.push(fraction_words(&at.child(field).key(name), amount));
                }
            }
        }
    }
    let mut seen = Vec::new();
    for (i, variable) in c.env.iter().flatten().enumerate() {
        let reference = format!("$({})", variable.name);
        let value = text(&variable.value);
        // A value built on the former one is fine.
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
                let words = if (ip, host_port) == (other_ip, other_host_port) {
                    "duplicate"
                } else if host_port == 0 || other_host_port == 0 {
                    "overlapping"
                } else if host_port == other_host_port && ip.is_empty() != other_ip.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                warnings.push(format!("{at}: {words} port definition with {other_at}"));
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
                warnings.push(matches_nothing(&required_at.index(i)));
            }
        }
        let preferred_at = at.child("preferredDuringSchedulingIgnoredDuringExecution");
        for (i, term) in preferred.into_iter().flatten().enumerate() {
            if term.pod_affinity_term.label_selector.is_none() {
                warnings.push(matches_nothing(&preferred_at.index(i).child("podAffinityTerm")));
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

/// IPv6 addresses that could be written shorter.
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
