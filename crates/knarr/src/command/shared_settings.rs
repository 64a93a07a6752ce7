//! How an agent comes to the settings that are the cluster's: from the ConfigMap that servers publish, and from its own
//! copy of it where the server is away when the node starts again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::k8s_openapi;
use knarr_apiserver::joining::SHARED_SETTINGS;
use knarr_client::{Api, TypedApi};
use tokio::time::{Instant, sleep};

use super::Failure;
use super::join::{PAUSE, SERVER_LIMIT};
use crate::config::Config;
use crate::private;

type Settings = BTreeMap<String, String>;

/// The configuration with the cluster's settings in it.
///
/// A node that has joined before starts with its copy at once; what the server has then is compared in the background,
/// and a difference is logged: it counts from the next start on.
pub async fn adopted(mut config: Config, api: Arc<dyn Api>) -> Result<Config, Failure> {
    let file = config.data_dir.join("cluster.json");
    let settings = match kept(&file)? {
        Some(settings) => {
            tokio::spawn(compare(api, file, settings.clone()));
            settings
        }
        None => {
            let settings = published(&*api, Some(Instant::now() + SERVER_LIMIT)).await?;
            keep(&file, &settings)?;
            settings
        }
    };
    config.adopt(&settings).map_err(|errors| {
        let errors = errors.join("\n  ");
        Failure::new(format!(
            "the settings of this node do not fit the cluster's:\n  {errors}"
        ))
    })?;
    Ok(config)
}

fn kept(file: &Path) -> Result<Option<Settings>, Failure> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Failure::new(format!("cannot read {}", file.display())).because(e)),
    };
    serde_json::from_str(&text).map(Some).map_err(|e| {
        let what = format!(
            "{}: expected the cluster's settings; remove it, and it is fetched anew",
            file.display()
        );
        Failure::new(what).because(e)
    })
}

fn keep(file: &Path, settings: &Settings) -> Result<(), Failure> {
    private::write(file, &serde_json::json!(settings).to_string())
}

/// What the server has published: nothing, if it is of a version that does not. Asks until then, or until the limit.
async fn published(api: &dyn Api, limit: Option<Instant>) -> Result<Settings, Failure> {
    let (namespace, name) = SHARED_SETTINGS;
    loop {
        let error = match api.get_as::<ConfigMap>(namespace, name).await {
            Ok(found) => return Ok(found.data.clone().unwrap_or_default()),
            Err(error) if error.is_not_found() => return Ok(Settings::new()),
            Err(error) => error,
        };
        if limit.is_some_and(|limit| Instant::now() >= limit) {
            let what = format!("the cluster's settings cannot be read (ConfigMap {namespace}/{name})");
            return Err(Failure::new(what).because(error));
        }
        tracing::debug!(%error, "the cluster's settings cannot be read yet");
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
        "the cluster's settings have changed: restart this node"
    );
    if let Err(error) = keep(&file, &settings) {
        tracing::warn!(%error, "the cluster's settings cannot be kept");
    }
}
