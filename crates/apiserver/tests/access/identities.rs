//! The users of knarr's own components, and what each of them may not do (SPEC A4).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use knarr_api::k8s_openapi;
use knarr_api::{Kind, registry};
use knarr_apiserver::authz::default_roles;
use knarr_client::{Api, Component, ListOptions, Patch, TypedApi};
use serde_json::json;

use super::cluster::Cluster;

/// All controllers.
fn accounts() -> BTreeSet<&'static str> {
    knarr_control::accounts(&knarr_controllers::fake::config())
}

#[test]
fn a4_every_controller_has_an_account_whose_role_and_binding_are_made_in_every_cluster() {
    let made = default_roles::objects();
    let mut roles = BTreeSet::new();
    let mut bound = BTreeSet::new();
    for default in &made {
        let object = default.object.as_any();
        if let Some(role) = object.downcast_ref::<ClusterRole>() {
            roles.insert(("", role.metadata.name.as_deref().unwrap()));
        } else if let Some(role) = object.downcast_ref::<Role>() {
            let meta = &role.metadata;
            roles.insert((meta.namespace.as_deref().unwrap(), meta.name.as_deref().unwrap()));
        }
    }
    for default in &made {
        let object = default.object.as_any();
        let (namespace, role, subjects) = if let Some(b) = object.downcast_ref::<ClusterRoleBinding>() {
            ("", &b.role_ref, &b.subjects)
        } else if let Some(b) = object.downcast_ref::<RoleBinding>() {
            (b.metadata.namespace.as_deref().unwrap(), &b.role_ref, &b.subjects)
        } else {
            continue;
        };
        let place = if role.kind == "Role" { namespace } else { "" };
        assert!(
            roles.contains(&(place, role.name.as_str())),
            "{role:?} is not made"
        );
        for subject in subjects.iter().flatten() {
            assert_ne!(
                (subject.kind.as_str(), subject.name.as_str(), role.name.as_str()),
                ("User", "system:apiserver", "cluster-admin")
            );
            if subject.namespace.as_deref() == Some("kube-system")
                && role.name == format!("system:controller:{}", subject.name)
            {
                bound.insert(subject.name.as_str());
            }
        }
    }
    for account in accounts() {
        assert!(bound.contains(account), "{account} has no role of its own");
    }
}

#[test]
fn a4_only_administrators_are_bound_to_cluster_admin() {
    for default in default_roles::objects() {
        if let Some(binding) = default.object.as_any().downcast_ref::<ClusterRoleBinding>()
            && binding.role_ref.name == "cluster-admin"
        {
            let subjects: Vec<_> = binding
                .subjects
                .iter()
                .flatten()
                .map(|s| s.name.as_str())
                .collect();
            assert_eq!(subjects, ["system:masters"]);
        }
    }
}

async fn secret(cluster: &Cluster, namespace: &str) {
    let secret = json!({"metadata": {"name": "s", "namespace": namespace}, "stringData": {"password": "x"}});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let admin = cluster.server.api_as("admin", ["system:masters"]);
    admin.create_as(secret).await.unwrap();
}

async fn code(api: &dyn Api, verb: &str, kind: &'static Kind, namespace: &str, name: &str) -> u16 {
    let answer = match verb {
        "get" => api.get(kind, namespace, name).await.map(drop),
        "list" => {
            let options = ListOptions {
                namespace: namespace.into(),
                ..ListOptions::default()
            };
            api.list(kind, options).await.map(drop)
        }
        "patch" => {
            let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
            api.patch(kind, namespace, name, "", patch).await.map(drop)
        }
        _ => api
            .delete(kind, namespace, name, Default::default())
            .await
            .map(drop),
    };
    answer.map_or_else(|e| e.code(), |()| 200)
}

/// What a controller can be tricked into doing for a user ends at its own role.
#[tokio::test]
async fn a4_a_confused_controller_does_no_more_than_its_role_allows() {
    let cluster = Cluster::start().await;
    for namespace in ["default", "kube-system", "knarr-fencing"] {
        secret(&cluster, namespace).await;
    }
    let (secrets, nodes, roles) = (&registry::SECRET, &registry::NODE, &registry::CLUSTER_ROLE);
    let (pods, bindings) = (&registry::POD, &registry::CLUSTER_ROLE_BINDING);
    let fencing = Component::Controller("knarr-fencing-controller");
    let table = [
        (
            Component::Controller("job-controller"),
            "get",
            secrets,
            "default",
            403,
        ),
        (Component::Controller("job-controller"), "list", secrets, "", 403),
        (Component::Controller("job-controller"), "list", pods, "", 200),
        (Component::Controller("job-controller"), "delete", nodes, "", 403),
        (
            Component::Controller("replicaset-controller"),
            "patch",
            roles,
            "",
            403,
        ),
        (
            Component::Controller("namespace-controller"),
            "patch",
            pods,
            "default",
            403,
        ),
        (
            Component::Controller("endpoint-controller"),
            "delete",
            pods,
            "default",
            403,
        ),
        (Component::Scheduler, "get", secrets, "default", 403),
        (Component::Scheduler, "list", pods, "", 200),
        (Component::Scheduler, "patch", nodes, "", 403),
        (Component::ControllerManager, "list", secrets, "", 200),
        (Component::ControllerManager, "delete", pods, "default", 403),
        (Component::ControllerManager, "patch", bindings, "", 403),
        (Component::ApiServer, "get", nodes, "", 404),
        (Component::ApiServer, "get", secrets, "default", 403),
        (Component::ApiServer, "patch", nodes, "", 403),
        (Component::Node("n1".into()), "get", secrets, "default", 403),
        (Component::Node("n1".into()), "delete", pods, "default", 404),
        (fencing.clone(), "get", secrets, "knarr-fencing", 200),
        (fencing.clone(), "get", secrets, "default", 403),
        (fencing.clone(), "get", secrets, "kube-system", 403),
        (fencing.clone(), "list", secrets, "knarr-fencing", 403),
        (fencing, "delete", nodes, "", 403),
    ];
    let mut denied = BTreeSet::new();
    for (component, verb, kind, namespace, expected) in table {
        let api = cluster.server.api(&component);
        let found = code(&*api, verb, kind, namespace, "s").await;
        assert_eq!(
            found,
            expected,
            "{component:?} {verb} {} in {namespace:?}",
            kind.plural()
        );
        // Kubelets are regularly denied what their pods do not need.
        if expected == 403 && !matches!(component, Component::Node(_)) {
            denied.insert((component, verb, kind.plural()));
        }
    }
    assert_eq!(cluster.server.denied_components().len(), denied.len());
}

/// Whatever component it is for, `Server::api` gives no member of `system:masters`.
#[tokio::test]
async fn a4_no_component_may_do_everything() {
    let cluster = Cluster::start().await;
    let mut all: Vec<Component> = accounts().into_iter().map(Component::Controller).collect();
    all.extend([
        Component::ApiServer,
        Component::ControllerManager,
        Component::Scheduler,
        Component::Node("n1".into()),
    ]);
    for component in all {
        let api = cluster.server.api(&component);
        let kind = &registry::CLUSTER_ROLE_BINDING;
        let may_delete_all = component == Component::Controller("generic-garbage-collector")
            || component == Component::Controller("namespace-controller");
        // These two may delete anything, as in Kubernetes; no component may bind a role.
        let found = code(&*api, "delete", kind, "", "none").await;
        assert_eq!(found, if may_delete_all { 404 } else { 403 }, "{component:?}");
        let binding = json!({"metadata": {"name": "mine"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole", "name": "cluster-admin"}});
        let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
        let denied = api.create_as(binding).await.unwrap_err();
        assert_eq!(denied.code(), 403, "{component:?}: {denied}");
    }
}
