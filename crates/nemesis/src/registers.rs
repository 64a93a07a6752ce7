//! Clients that write, read and list registers: ConfigMaps whose only data is the number of their last write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::client::{Client, Reply, RequestError};
use crate::history::{Call, CallResult, History, List, Operation, Snapshot, Version, now};

/// The namespace of the registers; it has no other objects, except those of every namespace.
pub const NAMESPACE: &str = "registers";
/// Between two requests of a client, in milliseconds: some thousand requests a round, spread over the time of the faults.
const PAUSE_MILLIS: std::ops::Range<u64> = 5..120;
/// After a call without a definite result: a server that is down does not get a thousand requests.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(400);
/// The label of registers, which other ConfigMaps do not have.
pub const SELECTOR: &str = "labelSelector=register";

/// What the clients of a run record.
pub struct Recorder {
    pub history: History,
    pub calls: Mutex<Vec<Call>>,
    pub lists: Mutex<Vec<List>>,
    writes: AtomicU64,
}

impl Recorder {
    pub fn new(history: History) -> Recorder {
        Recorder {
            history,
            calls: Mutex::default(),
            lists: Mutex::default(),
            writes: AtomicU64::new(0),
        }
    }

    fn next_write(&self) -> u64 {
        self.writes.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn call(&self, call: Call) {
        self.history.record("call", &call);
        self.calls.lock().push(call);
    }
}

/// The path of a register.
pub fn path(key: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{key}")
}

pub fn list_path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps?{SELECTOR}")
}

/// The name and version of an object, if it is a register.
pub fn version_of(object: &Value) -> Option<(String, Version)> {
    let meta = &object["metadata"];
    let version = Version {
        revision: meta["resourceVersion"].as_str()?.parse().ok()?,
        write: object["data"]["write"].as_str()?.parse().ok()?,
    };
    Some((meta["name"].as_str()?.to_string(), version))
}

/// Why a list is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("a list without a resourceVersion: {metadata}")]
    NoRevision { metadata: Value },
    #[error("an item that is not a register: {item}")]
    OtherItem { item: Value },
}

/// The snapshot of a list.
pub fn snapshot_of(list: &Value) -> Result<Snapshot, ListError> {
    let revision = list["metadata"]["resourceVersion"].as_str();
    let revision = revision.and_then(|r| r.parse().ok());
    let revision = revision.ok_or_else(|| ListError::NoRevision {
        metadata: list["metadata"].clone(),
    })?;
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let other = |item: &Value| ListError::OtherItem { item: item.clone() };
    let registers = items
        .iter()
        .map(|item| version_of(item).ok_or_else(|| other(item)));
    Ok(Snapshot {
        revision,
        registers: registers.collect::<Result<_, _>>()?,
    })
}

fn object(key: &str, write: u64, revision: Option<u64>) -> Value {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": key, "labels": { "register": "" } },
        "data": { "write": write.to_string() },
    });
    if let Some(revision) = revision {
        object["metadata"]["resourceVersion"] = json!(revision.to_string());
    }
    object
}

/// One client of one server.
pub struct Worker {
    pub name: String,
    pub client: Client,
    pub recorder: Arc<Recorder>,
}

impl Worker {
    /// Calls these registers until it is stopped; its operations follow from the seed and the results.
    pub async fn run(self, keys: Vec<String>, seed: u64, stop: Arc<AtomicBool>) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut known: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
        while !stop.load(Ordering::Relaxed) {
            let Some(key) = keys.choose(&mut random) else {
                return;
            };
            let draw = random.random_range(0..100);
            let is_definite = if draw < 10 {
                self.list().await
            } else {
                let operation = match draw {
                    10..35 => Operation::Get,
                    35..50 => Operation::Patch {
                        write: self.recorder.next_write(),
                    },
                    50..65 => Operation::Create {
                        write: self.recorder.next_write(),
                    },
                    65..72 => Operation::Delete,
                    _ => match known.get(key) {
                        Some(revision) => Operation::Update {
                            write: self.recorder.next_write(),
                            expected: *revision,
                        },
                        None => Operation::Get,
                    },
                };
                let answer = self.call(key, operation).await;
                match &answer {
                    CallResult::Ok(Some(version)) => {
                        known.insert(key.clone(), version.revision);
                    }
                    CallResult::Ok(None) | CallResult::NotFound => {
                        known.remove(key);
                    }
                    CallResult::Conflict => {
                        // It reads before it writes again, as controllers do.
                        known.remove(key);
                    }
                    CallResult::AlreadyExists | CallResult::Rejected(_) | CallResult::Unknown(_) => {}
                }
                !matches!(answer, CallResult::Rejected(_) | CallResult::Unknown(_))
            };
            let pause = Duration::from_millis(random.random_range(PAUSE_MILLIS));
            tokio::time::sleep(if is_definite { pause } else { PAUSE_AFTER_ERROR }).await;
        }
    }

    /// One request for a register, recorded.
    pub async fn call(&self, key: &str, operation: Operation) -> CallResult {
        let start = now();
        let reply = self.send(key, operation).await;
        let end = now();
        let answer = result_of(operation, reply);
        self.recorder.call(Call {
            client: self.name.clone(),
            server: self.client.server.clone(),
            key: key.to_string(),
            operation,
            start,
            end,
            answer: answer.clone(),
        });
        answer
    }

    async fn send(&self, key: &str, operation: Operation) -> Reply {
        let (json, merge) = ("application/json", "application/merge-patch+json");
        match operation {
            Operation::Create { write } => {
                let body = object(key, write, None);
                let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
                self.client.send(Method::POST, &path, Some((json, &body))).await
            }
            Operation::Update { write, expected } => {
                let body = object(key, write, Some(expected));
                self.client
                    .send(Method::PUT, &path(key), Some((json, &body)))
                    .await
            }
            Operation::Patch { write } => {
                let body = json!({ "data": { "write": write.to_string() } });
                self.client
                    .send(Method::PATCH, &path(key), Some((merge, &body)))
                    .await
            }
            Operation::Delete => self.client.send(Method::DELETE, &path(key), None).await,
            Operation::Get => self.client.get(&path(key)).await,
        }
    }

    /// A list of all registers, recorded. Returns whether it succeeded.
    pub async fn list(&self) -> bool {
        let start = now();
        let reply = self.client.get(&list_path()).await;
        let end = now();
        let Ok(value) = reply else { return false };
        match snapshot_of(&value) {
            Ok(snapshot) => {
                let list = List {
                    client: self.name.clone(),
                    server: self.client.server.clone(),
                    start,
                    end,
                    snapshot,
                };
                self.recorder.history.record("list", &list);
                self.recorder.lists.lock().push(list);
                true
            }
            Err(e) => {
                self.recorder.history.record("error", &e.to_string());
                false
            }
        }
    }
}

fn result_of(operation: Operation, reply: Reply) -> CallResult {
    match reply {
        Ok(_) if operation == Operation::Delete => CallResult::Ok(None),
        Ok(object) => match version_of(&object) {
            Some((_, version)) => CallResult::Ok(Some(version)),
            None => CallResult::Unknown(format!("a response that is not a register: {object}")),
        },
        Err(RequestError::Status { reason, .. }) if reason == "NotFound" => CallResult::NotFound,
        Err(RequestError::Status { reason, .. }) if reason == "AlreadyExists" => CallResult::AlreadyExists,
        Err(RequestError::Status { reason, .. }) if reason == "Conflict" => CallResult::Conflict,
        Err(error @ (RequestError::Status { .. } | RequestError::NotSent(_))) => {
            CallResult::Rejected(error.to_string())
        }
        Err(RequestError::Unknown(text)) => CallResult::Unknown(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_without_effect_and_unknown_ones_are_distinguished() {
        let create = Operation::Create { write: 7 };
        let status = |code, reason: &str| {
            Err(RequestError::Status {
                code,
                reason: reason.into(),
                message: "m".into(),
            })
        };
        let written =
            json!({ "metadata": { "name": "k", "resourceVersion": "12" }, "data": { "write": "7" } });
        let version = Version {
            revision: 12,
            write: 7,
        };
        for (operation, reply, expected) in [
            (create, Ok(written), CallResult::Ok(Some(version))),
            (create, status(409, "AlreadyExists"), CallResult::AlreadyExists),
            (create, status(409, "Conflict"), CallResult::Conflict),
            (Operation::Get, status(404, "NotFound"), CallResult::NotFound),
            (
                create,
                status(429, "TooManyRequests"),
                CallResult::Rejected("429 TooManyRequests: m".into()),
            ),
            (
                create,
                Err(RequestError::NotSent("no route".into())),
                CallResult::Rejected("no route".into()),
            ),
            (
                create,
                Err(RequestError::Unknown("504".into())),
                CallResult::Unknown("504".into()),
            ),
            (Operation::Delete, Ok(json!({})), CallResult::Ok(None)),
        ] {
            assert_eq!(result_of(operation, reply), expected);
        }
        let odd = result_of(create, Ok(json!({})));
        assert!(matches!(odd, CallResult::Unknown(_)), "{odd:?}");
    }
}
