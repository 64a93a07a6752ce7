//! Two servers over one store, of which one gets the other's writes late.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::coordination::v1::Lease;
use knarr_api::Kind;
use knarr_api::registry::CUSTOM_RESOURCE_DEFINITION as CRD;
use knarr_client::Shared;
use knarr_client::leader::{LeaderElectionConfig, LeaderElector};
use knarr_store::{
    Error as StoreError, KeyRange, Range, RangeResult, Revision, Store, Txn, TxnResult, Watch,
};
use tokio::sync::{Notify, mpsc, watch};

use super::*;

/// A store whose watches send nothing while it is held.
struct DelayedStore {
    inner: Arc<dyn Store>,
    held: watch::Receiver<bool>,
    /// Ends its watches with an error.
    broken: Arc<Notify>,
    /// The delay of a transaction.
    way: Duration,
}

impl DelayedStore {
    /// It is held while `true` was sent last.
    fn new(inner: &Arc<dyn Store>) -> (watch::Sender<bool>, Self) {
        let (hold, held) = watch::channel(false);
        let store = DelayedStore {
            inner: inner.clone(),
            held,
            broken: Arc::default(),
            way: Duration::ZERO,
        };
        (hold, store)
    }

    fn with_way(self, way: Duration) -> Self {
        DelayedStore { way, ..self }
    }
}

#[async_trait]
impl Store for DelayedStore {
    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        self.inner.range(range).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, StoreError> {
        tokio::time::sleep(self.way).await;
        self.inner.txn(txn).await
    }

    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, StoreError> {
        let mut inner = self.inner.watch(keys, from).await?;
        let (items, receiver) = mpsc::channel(16);
        let (mut held, broken) = (self.held.clone(), self.broken.clone());
        tokio::spawn(async move {
            let relay = async {
                while let Some(item) = inner.next().await {
                    // The test holds the lock, and may have ended.
                    let _ = held.wait_for(|held| !held).await;
                    if items.send(item).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = relay => {}
                () = broken.notified() => {
                    let lost = StoreError::Unavailable("the connection was lost".into());
                    // Its reader may have been dropped.
                    let _ = items.send(Err(lost)).await;
                }
            }
        });
        Ok(Watch::relayed(receiver, from))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.inner.revision().await
    }

    fn is_shared(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn s5_a_server_that_is_behind_rejects_nothing_because_of_its_stale_cache() {
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let (hold, late) = DelayedStore::new(&store);
    let first = server_over(store.clone()).await;
    let late = server_over(Arc::new(late)).await;

    first.api.create_as(config_map("old", "1")).await.unwrap();
    late.api.get(&CONFIG_MAP, "default", "old").await.unwrap();
    hold.send(true).unwrap();
    first.api.create_as(config_map("new", "1")).await.unwrap();
    first
        .api
        .delete(&CONFIG_MAP, "default", "old", DeleteOptions::default())
        .await
        .unwrap();

    // Objects that it has not received yet are not "not found", deleted ones do not "already exist": it does not know.
    let note = || Patch::Merge(json!({"data": {"k": "2"}}));
    let patched = late.api.patch(&CONFIG_MAP, "default", "new", "", note()).await;
    assert_eq!(patched.unwrap_err().code(), 504);
    let deleted = late
        .api
        .delete(&CONFIG_MAP, "default", "new", DeleteOptions::default())
        .await;
    assert_eq!(deleted.unwrap_err().code(), 504);
    let created = late.api.create_as(config_map("old", "2")).await;
    assert_eq!(created.unwrap_err().code(), 504);

    hold.send(false).unwrap();
    late.api
        .patch(&CONFIG_MAP, "default", "new", "", note())
        .await
        .unwrap();
    late.api.create_as(config_map("old", "2")).await.unwrap();
}

/// A candidate for the controllers' lease at this server; its clock is the runtime's.
fn candidate(at: &Cluster, identity: &str) -> LeaderElector {
    let clock = Arc::new(knarr_client::TokioClock::new(Timestamp::UNIX_EPOCH));
    let lease = ("kube-system", "control");
    LeaderElector::new(
        at.api.clone(),
        clock,
        lease,
        identity,
        LeaderElectionConfig::default(),
    )
}

#[tokio::test(start_paused = true)]
async fn s1_a_late_write_of_a_deposed_leader_is_rejected_by_every_server() {
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let (hold, late) = DelayedStore::new(&store);
    let late = late.with_way(Duration::from_millis(10));
    let first = server_over(store.clone()).await;
    let late = server_over(Arc::new(late)).await;

    let old = candidate(&late, "old").acquire().await;
    // Both servers accept its writes, however often it renews meanwhile.
    let at_late = late.api.clone().with_term(old.clone());
    let at_first = first.api.clone().with_term(old.clone());
    at_late.create_as(config_map("here", "1")).await.unwrap();
    at_first.create_as(config_map("there", "1")).await.unwrap();
    // Renewed while the write is in flight to the store: the term continues.
    let on_the_way = || tokio::time::sleep(Duration::from_millis(5));
    let renewed = async {
        on_the_way().await;
        candidate(&first, "old").acquire().await;
    };
    let (made, ()) = tokio::join!(at_late.create_as(config_map("renewed", "1")), renewed);
    made.unwrap();
    at_late
        .patch(
            &CONFIG_MAP,
            "default",
            "there",
            "",
            Patch::Merge(json!({"data": {"k": "2"}})),
        )
        .await
        .unwrap();

    // It is paused; its lease expires, another candidate acquires it, and its own server has not received that.
    hold.send(true).unwrap();
    let new = candidate(&first, "new").acquire().await;
    assert_eq!((new.holder.as_str(), new.transitions), ("new", 1));
    let before = first.store.revision().await.unwrap();
    let here = || async {
        let options = DeleteOptions::default();
        let gone = at_late.delete(&CONFIG_MAP, "default", "here", options);
        let made = at_late.create_as(config_map("more", "1"));
        let (gone, made) = tokio::join!(gone, made);
        (gone.unwrap_err(), made.unwrap_err())
    };
    let catch_up = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        hold.send(false).unwrap();
    };
    let ((gone, made), ()) = tokio::join!(here(), catch_up);
    let there = at_first.update_as(config_map("there", "3")).await.unwrap_err();
    for rejected in [&gone, &made, &there] {
        assert_eq!(rejected.code(), 409, "{rejected}");
        assert!(
            rejected
                .to_string()
                .contains("arrived after its term: the lease is held by \"new\""),
            "{rejected}"
        );
    }
    assert_eq!(
        first.store.revision().await.unwrap(),
        before,
        "nothing was written"
    );

    // Nor is it the same term when it leads again.
    candidate(&first, "new").release().await.unwrap();
    let again = candidate(&late, "old").acquire().await;
    assert_eq!(again.transitions, 2);
    let stale = at_late.create_as(config_map("more", "1")).await.unwrap_err();
    assert_eq!(stale.code(), 409, "{stale}");
    // Acquired while the write is in flight.
    let taken = async {
        on_the_way().await;
        let lease: Shared<Lease> = first.api.get_as("kube-system", "control").await.unwrap();
        let mut lease = (*lease).clone();
        lease.spec.as_mut().unwrap().holder_identity = Some("newest".into());
        first.api.update_as(lease).await.unwrap();
    };
    let at_late = late.api.clone().with_term(again);
    let (late, ()) = tokio::join!(at_late.create_as(config_map("more", "1")), taken);
    let late = late.unwrap_err();
    assert_eq!(late.code(), 409, "{late}");
    assert!(late.to_string().contains("held by \"newest\""), "{late}");
    let now = first.api.get(&CONFIG_MAP, "default", "more").await;
    assert!(now.unwrap_err().is_not_found());
}

/// The endpoints of the Service `kubernetes` at this server: of Endpoints and of the EndpointSlice, which agree.
async fn endpoints(at: &Cluster) -> Vec<String> {
    let endpoints = at.api.get(&ENDPOINTS, "default", "kubernetes").await.unwrap();
    let endpoints: Value = serde_json::from_slice(endpoints.json()).unwrap();
    let addresses = endpoints["subsets"][0]["addresses"].as_array().unwrap();
    let addresses: Vec<String> = addresses
        .iter()
        .map(|a| a["ip"].as_str().unwrap().to_string())
        .collect();
    let slice = at
        .api
        .get(&ENDPOINT_SLICE, "default", "kubernetes")
        .await
        .unwrap();
    let slice: Value = serde_json::from_slice(slice.json()).unwrap();
    let of_slice = slice["endpoints"].as_array().unwrap();
    let of_slice: Vec<String> = of_slice
        .iter()
        .map(|e| e["addresses"][0].as_str().unwrap().to_string())
        .collect();
    assert_eq!(addresses, of_slice);
    addresses
}

#[tokio::test(start_paused = true)]
async fn n2_the_service_of_the_api_leads_to_the_servers_that_run() {
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let server = async |address: &str| {
        let (_, shared) = DelayedStore::new(&store);
        let options = knarr_apiserver::Options {
            advertise: Some(address.parse().unwrap()),
            ..knarr_apiserver::Options::default()
        };
        server_with(Arc::new(shared), options).await
    };
    let until = async |at: &Cluster, expected: &[&str]| {
        let found = async {
            while endpoints(at).await != expected {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(60), found).await;
        assert!(found.is_ok(), "{expected:?}, not {:?}", endpoints(at).await);
    };
    let first = server("192.0.2.1:6443").await;
    assert_eq!(endpoints(&first).await, ["192.0.2.1"]);
    let second = server("192.0.2.2:6443").await;
    until(&first, &["192.0.2.1", "192.0.2.2"]).await;
    let third = server("192.0.2.3:6443").await;
    until(&first, &["192.0.2.1", "192.0.2.2", "192.0.2.3"]).await;
    // One stops, and removes its key: at once.
    second.server.withdraw_endpoints().await;
    assert_eq!(endpoints(&third).await, ["192.0.2.1", "192.0.2.3"]);
    // One is killed: after its key was not renewed for long enough.
    let before = tokio::time::Instant::now();
    drop(third);
    until(&first, &["192.0.2.1"]).await;
    assert!(before.elapsed() >= Duration::from_secs(10));
    // The endpoint of the last one that stops stays.
    first.server.withdraw_endpoints().await;
    assert_eq!(endpoints(&first).await, ["192.0.2.1"]);
}

#[tokio::test(start_paused = true)]
async fn s9_a_write_that_was_replaced_before_its_server_listed_again_is_answered() {
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let (hold, late) = DelayedStore::new(&store);
    let broken = late.broken.clone();
    let late = late.with_way(Duration::from_millis(100));
    let first = server_over(store.clone()).await;
    let late = server_over(Arc::new(late)).await;

    let api = late.api.clone();
    let creating = tokio::spawn(async move { api.create_as(config_map("a", "1")).await });
    // The server reads what it validates with before the watch is held, and gets no event of the write itself.
    tokio::time::sleep(Duration::from_millis(50)).await;
    hold.send(true).unwrap();
    while first.api.get(&CONFIG_MAP, "default", "a").await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let note = Patch::Merge(json!({"data": {"k": "2"}}));
    first
        .api
        .patch(&CONFIG_MAP, "default", "a", "", note)
        .await
        .unwrap();
    store.compact(store.revision().await.unwrap()).await.unwrap();
    broken.notify_waiters();

    let answer = tokio::time::timeout(Duration::from_secs(5), creating).await;
    let answer = answer.expect("the create is answered").unwrap();
    hold.send(false).unwrap();
    let created = answer.unwrap();
    assert_eq!(created.data.as_ref().unwrap()["k"], "1");
    let now = late.api.get(&CONFIG_MAP, "default", "a").await.unwrap();
    let now: serde_json::Value = serde_json::from_slice(now.json()).unwrap();
    assert_eq!(now["data"]["k"], "2");
}

fn definition_of_widgets() -> Box<dyn knarr_api::AnyObject> {
    custom::decode(&CRD, &custom::definition())
}

fn widget(kind: &Kind, name: &str) -> Box<dyn knarr_api::AnyObject> {
    custom::decode(kind, &json!({"metadata": {"name": name, "namespace": "default"}}))
}

#[tokio::test(start_paused = true)]
async fn s9_a_server_that_is_behind_serves_a_kind_that_was_established_through_another() {
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let (hold, late) = DelayedStore::new(&store);
    let first = server_over(store.clone()).await;
    let late = server_over(Arc::new(late)).await;

    hold.send(true).unwrap();
    first.api.create(&CRD, definition_of_widgets()).await.unwrap();
    let kind = &custom::established(&first).await;
    first.api.create(kind, widget(kind, "w")).await.unwrap();
    // The garbage collector would delete the dependents of an object that is not found.
    let read = late.api.get(kind, "default", "w").await;
    assert_eq!(read.unwrap_err().code(), 504);
    let release = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        hold.send(false).unwrap();
    };
    let (read, ()) = tokio::join!(late.api.get(kind, "default", "w"), release);
    assert_eq!(read.unwrap().name(), "w");
}

#[tokio::test(start_paused = true)]
async fn s9_no_custom_resource_is_created_after_its_definition_was_deleted() {
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let (_hold, slow) = DelayedStore::new(&store);
    let slow = slow.with_way(Duration::from_secs(5));
    let first = server_over(store.clone()).await;
    first.api.create(&CRD, definition_of_widgets()).await.unwrap();
    custom::established(&first).await;
    let slow = server_over(Arc::new(slow)).await;
    let kind = &custom::established(&slow).await;

    // The definition is deleted, and its objects with it, while the creation is on its way to the store.
    let deletion = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let options = DeleteOptions::default();
        let name = "widgets.example.com";
        first.api.delete(&CRD, "", name, options).await.unwrap();
        while first.api.get(&CRD, "", name).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let creation = slow.api.create(kind, widget(kind, "late"));
    let (created, ()) = tokio::join!(creation, deletion);
    assert_eq!(created.unwrap_err().code(), 404);
    let objects = Range {
        keys: KeyRange::prefix("/registry/example.com/"),
        ..Range::default()
    };
    let left = store.range(objects).await.unwrap().kvs;
    assert!(left.is_empty(), "{left:?}");
}
