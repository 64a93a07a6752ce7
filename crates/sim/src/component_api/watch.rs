//! A watch over the network: its events are late, and it breaks with its connection or its server.

use std::sync::Arc;

use futures::StreamExt;
use knarr_client::{Error, Object, Result, WatchEvent, WatchStream};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::network::Network;
use crate::observer::Observer;

pub(super) struct Watched {
    pub(super) inner: WatchStream,
    pub(super) network: Arc<Network>,
    pub(super) observer: Arc<Observer>,
    pub(super) breaks: u64,
    /// Cancelled when its server dies.
    pub(super) stopped: CancellationToken,
    /// It is a kubelet's watch of the pods of its node.
    pub(super) is_of_node: bool,
}

pub(super) async fn next(mut watched: Watched) -> Option<(Result<WatchEvent>, Option<Watched>)> {
    let network = watched.network.clone();
    let event = tokio::select! {
        biased;
        event = watched.inner.next() => event,
        () = network.broken(watched.breaks) => None,
        () = watched.stopped.cancelled() => None,
    };
    let lag = network.lag();
    if !lag.is_zero() {
        sleep(lag).await;
    }
    if watched.stopped.is_cancelled() || !network.flows(watched.breaks).await {
        return Some((Err(Error::unavailable("the watch's connection was lost")), None));
    }
    let event = event?;
    if let Ok(event) = &event {
        let (object, suffix) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (Some(object), ""),
            WatchEvent::Deleted(object) => (Some(object), " is gone"),
            WatchEvent::Bookmark(_) => (None, ""),
        };
        if let Some(object) = object {
            watched.observer.record(|| seen(&network.name, object) + suffix);
            if watched.is_of_node {
                watched.observer.pod_received(&network.name, object.uid());
            }
        }
    }
    Some((event, Some(watched)))
}

/// For the story: a component sees this object at its revision.
pub(super) fn seen(who: &str, object: &Object) -> String {
    let (kind, revision) = (object.kind().plural(), object.revision());
    format!(
        "{who} sees {revision} {kind} {}",
        full_name(object.namespace(), object.name())
    )
}

pub(super) fn full_name(namespace: &str, name: &str) -> String {
    match namespace {
        "" => name.to_string(),
        namespace => format!("{namespace}/{name}"),
    }
}
