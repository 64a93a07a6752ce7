//! The audit log: who requested what, and the result, as `audit.k8s.io/v1` Events, one JSON line each.
//!
//! A [`Policy`] decides which requests are recorded, and how much of them. Events wait in a bounded [`queue`].

pub mod file;
pub mod policy;
pub mod queue;

use std::io::{self, Write as _};
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use serde_json::{Value, json};

use self::file::{LogFile, Writer};
pub use self::policy::{Level, Policy, Stage};
pub use self::queue::Lines;
use self::queue::Queue;
use crate::http::header;
use crate::request::RequestInfo;
use crate::seams::Clock;
use crate::user::User;

/// A policy, and the queue of its events.
#[derive(Clone, Debug)]
pub struct Audit {
    policy: Arc<Policy>,
    queue: Queue,
}

impl Audit {
    /// The second value is the receiving end of the events.
    pub fn new(policy: Policy) -> (Self, Lines) {
        let (queue, lines) = queue::queue();
        let policy = Arc::new(policy);
        (Audit { policy, queue }, lines)
    }

    /// Events that were dropped because the log could not be written.
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    /// Begins the record of a request; `None` if the policy does not audit it.
    pub(crate) fn begin(&self, mut event: Event, user: &User, info: &RequestInfo) -> Option<Record> {
        let decision = self.policy.decide(user, info);
        if decision.level == Level::None {
            return None;
        }
        event.fields["level"] = decision.level.name().into();
        Some(Record {
            fields: event.fields,
            level: decision.level,
            omit_stages: decision.omit_stages,
            omit_managed_fields: decision.omit_managed_fields,
            queue: self.queue.clone(),
        })
    }
}

/// Where events are written.
#[derive(Clone, Debug)]
pub enum Destination {
    Stdout,
    File(LogFile),
}

impl Destination {
    fn open(self) -> io::Result<Box<Write>> {
        Ok(match self {
            Destination::Stdout => Box::new(|text, _| {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes())?;
                out.flush()
            }),
            Destination::File(file) => {
                let mut writer = Writer::open(file)?;
                Box::new(move |text, now| writer.write(text, now))
            }
        })
    }
}

/// Writes complete lines, with the time of the write.
type Write = dyn FnMut(&str, Timestamp) -> io::Result<()> + Send;

/// Writes events until the queue closes.
pub fn write_to(destination: Destination, mut lines: Lines, clock: Arc<dyn Clock>) -> io::Result<()> {
    let mut write = destination.open()?;
    std::thread::Builder::new().name("audit".into()).spawn(move || {
        while let Some(text) = lines.blocking_take() {
            match write(&text, clock.now()) {
                Ok(()) => lines.written(),
                Err(e) => tracing::error!("the audit log cannot be written: {e}"),
            }
        }
    })?;
    Ok(())
}

/// The fields that every event of a request has.
pub(crate) struct Event {
    fields: Value,
}

impl Event {
    pub fn new(
        id: &str,
        uri: &str,
        info: &RequestInfo,
        headers: &HeaderMap,
        source: Option<std::net::IpAddr>,
        received: Timestamp,
    ) -> Self {
        let agent = header::user_agent(headers);
        let mut fields = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "",
            "auditID": id,
            "stage": "",
            "requestURI": uri,
            "verb": info.verb,
            "requestReceivedTimestamp": micros(received),
        });
        if !agent.is_empty() {
            fields["userAgent"] = agent.into();
        }
        if let Some(source) = source {
            fields["sourceIPs"] = json!([source.to_string()]);
        }
        if info.is_resource {
            let mut object = json!({});
            for (name, value) in [
                ("resource", &info.resource),
                ("namespace", &info.namespace),
                ("name", &info.name),
                ("apiGroup", &info.group),
                ("apiVersion", &info.version),
                ("subresource", &info.subresource),
            ] {
                if !value.is_empty() {
                    object[name] = value.as_str().into();
                }
            }
            fields["objectRef"] = object;
        }
        Event { fields }
    }

    pub fn user(mut self, user: &User, impersonator: Option<&User>) -> Self {
        match impersonator {
            Some(by) => {
                self.fields["user"] = shown(by);
                self.fields["impersonatedUser"] = shown(user);
            }
            None => self.fields["user"] = shown(user),
        }
        self
    }
}

fn shown(user: &User) -> Value {
    let mut shown = json!({"username": user.name});
    if !user.uid.is_empty() {
        shown["uid"] = user.uid.as_str().into();
    }
    if !user.groups.is_empty() {
        shown["groups"] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        shown["extra"] = json!(user.extra);
    }
    shown
}

fn micros(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// The metadata of a request object.
#[derive(serde::Deserialize)]
struct Sent {
    metadata: ObjectMeta,
}

/// The audit events of one request.
pub(crate) struct Record {
    fields: Value,
    pub level: Level,
    omit_stages: Vec<Stage>,
    omit_managed_fields: bool,
    queue: Queue,
}

impl Record {
    /// Records the request object; a body that is not JSON is left out.
    pub fn request(&mut self, body: &Bytes) {
        if matches!(self.fields["verb"].as_str(), Some("create" | "update"))
            && let Ok(sent) = serde_json::from_slice::<Sent>(body)
        {
            self.refer_to(&sent.metadata);
        }
        if self.level >= Level::Request
            && let Some(object) = self.object(body)
        {
            self.fields["requestObject"] = object;
        }
    }

    /// The URL of a create has no name; the request object has it.
    fn refer_to(&mut self, meta: &ObjectMeta) {
        let Some(object) = self.fields.get_mut("objectRef").and_then(Value::as_object_mut) else {
            return;
        };
        for (field, value) in [
            ("namespace", &meta.namespace),
            ("name", &meta.name),
            ("uid", &meta.uid),
            ("resourceVersion", &meta.resource_version),
        ] {
            if let Some(value) = value.as_deref().filter(|v| !v.is_empty()) {
                object.entry(field).or_insert_with(|| value.into());
            }
        }
    }

    /// Records the response.
    pub fn response(&mut self, code: u16, body: Option<&Bytes>) {
        let mut status = json!({"metadata": {}, "code": code});
        let object = body.and_then(|b| serde_json::from_slice::<Value>(b).ok());
        if let Some(object) = object.as_ref().filter(|o| o["kind"] == "Status") {
            for field in ["status", "message", "reason", "details"] {
                if !object[field].is_null() {
                    status[field] = object[field].clone();
                }
            }
        }
        self.fields["responseStatus"] = status;
        if self.level >= Level::RequestResponse
            && let Some(object) = body.and_then(|b| self.object(b))
        {
            self.fields["responseObject"] = object;
        }
    }

    pub fn annotate(&mut self, key: &str, value: &str) {
        self.fields["annotations"][key] = value.into();
    }

    /// Writes the event of this stage, unless the policy omits it.
    pub async fn stage(&self, stage: Stage, now: Timestamp) {
        if let Some(line) = self.line(stage, now) {
            self.queue.push(line).await;
        }
    }

    /// Like [`Record::stage`], where the caller cannot wait.
    pub fn stage_later(&self, stage: Stage, now: Timestamp) {
        if let Some(line) = self.line(stage, now) {
            self.queue.try_push(line);
        }
    }

    fn line(&self, stage: Stage, now: Timestamp) -> Option<String> {
        if self.omit_stages.contains(&stage) {
            return None;
        }
        let mut fields = self.fields.clone();
        fields["stage"] = stage.name().into();
        fields["stageTimestamp"] = micros(now).into();
        if stage == Stage::RequestReceived {
            for later in ["responseStatus", "requestObject", "responseObject"] {
                fields.as_object_mut()?.remove(later);
            }
        }
        Some(fields.to_string())
    }

    fn object(&self, body: &Bytes) -> Option<Value> {
        let mut object: Value = serde_json::from_slice(body).ok()?;
        if self.omit_managed_fields {
            without_managed_fields(&mut object);
        }
        Some(object)
    }
}

/// Removes the managed fields of an object, or of a list's items.
fn without_managed_fields(object: &mut Value) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
    for item in object
        .get_mut("items")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        without_managed_fields(item);
    }
}
