//! Who goes, who stays and who waits, by what the picture holds.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::world::at;

fn owner_of(name: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        block_owner_deletion: Some(true),
        controller: None,
    }
}

fn object(name: &str, owners: &[&str], edit: impl FnOnce(&mut ObjectMeta)) -> Arc<Object> {
    let mut map = ConfigMap::default();
    map.metadata.namespace = Some("default".into());
    map.metadata.name = Some(name.into());
    map.metadata.uid = Some(format!("uid-{name}"));
    map.metadata.resource_version = Some("7".into());
    map.metadata.owner_references = Some(owners.iter().map(|o| owner_of(o)).collect());
    edit(&mut map.metadata);
    Arc::new(Object::from_typed(&registry::CONFIG_MAP, Box::new(map)))
}

fn deleting(finalizer: &'static str) -> impl FnOnce(&mut ObjectMeta) {
    move |meta| {
        meta.deletion_timestamp = Some(Time(at(0)));
        meta.finalizers = Some(vec![finalizer.to_string()]);
    }
}

fn plain(_: &mut ObjectMeta) {}

/// What is to be done, in words.
fn decided(graph: &Graph, name: &str) -> String {
    match graph.look(&format!("uid-{name}"), &BTreeSet::new()) {
        Work::Nothing => "nothing".into(),
        Work::Ask(asked) => format!("ask {} {}", asked.key, asked.uid),
        Work::Do(todo) => {
            let words = todo.iter().map(|t| match &t.change {
                TodoChange::Delete(dependents) => format!("delete {} {dependents:?}", t.key.name),
                TodoChange::RemoveOwners(uids) => {
                    let uids: Vec<_> = uids.iter().map(String::as_str).collect();
                    format!("remove {} from {}", uids.join("+"), t.key.name)
                }
                TodoChange::RemoveFinalizer(f) => format!("remove {f} from {}", t.key.name),
            });
            words.collect::<Vec<_>>().join(", ")
        }
    }
}

#[test]
fn a_dependent_stays_with_its_owner_and_goes_after_it() {
    let mut graph = Graph::default();
    graph.put(&object("owner", &[], plain));
    assert_eq!(graph.put(&object("child", &["owner"], plain)), ["uid-child"]);
    assert_eq!(decided(&graph, "child"), "nothing");
    assert_eq!(graph.remove("uid-owner"), ["uid-child"]);
    assert_eq!(decided(&graph, "child"), "delete child Background");
}

#[test]
fn an_owner_of_a_kind_that_users_brought_is_asked_for_once_its_kind_is_known() {
    let widgets = crate::world::widgets();
    let mut graph = Graph::default();
    let owned = |meta: &mut ObjectMeta| {
        let owner = OwnerReference {
            api_version: "example.com/v1beta1".into(),
            kind: "Widget".into(),
            ..owner_of("owner")
        };
        meta.owner_references = Some(vec![owner]);
    };
    graph.put(&object("child", &[], owned));
    assert_eq!(
        decided(&graph, "child"),
        "nothing",
        "nobody can say that it is gone"
    );
    assert_eq!(graph.know(&widgets), ["uid-child"]);
    assert_eq!(decided(&graph, "child"), "ask default/owner uid-owner");
    graph.answered("uid-owner", false);
    assert_eq!(decided(&graph, "child"), "delete child Background");

    let json = r#"{"metadata": {"name": "owner", "namespace": "default", "uid": "uid-owner",
        "deletionTimestamp": "2020-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}}"#;
    let typed = widgets.ops.decode(json.as_bytes()).unwrap().object;
    graph.put(&Object::from_typed(&widgets, typed));
    assert_eq!(decided(&graph, "owner"), "nothing", "its dependent goes first");
    graph.remove("uid-child");
    assert_eq!(decided(&graph, "owner"), "remove foregroundDeletion from owner");

    // Its definition says something else now: that is no end of the object.
    let mut graph = Graph::default();
    graph.know(&widgets);
    let typed = widgets.ops.decode(json.as_bytes()).unwrap().object;
    graph.put(&Object::from_typed(&widgets, typed));
    graph.put(&object("child", &[], owned));
    graph.forget(&widgets);
    assert_eq!(decided(&graph, "child"), "nothing");
    graph.know(&widgets);
    assert_eq!(decided(&graph, "child"), "ask default/owner uid-owner");
}

#[test]
fn an_owner_that_is_not_known_is_asked_for_before_anything_is_deleted() {
    let mut graph = Graph::default();
    graph.put(&object("child", &["owner"], plain));
    assert_eq!(decided(&graph, "child"), "ask default/owner uid-owner");
    let there = BTreeSet::from(["uid-owner".to_string()]);
    assert!(matches!(graph.look("uid-child", &there), Work::Nothing));
    graph.answered("uid-owner", false);
    assert_eq!(decided(&graph, "child"), "delete child Background");
}

#[test]
fn an_update_that_is_about_neither_owners_nor_endings_wakes_nobody() {
    let mut graph = Graph::default();
    assert_eq!(graph.put(&object("child", &["owner"], plain)), ["uid-child"]);
    let again = graph.put(&object("child", &["owner"], plain));
    assert_eq!(again, ["uid-child"], "its owner may never come");
    graph.put(&object("owner", &[], plain));
    assert!(graph.put(&object("child", &["owner"], plain)).is_empty());
    assert!(graph.put(&object("owner", &[], plain)).is_empty());
    let ends = graph.put(&object("owner", &[], deleting(FOREGROUND)));
    assert_eq!(ends, ["uid-owner", "uid-child"]);
    assert!(graph.put(&object("owner", &[], deleting(FOREGROUND))).is_empty());
    assert_eq!(graph.put(&object("child", &[], plain)), ["uid-owner"]);
    assert_eq!(decided(&graph, "owner"), "remove foregroundDeletion from owner");
}

#[test]
fn one_owner_left_keeps_it_and_the_others_are_taken_off() {
    let mut graph = Graph::default();
    graph.put(&object("a", &[], plain));
    graph.put(&object("b", &[], plain));
    graph.put(&object("child", &["a", "b"], plain));
    graph.remove("uid-a");
    assert_eq!(decided(&graph, "child"), "remove uid-a from child");
}

#[test]
fn an_owner_of_the_same_uid_but_another_name_is_no_owner() {
    let mut graph = Graph::default();
    graph.put(&object("other", &[], |meta| meta.uid = Some("uid-owner".into())));
    graph.put(&object("child", &["owner"], plain));
    assert_eq!(decided(&graph, "child"), "ask default/owner uid-owner");
}

#[test]
fn foreground_deletes_the_dependents_first_and_then_lets_the_owner_go() {
    let mut graph = Graph::default();
    graph.put(&object("owner", &[], plain));
    graph.put(&object("child", &["owner"], plain));
    graph.put(&object("grandchild", &["child"], plain));
    let wakes = graph.put(&object("owner", &[], deleting(FOREGROUND)));
    assert_eq!(wakes, ["uid-owner", "uid-child"]);
    assert_eq!(decided(&graph, "owner"), "nothing");
    assert_eq!(decided(&graph, "child"), "delete child Foreground");
    graph.put(&object("child", &["owner"], deleting(FOREGROUND)));
    assert_eq!(decided(&graph, "grandchild"), "delete grandchild Background");
    assert_eq!(graph.remove("uid-grandchild"), ["uid-child"]);
    assert_eq!(decided(&graph, "child"), "remove foregroundDeletion from child");
    assert_eq!(graph.remove("uid-child"), ["uid-owner"]);
    assert_eq!(decided(&graph, "owner"), "remove foregroundDeletion from owner");
}

#[test]
fn a_dependent_that_does_not_block_does_not_hold_its_owner_back() {
    let mut graph = Graph::default();
    graph.put(&object("child", &["owner"], |meta| {
        for owner in meta.owner_references.iter_mut().flatten() {
            owner.block_owner_deletion = None;
        }
    }));
    graph.put(&object("owner", &[], deleting(FOREGROUND)));
    assert_eq!(decided(&graph, "owner"), "remove foregroundDeletion from owner");
}

#[test]
fn orphaning_takes_the_owner_off_its_dependents_before_it_goes() {
    let mut graph = Graph::default();
    graph.put(&object("a", &["owner"], plain));
    graph.put(&object("b", &["owner"], plain));
    assert_eq!(graph.put(&object("owner", &[], deleting(ORPHAN))), ["uid-owner"]);
    assert_eq!(
        decided(&graph, "owner"),
        "remove uid-owner from a, remove uid-owner from b, remove orphan from owner"
    );
}

#[test]
fn a_todo_is_carried_out_only_on_the_object_it_was_meant_for() {
    let todo = |change| Todo {
        kind: registry::CONFIG_MAP.clone(),
        key: ObjectKey::new("default", "child"),
        uid: "uid-child".into(),
        change,
    };
    let child = object("child", &["owner"], plain);
    let delete = todo(TodoChange::Delete(Dependents::Background));
    let Some(Action::Delete(d)) = action(&delete, &child) else {
        panic!("a delete")
    };
    assert_eq!(
        (d.uid.as_str(), d.resource_version.as_deref()),
        ("uid-child", Some("7"))
    );
    let another = object("child", &["owner"], |meta| meta.uid = Some("another".into()));
    assert!(action(&delete, &another).is_none());
    let ending = object("child", &["owner"], deleting("x"));
    assert!(action(&delete, &ending).is_none());
    let release = todo(TodoChange::RemoveOwners(BTreeSet::from(
        ["uid-owner".to_string()],
    )));
    let Some(Action::Update { object: released, .. }) = action(&release, &child) else {
        panic!("an update")
    };
    assert_eq!(released.metadata().owner_references, None);
    assert!(action(&release, &object("child", &[], plain)).is_none());
}

#[test]
fn a_circle_of_owners_that_all_wait_is_opened() {
    let mut graph = Graph::default();
    graph.put(&object("a", &["c"], deleting(FOREGROUND)));
    graph.put(&object("b", &["a"], plain));
    graph.put(&object("c", &["b"], plain));
    assert_eq!(decided(&graph, "a"), "nothing", "b is not asked to go yet");
    assert_eq!(decided(&graph, "b"), "delete b Foreground");
    graph.put(&object("b", &["a"], deleting(FOREGROUND)));
    assert_eq!(decided(&graph, "a"), "nothing", "nor is c");
    assert_eq!(decided(&graph, "c"), "delete c Foreground");
    // The last to wait closes the circle, and whoever is behind it is looked at.
    let woken = graph.put(&object("c", &["b"], deleting(FOREGROUND)));
    assert_eq!(woken, ["uid-b", "uid-c", "uid-a"]);
    assert_eq!(decided(&graph, "a"), "remove foregroundDeletion from a");
    // What hangs on the circle is still waited for by its own owner.
    graph.put(&object("leaf", &["c"], plain));
    assert_eq!(decided(&graph, "c"), "nothing");
    assert_eq!(decided(&graph, "leaf"), "delete leaf Background");
    graph.remove("uid-leaf");
    graph.remove("uid-a");
    assert_eq!(decided(&graph, "c"), "remove foregroundDeletion from c");
}

#[test]
fn an_object_that_owns_itself_can_go() {
    let mut graph = Graph::default();
    graph.put(&object("a", &["a"], deleting(FOREGROUND)));
    assert_eq!(decided(&graph, "a"), "remove foregroundDeletion from a");
}

#[test]
fn an_owner_is_named_by_kind_group_name_and_namespace_and_not_by_its_uid_alone() {
    let owner = |api_version: &str, kind: &str, name: &str| OwnerReference {
        api_version: api_version.into(),
        kind: kind.into(),
        name: name.into(),
        ..owner_of("owner")
    };
    for (reference, namespace, found) in [
        (owner("v1", "ConfigMap", "owner"), "default", "nothing"),
        (
            owner("v1", "Secret", "owner"),
            "default",
            "ask default/owner uid-owner",
        ),
        (
            owner("v1", "ConfigMap", "other"),
            "default",
            "ask default/other uid-owner",
        ),
        (
            owner("v1", "ConfigMap", "owner"),
            "elsewhere",
            "ask elsewhere/owner uid-owner",
        ),
    ] {
        let mut graph = Graph::default();
        graph.put(&object("owner", &[], plain));
        let described = format!("{} {} in {namespace}", reference.kind, reference.name);
        graph.put(&object("child", &[], |meta| {
            meta.namespace = Some(namespace.into());
            meta.owner_references = Some(vec![reference]);
        }));
        assert_eq!(decided(&graph, "child"), found, "{described}");
    }
    // A kind of that name in another group is another kind.
    let mut graph = Graph::default();
    graph.put(&object("owner", &[], plain));
    graph.put(&object("child", &[], |meta| {
        meta.owner_references = Some(vec![owner("example.com/v1", "ConfigMap", "owner")]);
    }));
    assert_eq!(decided(&graph, "child"), "nothing", "its kind is not known");
    graph.know(&crate::world::custom_kind(
        "example.com",
        "configmaps",
        "ConfigMap",
    ));
    assert_eq!(decided(&graph, "child"), "ask default/owner uid-owner");
}

#[test]
fn a_custom_kind_is_known_and_forgotten_by_group_and_kind() {
    let kinds = [
        ("example.com", "widgets", "Widget"),
        ("example.com", "gadgets", "Gadget"),
        ("example.org", "widgets", "Widget"),
    ]
    .map(|(group, plural, kind)| crate::world::custom_kind(group, plural, kind));
    let mut graph = Graph::default();
    for (n, kind) in kinds.iter().enumerate() {
        graph.put(&object(&format!("of-{n}"), &[], |meta| {
            let owner = OwnerReference {
                api_version: kind.api_version().to_string(),
                kind: kind.kind().into(),
                ..owner_of("owner")
            };
            meta.owner_references = Some(vec![owner]);
        }));
        let json =
            format!(r#"{{"metadata": {{"name": "own-{n}", "namespace": "default", "uid": "uid-own-{n}"}}}}"#);
        let typed = kind.ops.decode(json.as_bytes()).unwrap().object;
        graph.put(&Object::from_typed(kind, typed));
    }
    assert_eq!(graph.know(&kinds[0]), ["uid-of-0"]);
    assert_eq!(graph.nodes.len(), 6);
    graph.forget(&kinds[0]);
    assert_eq!(graph.nodes.len(), 5, "the objects of other kinds are still known");
}

#[test]
fn the_finalizer_of_foreground_deletion_wakes_an_object_only_when_it_is_deleted() {
    let mut graph = Graph::default();
    let waits = object("owner", &[], |meta| {
        meta.finalizers = Some(vec![FOREGROUND.to_string()])
    });
    assert_eq!(graph.put(&waits), [""; 0]);
    assert_eq!(
        graph.put(&object("owner", &[], deleting(FOREGROUND))),
        ["uid-owner"]
    );
}

#[test]
fn what_is_being_deleted_already_is_not_deleted_again() {
    let mut graph = Graph::default();
    graph.answered("uid-owner", false);
    graph.put(&object("child", &["owner"], deleting("example.com/in-use")));
    assert_eq!(decided(&graph, "child"), "nothing");
}

#[test]
fn of_owners_that_are_gone_the_oldest_is_forgotten_and_asked_for_again() {
    let mut graph = Graph::default();
    for n in 0..=GONE_KEPT {
        graph.answered(&format!("uid-{n}"), false);
    }
    for (owner, found) in [("0", "ask default/0 uid-0"), ("1", "delete child Background")] {
        graph.put(&object("child", &[owner], plain));
        assert_eq!(decided(&graph, "child"), found);
    }
}

#[test]
fn every_kind_that_can_be_listed_watched_and_deleted_is_collected_but_events() {
    let all: Vec<_> = kinds().collect();
    for kind in [&registry::POD, &registry::NAMESPACE, &registry::REPLICA_SET] {
        assert!(all.contains(&kind), "{}", kind.plural());
    }
    for kind in registry::ALL {
        let serves = ["list", "watch", "delete"]
            .iter()
            .all(|verb| kind.verbs.contains(verb));
        let is_event = kind.plural() == "events";
        let expected = serves && !is_event && kind.stored_as().is_none();
        assert_eq!(all.contains(kind), expected, "{} {}", kind.group(), kind.plural());
    }
}
