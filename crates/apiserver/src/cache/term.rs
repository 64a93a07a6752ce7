//! Commits of a leader, made only during its term ([`knarr_client::Term`]): one transaction that also compares the
//! revision of the lease with the one at which the leader held it.

use bytes::Bytes;
use k8s_openapi::api::coordination::v1::Lease;
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_client::Term;
use knarr_store::{Compare, Txn, TxnAndDelete, TxnResult};

use super::{Cache, WRITE_ATTEMPTS, store_error};
use crate::keys;

/// The transaction, made only while this key is at that revision.
pub(super) fn while_at(txn: &Txn, key: &Bytes, is: u64) -> Txn {
    let mut txn = txn.clone();
    txn.compares.push(Compare::ModRevision { key: key.clone(), is });
    txn
}

fn moved_too_often(term: &Term) -> Error {
    Error::conflict(
        registry::LEASE.resource_ref(&term.name),
        "the Lease was renewed during each attempt to write in its holder's term",
    )
}

impl Cache {
    /// Like the store's `txn`; the result is about `txn`'s own comparisons.
    pub(super) async fn commit(&self, txn: Txn, term: Option<&Term>) -> Result<TxnResult, Error> {
        let Some(term) = term else {
            return self.store.txn(txn).await.map_err(store_error);
        };
        let key = keys::key(&registry::LEASE, &term.namespace, &term.name);
        // The holder renews the lease all the time, which does not end its term: the next attempt uses the renewed lease.
        for _ in 0..WRITE_ATTEMPTS {
            let is = self.revision_in(term).await?;
            let during = while_at(&txn, &key, is);
            let result = self.store.txn(during).await.map_err(store_error)?;
            if let Some(result) = self.unless_moved(result, is).await {
                return Ok(result);
            }
        }
        Err(moved_too_often(term))
    }

    /// As [`Cache::commit`], and the key is deleted after it ([`knarr_store::Store::txn_and_delete`]).
    pub(super) async fn commit_and_delete(
        &self,
        txn: Txn,
        key: Bytes,
        term: Option<&Term>,
    ) -> Result<TxnAndDelete, Error> {
        let Some(term) = term else {
            return self.store.txn_and_delete(txn, key).await.map_err(store_error);
        };
        let lease = keys::key(&registry::LEASE, &term.namespace, &term.name);
        for _ in 0..WRITE_ATTEMPTS {
            let is = self.revision_in(term).await?;
            let during = while_at(&txn, &lease, is);
            let result = self.store.txn_and_delete(during, key.clone()).await;
            let TxnAndDelete { txn, deleted } = result.map_err(store_error)?;
            if let Some(txn) = self.unless_moved(txn, is).await {
                return Ok(TxnAndDelete { txn, deleted });
            }
        }
        Err(moved_too_often(term))
    }

    /// The result of [`while_at`]'s transaction about its own comparisons; `None` if the key that was added had another revision: this cache has
    /// it now.
    pub(super) async fn unless_moved(&self, result: TxnResult, is: u64) -> Option<TxnResult> {
        let TxnResult::Failed {
            revision,
            mut current,
        } = result
        else {
            return Some(result);
        };
        let added = current.pop().flatten();
        if added.is_some_and(|stored| stored.mod_revision == is) {
            return Some(TxnResult::Failed { revision, current });
        }
        self.wait_for(revision).await;
        None
    }

    /// The revision of the lease, if it is in this term.
    async fn revision_in(&self, term: &Term) -> Result<u64, Error> {
        let lease_revision = || {
            let lease = self.get(&registry::LEASE, &term.namespace, &term.name);
            term.check(lease.as_ref().and_then(|l| l.get::<Lease>()))
                .map(|()| lease.map_or(0, |l| l.revision()))
        };
        match lease_revision() {
            // The term may have begun at another server, and this one may not have caught up with it yet.
            Err(_) if self.store.is_shared() => {
                let newest = self.store.revision().await.map_err(store_error)?;
                self.wait_for(newest).await;
                lease_revision()
            }
            seen => seen,
        }
    }
}
