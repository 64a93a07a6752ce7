//! Custom resources are created only while their definition is stored and is not being deleted: one transaction that also
//! compares the revision of the definition with the one that this server has checked. Otherwise an object would outlive its
//! definition whose creation began before the definition was deleted and was committed after its objects were.
//!
//! kube-apiserver does not ensure this (`crd_finalizer.go`: "It is possible for a stale one to still be creating things").

use knarr_api::Kind;
use knarr_api::registry::CUSTOM_RESOURCE_DEFINITION as CRD;
use knarr_apimachinery::Error;
use knarr_client::Term;
use knarr_store::{Txn, TxnResult};

use super::term::while_at;
use super::{Cache, WRITE_ATTEMPTS};
use crate::keys;
use crate::request::not_served;

impl Cache {
    /// Like [`Cache::commit`], for the creation of an object of this kind.
    pub(super) async fn commit_creation(
        &self,
        kind: &Kind,
        txn: Txn,
        term: Option<&Term>,
    ) -> Result<TxnResult, Error> {
        if kind.ops.custom().is_none() {
            return Ok(self.commit(txn, None, term).await?.txn);
        }
        let name = knarr_api::custom::definition_name(kind);
        let key = keys::key(&CRD, "", &name);
        // The status of a definition is written while its names are being accepted: the next attempt uses the newer one.
        for _ in 0..WRITE_ATTEMPTS {
            let definition = self.get(&CRD, "", &name).ok_or_else(not_served)?;
            if definition.metadata().deletion_timestamp.is_some() {
                return Err(Error::method_not_supported(kind.resource_ref(""), "create"));
            }
            let is = definition.revision();
            let result = self.commit(while_at(&txn, &key, is), None, term).await?;
            if let Some(result) = self.unless_moved(result.txn, is).await {
                return Ok(result);
            }
        }
        Err(Error::conflict(
            CRD.resource_ref(&name),
            "the CustomResourceDefinition was written during each attempt to create an object of its kind",
        ))
    }
}
