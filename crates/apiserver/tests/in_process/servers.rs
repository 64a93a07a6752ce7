//! Two servers over one store, of which one hears late what the other writes.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::coordination::v1::Lease;
use knarr_client::Shared;
use knarr_client::leader::{Election, Terms};
use knarr_store::{
    Error as StoreError, KeyRange, Range, RangeResult, Revision, Store, Txn, TxnResult, Watch,
};
use tokio::sync::{mpsc, watch};

use super::*;

/// A way to a store whose watches tell nothing while it is held.
struct Late {
    inner: Arc<dyn Store>,
    held: watch::Receiver<bool>,
    /// How long a transaction is on its way.
    way: Duration,
}

#[async_trait]
impl Store for Late {
    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        self.inner.range(range).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, StoreError> {
        tokio::time::sleep(self.way).await;
        self.inner.txn(txn).await
    }

    async fn watch(&self, keys: KeyRange, from: Revision) -> Result<Watch, StoreError> {
        let mut inner = self.inner.watch(keys, from).await?;
        let (items, heard) = mpsc::channel(16);
        let mut held = self.held.clone();
        tokio::spawn(async move {
            while let Some(item) = inner.next().await {
                // Whoever holds it is the test, which may be over.
                let _ = held.wait_for(|held| !held).await;
                if items.send(item).await.is_err() {
                    return;
                }
            }
        });
        Ok(Watch::relayed(heard, from))
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
async fn s5_a_server_that_is_behind_refuses_nothing_for_what_it_remembers() {
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let (hold, held) = watch::channel(false);
    let first = server_over(store.clone()).await;
    let late = Late {
        inner: store,
        held,
        way: Duration::ZERO,
    };
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

    // What it has not heard of yet is not "not found", what is gone does not "already exist": it does not know.
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
fn candidate(at: &Cluster, identity: &str) -> Election {
    let clock = Arc::new(knarr_client::TokioClock::new(Timestamp::UNIX_EPOCH));
    let lease = ("kube-system", "control");
    Election::new(at.api.clone(), clock, lease, identity, Terms::default())
}

#[tokio::test(start_paused = true)]
async fn s1_what_a_deposed_leader_writes_late_is_refused_by_every_server() {
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let (hold, held) = watch::channel(false);
    let first = server_over(store.clone()).await;
    let late = Late {
        inner: store,
        held,
        way: Duration::from_millis(10),
    };
    let late = server_over(Arc::new(late)).await;

    let old = candidate(&late, "old").acquire().await;
    // Both servers take its writes, however often it renews meanwhile.
    let at_late = late.api.clone().during(old.clone());
    let at_first = first.api.clone().during(old.clone());
    at_late.create_as(config_map("here", "1")).await.unwrap();
    at_first.create_as(config_map("there", "1")).await.unwrap();
    // Renewed while the write is on its way to the store: the term goes on.
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

    // It is paused; its lease runs out, another takes it, and its own server has not heard of that.
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
    let heard = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        hold.send(false).unwrap();
    };
    let ((gone, made), ()) = tokio::join!(here(), heard);
    let there = at_first.update_as(config_map("there", "3")).await.unwrap_err();
    for refused in [&gone, &made, &there] {
        assert_eq!(refused.code(), 409, "{refused}");
        assert!(
            refused
                .to_string()
                .contains("came after its term: \"new\" holds it"),
            "{refused}"
        );
    }
    assert_eq!(
        first.store.revision().await.unwrap(),
        before,
        "nothing was written"
    );

    // Nor is it the same term again when it leads again.
    candidate(&first, "new").release().await.unwrap();
    let again = candidate(&late, "old").acquire().await;
    assert_eq!(again.transitions, 2);
    let stale = at_late.create_as(config_map("more", "1")).await.unwrap_err();
    assert_eq!(stale.code(), 409, "{stale}");
    // Taken while the write is on its way.
    let taken = async {
        on_the_way().await;
        let lease: Shared<Lease> = first.api.get_as("kube-system", "control").await.unwrap();
        let mut lease = (*lease).clone();
        lease.spec.as_mut().unwrap().holder_identity = Some("newest".into());
        first.api.update_as(lease).await.unwrap();
    };
    let at_late = late.api.clone().during(again);
    let (late, ()) = tokio::join!(at_late.create_as(config_map("more", "1")), taken);
    let late = late.unwrap_err();
    assert_eq!(late.code(), 409, "{late}");
    assert!(late.to_string().contains("\"newest\" holds it"), "{late}");
    let now = first.api.get(&CONFIG_MAP, "default", "more").await;
    assert!(now.unwrap_err().is_not_found());
}

/// Where the Service `kubernetes` leads to at this server: as Endpoints and as EndpointSlice, which agree.
async fn leads_to(at: &Cluster) -> Vec<String> {
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
        let (_, held) = watch::channel(false);
        let shared = Late {
            inner: store.clone(),
            held,
            way: Duration::ZERO,
        };
        let options = knarr_apiserver::Options {
            advertise: Some(address.parse().unwrap()),
            ..knarr_apiserver::Options::default()
        };
        server_with(Arc::new(shared), options).await
    };
    let until = async |at: &Cluster, expected: &[&str]| {
        let found = async {
            while leads_to(at).await != expected {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(60), found).await;
        assert!(found.is_ok(), "{expected:?}, not {:?}", leads_to(at).await);
    };
    let first = server("192.0.2.1:6443").await;
    assert_eq!(leads_to(&first).await, ["192.0.2.1"]);
    let second = server("192.0.2.2:6443").await;
    until(&first, &["192.0.2.1", "192.0.2.2"]).await;
    let third = server("192.0.2.3:6443").await;
    until(&first, &["192.0.2.1", "192.0.2.2", "192.0.2.3"]).await;
    // One stops, and says so: at once.
    second.server.withdraw_endpoints().await;
    assert_eq!(leads_to(&third).await, ["192.0.2.1", "192.0.2.3"]);
    // One is killed: when its key has stood still for long enough.
    let before = tokio::time::Instant::now();
    drop(third);
    until(&first, &["192.0.2.1"]).await;
    assert!(before.elapsed() >= Duration::from_secs(10));
    // The last one that stops stays.
    first.server.withdraw_endpoints().await;
    assert_eq!(leads_to(&first).await, ["192.0.2.1"]);
}
