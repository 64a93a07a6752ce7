//! Clients that write, read and list registers: ConfigMaps whose only datum is the number of the write that they are of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::client::{Client, Reply};
use crate::history::{Answer, Call, History, List, Operation, Snapshot, Version, now};

/// The namespace of the registers; nothing else is in it but what knarr puts into every namespace.
pub const NAMESPACE: &str = "registers";
/// Between two requests of a client, in milliseconds: some thousand requests a round, spread over the time of the faults.
const PAUSE_MILLIS: std::ops::Range<u64> = 5..120;
/// After one without a clear answer: a server that is down is not asked a thousand times.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(400);
/// What is listed is labelled so, which knarr's own ConfigMaps are not.
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

/// The path of a register, or of all.
pub fn path(key: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{key}")
}

pub fn list_path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps?{SELECTOR}")
}

/// The version that an object is, if it is a register.
pub fn version_of(object: &Value) -> Option<(String, Version)> {
    let meta = &object["metadata"];
    let version = Version {
        revision: meta["resourceVersion"].as_str()?.parse().ok()?,
        write: object["data"]["write"].as_str()?.parse().ok()?,
    };
    Some((meta["name"].as_str()?.to_string(), version))
}

/// The snapshot that a list is; an error if anything in it is no register.
pub fn snapshot_of(list: &Value) -> Result<Snapshot, String> {
    let revision = list["metadata"]["resourceVersion"].as_str();
    let revision = revision.and_then(|r| r.parse().ok());
    let revision = revision.ok_or_else(|| format!("a list of no revision: {}", list["metadata"]))?;
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let registers = items
        .iter()
        .map(|item| version_of(item).ok_or_else(|| format!("an item that is no register: {item}")));
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
    /// Works on these registers until it is stopped; what it does next follows from the seed and the answers.
    pub async fn run(self, keys: Vec<String>, seed: u64, stop: Arc<AtomicBool>) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut known: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
        while !stop.load(Ordering::Relaxed) {
            let Some(key) = keys.choose(&mut random) else {
                return;
            };
            let draw = random.random_range(0..100);
            let is_clear = if draw < 10 {
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
                    Answer::Ok(Some(version)) => {
                        known.insert(key.clone(), version.revision);
                    }
                    Answer::Ok(None) | Answer::NotFound => {
                        known.remove(key);
                    }
                    Answer::Conflict => {
                        // Reads before it writes again, as controllers do.
                        known.remove(key);
                    }
                    Answer::AlreadyExists | Answer::Rejected(_) | Answer::Unknown(_) => {}
                }
                !matches!(answer, Answer::Rejected(_) | Answer::Unknown(_))
            };
            let pause = Duration::from_millis(random.random_range(PAUSE_MILLIS));
            tokio::time::sleep(if is_clear { pause } else { PAUSE_AFTER_ERROR }).await;
        }
    }

    /// One request for a register, recorded.
    pub async fn call(&self, key: &str, operation: Operation) -> Answer {
        let start = now();
        let reply = self.ask(key, operation).await;
        let end = now();
        let answer = answer_of(operation, reply);
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

    async fn ask(&self, key: &str, operation: Operation) -> Reply {
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

    /// A list of all registers, recorded. Whether it was answered.
    pub async fn list(&self) -> bool {
        let start = now();
        let reply = self.client.get(&list_path()).await;
        let end = now();
        let Reply::Ok(value) = reply else { return false };
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
                self.recorder.history.record("error", &e);
                false
            }
        }
    }
}

fn answer_of(operation: Operation, reply: Reply) -> Answer {
    match reply {
        Reply::Ok(_) if operation == Operation::Delete => Answer::Ok(None),
        Reply::Ok(object) => match version_of(&object) {
            Some((_, version)) => Answer::Ok(Some(version)),
            None => Answer::Unknown(format!("an answer that is no register: {object}")),
        },
        Reply::Status { reason, .. } if reason == "NotFound" => Answer::NotFound,
        Reply::Status { reason, .. } if reason == "AlreadyExists" => Answer::AlreadyExists,
        Reply::Status { reason, .. } if reason == "Conflict" => Answer::Conflict,
        Reply::Status {
            code,
            reason,
            message,
        } => Answer::Rejected(format!("{code} {reason}: {message}")),
        Reply::NotSent(text) => Answer::Rejected(text),
        Reply::Unknown(text) => Answer::Unknown(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_effect_is_not_taken_for_an_unknown_one_nor_the_other_way_round() {
        let create = Operation::Create { write: 7 };
        let status = |code, reason: &str| Reply::Status {
            code,
            reason: reason.into(),
            message: "m".into(),
        };
        let written =
            json!({ "metadata": { "name": "k", "resourceVersion": "12" }, "data": { "write": "7" } });
        let version = Version {
            revision: 12,
            write: 7,
        };
        for (operation, reply, expected) in [
            (create, Reply::Ok(written), Answer::Ok(Some(version))),
            (create, status(409, "AlreadyExists"), Answer::AlreadyExists),
            (create, status(409, "Conflict"), Answer::Conflict),
            (Operation::Get, status(404, "NotFound"), Answer::NotFound),
            (
                create,
                status(429, "TooManyRequests"),
                Answer::Rejected("429 TooManyRequests: m".into()),
            ),
            (
                create,
                Reply::NotSent("no route".into()),
                Answer::Rejected("no route".into()),
            ),
            (
                create,
                Reply::Unknown("504".into()),
                Answer::Unknown("504".into()),
            ),
            (Operation::Delete, Reply::Ok(json!({})), Answer::Ok(None)),
        ] {
            assert_eq!(answer_of(operation, reply), expected);
        }
        let odd = answer_of(create, Reply::Ok(json!({})));
        assert!(matches!(odd, Answer::Unknown(_)), "{odd:?}");
    }
}
