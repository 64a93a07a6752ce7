//! Dynamic resource allocation on a node (KEP 4381): which ResourceClaims are prepared by their drivers, and for which
//! pods.
//!
//! A claim is prepared before the first of its pods gets a sandbox, and unprepared when the last of them has no processes
//! left. That a pod uses a claim is recorded in the checkpoint before the driver is called, so that every call is undone.

use knarr_apimachinery::ids::PodUid;

pub mod claim;
pub mod health;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceHealth, ResourceStatus};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use serde::{Deserialize, Serialize};

pub use claim::ClaimError;
use health::{DeviceId, DevicesHealth};

/// A device as its driver has prepared it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Device {
    pub pool_name: String,
    pub device_name: String,
    #[serde(rename = "ShareID")]
    pub share_id: Option<String>,
    /// The requests of the claim that the device satisfies; empty: all of them.
    pub request_names: Vec<String>,
    #[serde(rename = "CDIDeviceIDs")]
    pub cdi_device_ids: Vec<String>,
}

/// A claim that pods of this node use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    pub uid: String,
    pub pods: BTreeSet<PodUid>,
    /// The drivers of its allocation, also those that have prepared no device.
    pub drivers: BTreeMap<String, Vec<Device>>,
    /// Whether this kubelet has prepared it: after a restart it is prepared again, which is idempotent for drivers.
    pub is_prepared: bool,
}

/// A claim as it is named in a driver's request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// The claims to prepare or unprepare, by driver.
pub type Batches = BTreeMap<String, Vec<ClaimRef>>;

/// The claims that pods of this node use, by namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims(BTreeMap<(String, String), Claim>);

impl Claims {
    /// Restores the claims from the checkpoint.
    pub fn restored(claims: impl IntoIterator<Item = (String, String, Claim)>) -> Self {
        let by_name = claims
            .into_iter()
            .map(|(namespace, name, claim)| ((namespace, name), claim));
        Claims(by_name.collect())
    }

    /// All of them: namespace, name, claim.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Claim)> {
        self.0
            .iter()
            .map(|((namespace, name), claim)| (namespace.as_str(), name.as_str(), claim))
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.0.get(&(namespace.to_string(), name.to_string()))
    }

    fn get_mut(&mut self, namespace: &str, name: &str) -> Option<&mut Claim> {
        self.0.get_mut(&(namespace.to_string(), name.to_string()))
    }

    /// Records that a pod uses these claims, which it is allowed to use, and returns those that are to be prepared.
    pub fn add_pod(&mut self, pod_uid: &PodUid, claims: &[ResourceClaim]) -> Result<Batches, ClaimError> {
        let mut to_prepare = Vec::new();
        for object in claims {
            let (reference, drivers) = claim::allocated(object)?;
            let known = self.get(&reference.namespace, &reference.name);
            if let Some(known) = known.filter(|known| known.uid != reference.uid) {
                return Err(ClaimError::OldClaim {
                    name: reference.name,
                    uid: known.uid.clone(),
                });
            }
            to_prepare.push((reference, drivers));
        }
        let mut batches = Batches::new();
        for (reference, drivers) in to_prepare {
            let key = (reference.namespace.clone(), reference.name.clone());
            let claim = self.0.entry(key).or_insert_with(|| Claim {
                uid: reference.uid.clone(),
                drivers: drivers.into_iter().map(|driver| (driver, Vec::new())).collect(),
                ..Claim::default()
            });
            claim.pods.insert(pod_uid.clone());
            if claim.is_prepared {
                continue;
            }
            for driver in claim.drivers.keys() {
                let batch: &mut Vec<ClaimRef> = batches.entry(driver.clone()).or_default();
                if !batch.contains(&reference) {
                    batch.push(reference.clone());
                }
            }
        }
        Ok(batches)
    }

    /// A driver has prepared a claim.
    pub fn prepared(&mut self, driver: &str, of: &ClaimRef, devices: Vec<Device>) {
        if let Some(claim) = self.get_mut(&of.namespace, &of.name).filter(|c| c.uid == of.uid) {
            claim.drivers.insert(driver.to_string(), devices);
        }
    }

    /// Marks claims as prepared after all drivers have succeeded.
    pub fn mark_prepared(&mut self, batches: &Batches) {
        for of in batches.values().flatten() {
            if let Some(claim) = self.get_mut(&of.namespace, &of.name).filter(|c| c.uid == of.uid) {
                claim.is_prepared = true;
            }
        }
    }

    /// The claims to unprepare after a pod has terminated. Claims that other pods use lose only the pod's reservation.
    pub fn begin_unprepare(&mut self, pod_uid: &PodUid) -> Batches {
        let mut batches = Batches::new();
        for ((namespace, name), claim) in &mut self.0 {
            if !claim.pods.contains(pod_uid) {
                continue;
            }
            if claim.pods.len() > 1 {
                claim.pods.remove(pod_uid);
                continue;
            }
            // A pod that starts to use it from now on has it prepared again.
            claim.is_prepared = false;
            for driver in claim.drivers.keys() {
                batches.entry(driver.clone()).or_default().push(ClaimRef {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    uid: claim.uid.clone(),
                });
            }
        }
        batches
    }

    /// Removes a pod's claims after they are unprepared. A claim that another pod uses meanwhile stays.
    pub fn remove_pod(&mut self, pod_uid: &PodUid) {
        self.0.retain(|_, claim| {
            claim.pods.remove(pod_uid);
            !claim.pods.is_empty()
        });
    }

    /// Whether a pod uses any claim.
    pub fn are_used_by(&self, pod_uid: &PodUid) -> bool {
        self.0.values().any(|claim| claim.pods.contains(pod_uid))
    }

    /// The pods that use claims.
    pub fn pods(&self) -> BTreeSet<PodUid> {
        self.0
            .values()
            .flat_map(|claim| claim.pods.iter().cloned())
            .collect()
    }

    /// The pods that have one of these devices of a driver.
    pub fn pods_with(&self, driver: &str, devices: &BTreeSet<DeviceId>) -> BTreeSet<PodUid> {
        let has = |claim: &&Claim| {
            let mut own = claim.drivers.get(driver).into_iter().flatten();
            own.any(|d| devices.contains(&(d.pool_name.clone(), d.device_name.clone())))
        };
        let claims = self.0.values().filter(has);
        claims.flat_map(|claim| claim.pods.iter().cloned()).collect()
    }

    /// The devices of its claims in a container's status (KEP 4680).
    pub fn resources_status(
        &self,
        pod: &Pod,
        container: &Container,
        health: &DevicesHealth,
        now: Timestamp,
    ) -> Result<Vec<ResourceStatus>, ClaimError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let named = container.resources.iter().flat_map(|r| r.claims.iter().flatten());
        let mut all = Vec::new();
        for named in named {
            let Some(name) = claim::name_of(pod, &named.name)? else {
                continue;
            };
            let Some(known) = self.get(namespace, &name) else {
                continue;
            };
            let request = named.request.clone().unwrap_or_default();
            // Devices name the request without its subrequest.
            let base = request.split('/').next().unwrap_or_default();
            let mut devices_of = BTreeMap::new();
            for (driver, devices) in &known.drivers {
                for device in devices {
                    let names = &device.request_names;
                    if request.is_empty() || names.is_empty() || names.iter().any(|n| n == base) {
                        let id = (device.pool_name.clone(), device.device_name.clone());
                        let known = || health.get(driver, &id, now);
                        devices_of
                            .entry(resource_id(driver, device))
                            .or_insert_with(known);
                    }
                }
            }
            let shown = |(resource_id, (health, message)): (String, (health::Health, Option<String>))| {
                let health = Some(health.name().to_string());
                ResourceHealth {
                    resource_id,
                    health,
                    message,
                }
            };
            if !devices_of.is_empty() {
                all.push(ResourceStatus {
                    name: match request.is_empty() {
                        true => format!("claim:{}", named.name),
                        false => format!("claim:{}/{request}", named.name),
                    },
                    resources: Some(devices_of.into_iter().map(shown).collect()),
                });
            }
        }
        Ok(all)
    }

    /// The CDI devices of a container: those of the claims (and of these, the requests) that it names.
    pub fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, ClaimError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let mut devices = Vec::new();
        for (name, request) in claim::requests_of(pod, container)? {
            let claim = self.get(namespace, &name).ok_or_else(|| ClaimError::Unknown {
                name: name.clone(),
                namespace: namespace.to_string(),
            })?;
            for device in claim.drivers.values().flatten() {
                let names = &device.request_names;
                if request.is_empty() || names.is_empty() || names.contains(&request) {
                    devices.extend(device.cdi_device_ids.iter().cloned());
                }
            }
        }
        Ok(devices)
    }
}

/// A device's id in the status: its first CDI device, else its name.
fn resource_id(driver: &str, device: &Device) -> String {
    let first = device.cdi_device_ids.first().cloned();
    first.unwrap_or_else(|| format!("{driver}/{}/{}", device.pool_name, device.device_name))
}
