//! API Priority and Fairness: which requests are served at once, whose wait, and who is told to come back later, so
//! that overload costs clients time and not the server memory.
//!
//! Each request belongs to the first FlowSchema that matches it, and takes a seat of that schema's priority level.
//! Seats are shared out by the levels' shares of all there are, and lent between levels by what is asked of each
//! (`lending`); every request takes one. A row for each flow stands where Kubernetes deals flows to a fixed number of queues.

mod classes;
mod lending;
mod level;
mod objects;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, FlowSchemaCondition};
use knarr_api::time::seconds;
use knarr_api::{Error, Object, k8s_openapi, registry};
use knarr_client::Preconditions;
use parking_lot::RwLock;

pub(crate) use self::classes::Flow;
use self::classes::{Classes, Requests};
pub(crate) use self::level::Refused;
use self::level::Seat;
pub(crate) use self::objects::objects;
use crate::cache::change::Filter;
use crate::pipeline::{Ctx, Target};
use crate::request::RequestInfo;
use crate::server::Server;
use crate::user::User;

/// Seats, as kube-apiserver's `--max-requests-inflight` and `--max-mutating-requests-inflight`, which count together.
pub const READ_ONLY: usize = 400;
pub const MUTATING: usize = 200;

const SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// How requests are told apart now. See the module.
pub(crate) struct FlowControl {
    seats: usize,
    classes: RwLock<Arc<Classes>>,
}

impl FlowControl {
    pub fn new(seats: usize) -> Self {
        FlowControl {
            seats,
            classes: RwLock::default(),
        }
    }

    pub fn write_metrics(&self, out: &mut String) {
        self.classes.read().clone().write_metrics(out);
    }

    pub fn of(&self, user: &User, request: &RequestInfo) -> Option<Flow> {
        let classes = self.classes.read().clone();
        classes.of(user, request)
    }
}

/// A request that has a seat, until it is dropped.
pub(crate) struct Admitted {
    _seat: Seat,
    requests: Arc<Requests>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.requests.executing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that waits, until it is dropped.
struct Waiting<'a>(&'a Requests);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Flow {
    /// A seat of the request's level, after `patience` at the latest if at all.
    pub async fn admit(&self, patience: Duration) -> Result<Admitted, Refused> {
        self.requests.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(&self.requests);
        let seat = self.level.enter(&self.row, patience).await?;
        drop(waiting);
        self.requests.executing.fetch_add(1, Ordering::Relaxed);
        self.requests.dispatched.fetch_add(1, Ordering::Relaxed);
        Ok(Admitted {
            _seat: seat,
            requests: self.requests.clone(),
        })
    }

    /// Says in the answer what the request belonged to.
    pub fn tell(&self, headers: &mut HeaderMap) {
        for (name, uid) in [(SCHEMA_UID, &self.schema_uid), (LEVEL_UID, &self.level.uid)] {
            if let Ok(uid) = HeaderValue::from_str(uid) {
                headers.insert(name, uid);
            }
        }
    }
}

/// Lends seats between levels, again and again.
pub(crate) async fn lend(server: Weak<Server>) {
    loop {
        tokio::time::sleep(lending::ADJUST_EVERY).await;
        let Some(server) = server.upgrade() else { return };
        let classes = server.flows.classes.read().clone();
        classes.lend();
    }
}

/// Follows FlowSchemas and levels, and says on each schema whether its level exists.
pub(crate) async fn look_after_flows(server: Weak<Server>) {
    loop {
        let Some(strong) = server.upgrade() else { return };
        let watch = |kind| {
            strong
                .cache
                .of(kind)?
                .subscribe(&Filter::everything(kind, ""), None)
        };
        let watched = watch(&registry::FLOW_SCHEMA)
            .and_then(|schemas| Ok((schemas, watch(&registry::PRIORITY_LEVEL_CONFIGURATION)?)));
        let (mut schemas, mut levels) = match watched {
            Ok((schemas, levels)) => (schemas.changes, levels.changes),
            Err(e) => {
                tracing::error!("cannot watch FlowSchemas: {e}");
                return;
            }
        };
        strong.follow_flows().await;
        drop(strong);
        loop {
            let woken = tokio::select! {
                biased;
                change = schemas.recv() => change.is_some(),
                change = levels.recv() => change.is_some(),
            };
            if !woken {
                break;
            }
            // All that has come in between is one look.
            while schemas.try_recv().is_ok() || levels.try_recv().is_ok() {}
            let Some(strong) = server.upgrade() else { return };
            strong.follow_flows().await;
        }
    }
}

/// What every request belongs to if to nothing else, and what no request can do without.
const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

impl Server {
    async fn follow_flows(&self) {
        for (kind, document) in objects() {
            let name = document["metadata"]["name"].as_str().unwrap_or_default();
            if MANDATORY.contains(&name)
                && let Err(e) = self.ensure(kind, document.clone()).await
            {
                tracing::warn!("cannot put back {} {name}: {e}", kind.kind());
            }
        }
        self.settle_flows();
        self.say_what_dangles().await;
    }

    /// From now on requests are told apart by what is there now.
    pub(crate) fn settle_flows(&self) {
        let (schemas, levels) = (
            self.all(&registry::FLOW_SCHEMA),
            self.all(&registry::PRIORITY_LEVEL_CONFIGURATION),
        );
        let before = self.flows.classes.read().clone();
        let classes = Classes::new(&schemas, &levels, self.flows.seats, &before);
        *self.flows.classes.write() = Arc::new(classes);
    }

    fn all(&self, kind: &'static knarr_api::Kind) -> Vec<Arc<Object>> {
        let all = self
            .cache
            .of(kind)
            .map(|cache| cache.list(&Filter::everything(kind, "")));
        all.unwrap_or_default()
    }

    async fn say_what_dangles(&self) {
        for object in self.all(&registry::FLOW_SCHEMA) {
            let Some(schema) = object.get::<FlowSchema>() else {
                continue;
            };
            let level = schema
                .spec
                .as_ref()
                .map(|s| s.priority_level_configuration.name.as_str());
            let level = level.unwrap_or_default();
            let found = self
                .cache
                .get(&registry::PRIORITY_LEVEL_CONFIGURATION, "", level)
                .is_some();
            let mut wanted = condition(level, found);
            if condition_of(schema).is_some_and(|c| {
                (&c.status, &c.reason, &c.message) == (&wanted.status, &wanted.reason, &wanted.message)
            }) {
                continue;
            }
            let mut ctx = Ctx {
                manager: Some("api-priority-and-fairness-config-consumer-v1".into()),
                ..self.myself()
            };
            wanted.last_transition_time = Some(seconds(ctx.now));
            let target = Target {
                subresource: "status",
                ..Target::main(&registry::FLOW_SCHEMA, "", object.name())
            };
            let said = self
                .update(&mut ctx, &target, &Preconditions::default(), &mut |_, old| {
                    let mut schema: FlowSchema = old
                        .to_typed()
                        .ok_or_else(|| Error::internal("a FlowSchema that is none"))?;
                    let conditions = schema
                        .status
                        .get_or_insert_default()
                        .conditions
                        .get_or_insert_default();
                    conditions.retain(|c| c.type_.as_deref() != Some(DANGLING));
                    conditions.push(wanted.clone());
                    Ok(Box::new(schema))
                })
                .await;
            match said {
                // It may have gone meanwhile.
                Err(e) if !e.is_not_found() => {
                    tracing::warn!(
                        "cannot say on FlowSchema {} whether its level exists: {e}",
                        object.name()
                    );
                }
                _ => {}
            }
        }
    }
}

const DANGLING: &str = "Dangling";

fn condition_of(schema: &FlowSchema) -> Option<&FlowSchemaCondition> {
    let mut conditions = schema.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|c| c.type_.as_deref() == Some(DANGLING))
}

fn condition(level: &str, found: bool) -> FlowSchemaCondition {
    let named = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let (status, reason, message) = match found {
        true => ("False", "Found", format!("{named} and it exists")),
        false => ("True", "NotFound", format!("{named} but there is no such object")),
    };
    FlowSchemaCondition {
        type_: Some(DANGLING.into()),
        status: Some(status.into()),
        reason: Some(reason.into()),
        message: Some(message),
        ..FlowSchemaCondition::default()
    }
}
