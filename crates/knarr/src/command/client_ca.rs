//! The CA by which a kubelet's port authenticates its clients: what the API server publishes in
//! `kube-system/extension-apiserver-authentication`, watched for as long as the node runs.
//!
//! The last CA that was read is stored in a file, so that a node that starts while the API is unreachable can authenticate
//! its clients. Until a CA is known no client certificate is accepted.

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

/// Before a watch that ended is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// The stored CA, if there is one.
pub fn stored(file: &Path) -> Result<Option<String>, Failure> {
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

/// Returns when the watch ends.
async fn watch(api: &dyn Api, tls: &Tls, file: &Path) {
    let options = WatchOptions {
        namespace: NAMESPACE.into(),
        field_selector: format!("metadata.name={NAME}"),
        ..WatchOptions::default()
    };
    let mut events = match api.watch(ConfigMap::kind_of(), options).await {
        Ok(events) => events,
        Err(error) => {
            tracing::debug!(%error, "cannot watch the published client CA yet");
            return;
        }
    };
    while let Some(Ok(event)) = events.next().await {
        // When the ConfigMap is deleted the last CA stays in use: the API server creates the ConfigMap again.
        let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else {
            continue;
        };
        let data = object.get::<ConfigMap>().and_then(|map| map.data.as_ref());
        let Some(pem) = data.and_then(|data| data.get(CLIENT_CA)) else {
            continue;
        };
        if let Err(error) = trust(tls, pem, file) {
            tracing::warn!(%error, "the client CA in kube-system/extension-apiserver-authentication is not usable");
        }
    }
}

fn trust(tls: &Tls, pem: &str, file: &Path) -> Result<(), Failure> {
    tls.set_client_ca(pem).map_err(|e| Failure::new(e.to_string()))?;
    if stored(file)?.as_deref() != Some(pem) {
        private::write(file, pem)?;
        tracing::info!("the kubelet's port trusts the published client CA");
    }
    Ok(())
}
