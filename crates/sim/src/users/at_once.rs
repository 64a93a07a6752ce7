//! Requests that several clients send at the same time, each to an API server of its own: the first server never
//! fails, the others may die in the meantime.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use knarr_api::Kind;
use knarr_client::{Api, DeleteOptions, Error, Patch};
use serde_json::Value;
use tokio::time::timeout;

use crate::random::Stream;
use crate::servers::ApiServer;

/// The timeout of a client; the first server always answers within it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The request of one of them; for a patch or a deletion, the namespace and the name.
pub(super) enum Request {
    Create(Kind, Value),
    Patch(Kind, &'static str, String, Value),
    Delete(Kind, &'static str, String),
}

impl Request {
    async fn send(self, api: &dyn Api) -> Result<(), Error> {
        match self {
            Request::Create(kind, value) => {
                let bytes = serde_json::to_vec(&value).map_err(Error::internal)?;
                let object = kind.ops.decode(&bytes).map_err(Error::internal)?.object;
                api.create(&kind, object).await.map(drop)
            }
            Request::Patch(kind, namespace, name, patch) => {
                let patched = api.patch(&kind, namespace, &name, "", Patch::Merge(patch));
                patched.await.map(drop)
            }
            Request::Delete(kind, namespace, name) => {
                let options = DeleteOptions::default();
                api.delete(&kind, namespace, &name, options).await.map(drop)
            }
        }
    }
}

/// One of the servers.
pub(super) fn number_of(chance: &mut Stream, servers: &[Arc<ApiServer>]) -> usize {
    let last = u64::try_from(servers.len().saturating_sub(1)).unwrap_or_default();
    usize::try_from(chance.between(0, last)).unwrap_or_default()
}

/// Sends each request to the server of its number. The error: the first server gives an unexpected answer.
pub(super) async fn at_once(
    servers: &[Arc<ApiServer>],
    requests: Vec<(usize, Request)>,
) -> Result<(), Error> {
    let sent = requests.into_iter().map(|(number, request)| async move {
        let Some((stopped, server)) = servers.get(number).and_then(|server| server.running()) else {
            return Ok(());
        };
        let api = server.api_as("admin", ["system:masters"]);
        let answer = tokio::select! {
            biased;
            () = stopped.cancelled() => return Ok(()),
            answer = timeout(ANSWER_TIMEOUT, request.send(&*api)) => answer,
        };
        match answer {
            Ok(Err(e)) if number == 0 && !matches!(e.code(), 403..=405 | 409) => Err(e),
            Err(_) if number == 0 => Err(Error::timeout("the first server does not answer")),
            _ => Ok(()),
        }
    });
    join_all(sent).await.into_iter().collect()
}
