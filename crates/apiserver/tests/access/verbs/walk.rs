//! Walks over the table.

use std::collections::HashMap;

use knarr_api::registry;
use serde_json::{Value, json};

use super::authorizer::{Allowed, Recorder, user};
use super::rows::{Row, rows};
use crate::cluster::{Client, Cluster};

/// What admission checks in addition for writers of roles and bindings; [`super::creates`] tests those.
const OF_ROLES: [&str; 2] = ["escalate ", "bind "];

/// A connection for every media type.
struct Walker<'a> {
    cluster: &'a Cluster,
    clients: HashMap<&'static str, Client>,
}

impl Walker<'_> {
    /// The result of a row: code and message.
    async fn send(&mut self, row: &Row) -> (u16, String) {
        let client = match self.clients.remove(row.media) {
            Some(client) => client,
            None => {
                let credentials = user().header("content-type", row.media);
                self.cluster.connect(&credentials).await.unwrap()
            }
        };
        let (client, answer) = client.begin(row.method, &row.path, row.body.as_ref()).await;
        if let Some(client) = client {
            self.clients.insert(row.media, client);
        }
        answer
    }
}

/// Custom resources, one of each scope, with every subresource.
pub async fn definitions(cluster: &Cluster) {
    for (plural, kind, scope) in [
        ("widgets", "Widget", "Namespaced"),
        ("gadgets", "Gadget", "Cluster"),
    ] {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {
                "group": "example.com",
                "scope": scope,
                "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
                "versions": [{
                    "name": "v1",
                    "served": true,
                    "storage": true,
                    "subresources": {"status": {}, "scale": {
                        "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                        "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
                        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}}},
                }],
            },
        });
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        cluster.create(path, definition).await;
    }
    loop {
        let found = cluster.admin("GET", "/apis/example.com/v1", None).await;
        let names = found.body["resources"].as_array().map_or(0, Vec::len);
        // Two kinds with two subresources each.
        if names == 6 {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// A node with knarr's own kubelet, so that `metrics.k8s.io` is served.
pub async fn own_node(cluster: &Cluster) {
    let node = json!({"metadata": {"name": "n1"}, "status": {"nodeInfo": {
        "kubeletVersion": "v1.36.2+knarr", "architecture": "", "bootID": "", "containerRuntimeVersion": "",
        "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
        "systemUUID": ""}}});
    cluster.create("/api/v1/nodes", node).await;
}

#[tokio::test]
async fn a2_each_request_asks_for_exactly_what_it_touches() {
    let (cluster, recorder) = Recorder::cluster().await;
    definitions(&cluster).await;
    own_node(&cluster).await;
    // Without it, pods are denied for another reason.
    let account = json!({"metadata": {"name": "default"}});
    cluster
        .create("/api/v1/namespaces/default/serviceaccounts", account)
        .await;
    let rows = rows(&cluster).await;
    for kind in registry::ALL {
        let part = format!(" {}/{}/ ", kind.group(), kind.plural());
        let named = |row: &Row| row.asks.iter().any(|asks| asks.contains(&part));
        assert!(rows.iter().any(named), "{part} is in no row");
    }
    let mut walker = Walker {
        cluster: &cluster,
        clients: HashMap::new(),
    };
    let mut wrong = Vec::new();
    for row in &rows {
        let what = format!("{} {} ({})", row.method, row.path, row.media);
        // Without any one of them it is denied, and the message names the missing one.
        for missing in &row.asks {
            recorder.allow(Allowed::AllBut(missing.clone()));
            let (code, text) = walker.send(row).await;
            if code != 403 || !names(&text, missing) {
                wrong.push(format!("{what} without {missing:?}: {code} {text}"));
            }
        }
        // With these alone it is allowed, and nothing else is checked.
        recorder.allow(Allowed::Only(row.asks.clone()));
        let (code, text) = walker.send(row).await;
        let mut asked = recorder.asked();
        asked.retain(|asked| !OF_ROLES.iter().any(|verb| asked.starts_with(verb)));
        if matches!(code, 401 | 403) || asked != row.asks {
            wrong.push(format!(
                "{what} with {:?}: {code}, asked {asked:?} {text}",
                row.asks
            ));
        }
        tidy(&cluster, row, code).await;
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}

/// Whether a denial names the permission.
fn names(text: &str, missing: &str) -> bool {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    let message = body["message"].as_str().unwrap_or("");
    let (verb, what) = missing.split_once(' ').unwrap();
    let Some((resource, place)) = what.split_once(' ') else {
        return message.contains(&format!("cannot {verb} path {what:?}"));
    };
    let (group, resource) = resource.split_once('/').unwrap();
    let resource = resource.trim_end_matches('/');
    let said = format!("cannot {verb} resource {resource:?} in API group {group:?}");
    let streams = ["exec", "attach", "portforward"]
        .iter()
        .any(|s| resource.ends_with(s));
    let named = match place.split_once('/') {
        Some((_, name)) if !name.is_empty() => message.contains(&format!(" {name:?} is forbidden: ")),
        _ => message.contains(" is forbidden: "),
    };
    // The denial of a stream's additional permission has no more details, as in Kubernetes.
    named && (message.contains(&said) || (streams && verb == "create"))
}

/// Deletes what a row has created, so that the next one finds nothing either.
async fn tidy(cluster: &Cluster, row: &Row, code: u16) {
    if code != 201 || row.path.contains("dryRun") {
        return;
    }
    let path = row.path.split('?').next().unwrap();
    let path = match row.method {
        "POST" => format!("{path}/x"),
        _ => path.to_string(),
    };
    let merge =
        crate::cluster::Credentials::token(crate::cluster::ADMIN).header("content-type", super::rows::MERGE);
    let none = json!({"metadata": {"finalizers": null}});
    // Reviews are not stored, and what does not exist needs no deletion.
    cluster.ask(&merge, "PATCH", &path, Some(none)).await;
    let now = json!({"gracePeriodSeconds": 0});
    cluster.admin("DELETE", &path, Some(now)).await;
    if path.starts_with("/api/v1/namespaces/x") {
        // Its controller would delete the contents first.
        let empty = json!({"metadata": {"name": "x"}});
        cluster
            .admin("PUT", &format!("{path}/finalize"), Some(empty))
            .await;
    }
}
