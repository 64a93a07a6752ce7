//! `pods/binding`: assigns a pod to a node, once (SPEC L2).

use k8s_openapi::api::core::v1::{Binding, Pod, PodCondition};
use knarr_api::registry::Registered;
use knarr_api::{Object, k8s_openapi};
use knarr_apimachinery::Error;
use knarr_apimachinery::codec;
use knarr_apimachinery::field::{Cause, ErrorList, FieldError, Path, quoted};
use knarr_apimachinery::time::seconds;
use knarr_client::Preconditions;

use crate::admission::{Operation, pod_topology_labels};
use crate::pipeline::Pipeline;
use crate::request::{AdmissionObject, Ctx, Target};

impl Pipeline {
    pub(super) async fn bind(
        &self,
        ctx: &mut Ctx,
        target: &Target<'_>,
        binding: Binding,
    ) -> Result<(), Error> {
        let name = binding.metadata.name.as_deref().unwrap_or("");
        if name != target.name {
            return Err(Error::bad_request(
                "name in URL does not match name in Binding object",
            ));
        }
        let node = &binding.target;
        let mut errors = ErrorList::new();
        let path = Path::new("target");
        let kind = node.kind.clone().unwrap_or_default();
        if !kind.is_empty() && kind != "Node" {
            // The values in the order that Kubernetes gives them, which is not sorted.
            errors.push(FieldError {
                cause: Cause::NotSupported,
                field: path.child("kind").to_string(),
                value: Some(quoted(&kind)),
                detail: "supported values: \"Node\", \"<empty>\"".into(),
            });
        }
        if node.name.as_deref().unwrap_or("").is_empty() {
            errors.required(&path.child("name"), "");
        }
        if !errors.is_empty() {
            // As in Kubernetes: only the field errors, and no reason.
            return Err(Error::new(500, "", errors.to_string()));
        }
        if name.is_empty() {
            return Err(Error::bad_request("Name parameter required."));
        }
        if self.admission.validates_by_extensions() {
            let document = codec::to_plain_value(&binding).map_err(Error::internal)?;
            self.admission
                .validate_request_object(ctx, target, Operation::Create, &document)
                .await?;
        }
        ctx.admission_object = AdmissionObject::None;
        let meta = &binding.metadata;
        let expected_uid = meta.uid.as_deref().filter(|u| !u.is_empty());
        let expected_version = meta.resource_version.as_deref().filter(|v| !v.is_empty());
        let node_name = node.name.clone().unwrap_or_default();
        let conflict = |why: String| {
            let about = knarr_apimachinery::error::ResourceRef {
                group: "",
                resource: "pods/binding",
                name: target.name,
            };
            Err(Error::conflict(about, &why))
        };
        let unconditional = Preconditions::default();
        let topology = pod_topology_labels::topology_labels(&self.admission, &node_name);
        self.update(ctx, &binding_target(target), &unconditional, &mut |ctx, old| {
            check_preconditions(target, expected_uid, expected_version, old)?;
            let mut pod: Pod = old
                .to_typed()
                .ok_or_else(|| Error::internal("an object stored as a Pod does not decode as one"))?;
            if pod.metadata.deletion_timestamp.is_some() {
                return conflict(format!(
                    "pod {} is being deleted, cannot be assigned to a host",
                    target.name
                ));
            }
            let spec = pod.spec.get_or_insert_default();
            if let Some(assigned) = spec.node_name.as_deref().filter(|n| !n.is_empty()) {
                return conflict(format!(
                    "pod {} is already assigned to node {assigned:?}",
                    target.name
                ));
            }
            if spec.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty()) {
                return conflict(format!("pod {} has non-empty .spec.schedulingGates", target.name));
            }
            spec.node_name = Some(node_name.clone());
            let meta = &mut pod.metadata;
            if let Some(annotations) = &binding.metadata.annotations {
                meta.annotations
                    .get_or_insert_default()
                    .extend(annotations.clone());
            }
            if let Some(labels) = &binding.metadata.labels {
                meta.labels.get_or_insert_default().extend(labels.clone());
            }
            if !topology.is_empty() {
                meta.labels.get_or_insert_default().extend(topology.clone());
            }
            let status = pod.status.get_or_insert_default();
            status.nominated_node_name = None;
            set_scheduled(status.conditions.get_or_insert_default(), ctx.now);
            // A concurrent status update does not conflict with the assignment: the pod is bound in its latest state.
            pod.metadata.resource_version = None;
            Ok(pod.into_object())
        })
        .await
        .map(drop)
    }
}

fn binding_target<'a>(target: &Target<'a>) -> Target<'a> {
    Target {
        subresource: "binding",
        ..*target
    }
}

/// Checks a Binding's preconditions, with the error of Kubernetes' storage layer.
fn check_preconditions(
    target: &Target<'_>,
    uid: Option<&str>,
    version: Option<&str>,
    found: &Object,
) -> Result<(), Error> {
    let found_version = found.revision().to_string();
    let pairs = [
        ("UID", uid, found.uid()),
        ("ResourceVersion", version, &found_version),
    ];
    for (field, expected, found) in pairs {
        if let Some(expected) = expected.filter(|w| *w != found) {
            return Err(Error::conflict(
                target.resource_ref(),
                &format!(
                    "StorageError: invalid object, Code: 4, Key: /registry/pods/{}/{}, ResourceVersion: 0, \
AdditionalErrorMsg: Precondition failed: {field} in precondition: {expected}, {field} in object meta: {found}",
                    target.namespace, target.name
                ),
            ));
        }
    }
    Ok(())
}

fn set_scheduled(conditions: &mut Vec<PodCondition>, now: k8s_openapi::jiff::Timestamp) {
    match conditions.iter_mut().find(|c| c.type_ == "PodScheduled") {
        Some(c) => {
            if c.status != "True" {
                c.last_transition_time = Some(seconds(now));
            }
            c.status = "True".into();
            c.reason = None;
            c.message = None;
        }
        None => conditions.push(PodCondition {
            type_: "PodScheduled".into(),
            status: "True".into(),
            last_transition_time: Some(seconds(now)),
            ..PodCondition::default()
        }),
    }
}
