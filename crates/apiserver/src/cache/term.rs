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
    /// Like the store's `txn`, or with a key to delete like its `txn_and_delete`. The result is about `txn`'s own
    /// comparisons.
    pub(super) async fn commit(
        &self,
        txn: Txn,
        deletes: Option<&Bytes>,
        term: Option<&Term>,
    ) -> Result<TxnAndDelete, Error> {
        let Some(term) = term else {
            return self.send(txn, deletes).await;
        };
        let lease = keys::key(&registry::LEASE, &term.namespace, &term.name);
        // The holder renews the lease all the time, which does not end its term: the next attempt uses the renewed one.
        for _ in 0..WRITE_ATTEMPTS {
            let is = self.revision_in(term).await?;
            let during = while_at(&txn, &lease, is);
            let TxnAndDelete { txn: result, deleted } = self.send(during, deletes).await?;
            if let Some(txn) = self.unless_moved(result, is).await {
                return Ok(TxnAndDelete { txn, deleted });
            }
        }
        Err(moved_too_often(term))
    }

    async fn send(&self, txn: Txn, deletes: Option<&Bytes>) -> Result<TxnAndDelete, Error> {
        let sent = match deletes {
            Some(key) => self.store.txn_and_delete(txn, key.clone()).await,
            None => {
                let result = self.store.txn(txn).await;
                result.map(|txn| TxnAndDelete { txn, deleted: None })
            }
        };
        sent.map_err(store_error)
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
