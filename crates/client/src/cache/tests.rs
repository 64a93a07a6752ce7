//! How stores find objects, and which of them keep their decoded form.

use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::{k8s_openapi, registry};

use super::*;

#[test]
fn an_object_without_its_decoded_form_is_found_by_its_controller_and_not_decoded() {
    let store = Store::new(&registry::CONFIG_MAP, &[]);
    let version = |revision: u64, owners: serde_json::Value| {
        let map: ConfigMap = serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": "m", "namespace": "n", "resourceVersion": revision.to_string(), "ownerReferences": owners,
            },
            "data": {"k": "v".repeat(2048)},
        }))
        .unwrap();
        Arc::new(Object::from_typed(&registry::CONFIG_MAP, Box::new(map))).slim()
    };
    let owner = |uid: &str, controller: bool| {
        serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": uid, "controller": controller,
        })
    };
    let orphans = orphans_of("n");
    for (revision, owners, found_by) in [
        (1, serde_json::json!([owner("a", false)]), orphans.as_str()),
        (2, serde_json::json!([owner("a", false), owner("b", true)]), "b"),
        (3, serde_json::json!([owner("c", true)]), "c"),
        (4, serde_json::json!([]), orphans.as_str()),
    ] {
        let object = version(revision, owners);
        store.apply(&object);
        for value in [orphans.as_str(), "a", "b", "c"] {
            let found = store.by_index(CONTROLLER.name, value).len();
            assert_eq!(found, usize::from(value == found_by), "{revision}: {value}");
        }
        assert!(object.is_slim(), "{revision}");
    }
}

#[test]
fn a_store_of_few_objects_keeps_their_typed_values_and_one_of_many_those_that_changed_last() {
    for (objects, kept) in [(FEW_OBJECTS, FEW_OBJECTS), (FEW_OBJECTS + 1, FRESH_CHANGES)] {
        let store = Store::new(&registry::CONFIG_MAP, &[]);
        for number in 1..=objects {
            let mut map = ConfigMap::default();
            map.metadata.name = Some(format!("m{number}"));
            map.metadata.resource_version = Some(number.to_string());
            map.data = Some([("k".to_string(), "v".repeat(2048))].into());
            store.apply(&Arc::new(Object::from_typed(
                &registry::CONFIG_MAP,
                Box::new(map),
            )));
        }
        store.slim();
        let full = store.list("").iter().filter(|object| !object.is_slim()).count();
        assert_eq!(full, kept, "of {objects}");
        let is_settled = store.content.read().settled.is_some();
        assert_eq!(is_settled, objects > FEW_OBJECTS, "of {objects}");
    }
}

fn large(name: &str, revision: usize) -> Arc<Object> {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.into());
    map.metadata.resource_version = Some(revision.to_string());
    map.data = Some([("k".to_string(), "v".repeat(2048))].into());
    Arc::new(Object::from_typed(&registry::CONFIG_MAP, Box::new(map)))
}

#[test]
fn a_store_drops_what_was_decoded_since_the_last_time_and_what_a_list_left() {
    let store = Store::new(&registry::CONFIG_MAP, &[]);
    let last = FEW_OBJECTS + FRESH_CHANGES;
    // In the order of a list: the newest change first.
    (1..=last).for_each(|number| store.apply(&large(&format!("m{number:04}"), last + 1 - number)));
    store.slim();
    assert_eq!(
        store.content.read().settled,
        None,
        "the first ones have newer changes"
    );
    // They change: what is older than the last changes is dropped now.
    let changed = (1..=FRESH_CHANGES).map(|number| (format!("m{number:04}"), last + number));
    changed.for_each(|(name, revision)| store.apply(&large(&name, revision)));
    store.slim();
    let full = || store.list("").iter().filter(|object| !object.is_slim()).count();
    assert_eq!(full(), FRESH_CHANGES);
    let settled = || {
        store
            .content
            .read()
            .settled
            .is_some_and(|at| Some(at) == store.kind.decoded_again())
    };
    let old = store.get("", &format!("m{last:04}")).unwrap();
    assert!(old.get::<ConfigMap>().is_some() && !settled());
    assert_eq!(full(), FRESH_CHANGES + 1);
    store.slim();
    assert_eq!(full(), FRESH_CHANGES);
}

#[test]
fn objects_are_found_by_namespace_and_name_and_listed_in_the_order_of_their_keys() {
    let store = Store::new(&registry::CONFIG_MAP, &[]);
    let object = |(namespace, name): (&str, &str), revision: usize| {
        let mut map = ConfigMap::default();
        map.metadata.namespace = Some(namespace.into()).filter(|n: &String| !n.is_empty());
        map.metadata.name = Some(name.into());
        map.metadata.resource_version = Some(revision.to_string());
        Arc::new(Object::from_typed(&registry::CONFIG_MAP, Box::new(map)))
    };
    let all = [
        ("b", "a"),
        ("", "b"),
        ("a-b", "a"),
        ("a", "b"),
        ("a", "a-b"),
        ("", "a"),
    ];
    for revision in [1, 2] {
        for key in all {
            store.apply(&object(key, revision));
        }
    }
    let keys = |of: Vec<Arc<Object>>| of.iter().map(|o| ObjectKey::of(o)).collect::<Vec<_>>();
    let mut sorted: Vec<_> = all.iter().map(|(of, name)| ObjectKey::new(*of, *name)).collect();
    sorted.sort();
    assert_eq!(keys(store.list("")), sorted);
    assert_eq!(
        keys(store.list("a")),
        [ObjectKey::new("a", "a-b"), ObjectKey::new("a", "b")]
    );
    assert_eq!(
        keys(store.by_index(CONTROLLER.name, &orphans_of("a"))),
        keys(store.list("a"))
    );
    for (namespace, name) in all {
        let found = store.get(namespace, name).map(|o| o.revision());
        assert_eq!(found, Some(2), "{namespace}/{name}");
    }
    for (namespace, name) in [("a", "c"), ("c", "a"), ("b", ""), ("", "")] {
        assert!(store.get(namespace, name).is_none(), "{namespace}/{name}");
    }
    store.remove(&ObjectKey::new("a", "b"), None);
    assert_eq!(keys(store.list("a")), [ObjectKey::new("a", "a-b")]);
    assert_eq!(
        keys(store.by_index(CONTROLLER.name, &orphans_of("a"))),
        keys(store.list("a"))
    );
}
