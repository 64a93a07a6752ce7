//! A node's network agent may write only the Lease of its own node in `knarr-network`, so that no node can report for
//! another node which endpoints its kernel has.

use knarr_api::registry;
use knarr_apimachinery::Error;
use knarr_client::NETWORK_NAMESPACE;

use super::Admission;
use crate::request::{Ctx, Target};

impl Admission {
    /// Denies a network agent's write to a Lease that is not its node's. `name` is the object's.
    pub(crate) fn restrict_network_agent(
        &self,
        ctx: &Ctx,
        target: &Target<'_>,
        name: &str,
    ) -> Result<(), Error> {
        let Some(node) = ctx.user.network_agent() else {
            return Ok(());
        };
        if *target.kind != registry::LEASE || (target.namespace == NETWORK_NAMESPACE && name == node) {
            return Ok(());
        }
        Err(Error::forbidden(
            target.kind.resource_ref(name),
            &format!("the network agent of node {node:?} can only write Lease {NETWORK_NAMESPACE}/{node}"),
        ))
    }
}
