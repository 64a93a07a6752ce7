//! How an agent gets the cluster-wide settings: from the ConfigMap that servers publish, and from its own copy of it where the
//! server is unreachable when the node starts again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::k8s_openapi;
use knarr_apiserver::joining::SHARED_SETTINGS;
use knarr_client::{Api, TypedApi};
use tokio::time::{Instant, sleep};

use super::Failure;
use super::cluster::{PAUSE, SERVER_LIMIT};
use crate::config::Config;
use crate::private;

type Settings = BTreeMap<String, String>;

/// The configuration with the cluster's settings.
///
/// A node that has joined before starts with its copy at once. The server's settings are compared with it in the background,
/// and a difference is logged and stored: it takes effect at the next start.
pub async fn adopted(mut config: Config, api: Arc<dyn Api>) -> Result<Config, Failure> {
    let file = config.data_dir.join("cluster.json");
    let settings = match stored(&file)? {
        Some(settings) => {
            tokio::spawn(compare(api, file, settings.clone()));
            settings
        }
        None => {
            let settings = published(&*api, Some(Instant::now() + SERVER_LIMIT)).await?;
            store(&file, &settings)?;
            settings
        }
    };
    config.adopt(&settings).map_err(|errors| {
        let errors = errors.join("\n  ");
        Failure::new(format!(
            "the settings of this node differ from the cluster's:\n  {errors}"
        ))
    })?;
    Ok(config)
}

fn stored(file: &Path) -> Result<Option<Settings>, Failure> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Failure::new(format!("cannot read {}", file.display())).because(e)),
    };
    serde_json::from_str(&text).map(Some).map_err(|e| {
        let what = format!(
            "{}: expected the cluster's settings in JSON; remove the file, and they are read from the server again",
            file.display()
        );
        Failure::new(what).because(e)
    })
}

fn store(file: &Path, settings: &Settings) -> Result<(), Failure> {
    private::write(file, &serde_json::json!(settings).to_string())
}

/// The settings that the server has published; none, if its version publishes none. Retries until the limit.
async fn published(api: &dyn Api, limit: Option<Instant>) -> Result<Settings, Failure> {
    let (namespace, name) = SHARED_SETTINGS;
    loop {
        let error = match api.get_as::<ConfigMap>(namespace, name).await {
            Ok(found) => return Ok(found.data.clone().unwrap_or_default()),
            Err(error) if error.is_not_found() => return Ok(Settings::new()),
            Err(error) => error,
        };
        if limit.is_some_and(|limit| Instant::now() >= limit) {
            let what = format!("cannot read the cluster's settings from ConfigMap {namespace}/{name}");
            return Err(Failure::new(what).because(error));
        }
        tracing::debug!(%error, "cannot read the cluster's settings yet, retrying");
        sleep(PAUSE).await;
    }
}

async fn compare(api: Arc<dyn Api>, file: PathBuf, known: Settings) {
    let Ok(settings) = published(&*api, None).await else {
        return;
    };
    if settings == known || settings.is_empty() {
        return;
    }
    tracing::warn!(
        ?settings,
        "the cluster's settings have changed: restart knarr on this node to apply them"
    );
    if let Err(error) = store(&file, &settings) {
        tracing::warn!(%error, "cannot store the cluster's settings");
    }
}
