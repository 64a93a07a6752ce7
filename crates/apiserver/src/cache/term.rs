//! Commits of a leader, made only while its term lasts ([`knarr_client::Term`]): one transaction with the comparison that
//! the lease is as it was when it was last seen to be in that term.

use k8s_openapi::api::coordination::v1::Lease;
use knarr_api::{Error, k8s_openapi, registry};
use knarr_client::Term;
use knarr_store::{Compare, Txn, TxnResult};

use super::{Cache, store_error};
use crate::keys;
use crate::pipeline::WRITE_ATTEMPTS;

impl Cache {
    /// As the store's `txn`; what is answered is about `txn`'s own comparisons.
    pub(super) async fn commit(&self, txn: Txn, term: Option<&Term>) -> Result<TxnResult, Error> {
        let Some(term) = term else {
            return self.store.txn(txn).await.map_err(store_error);
        };
        let key = keys::key(&registry::LEASE, &term.namespace, &term.name);
        // Its holder renews the lease all the time: that is no end of the term, and the next look sees it.
        for _ in 0..WRITE_ATTEMPTS {
            let is = self.revision_in(term).await?;
            let mut during = txn.clone();
            during
                .compares
                .push(Compare::ModRevision { key: key.clone(), is });
            let result = self.store.txn(during).await.map_err(store_error)?;
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
                .is_some_and(|lease| lease.mod_revision == is)
            {
                return Ok(TxnResult::Failed { revision, current });
            }
            self.wait_for(revision).await;
        }
        Err(Error::conflict(
            registry::LEASE.about(&term.name),
            "it changes faster than a write of its holder can be made",
        ))
    }

    /// At which revision the lease is in this term.
    async fn revision_in(&self, term: &Term) -> Result<u64, Error> {
        let look = || {
            let lease = self.get(&registry::LEASE, &term.namespace, &term.name);
            term.check(lease.as_ref().and_then(|l| l.get::<Lease>()))
                .map(|()| lease.map_or(0, |l| l.revision()))
        };
        match look() {
            // The term may have begun at another server, and this one not have heard of it yet.
            Err(_) if self.store.is_shared() => {
                let newest = self.store.revision().await.map_err(store_error)?;
                self.wait_for(newest).await;
                look()
            }
            seen => seen,
        }
    }
}
