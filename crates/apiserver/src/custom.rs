//! The CustomResourceDefinition controller: accepts names, establishes kinds, and deletes the custom resources of a definition
//! before the definition itself is deleted.
//!
//! One task per server, level-triggered. The conditions are decided by [`knarr_api::custom::conditions`], and writes use the
//! pipeline like other requests.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knarr_api::custom::conditions::{self, FINALIZER, TERMINATING};
use knarr_api::registry::{CUSTOM_RESOURCE_DEFINITION as CRD, Registered};
use knarr_api::{Kind, Object, k8s_openapi};
use knarr_apimachinery::Error;

use crate::api_services::ApiServiceRegistration;
use crate::cache::change::Filter;
use crate::loopback::LoopbackClient;
use crate::request::{Ctx, Target};

/// The delay until the next sync after an error, or while a definition is being deleted.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Runs until the server is dropped.
pub(crate) async fn run_definition_controller(controller: Weak<DefinitionController>) {
    loop {
        let Some(strong) = controller.upgrade() else {
            return;
        };
        let subscription = strong
            .client
            .cache()
            .of(&CRD)
            .and_then(|cache| cache.subscribe(&Filter::everything(&CRD, ""), None));
        let mut changes = match subscription {
            Ok(subscription) => subscription.changes,
            Err(e) => {
                tracing::error!("cannot watch CustomResourceDefinitions: {e}");
                return;
            }
        };
        let mut requeue = strong.sync_all().await;
        drop(strong);
        loop {
            let woken = match requeue {
                true => {
                    tokio::time::timeout(RETRY_DELAY, changes.recv())
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
            // All events until now are handled by one sync.
            while changes.try_recv().is_ok() {}
            let Some(strong) = controller.upgrade() else {
                return;
            };
            requeue = strong.sync_all().await;
        }
    }
}

/// Syncs the definitions. See the module.
pub(crate) struct DefinitionController {
    pub client: LoopbackClient,
    pub api_services: ApiServiceRegistration,
}

impl DefinitionController {
    /// Syncs the definitions, and the APIServices of their group versions. True if another sync is needed.
    async fn sync_all(&self) -> bool {
        let mut requeue = self.sync_definitions().await;
        if let Err(e) = self.api_services.reconcile().await {
            tracing::error!("cannot sync APIServices: {e}");
            requeue = true;
        }
        requeue
    }

    /// Syncs every definition. True if some need another sync without an event.
    async fn sync_definitions(&self) -> bool {
        let mut requeue = false;
        let mut names = BTreeSet::new();
        for definition in self.client.list(&CRD) {
            names.insert(definition.name().to_string());
        }
        for name in names {
            match self.sync_definition(&name).await {
                Ok(done) => requeue |= !done,
                // A concurrent write; its event triggers the next sync.
                Err(e) if e.is_conflict() || e.is_not_found() => {}
                Err(e) => {
                    tracing::error!(definition = name, "cannot sync a CustomResourceDefinition: {e}");
                    requeue = true;
                }
            }
        }
        requeue
    }

    /// False if it needs another sync without an event.
    async fn sync_definition(&self, name: &str) -> Result<bool, Error> {
        let Some(object) = self.client.get(&CRD, "", name) else {
            return Ok(true);
        };
        let Some(crd) = object.get::<CustomResourceDefinition>() else {
            return Ok(true);
        };
        if crd.metadata.deletion_timestamp.is_some() {
            return self.finalize_definition(&object, crd).await;
        }
        let others = self.client.list(&CRD);
        let others = others.iter().filter_map(|o| o.get::<CustomResourceDefinition>());
        let now = self.client.now();
        if let Some(status) = conditions::names_and_conditions(crd, others, now) {
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
        let mut replace = |_: &mut Ctx, _: &Arc<Object>| Ok(crd.clone().into_object());
        self.client.update(&target, &mut replace).await
    }

    /// Deletes all custom resources of a terminating definition, then removes its finalizer.
    async fn finalize_definition(
        &self,
        object: &Object,
        crd: &CustomResourceDefinition,
    ) -> Result<bool, Error> {
        let held = crd.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
        if !held {
            return Ok(true);
        }
        let served = self.client.cache().served();
        let kind = served
            .custom()
            .iter()
            .find(|kind| knarr_api::custom::definition_name(kind) == object.name())
            // In the stored version: a conversion webhook that does not work must not block the deletion.
            .map(Kind::stored);
        let mut next = crd.clone();
        let mut set_terminating = |is: &str, reason: &str, message: &str| {
            let status = next.status.get_or_insert_default();
            conditions::set(status, TERMINATING, is, reason, message, self.client.now());
        };
        match kind {
            Some(kind) if self.delete_instances(&kind).await? > 0 => {
                set_terminating(
                    "True",
                    "InstanceDeletionInProgress",
                    "CustomResource deletion is in progress",
                );
                if next.status != crd.status {
                    self.write_definition(next, "status").await?;
                }
                return Ok(false);
            }
            Some(_) => set_terminating("False", "InstanceDeletionCompleted", "removed all instances"),
            None => set_terminating("False", "NeverEstablished", "resource was never established"),
        }
        let mut last = match next.status != crd.status {
            true => self.write_definition(next, "status").await?,
            false => return self.remove_finalizer(object).await,
        };
        if let Some(newer) = self.client.get(&CRD, "", object.name()) {
            last = newer;
        }
        self.remove_finalizer(&last).await
    }

    async fn remove_finalizer(&self, object: &Object) -> Result<bool, Error> {
        let mut crd = object.to_typed::<CustomResourceDefinition>().ok_or_else(|| {
            Error::internal("an object stored as a CustomResourceDefinition does not decode as one")
        })?;
        if let Some(finalizers) = &mut crd.metadata.finalizers {
            finalizers.retain(|f| f != FINALIZER);
        }
        self.write_definition(crd, "").await?;
        Ok(true)
    }

    /// Deletes every object of the kind. Returns how many remain.
    async fn delete_instances(&self, kind: &Kind) -> Result<usize, Error> {
        let everything = Filter::everything(kind, "");
        for object in self.client.cache().of(kind)?.list(&everything) {
            if object.metadata().deletion_timestamp.is_some() {
                continue;
            }
            let target = Target::main(kind, object.namespace(), object.name());
            self.client.delete_if_exists(&target).await?;
        }
        Ok(self.client.cache().of(kind)?.count())
    }
}
