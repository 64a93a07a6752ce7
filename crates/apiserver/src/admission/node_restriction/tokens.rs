//! Service account tokens: a node requests them only for its own pods, and for audiences that these use.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::ids::NodeName;
use serde_json::Value;

use super::is_on;
use crate::admission::Admission;
use crate::authz;
use crate::request::{Ctx, Target};

impl Admission {
    /// Checks the spec of a TokenRequest.
    pub(super) fn restrict_token(
        &self,
        ctx: &Ctx,
        target: &Target<'_>,
        node: &NodeName,
        spec: &Value,
    ) -> Result<(), Error> {
        let denied = |why: &str| Err(Error::forbidden(target.kind.resource_ref(target.name), why));
        let to = &spec["boundObjectRef"];
        let text = |field: &str| to[field].as_str().unwrap_or("");
        if text("apiVersion") != "v1" || text("kind") != "Pod" || text("name").is_empty() {
            return denied("node requested token not bound to a pod");
        }
        let uid = text("uid");
        if uid.is_empty() {
            return denied("node requested token with a pod binding without a uid");
        }
        let name = text("name");
        let Some(object) = self.cache.get(&registry::POD, target.namespace, name) else {
            return Err(Error::not_found(registry::POD.resource_ref(name)));
        };
        if object.uid() != uid {
            return denied(&format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. \
The object might have been deleted and then recreated"
            ));
        }
        if !is_on(&object, node) {
            return denied("node requested token bound to a pod scheduled on a different node");
        }
        let audiences: Vec<&str> = spec["audiences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let audience = match audiences.as_slice() {
            [] => "",
            [one] => one,
            _ => return denied("node may only request 0 or 1 audiences"),
        };
        if object
            .get::<Pod>()
            .is_some_and(|pod| self.has_audience(pod, audience))
        {
            return Ok(());
        }
        let request = authz::Attributes {
            verb: "request-serviceaccounts-token-audience",
            resource: audience,
            namespace: target.namespace,
            name: target.name,
            ..authz::Attributes::default()
        };
        if self.authorizer.allows(&ctx.user, &request) {
            return Ok(());
        }
        let user = &ctx.user.name;
        denied(&format!(
            "audience {audience:?} not found in pod spec volume, {user} is not authorized to request tokens for this audience"
        ))
    }

    /// Whether a volume of the pod, or its CSI driver, requests tokens for this audience.
    fn has_audience(&self, pod: &Pod, audience: &str) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let name = pod.metadata.name.as_deref().unwrap_or("");
        let driver_of_claim = |claim: &str| {
            let claim = self
                .cache
                .get(&registry::PERSISTENT_VOLUME_CLAIM, namespace, claim)?;
            let volume = claim
                .get::<PersistentVolumeClaim>()?
                .spec
                .as_ref()?
                .volume_name
                .clone()?;
            let volume = self.cache.get(&registry::PERSISTENT_VOLUME, "", &volume)?;
            let spec = volume.get::<PersistentVolume>()?.spec.as_ref()?;
            Some(spec.csi.as_ref()?.driver.clone())
        };
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        volumes.into_iter().any(|v| {
            let projected = v
                .projected
                .iter()
                .flat_map(|p| p.sources.iter().flatten())
                .filter_map(|s| s.service_account_token.as_ref())
                .any(|t| t.audience.as_deref().unwrap_or("") == audience);
            let driver = if v.ephemeral.is_some() {
                driver_of_claim(&format!("{name}-{}", v.name))
            } else if let Some(claim) = &v.persistent_volume_claim {
                driver_of_claim(&claim.claim_name)
            } else {
                v.csi.as_ref().map(|c| c.driver.clone())
            };
            let driver = driver.and_then(|d| self.cache.get(&registry::CSI_DRIVER, "", &d));
            let requests = driver.as_ref().and_then(|d| d.get::<CSIDriver>());
            let by_driver = requests
                .iter()
                .flat_map(|d| d.spec.token_requests.iter().flatten())
                .any(|t| t.audience == audience);
            projected || by_driver
        })
    }
}
