//! The server's own requests: it writes the objects that every cluster has, and the conditions that the API server itself sets.
//!
//! They pass the pipeline like the requests of clients, but are not authorized: no client makes them. kube-apiserver has a loopback client
//! for the same writes.
//!
//! The futures of writes are boxed: rustc compiles the body of an async function for each crate and unit that polls it, and those of
//! the pipeline are large.

use std::sync::Arc;

use futures::future::BoxFuture;
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::{AnyObject, Kind, Object};
use knarr_apimachinery::Error;
use knarr_client::Preconditions;
use serde_json::Value;

use crate::cache::Cache;
use crate::cache::change::Filter;
use crate::pipeline::Pipeline;
use crate::pipeline::update::UpdateFn;
use crate::pipeline::write::DeleteRequest;
use crate::request::{Ctx, Target};

/// Reads and writes of the server itself.
#[derive(Clone)]
pub(crate) struct LoopbackClient {
    pipeline: Arc<Pipeline>,
}

impl LoopbackClient {
    pub fn new(pipeline: Arc<Pipeline>) -> Self {
        LoopbackClient { pipeline }
    }

    pub fn cache(&self) -> &Arc<Cache> {
        &self.pipeline.cache
    }

    pub fn now(&self) -> Timestamp {
        self.pipeline.clock.now()
    }

    fn ctx(&self) -> Ctx {
        Ctx::of_server(self.now())
    }

    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.cache().get(kind, namespace, name)
    }

    /// All objects of the kind; none if it is not served.
    pub fn list(&self, kind: &Kind) -> Vec<Arc<Object>> {
        let everything = Filter::everything(kind, "");
        let cache = self.cache().of(kind);
        cache.map(|cache| cache.list(&everything)).unwrap_or_default()
    }

    /// Creates the object if none of its name exists.
    pub async fn ensure(&self, kind: &Kind, document: Value) -> Result<(), Error> {
        let of = |field| document["metadata"][field].as_str().unwrap_or_default();
        match self.get(kind, of("namespace"), of("name")) {
            Some(_) => Ok(()),
            None => self.create_unless_exists(kind, decode(kind, &document)?).await,
        }
    }

    pub async fn create_unless_exists(&self, kind: &Kind, object: Box<dyn AnyObject>) -> Result<(), Error> {
        match self.create(kind, object).await {
            // Another server of the same cluster may have been faster.
            Err(e) if !e.is_already_exists() => Err(e),
            _ => Ok(()),
        }
    }

    pub fn create<'a>(
        &'a self,
        kind: &'a Kind,
        object: Box<dyn AnyObject>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let (namespace, _) = namespace_and_name(&*object);
            let target = Target::main(kind, &namespace, "");
            let created = self.pipeline.create(&mut self.ctx(), &target, object).await;
            created.map(drop)
        })
    }

    /// Creates the object, or replaces the existing one.
    pub async fn replace(&self, kind: &Kind, document: Value) -> Result<(), Error> {
        let object = decode(kind, &document)?;
        let (namespace, name) = namespace_and_name(&*object);
        if self.get(kind, &namespace, &name).is_none() {
            return self.create_unless_exists(kind, object).await;
        }
        self.put(&Target::main(kind, &namespace, &name), object).await
    }

    pub fn put<'a>(
        &'a self,
        target: &'a Target<'_>,
        object: Box<dyn AnyObject>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.pipeline.put(&mut self.ctx(), target, object).await.map(drop) })
    }

    pub fn update<'a>(
        &'a self,
        target: &'a Target<'_>,
        change: &'a mut UpdateFn<'_>,
    ) -> BoxFuture<'a, Result<Arc<Object>, Error>> {
        Box::pin(async move {
            let none = Preconditions::default();
            self.pipeline.update(&mut self.ctx(), target, &none, change).await
        })
    }

    /// Like [`Self::update`], with another field manager.
    pub async fn update_as(
        &self,
        manager: &str,
        target: &Target<'_>,
        change: &mut UpdateFn<'_>,
    ) -> Result<Arc<Object>, Error> {
        let mut ctx = self.ctx();
        ctx.manager = Some(manager.into());
        let none = Preconditions::default();
        self.pipeline.update(&mut ctx, target, &none, change).await
    }

    pub fn delete<'a>(&'a self, target: &'a Target<'_>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let request = DeleteRequest::default();
            let deleted = self.pipeline.delete(&mut self.ctx(), target, &request).await;
            deleted.map(drop)
        })
    }

    /// Deletes the object, if it still exists.
    pub async fn delete_if_exists(&self, target: &Target<'_>) -> Result<(), Error> {
        match self.delete(target).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }
}

pub(crate) fn decode(kind: &Kind, document: &Value) -> Result<Box<dyn AnyObject>, Error> {
    let decoded = kind.ops.decode(document.to_string().as_bytes());
    Ok(decoded.map_err(|e| Error::internal(e.message))?.object)
}

pub(crate) fn namespace_and_name(object: &dyn AnyObject) -> (String, String) {
    let meta = object.metadata();
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}
