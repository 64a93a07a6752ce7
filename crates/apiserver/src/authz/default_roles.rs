//! The roles and bindings a fresh cluster has, as far as users meet them (Kubernetes `bootstrappolicy`).
//!
//! Made at start where they are missing; what somebody changed about them stays.

use knarr_api::{AnyObject, Error, Kind, registry};
use serde_json::{Value, json};

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn urls(paths: &[&str]) -> Value {
    json!({"nonResourceURLs": paths, "verbs": ["get"]})
}

/// What belongs to an application in a namespace: group, and resources.
const APPLICATION: [(&str, &[&str]); 8] = [
    (
        "",
        &[
            "configmaps",
            "endpoints",
            "persistentvolumeclaims",
            "persistentvolumeclaims/status",
            "pods",
            "replicationcontrollers",
            "replicationcontrollers/scale",
            "serviceaccounts",
            "services",
            "services/status",
        ],
    ),
    (
        "apps",
        &[
            "controllerrevisions",
            "daemonsets",
            "daemonsets/status",
            "deployments",
            "deployments/scale",
            "deployments/status",
            "replicasets",
            "replicasets/scale",
            "replicasets/status",
            "statefulsets",
            "statefulsets/scale",
            "statefulsets/status",
        ],
    ),
    (
        "autoscaling",
        &["horizontalpodautoscalers", "horizontalpodautoscalers/status"],
    ),
    ("batch", &["cronjobs", "cronjobs/status", "jobs", "jobs/status"]),
    ("policy", &["poddisruptionbudgets", "poddisruptionbudgets/status"]),
    (
        "networking.k8s.io",
        &["ingresses", "ingresses/status", "networkpolicies"],
    ),
    ("discovery.k8s.io", &["endpointslices"]),
    ("coordination.k8s.io", &["leases"]),
];

fn view() -> Vec<Value> {
    let mut rules: Vec<Value> = APPLICATION
        .iter()
        .filter(|(g, _)| *g != "coordination.k8s.io")
        .map(|(g, r)| rule(&[g], r, &READ))
        .collect();
    rules.push(rule(
        &[""],
        &[
            "bindings",
            "events",
            "limitranges",
            "namespaces",
            "namespaces/status",
            "pods/log",
            "pods/status",
            "replicationcontrollers/status",
            "resourcequotas",
            "resourcequotas/status",
        ],
        &READ,
    ));
    rules
}

fn edit() -> Vec<Value> {
    let mut rules = view();
    rules.extend(APPLICATION.iter().map(|(g, r)| rule(&[g], r, &WRITE)));
    rules.push(rule(&["coordination.k8s.io"], &["leases"], &READ));
    rules.push(rule(&[""], &["secrets"], &[&READ[..], &WRITE[..]].concat()));
    rules.push(rule(&[""], &["events"], &WRITE));
    rules.push(rule(
        &[""],
        &[
            "pods/attach",
            "pods/exec",
            "pods/portforward",
            "pods/proxy",
            "services/proxy",
        ],
        &READ,
    ));
    rules.push(rule(
        &[""],
        &[
            "pods/attach",
            "pods/exec",
            "pods/portforward",
            "pods/proxy",
            "services/proxy",
        ],
        &WRITE,
    ));
    rules.push(rule(
        &[""],
        &["pods/eviction", "serviceaccounts/token"],
        &["create"],
    ));
    rules.push(rule(&[""], &["serviceaccounts"], &["impersonate"]));
    rules
}

fn admin() -> Vec<Value> {
    let mut rules = edit();
    rules.push(rule(
        &["authorization.k8s.io"],
        &["localsubjectaccessreviews"],
        &["create"],
    ));
    rules.push(rule(
        &["rbac.authorization.k8s.io"],
        &["rolebindings", "roles"],
        &[&READ[..], &WRITE[..]].concat(),
    ));
    rules
}

const HEALTH: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Cluster roles by name.
fn roles() -> Vec<(&'static str, Vec<Value>)> {
    let discovery = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"];
    vec![
        (
            "cluster-admin",
            vec![
                rule(&["*"], &["*"], &["*"]),
                json!({"nonResourceURLs": ["*"], "verbs": ["*"]}),
            ],
        ),
        ("admin", admin()),
        ("edit", edit()),
        ("view", view()),
        (
            "system:discovery",
            vec![urls(&[&discovery[..], &HEALTH[..]].concat())],
        ),
        (
            "system:basic-user",
            vec![
                rule(
                    &["authorization.k8s.io"],
                    &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                    &["create"],
                ),
                rule(&["authentication.k8s.io"], &["selfsubjectreviews"], &["create"]),
            ],
        ),
        ("system:public-info-viewer", vec![urls(&HEALTH)]),
        (
            "system:service-account-issuer-discovery",
            vec![urls(&[
                "/.well-known/openid-configuration",
                "/.well-known/openid-configuration/",
                "/openid/v1/jwks",
                "/openid/v1/jwks/",
            ])],
        ),
        (
            "system:monitoring",
            vec![urls(&[
                "/metrics",
                "/healthz",
                "/healthz/*",
                "/livez",
                "/livez/*",
                "/readyz",
                "/readyz/*",
            ])],
        ),
    ]
}

/// Bindings: role and groups.
const BINDINGS: [(&str, &[&str]); 6] = [
    ("cluster-admin", &["system:masters"]),
    ("system:discovery", &["system:authenticated"]),
    ("system:basic-user", &["system:authenticated"]),
    (
        "system:public-info-viewer",
        &["system:authenticated", "system:unauthenticated"],
    ),
    (
        "system:service-account-issuer-discovery",
        &["system:serviceaccounts"],
    ),
    ("system:monitoring", &["system:monitoring"]),
];

/// An object to be created.
pub type Made = (&'static Kind, Box<dyn AnyObject>);

/// All of them.
pub fn objects() -> Result<Vec<Made>, Error> {
    let meta = |name: &str| {
        json!({
            "name": name,
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        })
    };
    let mut documents: Vec<(&'static Kind, Value)> = Vec::new();
    for (name, rules) in roles() {
        documents.push((
            &registry::CLUSTER_ROLE,
            json!({"metadata": meta(name), "rules": rules}),
        ));
    }
    for (role, groups) in BINDINGS {
        let subjects: Vec<Value> = groups
            .iter()
            .map(|g| json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": g}))
            .collect();
        let role_ref = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
        documents.push((
            &registry::CLUSTER_ROLE_BINDING,
            json!({"metadata": meta(role), "roleRef": role_ref, "subjects": subjects}),
        ));
    }
    documents
        .into_iter()
        .map(|(kind, document)| {
            let decoded = kind
                .ops
                .decode(document.to_string().as_bytes())
                .map_err(|e| Error::internal(e.message))?;
            Ok((kind, decoded.object))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_role_and_binding_is_an_object_of_its_kind() {
        let objects = objects().unwrap();
        assert_eq!(objects.len(), roles().len() + BINDINGS.len());
        for (role, _) in BINDINGS {
            assert!(roles().iter().any(|(name, _)| *name == role), "{role}");
        }
    }
}
