//! The pods of a run and the users that delete, scale and roll them out: StatefulSets, a Deployment and bare pods, whose
//! commands have their identity as arguments for [`crate::processes`] and record when they receive SIGTERM.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::check::grace::Deletions;
use crate::client::{Client, Reply, RequestError};
use crate::history::{Micros, now};
use crate::registers::Recorder;

/// The namespace of all pods of a run.
pub const NAMESPACE: &str = "pods";
/// The name of the StatefulSet and of the container of the self-fenced pods (SPEC B4).
pub const FENCED: &str = "fenced";
/// Between two actions of the users, in milliseconds.
const PAUSE_MILLIS: std::ops::Range<u64> = 1_500..6_000;
/// Grace periods of the users' deletions, in seconds; the pods' own are from 2 to 8.
const GRACES_SECONDS: std::ops::RangeInclusive<u64> = 3..=12;
/// Number of names of bare pods; each is used repeatedly.
const BARE: usize = 3;

/// A container that exits on SIGTERM, or one that ignores it; both record it.
fn pod_spec(marker: &str, record: &Path, container: &str, grace_seconds: u64, exits: bool) -> Value {
    let exit = if exits { "; exit 0" } else { "" };
    let script = format!(
        "trap 'read -r up rest < /proc/uptime; echo \"$2 $up\" >> /record/terms{exit}' TERM; \
         sleep 1000000 & while :; do wait $!; done"
    );
    let stubborn = if exits {
        "-".to_string()
    } else {
        grace_seconds.to_string()
    };
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let lost = |condition: &str| {
        json!({
            "key": format!("node.kubernetes.io/{condition}"),
            "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0,
        })
    };
    json!({
        "terminationGracePeriodSeconds": grace_seconds,
        "tolerations": [lost("unreachable"), lost("not-ready")],
        "volumes": [{ "name": "record", "hostPath": { "path": record, "type": "Directory" } }],
        "containers": [{
            "name": container,
            "image": "localhost/knarr/busybox:1",
            "env": [
                field("POD_NAME", "metadata.name"),
                field("POD_UID", "metadata.uid"),
                field("NODE_NAME", "spec.nodeName"),
            ],
            "command": [
                "sh", "-c", script, marker,
                format!("{NAMESPACE}/$(POD_NAME)"), "$(POD_UID)", "$(NODE_NAME)", container, stubborn,
            ],
            "volumeMounts": [{ "name": "record", "mountPath": "/record" }],
        }],
    })
}

fn workload(kind: &str, name: &str, replicas: u64, annotations: &Value, spec: &Value) -> Value {
    let labels = json!({ "app": name });
    let mut object = json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels, "annotations": annotations }, "spec": spec },
        },
    });
    if kind == "StatefulSet" {
        object["spec"]["serviceName"] = json!(name);
        object["spec"]["podManagementPolicy"] = json!("Parallel");
    }
    object
}

/// The workloads of a run, with the paths at which they are created.
pub fn workloads(marker: &str, record: &Path) -> Vec<(String, Value)> {
    let spec = |name, grace, exits| pod_spec(marker, record, name, grace, exits);
    let none = json!({});
    let self_fenced = json!({ "knarr.io/at-most-one": "true" });
    let path = |plural: &str| format!("/apis/apps/v1/namespaces/{NAMESPACE}/{plural}");
    let sets = [
        workload("StatefulSet", "db", 3, &none, &spec("db", 4, true)),
        workload("StatefulSet", "slow", 1, &none, &spec("slow", 6, false)),
        workload("StatefulSet", FENCED, 1, &self_fenced, &spec(FENCED, 2, true)),
    ];
    let web = workload("Deployment", "web", 2, &none, &spec("web", 2, true));
    let sets = sets.into_iter().map(|set| (path("statefulsets"), set));
    sets.chain([(path("deployments"), web)]).collect()
}

/// The users of the pods.
pub struct Users {
    pub clients: Vec<Client>,
    pub recorder: Arc<Recorder>,
    pub deletions: Arc<Mutex<Deletions>>,
    pub marker: String,
    pub record: std::path::PathBuf,
}

impl Users {
    /// Performs one action after the other until it is stopped.
    pub async fn run(self, seed: u64, stop: Arc<AtomicBool>) {
        let mut random = StdRng::seed_from_u64(seed);
        while !stop.load(Ordering::Relaxed) {
            let Some(client) = self.clients.choose(&mut random) else {
                return;
            };
            let (what, outcome) = match random.random_range(0..100) {
                0..45 => self.delete_one(client, &mut random).await,
                45..75 => self.create_bare(client, &mut random).await,
                75..88 => self.scale(client, random.random_range(1..=4)).await,
                _ => self.roll_out(client, &mut random).await,
            };
            let outcome = match outcome {
                Ok(_) => "ok".to_string(),
                Err(e) => e.to_string(),
            };
            let record = json!({ "at_server": client.server, "does": what, "outcome": outcome });
            self.recorder.history.record("user", &record);
            tokio::time::sleep(Duration::from_millis(random.random_range(PAUSE_MILLIS))).await;
        }
    }

    async fn delete_one(&self, client: &Client, random: &mut StdRng) -> (String, Reply) {
        let pods = match client.get(&format!("/api/v1/namespaces/{NAMESPACE}/pods")).await {
            Ok(pods) => pods,
            Err(e) => return ("list pods".into(), Err(e)),
        };
        let items = pods["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(pod) = items.choose(random) else {
            return (
                "delete a pod".into(),
                Err(RequestError::NotSent("there are no pods".into())),
            );
        };
        let (name, uid) = (&pod["metadata"]["name"], &pod["metadata"]["uid"]);
        let (name, uid) = (
            name.as_str().unwrap_or_default(),
            uid.as_str().unwrap_or_default(),
        );
        let grace = random
            .random_bool(0.6)
            .then(|| random.random_range(GRACES_SECONDS));
        let mut options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid },
        });
        if let Some(grace) = grace {
            options["gracePeriodSeconds"] = json!(grace);
            // Recorded before it is sent: it may take effect before its response.
            let mut deletions = self.deletions.lock();
            deletions.entry(uid.to_string()).or_default().push((now(), grace));
        }
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}");
        let reply = client
            .send(Method::DELETE, &path, Some(("application/json", &options)))
            .await;
        (format!("delete pod {name} ({uid}), grace {grace:?}"), reply)
    }

    async fn create_bare(&self, client: &Client, random: &mut StdRng) -> (String, Reply) {
        let name = format!("bare-{}", random.random_range(0..BARE));
        let grace = random.random_range(5..=8);
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name },
            "spec": pod_spec(&self.marker, &self.record, "stubborn", grace, false),
        });
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let reply = client
            .send(Method::POST, &path, Some(("application/json", &pod)))
            .await;
        (format!("create pod {name}, grace {grace}"), reply)
    }

    async fn scale(&self, client: &Client, replicas: u64) -> (String, Reply) {
        let patch = json!({ "spec": { "replicas": replicas } });
        let outcome = self.patch(client, "deployments/web", &patch).await;
        (format!("scale web to {replicas}"), outcome)
    }

    async fn roll_out(&self, client: &Client, random: &mut StdRng) -> (String, Reply) {
        let targets = ["statefulsets/db", "statefulsets/slow", "deployments/web"];
        let target = targets.choose(random).copied().unwrap_or(targets[0]);
        let annotations = json!({ "rolled-out": random.random_range(0..u32::MAX).to_string() });
        let patch = json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } });
        let outcome = self.patch(client, target, &patch).await;
        (format!("roll out {target}"), outcome)
    }

    async fn patch(&self, client: &Client, target: &str, patch: &Value) -> Reply {
        let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/{target}");
        let content = ("application/merge-patch+json", patch);
        client.send(Method::PATCH, &path, Some(content)).await
    }
}

/// When the processes of each pod, by UID, received SIGTERM, from their records.
pub fn terms(record: &str) -> BTreeMap<String, Vec<Micros>> {
    let mut terms: BTreeMap<String, Vec<Micros>> = BTreeMap::new();
    for line in record.lines() {
        if let Some((uid, up)) = line.split_once(' ')
            && let Some((seconds, hundredths)) = up.split_once('.')
            && let (Ok(seconds), Ok(hundredths)) = (seconds.parse::<u64>(), hundredths.parse::<u64>())
        {
            let at = seconds * 1_000_000 + hundredths * 10_000;
            terms.entry(uid.to_string()).or_default().push(at);
        }
    }
    terms
}

/// The first object that is not in the desired state.
#[derive(Debug, thiserror::Error)]
pub enum NotConverged {
    #[error("{0}")]
    Read(#[from] RequestError),
    #[error("{found} nodes, expected {expected}")]
    Nodes { found: usize, expected: usize },
    #[error("node {0} is not Ready")]
    NodeNotReady(String),
    #[error("{plural}/{name}: {status}")]
    Workload {
        plural: &'static str,
        name: String,
        status: Value,
    },
    #[error("pod {name} ({uid}) on {node}: deleted {deleted}, status {status}")]
    Pod {
        name: String,
        uid: Value,
        node: Value,
        deleted: Value,
        status: Value,
    },
}

/// Whether the cluster has converged: every node Ready, every replica of the newest template ready, no pod terminating.
pub async fn is_converged(client: &Client, agents: usize) -> Result<(), NotConverged> {
    let items = |list: &Value| list["items"].as_array().cloned().unwrap_or_default();
    let name = |object: &Value| {
        object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_string()
    };
    let is_ready = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    let nodes = items(&client.get("/api/v1/nodes").await?);
    if nodes.len() != agents {
        return Err(NotConverged::Nodes {
            found: nodes.len(),
            expected: agents,
        });
    }
    if let Some(node) = nodes.iter().find(|node| !is_ready(node)) {
        return Err(NotConverged::NodeNotReady(name(node)));
    }
    for plural in ["statefulsets", "deployments"] {
        let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/{plural}");
        for object in items(&client.get(&path).await?) {
            let status = |field: &str| object["status"][field].as_u64().unwrap_or_default();
            let replicas = object["spec"]["replicas"].as_u64().unwrap_or_default();
            let generation = object["metadata"]["generation"].as_u64().unwrap_or_default();
            let counts = ["replicas", "readyReplicas", "updatedReplicas"].map(status);
            if counts != [replicas; 3] || status("observedGeneration") != generation {
                return Err(NotConverged::Workload {
                    plural,
                    name: name(&object),
                    status: object["status"].clone(),
                });
            }
        }
    }
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    for pod in items(&client.get(&path).await?) {
        let is_terminal = ["Succeeded", "Failed"]
            .iter()
            .any(|phase| pod["status"]["phase"] == *phase);
        if !pod["metadata"]["deletionTimestamp"].is_null() || !(is_ready(&pod) || is_terminal) {
            return Err(NotConverged::Pod {
                name: name(&pod),
                uid: pod["metadata"]["uid"].clone(),
                node: pod["spec"]["nodeName"].clone(),
                deleted: pod["metadata"]["deletionTimestamp"].clone(),
                status: pod["status"].clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_pods_are_read_by_uid_and_an_incomplete_line_is_skipped() {
        let record = "u1 100.25\nu2 7.00\nu1 103.5\nu1 no\nu3 12";
        let terms = terms(record);
        assert_eq!(terms.len(), 2);
        assert_eq!(terms["u1"], [100_250_000, 103_050_000]);
        assert_eq!(terms["u2"], [7_000_000]);
    }

    #[test]
    fn the_commands_of_pods_have_the_arguments_that_the_sampler_reads() {
        let spec = pod_spec("knarr-nemesis-7", Path::new("/r"), "slow", 6, false);
        let command = spec["containers"][0]["command"].as_array().unwrap();
        let args: Vec<&str> = command.iter().filter_map(Value::as_str).collect();
        assert_eq!(
            args[3..],
            [
                "knarr-nemesis-7",
                "pods/$(POD_NAME)",
                "$(POD_UID)",
                "$(NODE_NAME)",
                "slow",
                "6"
            ]
        );
        let exits = pod_spec("m", Path::new("/r"), "db", 4, true);
        assert_eq!(exits["containers"][0]["command"][8], "-");
    }
}
