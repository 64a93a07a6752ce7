//! Which changes enqueue a set, and which pods it adopts.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::*;
use crate::world::object;

#[test]
fn a_set_waits_only_for_claims_of_its_own_that_are_deleted() {
    let mut world = World::default();
    world.put(set(
        json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}),
    ));
    let of_set = vec!["a/db"];
    for (name, change, keys) in [
        ("data-db-0", "deleted", of_set.clone()),
        ("data-db-0", "terminating", of_set),
        ("data-db-0", "bound", vec![]),
        ("logs-db-0", "deleted", vec![]),
        ("data-db-x", "deleted", vec![]),
        ("data-other-0", "deleted", vec![]),
    ] {
        let mut claim = json!({"metadata": {"namespace": "a", "name": name}});
        let old = object::<PersistentVolumeClaim>(claim.clone());
        if change == "terminating" {
            claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        let new = (change != "deleted").then(|| object::<PersistentVolumeClaim>(claim));
        let found = world.keys(&StatefulSets, Some(&old), new.as_ref());
        assert_eq!(found, keys, "{name} {change}");
    }
}

#[test]
fn a_set_is_reconciled_for_itself_its_pods_and_pods_that_it_could_adopt() {
    let mut world = World::default();
    let the_set = world.put(set(json!({})));
    assert_eq!(world.keys(&StatefulSets, None, Some(&the_set)), ["a/db"]);
    let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "uid-db", "controller": true}]);
    for (labels, owners, keys) in [
        (json!({}), owner, vec!["a/db"]),
        (json!({"app": "db"}), json!([]), vec!["a/db"]),
        (json!({"app": "web"}), json!([]), vec![]),
    ] {
        let pod = object::<Pod>(
            json!({"metadata": {"namespace": "a", "name": "db-0", "labels": labels,
            "ownerReferences": owners}}),
        );
        assert_eq!(world.keys(&StatefulSets, None, Some(&pod)), keys, "{labels}");
    }
}

#[test]
fn a_set_adopts_only_pods_with_its_labels_and_an_ordinal() {
    let mut world = World::default();
    world.put(set(json!({})));
    for (name, app) in [("db-7", "db"), ("db-x", "db"), ("db-8", "web")] {
        let pod = json!({"metadata": {"namespace": "a", "name": name, "labels": {"app": app}}});
        world.put::<Pod>(serde_json::from_value(pod).unwrap());
    }
    let adopted: Vec<String> = sync(&mut world, 0)
        .into_iter()
        .filter(|line| line.starts_with("update pods"))
        .collect();
    assert_eq!(adopted, ["update pods a/db-7"]);
}

#[test]
fn an_ordinal_is_a_number_of_digits_only() {
    for (pod, ordinal) in [
        ("db-0", Some(0)),
        ("db-12", Some(12)),
        ("db-", None),
        ("db--3", None),
        ("db-+3", None),
        ("db-3a", None),
        ("web-3", None),
        ("db-99999999999", None),
    ] {
        assert_eq!(identity::ordinal("db", pod), ordinal, "{pod}");
    }
}
