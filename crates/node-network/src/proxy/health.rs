//! Whether the proxy keeps up, and its answer on `/healthz` and `/livez`, as kube-proxy's: load balancers use
//! `/healthz` to decide whether to send connections to this node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_client::Clock;
use parking_lot::Mutex;
use tokio::time::sleep;
use tracing::{info, warn};

use super::metrics::Metrics;
use super::{http_server, listen};

/// How long a change may wait: twice kube-proxy's default `--nftables-sync-period`.
const LATE: SignedDuration = SignedDuration::from_secs(60);
/// Pause before a port in use is tried again.
const RETRY: Duration = Duration::from_secs(5);

struct State {
    oldest_queued: Option<Timestamp>,
    last_updated: Option<Timestamp>,
    is_eligible: bool,
}

/// See the module.
pub(super) struct Health {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

impl Health {
    /// Healthy while it starts.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Health {
            clock,
            state: Mutex::new(State {
                oldest_queued: None,
                last_updated: None,
                is_eligible: true,
            }),
        }
    }

    /// A change was queued.
    pub fn queued(&self) {
        let now = self.clock.now();
        self.state.lock().oldest_queued.get_or_insert(now);
    }

    /// The kernel has every change.
    pub fn updated(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.oldest_queued = None;
        state.last_updated = Some(now);
    }

    /// Whether load balancers shall send connections to this node.
    pub fn set_eligible(&self, is_eligible: bool) {
        self.state.lock().is_eligible = is_eligible;
    }

    /// Whether no change has been waiting for too long.
    pub fn is_healthy(&self) -> bool {
        let now = self.clock.now();
        let queued = self.state.lock().oldest_queued;
        queued.is_none_or(|since| now.duration_since(since) < LATE)
    }

    /// The status and the JSON of `/healthz`, or of `/livez`, for which the node's own end is no matter.
    fn report(&self, with_node: bool) -> (StatusCode, String) {
        let now = self.clock.now();
        let (is_healthy, state) = (self.is_healthy(), self.state.lock());
        let is_ok = is_healthy && (state.is_eligible || !with_node);
        // A healthy state is as of now, as in kube-proxy.
        let updated = if is_ok { Some(now) } else { state.last_updated };
        let updated = updated.map(|time| time.to_string()).unwrap_or_default();
        let node = match with_node {
            true => format!(", \"nodeEligible\": {}", state.is_eligible),
            false => String::new(),
        };
        let status = match is_ok {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        let body = format!("{{\"lastUpdated\": \"{updated}\",\"currentTime\": \"{now}\"{node}}}");
        (status, body)
    }
}

/// A response as kube-proxy's servers give it.
pub(super) fn json(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let nosniff = HeaderName::from_static("x-content-type-options");
    headers.insert(nosniff, HeaderValue::from_static("nosniff"));
    response
}

/// Answers at the address as soon as that is free.
pub(super) async fn serve(address: SocketAddr, health: Arc<Health>, metrics: Arc<Metrics>) {
    let mut is_new = true;
    let listener = loop {
        match listen(address).await {
            Ok(listener) => break listener,
            Err(error) => {
                if is_new {
                    warn!(%error, "the proxy does not answer on /healthz, trying again");
                }
                is_new = false;
                sleep(RETRY).await;
            }
        }
    };
    info!(%address, "the proxy answers on /healthz");
    let answer = move |request: &http::Request<_>| match request.uri().path() {
        "/healthz" => {
            let (status, body) = health.report(true);
            metrics.count_healthz(status.as_u16());
            json(status, body)
        }
        "/livez" => {
            let (status, body) = health.report(false);
            metrics.count_livez(status.as_u16());
            json(status, body)
        }
        _ => json(StatusCode::NOT_FOUND, "{}".into()),
    };
    http_server::serve(listener, Arc::new(answer)).await;
}

#[cfg(test)]
mod tests {
    use knarr_client::TokioClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn n2_healthz_is_503_while_a_change_waits_too_long_and_while_the_node_is_being_deleted() {
        let health = Health::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH)));
        let statuses = |health: &Health| (health.report(true).0.as_u16(), health.report(false).0.as_u16());
        assert_eq!(statuses(&health), (200, 200), "while it starts");
        health.queued();
        sleep(Duration::from_secs(59)).await;
        health.queued();
        assert_eq!(statuses(&health), (200, 200));
        sleep(Duration::from_secs(2)).await;
        assert_eq!(statuses(&health), (503, 503), "the first change counts");
        health.updated();
        assert_eq!(statuses(&health), (200, 200));
        health.set_eligible(false);
        assert_eq!(statuses(&health), (503, 200));
        assert_eq!(
            health.report(true).1,
            "{\"lastUpdated\": \"1970-01-01T00:01:01Z\",\"currentTime\": \"1970-01-01T00:01:01Z\", \
             \"nodeEligible\": false}"
        );
    }
}
