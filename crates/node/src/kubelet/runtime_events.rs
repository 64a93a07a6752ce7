//! The runtime's events, subscribed to again whenever their stream ends.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::debug;

use crate::runtime::{Runtime, RuntimeEvent};

/// Between two subscriptions.
const RETRY: Duration = Duration::from_millis(500);

/// What the runtime's event stream delivers.
pub(super) enum StreamEvent {
    Begun,
    Event(RuntimeEvent),
    Disconnected,
}

/// Forwards the events until the receiver is dropped.
pub(super) async fn run(runtime: Arc<dyn Runtime>, forward: mpsc::UnboundedSender<StreamEvent>) {
    loop {
        match runtime.events().await {
            Ok(events) => {
                let begun = futures::stream::once(std::future::ready(StreamEvent::Begun));
                let disconnected = futures::stream::once(std::future::ready(StreamEvent::Disconnected));
                let mut events = pin!(begun.chain(events.map(StreamEvent::Event)).chain(disconnected));
                while let Some(event) = events.next().await {
                    if forward.send(event).is_err() {
                        return;
                    }
                }
                debug!("the container runtime's event stream has ended");
            }
            Err(error) => debug!(%error, "cannot subscribe to the container runtime's events"),
        }
        sleep(RETRY).await;
    }
}
