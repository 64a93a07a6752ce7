//! API Priority and Fairness (KEP-1040): which requests execute at once, which wait in queues, and which are rejected,
//! so that overload costs clients time and not the server memory.
//!
//! Each request belongs to the first FlowSchema that matches it, and takes one seat of that FlowSchema's priority
//! level. Seats are divided by the levels' nominalConcurrencyShares, and levels borrow seats from others by demand
//! (`lending`). Each flow has a queue of its own, where Kubernetes shuffle-shards flows onto a fixed number of queues.

mod controller;
mod lending;
mod objects;
mod priority_level;
mod schemas;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use knarr_api::Object;
use knarr_client::metrics::Samples;
use parking_lot::RwLock;

pub(crate) use self::controller::{FlowControlController, adjust_seats, run_flow_control};
pub(crate) use self::objects::objects;
pub(crate) use self::priority_level::RejectReason;
use self::priority_level::Seat;
pub(crate) use self::schemas::Flow;
use self::schemas::{FlowSchemas, Requests};
use crate::request::RequestInfo;
use crate::user::User;

/// Seats, as kube-apiserver's `--max-requests-inflight` and `--max-mutating-requests-inflight`, which count together.
pub const READ_ONLY: usize = 400;
pub const MUTATING: usize = 200;

const SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// The current FlowSchemas and priority levels. See the module.
pub(crate) struct FlowControl {
    seats: usize,
    schemas: RwLock<Arc<FlowSchemas>>,
}

impl FlowControl {
    pub fn new(seats: usize) -> Self {
        FlowControl {
            seats,
            schemas: RwLock::default(),
        }
    }

    pub fn write_metrics(&self, samples: &mut Samples) {
        self.schemas.read().clone().write_metrics(samples);
    }

    /// Classifies requests by these FlowSchemas and PriorityLevelConfigurations from now on.
    fn reload(&self, schemas: &[Arc<Object>], levels: &[Arc<Object>]) {
        let before = self.schemas.read().clone();
        let schemas = FlowSchemas::new(schemas, levels, self.seats, &before);
        *self.schemas.write() = Arc::new(schemas);
    }

    fn adjust_seats(&self) {
        let schemas = self.schemas.read().clone();
        schemas.adjust_seats();
    }

    pub fn classify(&self, user: &User, request: &RequestInfo) -> Option<Flow> {
        let schemas = self.schemas.read().clone();
        schemas.classify(user, request)
    }
}

/// A request that has a seat, until it is dropped.
pub(crate) struct ExecutingRequest {
    _seat: Seat,
    requests: Arc<Requests>,
}

impl Drop for ExecutingRequest {
    fn drop(&mut self) {
        self.requests.executing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that waits, until it is dropped.
struct WaitingRequest<'a>(&'a Requests);

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Flow {
    /// Acquires a seat of the request's level; rejects the request if it gets none within `wait_limit`.
    pub async fn acquire_seat(&self, wait_limit: Duration) -> Result<ExecutingRequest, RejectReason> {
        self.requests.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = WaitingRequest(&self.requests);
        let seat = self.level.acquire(&self.queue, wait_limit).await?;
        drop(waiting);
        self.requests.executing.fetch_add(1, Ordering::Relaxed);
        self.requests.dispatched.fetch_add(1, Ordering::Relaxed);
        Ok(ExecutingRequest {
            _seat: seat,
            requests: self.requests.clone(),
        })
    }

    /// Writes the UIDs of the request's FlowSchema and priority level into the response headers.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        for (name, uid) in [(SCHEMA_UID, &self.schema_uid), (LEVEL_UID, &self.level.uid)] {
            if let Ok(uid) = HeaderValue::from_str(uid) {
                headers.insert(name, uid);
            }
        }
    }
}
