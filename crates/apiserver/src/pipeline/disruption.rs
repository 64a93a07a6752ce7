//! A condition that is set in a pod's status together with its deletion (DisruptionTarget), in one write.

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_apimachinery::Error;

use super::Pipeline;
use super::write::{Change, Write};
use crate::admission::{Attributes, Operation};
use crate::request::{Ctx, Target};

impl Pipeline {
    /// Sets the condition that the deletion request has, with the managed fields of a status update. A component sets the condition, so it needs no
    /// validation; admission policies and webhooks get it as an update of the status.
    pub(super) async fn set_pod_condition<'a>(
        &self,
        ctx: &mut Ctx,
        mut write: Write<'a>,
    ) -> Result<Write<'a>, Error> {
        let Change::Delete(old, request) = write.change else {
            return Ok(write);
        };
        let Some(pod_condition) = &request.pod_condition else {
            return Ok(write);
        };
        // A pod that is being deleted already has its condition.
        if old.metadata().deletion_timestamp.is_some() {
            return Ok(write);
        }
        let pod: &mut Pod = write
            .object
            .as_any_mut()
            .downcast_mut()
            .ok_or_else(|| Error::internal("a Pod could not be decoded"))?;
        let status = pod.status.get_or_insert_default();
        let conditions = status.conditions.get_or_insert_default();
        match conditions.iter_mut().find(|c| c.type_ == pod_condition.type_) {
            Some(condition) => condition.clone_from(pod_condition),
            None => conditions.push(pod_condition.clone()),
        }
        let target = Target {
            subresource: "status",
            ..*write.target
        };
        let attributes = Attributes {
            target: &target,
            operation: Operation::Update,
            old: Some(old),
        };
        self.track_conditions(ctx, &target, old, pod).await?;
        let admission = &self.admission;
        write.object = admission
            .mutate_by_extensions(ctx, &attributes, write.object)
            .await?;
        admission
            .validate_by_extensions(ctx, &attributes, Some(&*write.object))
            .await?;
        Ok(write)
    }
}
