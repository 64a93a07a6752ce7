//! Looks after CustomResourceDefinitions: accepts names, establishes kinds, and empties a kind before its definition goes.
//!
//! One task a server; the state decides, events only wake it. What becomes of a definition is
//! [`knarr_api::custom::conditions`]' to say, and every write goes through the pipeline like everybody's.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use knarr_api::custom::conditions::{self, FINALIZER, TERMINATING};
use knarr_api::registry::CUSTOM_RESOURCE_DEFINITION as CRD;
use knarr_api::{AnyObject, Error, Kind, Object, k8s_openapi};
use knarr_client::Preconditions;

use crate::cache::change::Filter;
use crate::pipeline::Target;
use crate::pipeline::delete::DeleteRequest;
use crate::server::Server;

/// How soon something that failed, or is waited for, is looked at again.
const AGAIN: Duration = Duration::from_millis(200);

/// Runs until the server goes.
pub(crate) async fn look_after_definitions(server: Weak<Server>) {
    loop {
        let Some(strong) = server.upgrade() else { return };
        let subscription = strong
            .cache
            .of(&CRD)
            .and_then(|cache| cache.subscribe(&Filter::everything(&CRD, ""), None));
        let mut changes = match subscription {
            Ok(subscription) => subscription.changes,
            Err(e) => {
                tracing::error!("cannot watch definitions: {e}");
                return;
            }
        };
        let mut unsettled = strong.settle_all().await;
        drop(strong);
        loop {
            let woken = match unsettled {
                true => {
                    tokio::time::timeout(AGAIN, changes.recv())
                        .await
                        .unwrap_or(None)
                        .is_some()
                        || !changes.is_closed()
                }
                false => changes.recv().await.is_some(),
            };
            if !woken {
                break;
            }
            // All that has come in between is one look.
            while changes.try_recv().is_ok() {}
            let Some(strong) = server.upgrade() else { return };
            unsettled = strong.settle_all().await;
        }
    }
}

impl Server {
    /// Definitions, and the APIServices of what they make be served.
    async fn settle_all(&self) -> bool {
        let mut again = self.settle_definitions().await;
        if let Err(e) = self.settle_api_services().await {
            tracing::error!("APIServices cannot be looked after: {e}");
            again = true;
        }
        again
    }

    /// Brings every definition one step on. True if some are to be looked at again without a change of theirs.
    async fn settle_definitions(&self) -> bool {
        let mut again = false;
        let mut names = BTreeSet::new();
        for definition in self.definitions() {
            names.insert(definition.name().to_string());
        }
        for name in names {
            match self.settle_definition(&name).await {
                Ok(done) => again |= !done,
                // Somebody else wrote in between; the change wakes us.
                Err(e) if e.is_conflict() || e.is_not_found() => {}
                Err(e) => {
                    tracing::error!(
                        definition = name,
                        "a CustomResourceDefinition cannot be looked after: {e}"
                    );
                    again = true;
                }
            }
        }
        again
    }

    fn definitions(&self) -> Vec<Arc<Object>> {
        let everything = Filter::everything(&CRD, "");
        self.cache
            .of(&CRD)
            .map(|cache| cache.list(&everything))
            .unwrap_or_default()
    }

    /// False if it is to be looked at again.
    async fn settle_definition(&self, name: &str) -> Result<bool, Error> {
        let Some(object) = self.cache.get(&CRD, "", name) else {
            return Ok(true);
        };
        let Some(crd) = object.get::<CustomResourceDefinition>() else {
            return Ok(true);
        };
        if crd.metadata.deletion_timestamp.is_some() {
            return self.finish_definition(&object, crd).await;
        }
        let others = self.definitions();
        let others = others.iter().filter_map(|o| o.get::<CustomResourceDefinition>());
        let now = self.clock.now();
        if let Some(status) = conditions::settle(crd, others, now) {
            let mut next = crd.clone();
            next.status = Some(status);
            self.write_definition(next, "status").await?;
        }
        Ok(true)
    }

    async fn write_definition(
        &self,
        crd: CustomResourceDefinition,
        subresource: &str,
    ) -> Result<Arc<Object>, Error> {
        let name = crd.metadata.name.clone().unwrap_or_default();
        let target = Target {
            subresource,
            ..Target::main(&CRD, "", &name)
        };
        let none = Preconditions::default();
        self.update(&mut self.myself(), &target, &none, &mut |_, _| {
            Ok(Box::new(crd.clone()) as Box<dyn AnyObject>)
        })
        .await
    }

    /// All objects of a definition that is being deleted go first; then its finalizer does.
    async fn finish_definition(
        &self,
        object: &Object,
        crd: &CustomResourceDefinition,
    ) -> Result<bool, Error> {
        let held = crd.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
        if !held {
            return Ok(true);
        }
        let served = self.cache.served();
        let kind = served
            .custom()
            .iter()
            .find(|kind| knarr_api::custom::definition_name(kind) == object.name())
            // In the version in which they are stored: a conversion webhook that does not work must not hold the definition.
            .map(Kind::stored);
        let mut next = crd.clone();
        let mut told = |is: &str, reason: &str, message: &str| {
            let status = next.status.get_or_insert_default();
            conditions::set(status, TERMINATING, is, reason, message, self.clock.now());
        };
        match kind {
            Some(kind) if self.empty(&kind).await? > 0 => {
                told(
                    "True",
                    "InstanceDeletionInProgress",
                    "CustomResource deletion is in progress",
                );
                if next.status != crd.status {
                    self.write_definition(next, "status").await?;
                }
                return Ok(false);
            }
            Some(_) => told("False", "InstanceDeletionCompleted", "removed all instances"),
            None => told("False", "NeverEstablished", "resource was never established"),
        }
        let mut last = match next.status != crd.status {
            true => self.write_definition(next, "status").await?,
            false => return self.release(object).await,
        };
        if let Some(newer) = self.cache.get(&CRD, "", object.name()) {
            last = newer;
        }
        self.release(&last).await
    }

    /// Takes the finalizer away.
    async fn release(&self, object: &Object) -> Result<bool, Error> {
        let mut crd = object
            .to_typed::<CustomResourceDefinition>()
            .ok_or_else(|| Error::internal("a CustomResourceDefinition that is none"))?;
        if let Some(finalizers) = &mut crd.metadata.finalizers {
            finalizers.retain(|f| f != FINALIZER);
        }
        self.write_definition(crd, "").await?;
        Ok(true)
    }

    /// Asks every object of the kind to go; how many are left.
    async fn empty(&self, kind: &Kind) -> Result<usize, Error> {
        let everything = Filter::everything(kind, "");
        for object in self.cache.of(kind)?.list(&everything) {
            if object.metadata().deletion_timestamp.is_some() {
                continue;
            }
            let target = Target::main(kind, object.namespace(), object.name());
            match self
                .delete(&mut self.myself(), &target, &DeleteRequest::default())
                .await
            {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        Ok(self.cache.of(kind)?.count())
    }

    /// Refuses new objects of a kind whose definition is being deleted.
    pub(crate) fn check_definition(&self, kind: &Kind) -> Result<(), Error> {
        if kind.ops.custom().is_none() {
            return Ok(());
        }
        let found = self
            .cache
            .get(&CRD, "", &knarr_api::custom::definition_name(kind));
        let ending = found.is_some_and(|crd| crd.metadata().deletion_timestamp.is_some());
        match ending {
            true => Err(Error::method_not_supported(kind.about(""), "create")),
            false => Ok(()),
        }
    }
}

/// A definition that is marked for deletion: held until its objects are gone.
pub(crate) fn mark(marked: &mut dyn AnyObject, now: Timestamp) {
    let Some(crd) = marked.as_any_mut().downcast_mut::<CustomResourceDefinition>() else {
        return;
    };
    let finalizers = crd.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|f| f == FINALIZER) {
        finalizers.push(FINALIZER.into());
    }
    conditions::set(
        crd.status.get_or_insert_default(),
        TERMINATING,
        "True",
        "InstanceDeletionPending",
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        now,
    );
}
