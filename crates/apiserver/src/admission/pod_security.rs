//! PodSecurity: a namespace's labels set the levels of its pods for enforce, audit and warn. A violation of enforce denies
//! the pod; pod templates get only warnings and audit annotations, so that their authors see them before the pods are denied.
//!
//! The levels' checks are in [`knarr_admission::pod_security`].

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{
    Namespace, Pod, PodSpec, PodTemplate, PodTemplateSpec, ReplicationController,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_admission::pod_security::{LABELS, Level, LevelVersion, Policy, evaluate};
use knarr_api::{AnyObject, k8s_openapi, registry};
use knarr_apimachinery::Error;

use super::{Admission, Attributes, Operation};
use crate::cache::change::Filter;
use crate::request::Ctx;

/// How many of a namespace's pods are checked when its enforce level becomes stricter.
const PODS_MAX: usize = 3000;
/// Subresources whose requests change nothing that the levels check.
const IGNORED_SUBRESOURCES: [&str; 3] = ["binding", "eviction", "status"];

pub(super) fn validate(
    admission: &Admission,
    ctx: &mut Ctx,
    attributes: &Attributes<'_>,
    object: &dyn AnyObject,
) -> Result<(), Error> {
    let subresource = attributes.target.subresource;
    if let Some(pod) = object.as_any().downcast_ref::<Pod>() {
        return match IGNORED_SUBRESOURCES.contains(&subresource) {
            true => Ok(()),
            false => validate_pod(admission, ctx, attributes, pod),
        };
    }
    if !subresource.is_empty() {
        return Ok(());
    }
    if let Some(namespace) = object.as_any().downcast_ref::<Namespace>() {
        return validate_namespace(admission, ctx, attributes, namespace);
    }
    if let Some(template) = template(object)
        && let (Some(spec), metadata) = (&template.spec, &template.metadata)
    {
        let policy = policy_of(admission, attributes);
        let empty = ObjectMeta::default();
        warn_and_audit(ctx, &policy, metadata.as_ref().unwrap_or(&empty), spec);
    }
    Ok(())
}

fn policy_of(admission: &Admission, attributes: &Attributes<'_>) -> Policy {
    let found = admission
        .cache
        .get(&registry::NAMESPACE, "", attributes.target.namespace);
    Policy::of(found.as_ref().and_then(|n| n.metadata().labels.as_ref())).0
}

fn validate_pod(
    admission: &Admission,
    ctx: &mut Ctx,
    attributes: &Attributes<'_>,
    pod: &Pod,
) -> Result<(), Error> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let policy = policy_of(admission, attributes);
    if policy == Policy::default() {
        return Ok(());
    }
    if attributes.operation == Operation::Update {
        let old = attributes.old.and_then(|old| old.get::<Pod>());
        if old
            .and_then(|old| old.spec.as_ref())
            .is_some_and(|old| same_images(spec, old))
        {
            return Ok(());
        }
    }
    let enforced = policy.enforce.to_string();
    ctx.note(format!("{LABELS}enforce-policy"), &enforced);
    if let Some(violations) = evaluate(policy.enforce, &pod.metadata, spec) {
        audit(ctx, &policy, &pod.metadata, spec);
        let why = format!("violates PodSecurity \"{enforced}\": {}", violations.details());
        return Err(attributes.forbidden(&pod.metadata, &why));
    }
    warn_and_audit(ctx, &policy, &pod.metadata, spec);
    Ok(())
}

fn would_violate(level: LevelVersion, metadata: &ObjectMeta, spec: &PodSpec) -> Option<String> {
    let violations = evaluate(level, metadata, spec)?;
    Some(format!(
        "would violate PodSecurity \"{level}\": {}",
        violations.details()
    ))
}

fn audit(ctx: &mut Ctx, policy: &Policy, metadata: &ObjectMeta, spec: &PodSpec) {
    if let Some(violation) = would_violate(policy.audit, metadata, spec) {
        ctx.note(format!("{LABELS}audit-violations"), &violation);
    }
}

fn warn_and_audit(ctx: &mut Ctx, policy: &Policy, metadata: &ObjectMeta, spec: &PodSpec) {
    audit(ctx, policy, metadata, spec);
    if let Some(violation) = would_violate(policy.warn, metadata, spec) {
        ctx.warn(violation);
    }
}

/// Whether two states of a pod have the same containers with the same images: of the checked fields only these can change.
fn same_images(new: &PodSpec, old: &PodSpec) -> bool {
    fn images(spec: &PodSpec) -> [Vec<Option<&str>>; 2] {
        let init = spec.init_containers.iter().flatten();
        [
            spec.containers.iter().map(|c| c.image.as_deref()).collect(),
            init.map(|c| c.image.as_deref()).collect(),
        ]
    }
    fn ephemeral(spec: &PodSpec) -> BTreeMap<&str, Option<&str>> {
        let all = spec.ephemeral_containers.iter().flatten();
        all.map(|c| (c.name.as_str(), c.image.as_deref())).collect()
    }
    let before = ephemeral(old);
    images(new) == images(old)
        && ephemeral(new)
            .iter()
            .all(|(name, image)| before.get(name) == Some(image))
}

/// The pod template of a workload object.
fn template(object: &dyn AnyObject) -> Option<&PodTemplateSpec> {
    let any = object.as_any();
    if let Some(deployment) = any.downcast_ref::<Deployment>() {
        return Some(&deployment.spec.as_ref()?.template);
    }
    if let Some(set) = any.downcast_ref::<ReplicaSet>() {
        return set.spec.as_ref()?.template.as_ref();
    }
    if let Some(set) = any.downcast_ref::<StatefulSet>() {
        return Some(&set.spec.as_ref()?.template);
    }
    if let Some(set) = any.downcast_ref::<DaemonSet>() {
        return Some(&set.spec.as_ref()?.template);
    }
    if let Some(job) = any.downcast_ref::<Job>() {
        return Some(&job.spec.as_ref()?.template);
    }
    if let Some(job) = any.downcast_ref::<CronJob>() {
        return Some(&job.spec.job_template.spec.as_ref()?.template);
    }
    if let Some(controller) = any.downcast_ref::<ReplicationController>() {
        return controller.spec.as_ref()?.template.as_ref();
    }
    any.downcast_ref::<PodTemplate>()?.template.as_ref()
}

/// The labels of a new namespace must be valid; an update must not add errors to them. An update that makes enforce
/// stricter warns of the existing pods that violate it.
fn validate_namespace(
    admission: &Admission,
    ctx: &mut Ctx,
    attributes: &Attributes<'_>,
    namespace: &Namespace,
) -> Result<(), Error> {
    let name = namespace.metadata.name.as_deref().unwrap_or("");
    let (new, errors) = Policy::of(namespace.metadata.labels.as_ref());
    let old = attributes
        .old
        .map(|old| Policy::of(old.metadata().labels.as_ref()));
    let same_errors = old
        .as_ref()
        .is_some_and(|(_, old)| old.to_string() == errors.to_string());
    if !errors.is_empty() && !same_errors {
        return Err(Error::invalid(registry::NAMESPACE.kind_ref(name), &errors));
    }
    let Some((old, _)) = old else { return Ok(()) };
    let (new, old) = (new.enforce, old.enforce);
    let relaxed = new.version == old.version && new.level <= old.level;
    if new == old || new.level == Level::Privileged || relaxed {
        return Ok(());
    }
    let kind = &registry::POD;
    let found = admission.cache.of(kind)?.list(&Filter::everything(kind, name));
    let pods: Vec<&Pod> = found.iter().filter_map(|o| o.get::<Pod>()).collect();
    for warning in existing_pod_warnings(&pods, name, new) {
        ctx.warn(warning);
    }
    Ok(())
}

/// The warnings about existing pods. Pods of one controller are checked once as long as there are others.
fn existing_pod_warnings(pods: &[&Pod], namespace: &str, enforced: LevelVersion) -> Vec<String> {
    let mut controllers = BTreeSet::new();
    let (mut first, mut more): (Vec<&Pod>, Vec<&Pod>) = pods.iter().copied().partition(|pod| {
        let owners = pod.metadata.owner_references.iter().flatten();
        let controller = owners.into_iter().find(|o| o.controller == Some(true));
        controller.is_none_or(|owner| controllers.insert(owner.uid.as_str()))
    });
    first.append(&mut more);
    let mut by_reason: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for pod in first.iter().take(PODS_MAX) {
        let Some(violations) = pod
            .spec
            .as_ref()
            .and_then(|spec| evaluate(enforced, &pod.metadata, spec))
        else {
            continue;
        };
        let name = pod.metadata.name.as_deref().unwrap_or("");
        let (lowest, count) = by_reason.entry(violations.reasons()).or_insert((name, 0));
        *lowest = name.min(lowest);
        *count += 1;
    }
    let mut warnings = Vec::new();
    if first.len() > PODS_MAX {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {PODS_MAX} of {} existing pods",
            first.len()
        ));
    }
    if !by_reason.is_empty() {
        warnings.push(format!(
            "existing pods in namespace \"{namespace}\" violate the new PodSecurity enforce level \"{enforced}\""
        ));
    }
    let mut of_pods: Vec<String> = by_reason
        .into_iter()
        .map(|(reasons, (name, count))| match count {
            1 => format!("{name}: {reasons}"),
            2 => format!("{name} (and 1 other pod): {reasons}"),
            _ => format!("{name} (and {} other pods): {reasons}", count - 1),
        })
        .collect();
    of_pods.sort();
    warnings.append(&mut of_pods);
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_admission::pod_security::Version;
    use serde_json::{Value, json};

    fn pod(name: &str, owner: Option<&str>, spec: Value) -> Pod {
        let owners = owner.map(|uid| {
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": uid, "controller": true}])
        });
        serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": owners}, "spec": spec}))
            .unwrap()
    }

    #[test]
    fn existing_pods_that_violate_the_level_are_grouped_by_violation() {
        let host = json!({"hostNetwork": true, "containers": []});
        let fine = json!({"containers": []});
        let ports = json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 1}]}]});
        let all = [
            pod("c", Some("u"), host.clone()),
            pod("b", Some("u"), host.clone()),
            pod("a", Some("u"), host),
            pod("x", None, fine),
            pod("z", None, ports.clone()),
            pod("y", None, ports),
        ];
        let pods: Vec<&Pod> = all.iter().collect();
        let level = Level::Baseline;
        let version = Version::Latest;
        assert_eq!(
            existing_pod_warnings(&pods, "ns", LevelVersion { level, version }),
            [
                "existing pods in namespace \"ns\" violate the new PodSecurity enforce level \"baseline:latest\"",
                "a (and 2 other pods): host namespaces",
                "y (and 1 other pod): hostPort",
            ]
        );
        assert!(existing_pod_warnings(&pods[3..4], "ns", LevelVersion { level, version }).is_empty());
    }

    #[test]
    fn only_changed_images_and_containers_are_evaluated_again() {
        let spec = |value: Value| serde_json::from_value::<PodSpec>(value).unwrap();
        let old = spec(json!({
            "containers": [{"name": "a", "image": "i:1"}], "initContainers": [{"name": "b", "image": "i:1"}],
            "ephemeralContainers": [{"name": "e", "image": "i:1"}],
        }));
        for (new, same) in [
            (
                json!({"containers": [{"name": "a", "image": "i:1"}], "initContainers": [{"name": "b", "image": "i:1"}],
                    "activeDeadlineSeconds": 4, "ephemeralContainers": [{"name": "e", "image": "i:1"}]}),
                true,
            ),
            (
                json!({"containers": [{"name": "a", "image": "i:2"}], "initContainers": [{"name": "b", "image": "i:1"}]}),
                false,
            ),
            (
                json!({"containers": [{"name": "a", "image": "i:1"}], "initContainers": [{"name": "b", "image": "i:2"}]}),
                false,
            ),
            (
                json!({"containers": [{"name": "a", "image": "i:1"}], "initContainers": [{"name": "b", "image": "i:1"}],
                    "ephemeralContainers": [{"name": "e", "image": "i:1"}, {"name": "f", "image": "i:1"}]}),
                false,
            ),
        ] {
            assert_eq!(same_images(&spec(new.clone()), &old), same, "{new}");
        }
    }
}
