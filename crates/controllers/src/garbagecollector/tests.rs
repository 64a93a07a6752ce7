//! Which objects are deleted, which stay and which wait, by the graph.

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

/// The decision as text.
fn decided(graph: &Graph, name: &str) -> String {
    shown(graph.decide(&format!("uid-{name}"), &BTreeSet::new()))
}

fn shown(work: Work) -> String {
    match work {
        Work::Nothing => "nothing".into(),
        Work::GetOwner(owner) => format!("ask {} {}", owner.key, owner.uid),
        Work::GetDefinition { name, owner } => format!("ask whether {name} exists, of {owner}"),
        Work::Requeue => "again".into(),
        Work::Write(write) => {
            let writes = write.iter().map(|t| match &t.change {
                WriteKind::Delete(dependents) => format!("delete {} {dependents:?}", t.key.name),
                WriteKind::RemoveOwners(uids) => {
                    let uids: Vec<_> = uids.iter().map(String::as_str).collect();
                    format!("remove {} from {}", uids.join("+"), t.key.name)
                }
                WriteKind::RemoveFinalizer(f) => format!("remove {f} from {}", t.key.name),
            });
            writes.collect::<Vec<_>>().join(", ")
        }
    }
}

#[test]
fn a_dependent_is_deleted_only_after_its_owner() {
    let mut graph = Graph::default();
    graph.put(&object("owner", &[], plain));
    assert_eq!(graph.put(&object("child", &["owner"], plain)), ["uid-child"]);
    assert_eq!(decided(&graph, "child"), "nothing");
    assert_eq!(graph.remove("uid-owner"), ["uid-child"]);
    assert_eq!(decided(&graph, "child"), "delete child Background");
}

#[test]
fn an_owner_of_a_custom_kind_is_read_once_its_kind_is_known() {
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
        "it is not known whether the owner exists"
    );
    assert_eq!(graph.add_kind(&widgets), ["uid-child"]);
    assert_eq!(decided(&graph, "child"), "ask default/owner uid-owner");
    graph.record_owner("uid-owner", false);
    assert_eq!(decided(&graph, "child"), "delete child Background");

    let json = r#"{"metadata": {"name": "owner", "namespace": "default", "uid": "uid-owner",
        "deletionTimestamp": "2020-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}}"#;
    let typed = widgets.ops.decode(json.as_bytes()).unwrap().object;
    graph.put(&Object::from_typed(&widgets, typed));
    assert_eq!(
        decided(&graph, "owner"),
        "nothing",
        "its dependent is deleted first"
    );
    graph.remove("uid-child");
    assert_eq!(decided(&graph, "owner"), "remove foregroundDeletion from owner");

    // Its CustomResourceDefinition has other names now: that does not delete the object.
    let mut graph = Graph::default();
    graph.add_kind(&widgets);
    let typed = widgets.ops.decode(json.as_bytes()).unwrap().object;
    graph.put(&Object::from_typed(&widgets, typed));
    graph.put(&object("child", &[], owned));
    assert_eq!(graph.remove_kind(&widgets), ["uid-child"]);
    let definition = "ask whether widgets.example.com exists, of uid-owner";
    assert_eq!(decided(&graph, "child"), definition);
    let there = BTreeSet::from(["uid-owner".to_string()]);
    assert!(matches!(graph.decide("uid-child", &there), Work::Requeue));
    graph.add_kind(&widgets);
    assert_eq!(decided(&graph, "child"), "ask default/owner uid-owner");
    // It is deleted with its objects, before the child's owner can be read.
    let typed = widgets.ops.decode(json.as_bytes()).unwrap().object;
    graph.put(&Object::from_typed(&widgets, typed));
    assert_eq!(graph.remove("uid-owner"), ["uid-child"]);
    assert_eq!(graph.remove_kind(&widgets), ["uid-child"]);
    assert_eq!(decided(&graph, "child"), definition);
    graph.record_owner("uid-owner", false);
    assert_eq!(decided(&graph, "child"), "delete child Background");
}

#[test]
fn a_custom_owner_that_is_reported_as_deleted_is_read_before_its_dependent_is_deleted() {
    let widgets = crate::world::widgets();
    let mut graph = Graph::default();
    graph.add_kind(&widgets);
    let json = r#"{"metadata": {"name": "owner", "namespace": "default", "uid": "uid-owner"}}"#;
    let typed = widgets.ops.decode(json.as_bytes()).unwrap().object;
    graph.put(&Object::from_typed(&widgets, typed));
    graph.put(&object("child", &[], |meta| {
        let owner = OwnerReference {
            api_version: "example.com/v1".into(),
            kind: "Widget".into(),
            ..owner_of("owner")
        };
        meta.owner_references = Some(vec![owner]);
    }));
    // An informer that stops because an earlier definition was deleted reports the objects of the next one, too.
    assert_eq!(graph.remove("uid-owner"), ["uid-child"]);
    assert_eq!(decided(&graph, "child"), "ask default/owner uid-owner");
    graph.record_owner("uid-owner", false);
    assert_eq!(decided(&graph, "child"), "delete child Background");
}

#[test]
fn an_owner_is_absent_only_if_the_response_says_so_of_its_name() {
    let owner = OwnerKey {
        kind: crate::world::widgets(),
        key: ObjectKey::new("default", "owner"),
        uid: "uid-owner".into(),
    };
    let same = object("owner", &[], plain);
    let other = object("owner", &[], |meta| meta.uid = Some("uid-other".into()));
    let not_served = "the server could not find the requested resource";
    for (response, exists) in [
        (Ok(&*same), Some(true)),
        (Ok(&*other), Some(false)),
        (
            Err(Error::not_found(owner.kind.resource_ref("owner"))),
            Some(false),
        ),
        (Err(Error::not_found(owner.kind.resource_ref(""))), None),
        (Err(Error::new(404, "NotFound", not_served)), None),
        (Err(Error::unavailable("starting")), None),
    ] {
        let shown = format!("{response:?}");
        assert_eq!(owner.exists(response).ok(), exists, "{shown}");
    }
}

#[test]
fn an_unknown_owner_is_read_before_anything_is_deleted() {
    let mut graph = Graph::default();
    graph.put(&object("child", &["owner"], plain));
    assert_eq!(decided(&graph, "child"), "ask default/owner uid-owner");
    graph.record_owner("uid-owner", false);
    assert_eq!(decided(&graph, "child"), "delete child Background");
}

#[test]
fn a_dependent_is_requeued_as_long_as_an_owner_that_a_live_read_finds_is_not_in_the_graph() {
    // The owners, those of them that are in the graph, those that live reads find (the others are absent), and the decision.
    for (owners, observed, there, decision) in [
        (vec!["a"], vec!["a"], vec![], "nothing"),
        (vec!["a"], vec![], vec!["a"], "again"),
        (vec!["a"], vec!["a"], vec!["a"], "nothing"),
        (vec!["a", "b"], vec!["a"], vec!["b"], "again"),
        (vec!["a", "b"], vec![], vec!["b"], "remove uid-a from child"),
        (vec!["a"], vec![], vec![], "delete child Background"),
    ] {
        let mut graph = Graph::default();
        graph.put(&object("child", &owners, plain));
        for owner in &owners {
            if observed.contains(owner) {
                graph.put(&object(owner, &[], plain));
            } else {
                graph.record_owner(&format!("uid-{owner}"), there.contains(owner));
            }
        }
        let uids = there.iter().map(|owner| format!("uid-{owner}")).collect();
        let decided = shown(graph.decide("uid-child", &uids));
        assert_eq!(decided, decision, "{owners:?} {observed:?} {there:?}");
    }
}

#[test]
fn an_update_of_neither_owners_nor_deletion_enqueues_nothing() {
    let mut graph = Graph::default();
    assert_eq!(graph.put(&object("child", &["owner"], plain)), ["uid-child"]);
    let again = graph.put(&object("child", &["owner"], plain));
    assert_eq!(again, ["uid-child"], "its owner may not exist");
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
fn one_existing_owner_keeps_it_and_references_to_the_others_are_removed() {
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
fn foreground_deletes_the_dependents_first_and_then_the_owner() {
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
fn orphaning_removes_the_owner_references_before_the_owner() {
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
fn a_write_is_made_only_on_the_object_it_was_decided_for() {
    let write = |change| ObjectWrite {
        kind: registry::CONFIG_MAP.clone(),
        key: ObjectKey::new("default", "child"),
        uid: "uid-child".into(),
        change,
    };
    let child = object("child", &["owner"], plain);
    let delete = write(WriteKind::Delete(Dependents::Background));
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
    let release = write(WriteKind::RemoveOwners(BTreeSet::from(["uid-owner".to_string()])));
    let Some(Action::Update { object: released, .. }) = action(&release, &child) else {
        panic!("an update")
    };
    assert_eq!(released.metadata().owner_references, None);
    assert!(action(&release, &object("child", &[], plain)).is_none());
}

#[test]
fn a_circle_of_owners_that_all_wait_is_broken() {
    let mut graph = Graph::default();
    graph.put(&object("a", &["c"], deleting(FOREGROUND)));
    graph.put(&object("b", &["a"], plain));
    graph.put(&object("c", &["b"], plain));
    assert_eq!(decided(&graph, "a"), "nothing", "b is not being deleted yet");
    assert_eq!(decided(&graph, "b"), "delete b Foreground");
    graph.put(&object("b", &["a"], deleting(FOREGROUND)));
    assert_eq!(decided(&graph, "a"), "nothing", "nor is c");
    assert_eq!(decided(&graph, "c"), "delete c Foreground");
    // The last one to wait closes the circle, and its owner is enqueued.
    let woken = graph.put(&object("c", &["b"], deleting(FOREGROUND)));
    assert_eq!(woken, ["uid-b", "uid-c", "uid-a"]);
    assert_eq!(decided(&graph, "a"), "remove foregroundDeletion from a");
    // A dependent outside of the circle still blocks its own owner.
    graph.put(&object("leaf", &["c"], plain));
    assert_eq!(decided(&graph, "c"), "nothing");
    assert_eq!(decided(&graph, "leaf"), "delete leaf Background");
    graph.remove("uid-leaf");
    graph.remove("uid-a");
    assert_eq!(decided(&graph, "c"), "remove foregroundDeletion from c");
}

#[test]
fn an_object_that_owns_itself_can_be_deleted() {
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
    graph.add_kind(&crate::world::custom_kind(
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
    assert_eq!(graph.add_kind(&kinds[0]), ["uid-of-0"]);
    assert_eq!(graph.nodes.len(), 6);
    graph.remove_kind(&kinds[0]);
    assert_eq!(graph.nodes.len(), 5, "the objects of other kinds are still known");
}

#[test]
fn the_finalizer_of_foreground_deletion_enqueues_an_object_only_when_it_is_deleted() {
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
    graph.record_owner("uid-owner", false);
    graph.put(&object("child", &["owner"], deleting("example.com/in-use")));
    assert_eq!(decided(&graph, "child"), "nothing");
}

#[test]
fn a_deleted_object_without_dependents_is_not_recorded_as_absent_and_read_for_a_later_one() {
    let mut graph = Graph::default();
    for owner in ["owner", "other"] {
        graph.put(&object(owner, &[], plain));
    }
    graph.put(&object("child", &["owner"], plain));
    graph.remove("uid-owner");
    graph.remove("uid-other");
    assert_eq!(graph.absent_owners, BTreeSet::from(["uid-owner".to_string()]));
    graph.put(&object("late", &["other"], plain));
    assert_eq!(decided(&graph, "late"), "ask default/other uid-other");
}

#[test]
fn the_oldest_absent_owner_is_dropped_and_read_again() {
    let mut graph = Graph::default();
    for n in 0..=ABSENT_OWNER_CACHE_SIZE {
        graph.record_owner(&format!("uid-{n}"), false);
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

#[test]
fn the_nodes_of_the_graph_take_little_memory_where_the_map_is_empty() {
    fn entry_bytes<K, V>(_: &BTreeMap<K, V>) -> usize {
        size_of::<(K, V)>()
    }
    assert!(entry_bytes(&Graph::default().nodes) <= 3 * size_of::<usize>());
    assert!(size_of::<Node>() <= 12 * size_of::<usize>());
}
