//! Namespace deletion: first all its content is deleted.
//!
//! Pods are removed before anything else is deleted: what protects them (network policies above all) outlives them (KEP-5080). The
//! finalizer `kubernetes` is removed only when a live read, not a cache, shows that nothing is left. The content of extension API
//! servers is deleted last. While one of them is not available its content is not known, and the namespace stays.
//!
//! The caches of the contents may be newer than that of the namespaces, and have what a new namespace of the same name has: nothing is
//! deleted before the API server has confirmed that the namespace is being deleted (upstream: namespacedResourcesDeleter.Delete).

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::time::seconds;

use crate::action::{Action, Delete, Dependents, Failure, LiveCheck, Verb};
use crate::controller::{Context, Controller, ObjectChange, View};

const FINALIZER: &str = "kubernetes";
/// Objects of one kind that are deleted in one sync; the rest follows.
const DELETE_AT_ONCE: usize = 500;

/// See the module.
pub struct Namespaces;

/// Whether a namespace is terminating and rejects new objects.
pub fn is_terminating(namespace: &Namespace) -> bool {
    let phase = namespace.status.as_ref().and_then(|s| s.phase.as_deref());
    namespace.metadata.deletion_timestamp.is_some() || phase == Some("Terminating")
}

/// Every namespaced kind whose objects are stored and can be deleted.
pub fn contents<'k>() -> impl Iterator<Item = &'k Kind> {
    registry::ALL.iter().copied().filter(|kind| {
        kind.namespaced()
            && kind.stored_as().is_none()
            && ["list", "watch", "delete"].iter().all(|v| kind.verbs.contains(v))
    })
}

impl Controller for Namespaces {
    fn name(&self) -> &'static str {
        "namespace-controller"
    }

    fn account(&self) -> &'static str {
        "namespace-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        let first = [&registry::NAMESPACE, &registry::API_SERVICE];
        first.into_iter().chain(contents()).collect()
    }

    fn watches_custom_kinds(&self) -> bool {
        true
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::NAMESPACE) {
            return vec![key];
        }
        let Some(object) = changed.object() else {
            return Vec::new();
        };
        if changed.key_of(&registry::API_SERVICE).is_some() {
            let terminating = |o: &std::sync::Arc<knarr_api::Object>| {
                let namespace = o.get::<Namespace>();
                namespace.is_some_and(is_terminating)
            };
            let all = view.list(&registry::NAMESPACE, "");
            let all = all.iter().filter(|o| terminating(o));
            return all.map(|o| ObjectKey::new("", o.name())).collect();
        }
        let namespace = view.get_as::<Namespace>("", object.namespace());
        let concerned = namespace.is_some_and(|n| is_terminating(&n));
        concerned
            .then(|| ObjectKey::new("", object.namespace()))
            .into_iter()
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(namespace) = context.view.get_as::<Namespace>("", &context.key.name) else {
            return Vec::new();
        };
        let finalizers = namespace.spec.as_ref().and_then(|s| s.finalizers.as_deref());
        let finalizers = finalizers.unwrap_or_default();
        if namespace.metadata.deletion_timestamp.is_none() || finalizers.iter().all(|f| f != FINALIZER) {
            return Vec::new();
        }
        let name = &context.key.name;
        let custom = context.view.custom_kinds();
        let custom = custom.iter();
        let mut left: Vec<(&Kind, Vec<_>)> = contents()
            .chain(custom.filter(|kind| kind.namespaced()))
            .map(|kind| (kind, context.view.list(kind, name)))
            .filter(|(_, objects)| !objects.is_empty())
            .collect();

        let extensions = AggregatedApis::of(context.view);
        let is_deleting = || {
            Action::Require(LiveCheck::Deleting {
                kind: registry::NAMESPACE.clone(),
                key: context.key.clone(),
                uid: namespace.object().uid().into(),
            })
        };
        let mut actions = Vec::new();
        // Before the status, which reports the failure while it lasts.
        if left.is_empty() && context.failure.is_none() && extensions.are_all_known() {
            actions.push(is_deleting());
            actions.push(Action::DeleteExtensionContents {
                namespace: name.clone(),
            });
        }
        let remaining = Remaining::of(&left);
        let status = with_conditions(&namespace, &remaining, &extensions, context.failure, context.now);
        let is_written = *namespace == status;
        if !is_written {
            actions.push(Action::update_status(status));
        }
        if context.failure.is_some() {
            return actions;
        }
        if left.is_empty() {
            if !is_written || !extensions.unavailable.is_empty() {
                // The status that is written here enqueues the key again; then the namespace is finalized.
                return actions;
            }
            let mut done = (*namespace).clone();
            let spec = done.spec.get_or_insert_default();
            spec.finalizers.get_or_insert_default().retain(|f| f != FINALIZER);
            let none_left = |kind: &Kind| {
                Action::Require(LiveCheck::NoneInNamespace {
                    kind: kind.clone(),
                    namespace: name.clone(),
                })
            };
            actions.extend(contents().map(none_left));
            actions.push(Action::Require(LiveCheck::NoCustomResources {
                namespace: name.clone(),
            }));
            actions.push(Action::update_subresource(done, "finalize"));
            return actions;
        }
        if left.iter().any(|(kind, _)| *kind == &registry::POD) {
            left.retain(|(kind, _)| *kind == &registry::POD);
        }
        let mut deletions = Vec::new();
        for (_, objects) in left {
            let living = objects
                .iter()
                .filter(|o| o.metadata().deletion_timestamp.is_none());
            let deletes: Vec<Delete> = living
                .take(DELETE_AT_ONCE)
                .map(|object| Delete {
                    dependents: Dependents::Background,
                    ..Delete::of(object)
                })
                .collect();
            if !deletes.is_empty() {
                deletions.push(Action::DeleteMany(deletes));
            }
        }
        // A write of the status confirms it, too: it has the resourceVersion as precondition.
        if is_written && !deletions.is_empty() {
            actions.push(is_deleting());
        }
        actions.extend(deletions);
        actions
    }
}

/// The group versions of extension API servers (APIServices).
struct AggregatedApis {
    any: bool,
    /// Group versions whose API server is not available.
    unavailable: Vec<String>,
}

impl AggregatedApis {
    fn of(view: &dyn View) -> Self {
        let mut extensions = AggregatedApis {
            any: false,
            unavailable: Vec::new(),
        };
        for object in view.list(&registry::API_SERVICE, "") {
            let Some(spec) = object.get::<APIService>().and_then(|a| a.spec.as_ref()) else {
                continue;
            };
            if spec.service.is_none() {
                continue;
            }
            extensions.any = true;
            let status = object.get::<APIService>().and_then(|a| a.status.as_ref());
            let mut conditions = status.and_then(|s| s.conditions.as_ref()).into_iter().flatten();
            if !conditions.any(|c| c.type_ == "Available" && c.status == "True") {
                let of = |field: &Option<String>| field.clone().unwrap_or_default();
                let group_version = format!("{}/{}", of(&spec.group), of(&spec.version));
                extensions.unavailable.push(group_version);
            }
        }
        extensions.unavailable.sort();
        extensions
    }

    /// Whether there are some, and all of them are available.
    fn are_all_known(&self) -> bool {
        self.any && self.unavailable.is_empty()
    }

    /// The message about those that are not available, as client-go's ErrGroupDiscoveryFailed.
    fn failure(&self) -> Option<String> {
        let stale = |gv: &String| format!("{gv}: stale GroupVersion discovery: {gv}");
        let all: Vec<String> = self.unavailable.iter().map(stale).collect();
        (!all.is_empty()).then(|| {
            format!(
                "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
                all.len(),
                all.join(", ")
            )
        })
    }
}

/// The content that is left, as text.
struct Remaining {
    resources: String,
    finalizers: String,
}

impl Remaining {
    fn of(left: &[(&Kind, Vec<std::sync::Arc<knarr_api::Object>>)]) -> Self {
        let mut resources: Vec<String> = Vec::new();
        let mut held: BTreeMap<String, usize> = BTreeMap::new();
        for (kind, objects) in left {
            let count = objects.len();
            resources.push(format!(
                "{}.{} has {count} resource instances",
                kind.plural(),
                kind.group()
            ));
            for finalizer in objects
                .iter()
                .flat_map(|o| o.metadata().finalizers.iter().flatten())
            {
                *held.entry(finalizer.clone()).or_default() += 1;
            }
        }
        resources.sort();
        let mut finalizers = String::new();
        for (finalizer, count) in held {
            let comma = if finalizers.is_empty() { "" } else { ", " };
            let _ = write!(finalizers, "{comma}{finalizer} in {count} resource instances");
        }
        Remaining {
            resources: resources.join(", "),
            finalizers,
        }
    }
}

/// A condition: its type, reason and message if there is no error, and the reason and message otherwise.
type ConditionCase = (
    &'static str,
    (&'static str, &'static str),
    Option<(&'static str, String)>,
);

fn with_conditions(
    namespace: &Shared<Namespace>,
    remaining: &Remaining,
    extensions: &AggregatedApis,
    failure: Option<&Failure>,
    now: Timestamp,
) -> Namespace {
    let failed = failure.filter(|f| f.verb == Verb::Delete);
    let all: [ConditionCase; 5] = [
        (
            "NamespaceDeletionDiscoveryFailure",
            ("ResourcesDiscovered", "All resources successfully discovered"),
            extensions.failure().map(|why| ("DiscoveryFailed", why)),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
            None,
        ),
        (
            "NamespaceDeletionContentFailure",
            (
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
            failed.map(|f| {
                let why = format!("Failed to delete all resource types, 1 remaining: {}", f.error);
                ("ContentDeletionFailed", why)
            }),
        ),
        (
            "NamespaceContentRemaining",
            ("ContentRemoved", "All content successfully removed"),
            (!remaining.resources.is_empty()).then(|| {
                let what = format!("Some resources are remaining: {}", remaining.resources);
                ("SomeResourcesRemain", what)
            }),
        ),
        (
            "NamespaceFinalizersRemaining",
            (
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished",
            ),
            (!remaining.finalizers.is_empty()).then(|| {
                let what = format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    remaining.finalizers
                );
                ("SomeFinalizersRemain", what)
            }),
        ),
    ];
    let mut changed = (**namespace).clone();
    let status = changed.status.get_or_insert_default();
    status.phase = Some("Terminating".into());
    let conditions = status.conditions.get_or_insert_default();
    for (type_, fine, wrong) in all {
        let (is, reason, message) = match wrong {
            Some((reason, message)) => ("True", reason, message),
            None => ("False", fine.0, fine.1.to_string()),
        };
        let mut condition = NamespaceCondition {
            type_: type_.into(),
            status: is.into(),
            reason: Some(reason.into()),
            message: Some(message),
            last_transition_time: Some(seconds(now)),
        };
        match conditions.iter_mut().find(|c| c.type_ == type_) {
            Some(old) => {
                if old.status == condition.status {
                    condition.last_transition_time = old.last_transition_time.clone();
                }
                *old = condition;
            }
            None => conditions.push(condition),
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, NamespaceSpec, Pod};

    use super::*;
    use crate::world::{World, at, lines, updated};

    fn ending() -> Namespace {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some("a".into());
        namespace.metadata.deletion_timestamp = Some(seconds(at(0)));
        namespace.spec = Some(NamespaceSpec {
            finalizers: Some(vec!["other".into(), FINALIZER.into()]),
        });
        namespace
    }

    fn run(world: &mut World) -> Vec<Action> {
        let actions = world.run(&Namespaces, ("", "a"), at(1));
        world.take_updates(&actions);
        actions
    }

    fn condition(actions: &[Action], type_: &str) -> NamespaceCondition {
        let namespace = updated::<Namespace>(actions, "status").unwrap();
        let conditions = namespace.status.unwrap().conditions.unwrap();
        conditions.into_iter().find(|c| c.type_ == type_).unwrap()
    }

    #[test]
    fn custom_resources_are_deleted_too() {
        let mut world = World::default();
        world.put(ending());
        let json = r#"{"metadata": {"name": "w", "namespace": "a", "uid": "u", "resourceVersion": "1"}}"#;
        world.put_json(&crate::world::widgets(), json);
        let actions = run(&mut world);
        assert!(
            lines(&actions).iter().any(|l| l == "delete widgets a/w"),
            "{:?}",
            lines(&actions)
        );
        let remaining = condition(&actions, "NamespaceContentRemaining").message;
        assert_eq!(
            remaining.unwrap_or_default(),
            "Some resources are remaining: widgets.example.com has 1 resource instances"
        );
    }

    fn api_service(available: &str) -> APIService {
        let value = serde_json::json!({
            "metadata": {"name": "v1.example.com", "uid": "u", "resourceVersion": "1"},
            "spec": {"group": "example.com", "version": "v1", "service": {"namespace": "b", "name": "s"},
                "groupPriorityMinimum": 1, "versionPriority": 1},
            "status": {"conditions": [{"type": "Available", "status": available}]},
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn n1_a_namespace_stays_while_an_extension_api_server_cannot_say_what_it_has() {
        let mut world = World::default();
        world.put(ending());
        world.put(api_service("False"));
        let actions = run(&mut world);
        assert_eq!(lines(&actions), ["update namespaces/status a"]);
        let found = condition(&actions, "NamespaceDeletionDiscoveryFailure");
        assert_eq!(
            (found.status.as_str(), found.reason.as_deref()),
            ("True", Some("DiscoveryFailed"))
        );
        assert_eq!(
            found.message.unwrap_or_default(),
            "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
example.com/v1: stale GroupVersion discovery: example.com/v1"
        );
        assert_eq!(lines(&run(&mut world)), [""; 0], "it waits");

        world.put(api_service("True"));
        let emptied = [
            "require namespaces a terminating",
            "delete contents of extension API servers in a",
        ];
        let actions = run(&mut world);
        assert_eq!(
            lines(&actions),
            [emptied[0], emptied[1], "update namespaces/status a"]
        );
        let found = condition(&actions, "NamespaceDeletionDiscoveryFailure");
        assert_eq!(found.reason.as_deref(), Some("ResourcesDiscovered"));
        let last = lines(&run(&mut world));
        assert_eq!(last[..2], emptied);
        assert_eq!(
            last.last().map(String::as_str),
            Some("update namespaces/finalize a")
        );
    }

    #[test]
    fn an_active_namespace_is_not_changed() {
        let mut world = World::default();
        let mut namespace = ending();
        namespace.metadata.deletion_timestamp = None;
        world.put(namespace);
        assert_eq!(lines(&run(&mut world)), [""; 0]);
    }

    /// The cache of namespaces is old: the namespace was removed, and another one of its name has a pod as the former had, so that the
    /// status does not change.
    #[test]
    fn s2_contents_are_deleted_only_after_a_write_or_a_live_read_of_the_namespace() {
        let mut world = World::default();
        world.put(ending());
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("a".into());
        pod.metadata.name = Some("p".into());
        world.put(pod);
        for expected in [
            ["update namespaces/status a", "delete pods a/p"],
            ["require namespaces a terminating", "delete pods a/p"],
        ] {
            let actions = run(&mut world);
            assert_eq!(lines(&actions), expected);
            if let Action::Require(check) = &actions[0] {
                assert!(matches!(check, LiveCheck::Deleting { uid, .. } if uid == "uid-a"));
            }
        }
    }

    #[test]
    fn s2_pods_are_deleted_first_then_the_rest_then_the_finalizer_is_removed() {
        let mut world = World::default();
        world.put(ending());
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("a".into());
        pod.metadata.name = Some("p".into());
        pod.metadata.finalizers = Some(vec!["example.com/hold".into()]);
        world.put(pod.clone());
        let mut map = ConfigMap::default();
        map.metadata.namespace = Some("a".into());
        map.metadata.name = Some("m".into());
        world.put(map.clone());
        map.metadata.namespace = Some("elsewhere".into());
        world.put(map);

        let actions = run(&mut world);
        assert_eq!(lines(&actions), ["update namespaces/status a", "delete pods a/p"]);
        let Action::DeleteMany(deletes) = &actions[1] else {
            panic!("a delete")
        };
        assert_eq!(deletes[0].uid, "uid-p");
        let remaining = condition(&actions, "NamespaceContentRemaining");
        assert_eq!(
            remaining.message.as_deref(),
            Some(
                "Some resources are remaining: configmaps. has 1 resource instances, pods. has 1 resource instances"
            )
        );
        assert_eq!(
            condition(&actions, "NamespaceFinalizersRemaining")
                .message
                .as_deref(),
            Some(
                "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
            )
        );

        pod.metadata.deletion_timestamp = Some(seconds(at(1)));
        world.put(pod);
        assert_eq!(lines(&run(&mut world)), [""; 0], "the pod is terminating: wait");

        world.remove(&registry::POD, "a", "p");
        assert_eq!(
            lines(&run(&mut world)),
            ["update namespaces/status a", "delete configmaps a/m"]
        );
        world.remove(&registry::CONFIG_MAP, "a", "m");
        assert_eq!(lines(&run(&mut world)), ["update namespaces/status a"]);
        let last = run(&mut world);
        let last_lines = lines(&last);
        assert!(last_lines.contains(&"require no secrets in a".to_string()));
        assert_eq!(last_lines.last().unwrap(), "update namespaces/finalize a");
        let finalized = updated::<Namespace>(&last, "finalize").unwrap();
        assert_eq!(
            finalized.spec.unwrap().finalizers,
            Some(vec!["other".to_string()])
        );
    }
}
