//! CustomResourceDefinitions that are created, changed and deleted leave nothing behind: their kinds are freed, in the server and in the caches of
//! components, while objects, lists and watches continue.

use std::time::Duration;

use knarr_api::Kind;
use knarr_api::kind::WeakKind;
use knarr_api::registry::CUSTOM_RESOURCE_DEFINITION as CRD;
use knarr_client::Caches;
use knarr_client::custom_kinds::KindChange;
use serde_json::{Map, Value};

use super::custom::decode;
use super::*;

/// How often definitions are updated, and how often one is created and deleted. [`a6_memory_stays_flat`] does it more often.
const UPDATES: usize = 40;
const LIVES: usize = 20;
/// The properties of a schema; each takes about 100 bytes.
const PROPERTIES: usize = 50;

/// A definition with a large schema, which is different in each round.
fn definition(plural: &str, properties: usize, round: usize) -> Value {
    let described =
        "A property with a long description, so that the schema takes as much memory as those of operators";
    let many = (0..properties).map(|n| {
        let property = json!({"type": "string", "description": format!("{described} {round}")});
        (format!("property{n}"), property)
    });
    let mut spec: Map<String, Value> = many.collect();
    spec.insert("round".into(), json!({"type": "integer", "default": round}));
    json!({
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": plural, "singular": plural, "kind": format!("K{plural}"), "listKind": format!("K{plural}List")},
            "versions": [
                {"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}}},
                {"name": "v1beta1", "served": true, "storage": false,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    })
}

/// Weak references to every kind that was seen.
#[derive(Default)]
struct Seen(Vec<WeakKind>);

impl Seen {
    fn see(&mut self, c: &Cluster, caches: &Caches) {
        self.0
            .extend(c.server.served().custom().iter().map(Kind::downgrade));
        self.0.extend(caches.custom_kinds().iter().map(Kind::downgrade));
    }

    /// The distinct kinds that are still in memory.
    fn live(&self) -> Vec<Kind> {
        let mut live: Vec<Kind> = Vec::new();
        for kind in self.0.iter().filter_map(WeakKind::upgrade) {
            if !live.contains(&kind) {
                live.push(kind);
            }
        }
        live
    }

    /// Waits until no more than `most` are live: tasks that use one finish first.
    async fn wait_for(&self, most: usize) {
        let at_most = async {
            while self.live().len() > most {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), at_most).await;
        assert!(ended.is_ok(), "still in memory: {:?}", self.live());
    }
}

/// Caches as the garbage collector has them: they follow every custom kind.
fn following(c: &Cluster) -> Arc<Caches> {
    let caches = Arc::new(Caches::new(c.api.clone()));
    caches.add_custom_kind_handler(|change| {
        if let KindChange::Added(store) = change {
            store.add_event_handler(|_| {});
        }
    });
    caches
}

async fn served(c: &Cluster, version: &str, plural: &str) -> Kind {
    let come = async {
        loop {
            match c.server.served().by_resource("example.com", version, plural) {
                Some(kind) => return kind,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let come = tokio::time::timeout(Duration::from_secs(60), come).await;
    come.expect("the definition is established")
}

async fn replace(c: &Cluster, definition: &Value) {
    let name = definition["metadata"]["name"].as_str().unwrap();
    let versions = json!({"spec": {"versions": definition["spec"]["versions"]}});
    c.api
        .patch(&CRD, "", name, "", Patch::Merge(versions))
        .await
        .unwrap();
}

fn thing(kind: &Kind, name: &str) -> Box<dyn knarr_api::AnyObject> {
    decode(
        kind,
        &json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"property0": name}}),
    )
}

fn round_of(object: &Object) -> i64 {
    let json: Value = serde_json::from_slice(object.json()).unwrap();
    json["spec"]["round"].as_i64().unwrap()
}

/// Updates one definition repeatedly, and reads its objects in between.
async fn update_often(c: &Cluster, caches: &Arc<Caches>, updates: usize, properties: usize) {
    let mut seen = Seen::default();
    c.api
        .create(&CRD, decode(&CRD, &definition("things", properties, 0)))
        .await
        .unwrap();
    let kind = served(c, "v1", "things").await;
    c.api.create(&kind, thing(&kind, "first")).await.unwrap();
    drop(kind);
    let crd = c.api.get(&CRD, "", "things.example.com").await.unwrap();
    caches.store(&CRD).wait_for(crd.revision()).await;
    for round in 1..=updates {
        let before = served(c, "v1", "things").await;
        let watched = served(c, "v1beta1", "things").await;
        let mut watch = c.api.watch(&watched, WatchOptions::default()).await.unwrap();
        replace(c, &definition("things", properties, round)).await;
        let now = served(c, "v1", "things").await;
        assert!(now != before, "an update makes other kinds");
        // Objects stored under the first schema are decoded by this one; a value that was set stays.
        let first = c.api.get(&now, "default", "first").await.unwrap();
        assert_eq!(round_of(&first), 0);
        // A caller with the old kind is served by the current one.
        let name = format!("n{round}");
        let made = c.api.create(&before, thing(&before, &name)).await.unwrap();
        assert_eq!(
            round_of(&made),
            round as i64 - 1,
            "it was read by the rules of before"
        );
        let list = c.api.list(&before, ListOptions::default()).await.unwrap();
        assert_eq!(list.items.len(), 2);
        // A watch ends when the definition changes, and continues when it is resumed.
        while let Some(Ok(_)) = watch.next().await {}
        let mut watch = c.api.watch(&watched, WatchOptions::default()).await.unwrap();
        let Some(Ok(WatchEvent::Added(one))) = watch.next().await else {
            panic!("the objects there are come first");
        };
        assert_eq!(one.name(), "first");
        // A component's cache follows all of it.
        let followed = caches.custom_kinds();
        let store = caches.existing(&followed[0]).unwrap();
        store.wait_for(made.revision()).await;
        assert_eq!(store.get("default", &name).unwrap().uid(), made.uid());
        c.api
            .delete(&now, "default", &name, DeleteOptions::default())
            .await
            .unwrap();
        seen.see(c, caches);
        if round % 50 == 0 {
            c.store.compact(made.revision()).await.unwrap();
        }
    }
    // The two versions that are served, and the one that the cache knows by name.
    seen.wait_for(3).await;
    c.api
        .delete(&CRD, "", "things.example.com", DeleteOptions::default())
        .await
        .unwrap();
    seen.wait_for(0).await;
}

/// Creates and deletes definitions, each with its own name, with an object.
async fn create_and_delete_often(c: &Cluster, caches: &Arc<Caches>, lives: usize, properties: usize) {
    let mut seen = Seen::default();
    for n in 0..lives {
        let plural = format!("things{n}");
        c.api
            .create(&CRD, decode(&CRD, &definition(&plural, properties, n)))
            .await
            .unwrap();
        let kind = served(c, "v1", &plural).await;
        let made = c.api.create(&kind, thing(&kind, "one")).await.unwrap();
        let definitions = caches.store(&CRD);
        let crd = c
            .api
            .get(&CRD, "", &format!("{plural}.example.com"))
            .await
            .unwrap();
        definitions.wait_for(crd.revision()).await;
        seen.see(c, caches);
        c.api
            .delete(&CRD, "", crd.name(), DeleteOptions::default())
            .await
            .unwrap();
        let gone = definitions.wait_until(|store| store.get("", crd.name()).is_none());
        tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
        if n % 50 == 0 {
            c.store.compact(made.revision()).await.unwrap();
        }
    }
    assert!(c.server.served().custom().is_empty());
    assert!(caches.custom_kinds().is_empty());
    seen.wait_for(0).await;
}

#[tokio::test(start_paused = true)]
async fn a6_a_definition_that_is_updated_is_freed_and_its_objects_stay() {
    let c = cluster().await;
    let caches = following(&c);
    update_often(&c, &caches, UPDATES, PROPERTIES).await;
}

#[tokio::test(start_paused = true)]
async fn a6_definitions_that_are_deleted_are_freed() {
    let c = cluster().await;
    let caches = following(&c);
    create_and_delete_often(&c, &caches, LIVES, PROPERTIES).await;
}
