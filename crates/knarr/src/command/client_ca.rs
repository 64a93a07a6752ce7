//! By which CA a kubelet's port knows its clients: what the API server publishes in
//! `kube-system/extension-apiserver-authentication`, followed for as long as the node runs.
//!
//! The last that was read is kept in a file, so that a node that starts while the API is away knows its clients. Until a CA
//! is known no client certificate counts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use knarr_api::k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::registry::Registered;
use knarr_apiserver::cluster_authentication::{CLIENT_CA, NAME, NAMESPACE};
use knarr_apiserver::tls::Tls;
use knarr_client::{Api, WatchEvent, WatchOptions};
use tokio_util::sync::CancellationToken;

use super::Failure;
use crate::private;

/// Before a watch that ended is begun again.
const PAUSE: Duration = Duration::from_secs(1);

/// What was kept, if anything was.
pub fn kept(file: &Path) -> Result<Option<String>, Failure> {
    match std::fs::read_to_string(file) {
        Ok(pem) => Ok(Some(pem)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Failure::new(format!("cannot read {}", file.display())).because(e)),
    }
}

/// Keeps `tls` up to date until `cancel`.
pub async fn follow(api: Arc<dyn Api>, tls: Tls, file: PathBuf, cancel: CancellationToken) {
    let follow = async {
        loop {
            watch(&*api, &tls, &file).await;
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = follow => {}
    }
}

/// Until the watch ends.
async fn watch(api: &dyn Api, tls: &Tls, file: &Path) {
    let options = WatchOptions {
        namespace: NAMESPACE.into(),
        field_selector: format!("metadata.name={NAME}"),
        ..WatchOptions::default()
    };
    let mut events = match api.watch(ConfigMap::kind_of(), options).await {
        Ok(events) => events,
        Err(error) => {
            tracing::debug!(%error, "cannot watch the CA of the kubelet's clients yet");
            return;
        }
    };
    while let Some(Ok(event)) = events.next().await {
        // Without the ConfigMap the last CA goes on: the API server writes it again.
        let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else {
            continue;
        };
        let data = object.get::<ConfigMap>().and_then(|map| map.data.as_ref());
        let Some(pem) = data.and_then(|data| data.get(CLIENT_CA)) else {
            continue;
        };
        if let Err(error) = take(tls, pem, file) {
            tracing::warn!(%error, "the published CA of the kubelet's clients is not usable");
        }
    }
}

fn take(tls: &Tls, pem: &str, file: &Path) -> Result<(), Failure> {
    tls.trust_clients_of(pem).map_err(Failure::new)?;
    if kept(file)?.as_deref() != Some(pem) {
        private::write(file, pem)?;
        tracing::info!("knows the CA of the kubelet's clients");
    }
    Ok(())
}
