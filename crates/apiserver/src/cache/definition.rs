//! Custom resources are created only while their definition is there and is not being deleted: one transaction with the
//! comparison that the definition is as it was when this server checked it. A server whose cache is behind would otherwise store
//! an object whose definition, and the kind with it, is gone.

use knarr_api::registry::CUSTOM_RESOURCE_DEFINITION as CRD;
use knarr_api::{Error, Kind, Object};
use knarr_client::Term;
use knarr_store::{Compare, Txn, TxnResult};

use super::{Cache, store_error};
use crate::keys;
use crate::pipeline::WRITE_ATTEMPTS;

impl Cache {
    /// Commits the creation of an object of this kind, as [`Cache::commit`].
    pub(super) async fn commit_creation(
        &self,
        kind: &Kind,
        txn: Txn,
        term: Option<&Term>,
    ) -> Result<TxnResult, Error> {
        // Where no other server writes, the definition that this one has checked is the one that is stored.
        if kind.ops.custom().is_none() || !self.store.is_shared() {
            return self.commit(txn, term).await;
        }
        let name = knarr_api::custom::definition_name(kind);
        let key = keys::key(&CRD, "", &name);
        let mut uid = None;
        // A definition's status is written while its kind is being established; that is no other definition.
        for _ in 0..WRITE_ATTEMPTS {
            let definition = self.get(&CRD, "", &name);
            let definition = definition.ok_or_else(|| Error::not_found(kind.about("")))?;
            check(
                &definition,
                kind,
                uid.get_or_insert_with(|| definition.uid().to_string()),
            )?;
            let is = definition.revision();
            let mut while_defined = txn.clone();
            while_defined
                .compares
                .push(Compare::ModRevision { key: key.clone(), is });
            let result = self.commit(while_defined, term).await?;
            let TxnResult::Failed {
                revision,
                mut current,
            } = result
            else {
                return Ok(result);
            };
            if current
                .pop()
                .flatten()
                .is_some_and(|stored| stored.mod_revision == is)
            {
                return Ok(TxnResult::Failed { revision, current });
            }
            self.wait_for(revision).await;
        }
        let newest = self.store.revision().await.map_err(store_error)?;
        Err(Error::conflict(
            CRD.about(&name),
            &format!(
                "it has been written {WRITE_ATTEMPTS} times, at revision {newest} last, while an object of it was created"
            ),
        ))
    }
}

/// Whether objects of this definition may be created: it is the one of this uid, and is not being deleted.
fn check(definition: &Object, kind: &Kind, uid: &str) -> Result<(), Error> {
    if definition.metadata().deletion_timestamp.is_some() {
        return Err(Error::method_not_supported(kind.about(""), "create"));
    }
    match definition.uid() == uid {
        true => Ok(()),
        // What was validated against the definition before it may not be valid now.
        false => Err(Error::conflict(
            CRD.about(definition.name()),
            "it has been deleted and created again while an object of it was created",
        )),
    }
}
