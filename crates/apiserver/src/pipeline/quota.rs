//! Writes of quotas' status, through the pipeline like every write: they are admitted like others.

use async_trait::async_trait;
use knarr_api::registry::{self, Registered};
use knarr_apimachinery::Error;
use knarr_client::Preconditions;

use super::Pipeline;
use crate::admission::quota_ledger::{QuotaAccessor, QuotaChange};
use crate::request::{Ctx, Target};

#[async_trait]
impl QuotaAccessor for Pipeline {
    async fn update_quota_status(
        &self,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
        change: &mut QuotaChange<'_>,
    ) -> Result<(), Error> {
        let target = Target {
            subresource: "status",
            ..Target::main(&registry::RESOURCE_QUOTA, namespace, name)
        };
        let mut ctx = Ctx::of_server(self.clock.now());
        // No field manager: `status.used` changes with every pod.
        ctx.manager = None;
        self.update(&mut ctx, &target, preconditions, &mut |_, old| {
            Ok(change(old)?.into_object())
        })
        .await
        .map(drop)
    }
}
