//! The charges of ResourceQuotas by requests in flight.
//!
//! A charge is written to the quota's status, with its resourceVersion as precondition, before the object is written, so
//! that no two writers use the same remainder. Requests that wait for one quota share a write of it. A charge whose object
//! was not written is reverted. Usage of deleted objects is released by the quota controller when it recounts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::ResourceQuota;
use knarr_api::kinds::pod::resources::Amounts;
use knarr_api::quota::{Charge, QuotaError};
use knarr_api::{Object, k8s_openapi};
use knarr_apimachinery::Error;
use knarr_client::Preconditions;
use parking_lot::Mutex;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tracing::warn;

use crate::cache::Written;

/// A quota's namespace and name.
pub(super) type QuotaKey = (String, String);
/// Whether the charge fits into the quota.
pub(super) type ChargeResult = Result<(), ChargeError>;

/// Why a charge is not made.
#[derive(Clone)]
pub(super) enum ChargeError {
    Exceeded(QuotaError),
    /// The quota could not be written.
    Failed(Error),
}

/// A charge that waits for the quota to be written (admissionWaiter).
struct AdmissionWaiter {
    charge: Charge,
    result: oneshot::Sender<ChargeResult>,
}

/// Quota charges of requests in flight.
#[derive(Default)]
pub(crate) struct QuotaLedger {
    /// The waiters for each quota; one of them writes for all.
    waiting: Mutex<HashMap<QuotaKey, Vec<AdmissionWaiter>>>,
    /// One writer for each quota.
    writing: Mutex<HashMap<QuotaKey, Arc<tokio::sync::Mutex<()>>>>,
    pending: Mutex<PendingCharges>,
}

/// Charges whose objects are not stored yet.
#[derive(Default)]
struct PendingCharges {
    last: u64,
    charges: BTreeMap<u64, (QuotaKey, Amounts)>,
}

/// Computes the new quota from the stored one.
pub(crate) type QuotaChange<'a> = dyn FnMut(&Object) -> Result<ResourceQuota, Error> + Send + 'a;

/// Writes quotas (quotaAccessor).
#[async_trait]
pub(crate) trait QuotaAccessor: Send + Sync {
    /// Updates the status of a quota to what `change` makes of the stored object.
    async fn update_quota_status(
        &self,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
        change: &mut QuotaChange<'_>,
    ) -> Result<(), Error>;
}

/// The charges of one request, to be [finished](QuotaCharges::finish).
#[must_use]
pub(crate) struct QuotaCharges<'a> {
    quota_ledger: &'a QuotaLedger,
    namespace: String,
    charges: Vec<(u64, Charge)>,
}

impl Drop for QuotaCharges<'_> {
    fn drop(&mut self) {
        if !self.charges.is_empty() {
            let mut pending = self.quota_ledger.pending.lock();
            for (id, _) in &self.charges {
                pending.charges.remove(id);
            }
        }
    }
}

impl QuotaLedger {
    pub(super) fn no_charges(&self, namespace: &str) -> QuotaCharges<'_> {
        QuotaCharges {
            quota_ledger: self,
            namespace: namespace.to_string(),
            charges: Vec::new(),
        }
    }

    /// Amounts that are charged to a quota for objects that are not stored yet.
    pub(super) fn pending(&self, key: &QuotaKey) -> Amounts {
        let mut sum = Amounts::new();
        for (_, more) in self.pending.lock().charges.values().filter(|(k, _)| k == key) {
            for (name, amount) in more {
                *sum.entry(name.clone()).or_default() += *amount;
            }
        }
        sum
    }

    /// Adds a charge to its quota, together with those of other requests that wait for it.
    pub(super) async fn charge(
        &self,
        quotas: &dyn QuotaAccessor,
        namespace: &str,
        charge: Charge,
    ) -> ChargeResult {
        let key: QuotaKey = (namespace.to_string(), charge.quota.clone());
        loop {
            let (result, mut receiver) = oneshot::channel();
            let waiting = AdmissionWaiter {
                charge: charge.clone(),
                result,
            };
            self.waiting.lock().entry(key.clone()).or_default().push(waiting);
            let writer = self.writing.lock().entry(key.clone()).or_default().clone();
            let turn = writer.lock().await;
            // The previous writer may have written this charge too.
            let mut done = receiver.try_recv();
            if matches!(done, Err(TryRecvError::Empty)) {
                let all = self.waiting.lock().remove(&key).unwrap_or_default();
                write_charges(quotas, &key, all).await;
                done = receiver.try_recv();
            }
            drop(turn);
            self.drop_unused_lock(&key, &writer);
            if let Ok(result) = done {
                return result;
            }
            // The request that wrote for this one was cancelled.
        }
    }

    /// Drops the lock of a quota without waiters.
    fn drop_unused_lock(&self, key: &QuotaKey, writer: &Arc<tokio::sync::Mutex<()>>) {
        let mut writing = self.writing.lock();
        // The two references are this request's and the map's.
        if Arc::strong_count(writer) <= 2 {
            writing.remove(key);
        }
    }
}

impl QuotaCharges<'_> {
    /// From now on the charge counts as pending.
    pub(super) fn add_pending(&mut self, charge: &Charge) {
        let mut pending = self.quota_ledger.pending.lock();
        pending.last += 1;
        let id = pending.last;
        let key = (self.namespace.clone(), charge.quota.clone());
        pending.charges.insert(id, (key, charge.amounts.clone()));
        self.charges.push((id, charge.clone()));
    }

    pub(super) fn remove_last(&mut self) {
        if let Some((id, _)) = self.charges.pop() {
            self.quota_ledger.pending.lock().charges.remove(&id);
        }
    }

    /// Ends a request's quota charges: they stay if the object was or may have been written, and are reverted otherwise.
    pub(crate) async fn finish<T>(
        self,
        quotas: &dyn QuotaAccessor,
        written: Result<Written<T>, Error>,
    ) -> Result<Written<T>, Error> {
        let failed = match &written {
            Ok(Written::Done(_)) => false,
            Ok(Written::Conflict) => true,
            // After an internal error the object may have been written.
            Err(error) => error.code() < 500,
        };
        if failed {
            self.revert(quotas).await;
        }
        written
    }

    /// Removes the charges of an object that was not written.
    pub(super) async fn revert(mut self, quotas: &dyn QuotaAccessor) {
        for (id, charge) in std::mem::take(&mut self.charges) {
            let same = Preconditions {
                uid: Some(charge.uid.clone()),
                ..Preconditions::default()
            };
            let mut take_off = |old: &Object| -> Result<ResourceQuota, Error> {
                let mut quota = as_quota(old)?;
                charge.subtract_from(&mut quota);
                Ok(quota)
            };
            let reverted = quotas.update_quota_status(&self.namespace, &charge.quota, &same, &mut take_off);
            match reverted.await {
                Ok(()) => {}
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                // The controller's next count corrects it.
                Err(error) => {
                    warn!(quota = charge.quota, %error, "cannot revert a quota charge; the quota controller will correct it");
                }
            }
            self.quota_ledger.pending.lock().charges.remove(&id);
        }
    }
}

fn as_quota(object: &Object) -> Result<ResourceQuota, Error> {
    object
        .to_typed()
        .ok_or_else(|| Error::internal("an object stored as a ResourceQuota does not decode as one"))
}

/// One write of the quota with every charge that fits.
async fn write_charges(quotas: &dyn QuotaAccessor, (namespace, name): &QuotaKey, all: Vec<AdmissionWaiter>) {
    let mut results: Vec<ChargeResult> = Vec::new();
    let mut add = |old: &Object| -> Result<ResourceQuota, Error> {
        let mut quota = as_quota(old)?;
        results = all
            .iter()
            .map(|waiting| try_charge(&mut quota, waiting))
            .collect();
        let version = &old.metadata().resource_version;
        quota.metadata.resource_version.clone_from(version);
        Ok(quota)
    };
    let written = quotas
        .update_quota_status(namespace, name, &Preconditions::default(), &mut add)
        .await;
    for (at, waiting) in all.into_iter().enumerate() {
        let result = match &written {
            Ok(()) => results.get(at).cloned().unwrap_or(Ok(())),
            // A deleted quota limits nothing.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(ChargeError::Failed(error.clone())),
        };
        // A cancelled request does not receive its result.
        let _ = waiting.result.send(result);
    }
}

/// Adds the charge if the quota, as it is now, is not exceeded by it.
fn try_charge(quota: &mut ResourceQuota, waiting: &AdmissionWaiter) -> ChargeResult {
    let charge = &waiting.charge;
    if quota.metadata.uid.as_deref() != Some(&charge.uid) {
        // Another quota of the same name: the controller counts it from what is stored by then.
        return Ok(());
    }
    match charge.exceeds(quota) {
        Some(why) => Err(ChargeError::Exceeded(why)),
        None => {
            charge.add_to(quota);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use knarr_api::registry;
    use knarr_apimachinery::quantity::Quantity;
    use serde_json::json;

    use super::*;

    /// One quota for three pods.
    struct OneQuota {
        stored: Mutex<Object>,
        writes: AtomicUsize,
    }

    impl OneQuota {
        fn new() -> Self {
            let quota: ResourceQuota = serde_json::from_value(json!({
                "metadata": {"name": "q", "namespace": "a", "uid": "u"},
                "spec": {"hard": {"pods": "3"}},
                "status": {"hard": {"pods": "3"}, "used": {"pods": "0"}},
            }))
            .unwrap();
            OneQuota {
                stored: Mutex::new(Object::from_typed(&registry::RESOURCE_QUOTA, Box::new(quota))),
                writes: AtomicUsize::default(),
            }
        }

        fn used(&self) -> String {
            let quota = as_quota(&self.stored.lock()).unwrap();
            quota.status.unwrap().used.unwrap()["pods"].0.clone()
        }
    }

    #[async_trait]
    impl QuotaAccessor for OneQuota {
        async fn update_quota_status(
            &self,
            _: &str,
            _: &str,
            _: &Preconditions,
            change: &mut QuotaChange<'_>,
        ) -> Result<(), Error> {
            tokio::task::yield_now().await;
            let mut stored = self.stored.lock();
            let quota = change(&stored)?;
            *stored = Object::from_typed(&registry::RESOURCE_QUOTA, Box::new(quota));
            self.writes.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn one_pod() -> Charge {
        Charge {
            quota: "q".into(),
            uid: "u".into(),
            amounts: Amounts::from([("pods".to_string(), Quantity::parse("1").unwrap())]),
            reported: false,
        }
    }

    #[tokio::test]
    async fn requests_that_wait_for_one_quota_share_a_write_and_do_not_exceed_it() {
        let (quota, ledger) = (OneQuota::new(), QuotaLedger::default());
        let charges = (0..5).map(|_| ledger.charge(&quota, "a", one_pod()));
        let results = join_all(charges).await;
        assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 3);
        assert_eq!(quota.used(), "3");
        // The first request writes alone; the others wait for it together.
        assert_eq!(quota.writes.load(Ordering::Relaxed), 2);
        assert!(ledger.writing.lock().is_empty());
    }

    #[tokio::test]
    async fn a_charge_stays_only_if_its_object_may_have_been_written() {
        let conflict = || Error::conflict(registry::POD.resource_ref("p"), "");
        for (written, used) in [
            (Ok(Written::Done(())), "1"),
            (Ok(Written::Conflict), "0"),
            (Err(conflict()), "0"),
            (Err(Error::internal("lost")), "1"),
        ] {
            let (quota, ledger) = (OneQuota::new(), QuotaLedger::default());
            let mut charges = ledger.no_charges("a");
            charges.add_pending(&one_pod());
            assert!(ledger.charge(&quota, "a", one_pod()).await.is_ok());
            let key = ("a".to_string(), "q".to_string());
            assert_eq!(ledger.pending(&key).len(), 1);
            let _ = charges.finish(&quota, written).await;
            assert_eq!(quota.used(), used);
            assert!(ledger.pending(&key).is_empty());
        }
    }
}
