//! DeviceClasses, pods and claims, on which the usage of a ResourceClaim depends in addition to itself (KEP-5004).
//!
//! A quota can limit the devices of a class by the extended resource that the class provides devices for, whether pods ask for them by
//! the resource or by claims. What a pod requests by the resource is charged with the pod; the claim that the scheduler
//! makes for it is charged with the rest only.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use k8s_openapi::jiff::Timestamp;

use super::pods;
use crate::kinds::pod::resources::{Amounts, DEVICE_CLASS_PREFIX};
use crate::registry::{DEVICE_CLASS, POD, RESOURCE_CLAIM};
use crate::well_known::EXTENDED_RESOURCE_CLAIM;
use crate::{Kind, Object};

/// See the module.
#[derive(Debug, Default)]
pub struct Devices {
    /// By the class' name, its extended resource.
    extended: BTreeMap<String, String>,
    pods: Vec<Arc<Object>>,
    claims: Vec<Arc<Object>>,
}

impl Devices {
    /// `objects`: all DeviceClasses; of other kinds those of the claim's namespace.
    pub fn new(mut objects: impl FnMut(&Kind) -> Vec<Arc<Object>>) -> Self {
        let classes = objects(&DEVICE_CLASS);
        let extended = classes.iter().filter_map(|object| {
            let class: &DeviceClass = object.get()?;
            let resource = class.spec.extended_resource_name.clone();
            Some((
                object.name().to_string(),
                resource.filter(|name| !name.is_empty())?,
            ))
        });
        let extended: BTreeMap<_, _> = extended.collect();
        if extended.is_empty() {
            return Devices::default();
        }
        Devices {
            extended,
            pods: objects(&POD),
            claims: objects(&RESOURCE_CLAIM),
        }
    }

    /// The usage of the claim by the names of extended resources. `devices`: how many of each class.
    pub(super) fn usage(&self, claim: &ResourceClaim, devices: &Amounts, now: Timestamp) -> Amounts {
        let mut used = Amounts::new();
        for (class, amount) in devices {
            if let Some(resource) = self.extended.get(class) {
                used.insert(format!("requests.{DEVICE_CLASS_PREFIX}{class}"), *amount);
                used.insert(format!("requests.{resource}"), *amount);
            }
        }
        if let Some(charged) = self.charged_with_pod(claim, now).filter(|_| !used.is_empty()) {
            for (name, amount) in &mut used {
                *amount -= charged.get(name).copied().unwrap_or_default();
            }
            used.retain(|_, amount| !amount.is_zero() && !amount.is_negative());
        }
        used
    }

    /// What was charged with the pod for whose extended resources the scheduler made the claim; `None` for any other claim, also
    /// for one that only has the annotation.
    fn charged_with_pod(&self, claim: &ResourceClaim, now: Timestamp) -> Option<Amounts> {
        let annotations = claim.metadata.annotations.as_ref()?;
        if annotations.get(EXTENDED_RESOURCE_CLAIM)? != "true" {
            return None;
        }
        let mut owners = claim.metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true))?;
        if (owner.kind.as_str(), owner.api_version.as_str()) != ("Pod", "v1") {
            return None;
        }
        let pod = self.pods.iter().find(|pod| pod.name() == owner.name)?;
        let pod: &Pod = pod.get()?;
        if pod.metadata.uid.as_deref() != Some(owner.uid.as_str()) {
            return None;
        }
        let status = pod.status.as_ref();
        let own = match status.and_then(|s| s.extended_resource_claim_status.as_ref()) {
            Some(status) => Some(&status.resource_claim_name) == claim.metadata.name.as_ref(),
            None => self.is_first_of(claim, &owner.uid),
        };
        own.then(|| pods::usage(pod, now))
    }

    /// Whether no other claim of the pod is older.
    fn is_first_of(&self, claim: &ResourceClaim, pod_uid: &str) -> bool {
        let age = |claim: &ResourceClaim| {
            let created = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (created, claim.metadata.name.clone())
        };
        let is_owned = |other: &&ResourceClaim| {
            let mut owners = other.metadata.owner_references.iter().flatten();
            owners.any(|owner| owner.controller == Some(true) && owner.uid == pod_uid)
        };
        let others = self
            .claims
            .iter()
            .filter_map(|object| object.get::<ResourceClaim>());
        others.filter(is_owned).all(|other| age(other) >= age(claim))
    }
}
