//! The window of changes, the objects of a kind, and its watchers.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::{fields, k8s_openapi, registry};

use super::*;

#[test]
fn pods_are_found_by_their_node_until_they_are_removed() {
    let cache = KindCache::new(&registry::POD);
    let pod = |namespace: &str, name: &str, node: Option<&str>| {
        let mut pod = Pod::default();
        (pod.metadata.namespace, pod.metadata.name) = (Some(namespace.into()), Some(name.into()));
        pod.metadata.resource_version = Some("1".into());
        pod.spec.get_or_insert_default().node_name = node.map(String::from);
        Arc::new(Object::from_typed(&registry::POD, Box::new(pod)))
    };
    let on = |node: &str, namespace: &str| {
        let mut found = Vec::new();
        cache.scan_index(node, namespace, |object| {
            found.push(object.name().to_string());
            true
        });
        let filter = Filter {
            fields: fields::Selector::parse(&registry::POD, &format!("spec.nodeName={node}")).unwrap(),
            ..Filter::everything(&registry::POD, namespace)
        };
        let names =
            |objects: &[Arc<Object>]| objects.iter().map(|o| o.name().to_string()).collect::<Vec<_>>();
        if !node.is_empty() {
            assert_eq!(names(&cache.list(&filter)), found);
            assert_eq!(names(&cache.subscribe(&filter, None).unwrap().initial), found);
        }
        found
    };
    cache.load([("a/p".into(), pod("a", "p", Some("n1")))].into(), 1);
    cache.put("a/q", pod("a", "q", None));
    cache.put("ab/r", pod("ab", "r", Some("n1")));
    assert_eq!(
        (on("n1", "a"), on("n1", "ab")),
        (vec!["p".to_string()], vec!["r".to_string()])
    );
    cache.put("a/q", pod("a", "q", Some("n1")));
    cache.remove("a/p", 2);
    assert_eq!(on("n1", "a"), ["q"]);
    cache.remove("a/q", 3);
    assert!(on("n1", "a").is_empty() && on("", "a").is_empty());
}

#[test]
fn a_list_by_name_visits_one_object_if_the_name_is_a_key() {
    let cache = KindCache::new(&registry::POD);
    let pod = |namespace: &str, name: &str| {
        let mut pod = Pod::default();
        (pod.metadata.namespace, pod.metadata.name) = (Some(namespace.into()), Some(name.into()));
        pod.metadata.resource_version = Some("1".into());
        Arc::new(Object::from_typed(&registry::POD, Box::new(pod)))
    };
    let keys = [("a", "p"), ("a", "q"), ("b", "p")];
    let pods = keys.map(|(namespace, name)| (format!("{namespace}/{name}"), pod(namespace, name)));
    cache.load(pods.into(), 1);
    for (namespace, selector, listed, visited) in [
        ("a", "metadata.name=p", 1, 1),
        ("a", "metadata.name=r", 0, 0),
        ("a", "metadata.name!=p", 1, 2),
        ("a", "metadata.name=p,metadata.namespace=b", 0, 1),
        ("", "metadata.name=p", 2, 3),
    ] {
        let filter = Filter {
            fields: fields::Selector::parse(&registry::POD, selector).unwrap(),
            ..Filter::everything(&registry::POD, namespace)
        };
        let mut count = 0;
        cache.scan_for(&filter, |_| {
            count += 1;
            true
        });
        assert_eq!(
            (cache.list(&filter).len(), count),
            (listed, visited),
            "{namespace} {selector}"
        );
    }
}

#[test]
fn a_watch_of_one_nodes_pods_gets_the_changes_of_these_alone() {
    let cache = KindCache::new(&registry::POD);
    let pod = |revision: u64, node: Option<&str>| {
        let mut pod = Pod::default();
        (pod.metadata.namespace, pod.metadata.name) = (Some("a".into()), Some("p".into()));
        pod.metadata.resource_version = Some(revision.to_string());
        pod.spec.get_or_insert_default().node_name = node.map(String::from);
        Arc::new(Object::from_typed(&registry::POD, Box::new(pod)))
    };
    let watch = |fields: &str| {
        let filter = Filter {
            fields: fields::Selector::parse(&registry::POD, fields).unwrap(),
            ..Filter::everything(&registry::POD, "")
        };
        cache.subscribe(&filter, None).unwrap().changes
    };
    let mut watches = ["spec.nodeName=n1", "spec.nodeName=n2", "spec.nodeName=", ""].map(watch);
    let mut received = || {
        let revisions = |changes: &mut mpsc::Receiver<Arc<Change>>| {
            std::iter::from_fn(|| changes.try_recv().ok())
                .map(|c| c.revision)
                .collect::<Vec<_>>()
        };
        watches.each_mut().map(revisions)
    };
    cache.put("a/p", pod(1, None));
    assert_eq!(received(), [vec![], vec![], vec![1], vec![1]]);
    cache.put("a/p", pod(2, Some("n1")));
    assert_eq!(received(), [vec![2], vec![], vec![2], vec![2]]);
    // Its node loses it, and the other gets it.
    cache.put("a/p", pod(3, Some("n2")));
    assert_eq!(received(), [vec![3], vec![3], vec![3], vec![3]]);
    cache.remove("a/p", 4);
    assert_eq!(received(), [vec![], vec![4], vec![4], vec![4]]);
}

#[test]
fn a_burst_of_changes_is_kept_up_to_a_number_and_as_many_bytes() {
    for (data_bytes, changes) in [(0, WINDOW_CHANGES + 10), (WINDOW_BYTES / 20, 100)] {
        let cache = KindCache::new(&registry::CONFIG_MAP);
        for revision in 1..=changes {
            let mut map = ConfigMap::default();
            map.metadata.name = Some("m".into());
            map.metadata.resource_version = Some(revision.to_string());
            map.data = Some([("k".to_string(), "v".repeat(data_bytes))].into());
            let object = Object::from_typed(&registry::CONFIG_MAP, Box::new(map));
            cache.put("m", Arc::new(object));
        }
        let state = cache.state.read();
        let kept = state.window.len();
        assert_eq!(kept == WINDOW_CHANGES, data_bytes == 0, "{kept} kept");
        assert!(kept <= WINDOW_CHANGES && state.window_bytes <= WINDOW_BYTES);
        assert_eq!(state.window_from, (changes - kept) as u64);
    }
}

#[test]
fn old_changes_are_dropped_but_for_the_last_and_their_memory_is_freed() {
    let cache = KindCache::new(&registry::CONFIG_MAP);
    let last = 2 * SLIM_BATCH as u64;
    for revision in 1..=last {
        let mut map = ConfigMap::default();
        map.metadata.name = Some("m".into());
        map.metadata.resource_version = Some(revision.to_string());
        cache.put(
            "m",
            Arc::new(Object::from_typed(&registry::CONFIG_MAP, Box::new(map))),
        );
    }
    let kept = |after: u64| {
        cache
            .changes_after(after)
            .map(|(changes, _)| changes.len() as u64)
    };
    cache.forget_changes(400);
    assert_eq!((kept(399), kept(400)), (None, Some(last - 400)));
    cache.forget_changes(last);
    let first = last - LAST_CHANGES as u64;
    assert_eq!((kept(first - 1), kept(first)), (None, Some(LAST_CHANGES as u64)));
    let filter = Filter::everything(&registry::CONFIG_MAP, "");
    assert_eq!(
        cache.subscribe(&filter, Some(first - 1)).err().map(|e| e.code()),
        Some(410)
    );
    let state = cache.state.read();
    assert!(state.window.capacity() < 4 * LAST_CHANGES);
    let bytes = state.window.iter().map(|change| change.weight_bytes());
    assert_eq!(state.window_bytes, bytes.sum::<usize>());
}

#[test]
fn a_deleted_object_is_found_by_the_revision_of_its_deletion() {
    let cache = KindCache::new(&registry::CONFIG_MAP);
    for (revision, name) in [(1, "a"), (2, "b")] {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.into());
        map.metadata.resource_version = Some(revision.to_string());
        let object = Object::from_typed(&registry::CONFIG_MAP, Box::new(map));
        cache.put(name, Arc::new(object));
    }
    cache.remove("a", 4);
    cache.remove("b", 6);
    let found = (0..8).filter_map(|revision| cache.deleted_at(revision));
    let found: Vec<_> = found.map(|o| (o.name().to_string(), o.revision())).collect();
    assert_eq!(found, [("a".to_string(), 4), ("b".to_string(), 6)]);
}

#[test]
fn a_kind_of_few_objects_keeps_their_typed_values_and_one_of_many_those_that_changed_last() {
    for (objects, kept) in [(FEW_OBJECTS, FEW_OBJECTS), (FEW_OBJECTS + 1, FRESH_CHANGES)] {
        let cache = KindCache::new(&registry::CONFIG_MAP);
        for number in 1..=objects {
            let mut map = ConfigMap::default();
            map.metadata.name = Some(format!("m{number}"));
            map.metadata.resource_version = Some(number.to_string());
            map.data = Some([("k".to_string(), "v".repeat(2048))].into());
            let object = Object::from_typed(&registry::CONFIG_MAP, Box::new(map));
            cache.put(&format!("m{number}"), Arc::new(object));
        }
        cache.slim();
        let mut full = 0;
        cache.scan("", "", |object| {
            full += usize::from(!object.is_slim());
            true
        });
        assert_eq!(full, kept, "of {objects}");
    }
}

/// An object that is large enough to be kept without its typed value.
fn put_large(cache: &KindCache, name: &str, revision: u64) {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.into());
    map.metadata.resource_version = Some(revision.to_string());
    map.data = Some([("k".to_string(), "v".repeat(2048))].into());
    let object = Object::from_typed(&registry::CONFIG_MAP, Box::new(map));
    cache.put(name, Arc::new(object));
}

#[test]
fn objects_are_visited_again_after_one_was_decoded_the_history_was_dropped_or_there_were_few() {
    let cache = KindCache::new(&registry::CONFIG_MAP);
    let last = FEW_OBJECTS as u64 + 1;
    (1..=last).for_each(|revision| put_large(&cache, &format!("m{revision}"), revision));
    let is_settled = || {
        cache
            .state
            .read()
            .settled
            .is_some_and(|at| Some(at) == cache.kind.decoded_again())
    };
    let full = || {
        let state = cache.state.read();
        state.objects.values().filter(|object| !object.is_slim()).count()
    };
    cache.slim();
    assert!(cache.state.read().settled.is_some());
    assert_eq!(full(), FRESH_CHANGES);
    assert!(cache.get("m1").unwrap().get::<ConfigMap>().is_some());
    assert!(!is_settled());
    assert_eq!(full(), FRESH_CHANGES + 1);
    cache.slim();
    assert_eq!(full(), FRESH_CHANGES);
    cache.forget_history(last);
    assert!(!is_settled());
    cache.slim();
    assert_eq!(full(), 0);
    // Few for a while, in which old ones keep their typed values.
    cache.remove("m1", last + 1);
    let changes = FRESH_CHANGES as u64;
    (1..=changes + 2).for_each(|n| put_large(&cache, "m2", last + 1 + n));
    assert!(!is_settled());
}

#[test]
fn old_changes_that_are_kept_because_they_are_the_last_have_no_typed_values() {
    let cache = KindCache::new(&registry::CONFIG_MAP);
    let last = 2 * LAST_CHANGES as u64;
    (1..=last).for_each(|revision| put_large(&cache, &format!("m{revision}"), revision));
    let (first, old) = (last - LAST_CHANGES as u64 + 1, last - LAST_CHANGES as u64 / 2);
    cache.forget_changes(old);
    let state = cache.state.read();
    let slim = state.window.iter().filter(|change| change.is_slim());
    let slim: Vec<u64> = slim.map(|change| change.revision).collect();
    assert_eq!(slim, (first..=old).collect::<Vec<_>>());
    assert_eq!(state.window.len(), LAST_CHANGES);
    let bytes = state.window.iter().map(|change| change.weight_bytes());
    assert_eq!(state.window_bytes, bytes.sum::<usize>());
    let is_typed = |object: &Arc<Object>| !object.is_slim();
    assert!(state.objects.values().all(is_typed), "there are few objects");
}

#[test]
fn a_kept_change_drops_what_readers_decoded_of_its_object() {
    // When the object is deleted, replaced, or after a while.
    for (then, newest) in [("deleted", 1), ("replaced", 1), ("slimmed", 0)] {
        let cache = KindCache::new(&registry::CONFIG_MAP);
        let last = FEW_OBJECTS as u64 + 1;
        (1..=last).for_each(|revision| put_large(&cache, &format!("m{revision}"), revision));
        cache.slim();
        let first_is_slim = || cache.state.read().window[0].is_slim();
        assert!(first_is_slim(), "{then}");
        let read = cache.get("m1").unwrap();
        assert!(read.get::<ConfigMap>().is_some() && !first_is_slim(), "{then}");
        match then {
            "deleted" => assert_eq!(cache.remove("m1", last + 1), 0),
            "replaced" => put_large(&cache, "m1", last + 1),
            _ => cache.slim(),
        }
        let state = cache.state.read();
        assert!(state.window[0].is_slim(), "{then}");
        assert_eq!(state.window[0].object.json(), read.json(), "{then}");
        assert_eq!((state.newest, state.window_from), (last + newest, 0), "{then}");
        let bytes = state.window.iter().map(|change| change.weight_bytes());
        assert_eq!(state.window_bytes, bytes.sum::<usize>(), "{then}");
    }
}
