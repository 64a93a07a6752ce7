//! Conversion of custom resources by the webhooks of their definitions.
//!
//! Kinds without a webhook are converted at once. Reads of one object call the webhook each time, so that a client sees
//! when the webhook fails; the results for lists and watches are cached by revision, so that a webhook is not called
//! for every watcher. All objects of one list are converted in one request.

mod memory;
mod metrics;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{ServiceReference, WebhookClientConfig};
use knarr_api::custom::Webhook;
use knarr_api::custom::conversion::{self, ConversionRequest, Failure};
use knarr_api::{AnyObject, Kind, Object, convert, k8s_openapi};
use knarr_apimachinery::Error;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use self::memory::Memory;
pub(crate) use self::metrics::ConversionMetrics;
use crate::cache::Cache;
use crate::seams::{self, Entropy};
use crate::webhook_client::{ClientError, WebhookClient, call_webhook};

/// The timeout of a webhook call.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How many definitions' clients are kept. Beyond that the server drops those of definitions that do not exist any more;
/// if there are still too many, a call makes a connection of its own.
const CLIENTS_MAX: usize = 256;

type MaybeClient = Result<WebhookClient, ClientError>;

/// Converts custom resources. See the module.
pub(crate) struct Converter {
    cache: Arc<Cache>,
    entropy: Arc<dyn Entropy>,
    metrics: Arc<ConversionMetrics>,
    memory: Mutex<Memory>,
    /// By the definition's name, for as long as its webhook is configured as it is.
    clients: Mutex<HashMap<String, (Weak<Webhook>, MaybeClient)>>,
}

impl Converter {
    pub(crate) fn new(
        cache: Arc<Cache>,
        entropy: Arc<dyn Entropy>,
        metrics: Arc<ConversionMetrics>,
    ) -> Arc<Self> {
        Arc::new(Converter {
            cache,
            entropy,
            metrics,
            memory: Mutex::default(),
            clients: Mutex::default(),
        })
    }

    /// Converts an object to `to`.
    pub(crate) async fn object(&self, object: &Arc<Object>, to: &Kind) -> Result<Arc<Object>, Error> {
        let Some(webhook) = webhook_between(object.kind(), to) else {
            return convert::object(object, to);
        };
        let given = [value_of(object)?];
        let mut made = self.call(&webhook, object.kind(), to, &given, false).await?;
        let converted = made
            .pop()
            .ok_or_else(|| Error::internal("no object was converted"))?;
        Ok(Arc::new(shown(to, converted, object.revision())?))
    }

    /// Converts a value of `from` to `to`.
    pub(crate) async fn typed(
        &self,
        from: &Kind,
        to: &Kind,
        object: Box<dyn AnyObject>,
    ) -> Result<Box<dyn AnyObject>, Error> {
        let Some(webhook) = webhook_between(from, to) else {
            return convert::typed(from, to, object);
        };
        let mut json = Vec::new();
        object.encode_into(&mut json);
        let given = [serde_json::from_slice(&json).map_err(Error::internal)?];
        let mut made = self.call(&webhook, from, to, &given, false).await?;
        let converted = made
            .pop()
            .ok_or_else(|| Error::internal("no object was converted"))?;
        conversion::object(to, converted)
    }

    /// Converts JSON of `from` to `to`.
    pub(crate) async fn json(&self, from: &Kind, to: &Kind, value: &Value) -> Result<Value, Error> {
        let Some(webhook) = webhook_between(from, to) else {
            return convert::json(from, to, value)
                .ok_or_else(|| Error::internal(format!("failed to convert object version to {to:?}")));
        };
        let given = std::slice::from_ref(value);
        let mut made = self.call(&webhook, from, to, given, false).await?;
        made.pop()
            .ok_or_else(|| Error::internal("no object was converted"))
    }

    /// Converts the objects of a list to `to`, in one request.
    pub(crate) async fn all(&self, objects: &mut [Arc<Object>], to: &Kind) -> Result<(), Error> {
        let Some(webhook) = to.webhook().cloned() else {
            for object in objects.iter_mut().filter(|o| o.kind() != to) {
                *object = convert::object(object, to)?;
            }
            return Ok(());
        };
        let mut given = Vec::new();
        let mut indexes = Vec::new();
        for (index, object) in objects.iter_mut().enumerate() {
            if object.kind().version() == to.version() {
                continue;
            }
            let known = self.memory.lock().get(object, to);
            match known {
                Some(known) => *object = known,
                None => {
                    given.push(value_of(object)?);
                    indexes.push(index);
                }
            }
        }
        if given.is_empty() {
            return Ok(());
        }
        let made = self.call(&webhook, to, to, &given, true).await?;
        for (index, converted) in indexes.into_iter().zip(made) {
            if let Some(object) = objects.get_mut(index) {
                let made = Arc::new(shown(to, converted, object.revision())?);
                self.memory.lock().put(object, made.clone());
                *object = made;
            }
        }
        Ok(())
    }

    /// Converts one object of a watch to `to`.
    pub(crate) async fn watched(&self, object: &Arc<Object>, to: &Kind) -> Result<Arc<Object>, Error> {
        if webhook_between(object.kind(), to).is_none() {
            return convert::object(object, to);
        }
        if let Some(known) = self.memory.lock().get(object, to) {
            return Ok(known);
        }
        let made = self.object(object, to).await?;
        self.memory.lock().put(object, made.clone());
        Ok(made)
    }

    async fn call(
        &self,
        webhook: &Arc<Webhook>,
        from: &Kind,
        to: &Kind,
        objects: &[Value],
        of_list: bool,
    ) -> Result<Vec<Value>, Error> {
        let Some(review_version) = webhook.review_version else {
            return Err(Error::new(500, "", "no supported conversion review versions"));
        };
        let begun = Instant::now();
        let uid = seams::uid(&*self.entropy);
        let request = ConversionRequest {
            of_list,
            from,
            to,
            review_version,
            uid: &uid,
            objects,
        };
        let made = self.send_review(webhook, &request).await;
        let failure = made.as_ref().err().map(|f: &Failure| f.failure_type);
        let versions = (from.version(), to.version());
        self.metrics
            .observe(&webhook.definition, versions, failure, begun.elapsed());
        made.map_err(Error::from)
    }

    async fn send_review(
        &self,
        webhook: &Arc<Webhook>,
        request: &ConversionRequest<'_>,
    ) -> Result<Vec<Value>, Failure> {
        let config = config_of(webhook);
        let client = self.client_of(webhook, &config);
        let response = call_webhook(&self.cache, &config, client, (TIMEOUT, None), &request.review()).await;
        request.read(response.map_err(|why| Failure::call(request, &why.to_string()))?)
    }

    fn client_of(&self, webhook: &Arc<Webhook>, config: &WebhookClientConfig) -> MaybeClient {
        let mut kept = self.clients.lock();
        if let Some((of, client)) = kept.get(&webhook.definition)
            && of.upgrade().is_some_and(|of| of.client == webhook.client)
        {
            return client.clone();
        }
        if kept.len() >= CLIENTS_MAX {
            kept.retain(|_, (of, _)| of.strong_count() > 0);
        }
        let client = WebhookClient::new(config);
        if kept.len() < CLIENTS_MAX {
            kept.insert(
                webhook.definition.clone(),
                (Arc::downgrade(webhook), client.clone()),
            );
        }
        client
    }
}

/// The webhook that converts between the two kinds; `None` if no webhook is needed.
fn webhook_between(from: &Kind, to: &Kind) -> Option<Arc<Webhook>> {
    let webhook = to.webhook()?;
    (from.version() != to.version()).then(|| webhook.clone())
}

fn value_of(object: &Object) -> Result<Value, Error> {
    serde_json::from_slice(object.json()).map_err(Error::internal)
}

fn shown(to: &Kind, converted: Value, revision: u64) -> Result<Object, Error> {
    let mut typed = conversion::object(to, converted)?;
    let encoded = Object::encode_for_store(&mut *typed);
    Ok(Object::from_stored(to, typed, &encoded, revision))
}

/// The client configuration of the webhook, in the form of admission webhooks.
fn config_of(webhook: &Webhook) -> WebhookClientConfig {
    let given = &webhook.client;
    let holds_something = |bundle: &&k8s_openapi::ByteString| !bundle.0.iter().all(u8::is_ascii_whitespace);
    WebhookClientConfig {
        ca_bundle: given.ca_bundle.as_ref().filter(holds_something).cloned(),
        url: given.url.clone(),
        service: given.service.as_ref().map(|service| ServiceReference {
            name: service.name.clone(),
            namespace: service.namespace.clone(),
            path: service.path.clone(),
            port: service.port,
        }),
    }
}
