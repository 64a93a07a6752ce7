//! The four plugins on volumes for pods of one class, in their order. Made again whenever the snapshot of storage
//! changes: few pods have volumes, and most of those have their own.

use crate::node_info::NodeInfo;
use crate::plugins::node_volume_limits::{self, Limits};
use crate::plugins::volume_binding::{self, Claims};
use crate::plugins::volume_restrictions::{self, Restrictions};
use crate::plugins::volume_zone::{self, Zones};
use crate::plugins::{PreFilterError, UnschedulableStatus};
use crate::pod_info::{PodClass, PodInfo};
use crate::profile::Profile;
use crate::volumes::Volumes;

/// See the module. Each plugin is `None` where it does not apply.
#[derive(Debug)]
pub struct Storage {
    namespace: String,
    /// The version of the snapshot of storage that it was made from.
    pub version: u64,
    restrictions: Option<Restrictions>,
    limits: Option<Limits>,
    claims: Option<Claims>,
    zones: Option<Zones>,
}

impl Storage {
    /// `None`: the pods have no volumes that a plugin reads.
    pub fn new(profile: &Profile, volumes: &Volumes, pod: &PodClass) -> Result<Option<Self>, PreFilterError> {
        let Some(of) = &pod.volumes else {
            return Ok(None);
        };
        let mut storage = Storage {
            namespace: pod.namespace().to_string(),
            version: volumes.version,
            restrictions: None,
            limits: None,
            claims: None,
            zones: None,
        };
        if profile.filters(volume_restrictions::NAME) {
            let restrictions = Restrictions::new(volumes, pod, of)?;
            storage.restrictions = Some(restrictions).filter(|r| !r.is_nothing());
        }
        if profile.filters(node_volume_limits::NAME) {
            let limits = Limits::new(volumes, pod, of);
            storage.limits = Some(limits).filter(|l| !l.is_nothing());
        }
        if profile.filters(volume_binding::NAME) {
            let claims = Claims::new(volumes, pod, of)?;
            storage.claims = Some(claims).filter(|c| !c.is_nothing());
        }
        if profile.filters(volume_zone::NAME) {
            let zones = Zones::new(volumes, pod, of)?;
            storage.zones = Some(zones).filter(|z| !z.is_nothing());
        }
        Ok(Some(storage))
    }

    /// `pod_changes`: pods that are added (1) or removed (-1) in a simulation, compared with the snapshot; `node`
    /// includes them.
    pub fn filter(
        &self,
        volumes: &Volumes,
        node: &NodeInfo,
        pod_changes: &[(&PodInfo, i64)],
    ) -> Result<(), UnschedulableStatus> {
        if let Some(restrictions) = &self.restrictions {
            restrictions.filter(&self.namespace, node, pod_changes)?;
        }
        if let Some(limits) = &self.limits {
            limits.filter(volumes, node)?;
        }
        if let Some(claims) = &self.claims {
            claims.filter(volumes, node)?;
        }
        if let Some(zones) = &self.zones {
            zones.filter(node)?;
        }
        Ok(())
    }

    /// The pods' claims with access mode ReadWriteOncePod, if one of them is in use.
    pub fn exclusive_claims(&self) -> &[String] {
        let restrictions = self.restrictions.as_ref();
        restrictions
            .map(Restrictions::exclusive_claims)
            .unwrap_or_default()
    }

    /// The claims of pods of the class, where they matter.
    pub fn claims(&self) -> Option<&Claims> {
        self.claims.as_ref()
    }
}

#[cfg(test)]
mod tests;
