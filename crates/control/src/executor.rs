//! Carries actions out through the [`Api`], in order, and stops at the first that fails. It chooses nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::registry::Registered;
use knarr_api::{AnyObject, Object, k8s_openapi, registry};
use knarr_apimachinery::finalizer::contains as has_finalizer;
use knarr_client::custom_kinds::kind_of;
use knarr_client::{
    Api, DeleteOptions, Error, EventRecorder, EventType, Kind, ListOptions, ObjectKey, Preconditions,
    Propagation, Result,
};
use knarr_controllers::action::{
    Action, Create, Delete, Dependents, Failure, LiveCheck, Release, Report, Verb, only_name,
};
use knarr_controllers::csi_attach;
use knarr_controllers::node::eviction::has_taints;
use knarr_controllers::node::taints::is_unreachable;
use knarr_controllers::podgc::is_out_of_service;
use knarr_controllers::protection;
use tracing::debug;

/// The first batch of many creations; each next one is twice as large.
const FIRST_BATCH: usize = 1;

/// A write that the caches have to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    Revision(Kind, u64),
    Deleted { kind: Kind, key: ObjectKey, uid: String },
}

/// The result of the actions.
#[derive(Default)]
pub struct Outcome {
    pub written: Vec<Written>,
    /// The soonest requeue that was requested.
    pub requeue_after: Option<Duration>,
    pub failure: Option<Failure>,
}

/// See the module.
#[derive(Clone)]
pub struct Executor {
    api: Arc<dyn Api>,
    events: EventRecorder,
}

impl Executor {
    pub fn new(api: Arc<dyn Api>, events: EventRecorder) -> Self {
        Executor { api, events }
    }

    /// Carries the actions out in order, until one fails.
    pub async fn run(&self, actions: Vec<Action>) -> Outcome {
        let mut outcome = Outcome::default();
        for action in actions {
            if let Err(failure) = self.one(action, &mut outcome).await {
                outcome.failure = Some(*failure);
                break;
            }
        }
        outcome
    }

    async fn one(&self, action: Action, outcome: &mut Outcome) -> Result<(), Box<Failure>> {
        if !matches!(action, Action::RequeueAfter(_)) {
            debug!(%action, "doing");
        }
        match action {
            Action::Create(create) => outcome.written.extend(self.create(create).await?),
            Action::CreateMany(creates) => self.create_many(creates, outcome).await?,
            Action::Update {
                kind,
                object,
                subresource,
            } => {
                outcome
                    .written
                    .push(self.update(&kind, object, subresource).await?);
            }
            Action::UpdateMany {
                kind,
                objects,
                subresource,
            } => {
                let all = objects.into_iter().map(|o| self.update(&kind, o, subresource));
                all_of(
                    join_all(all).await.into_iter().map(|r| r.map(Some)).collect(),
                    outcome,
                )?;
            }
            Action::Delete(delete) => outcome.written.extend(self.delete(delete).await?),
            Action::Release(release) => outcome.written.extend(self.release(release).await?),
            Action::DeleteMany(deletes) => {
                let all = deletes.into_iter().map(|d| self.delete(d));
                all_of(join_all(all).await, outcome)?;
            }
            Action::DeleteExtensionContents { namespace } => {
                let kind = &registry::NAMESPACE;
                let deleted = self.api.delete_extension_contents(&namespace).await;
                deleted.map_err(failure(Verb::Delete, kind, &namespace))?;
            }
            Action::Require(fact) => self.require(fact).await?,
            Action::RequeueAfter(wait) => {
                outcome.requeue_after = Some(outcome.requeue_after.map_or(wait, |w| w.min(wait)));
            }
            Action::Event {
                about,
                warning,
                reason,
                message,
            } => {
                let type_ = if warning {
                    EventType::Warning
                } else {
                    EventType::Normal
                };
                self.events.event(&about, type_, reason, message);
            }
        }
        Ok(())
    }

    async fn update(
        &self,
        kind: &Kind,
        object: Box<dyn AnyObject>,
        subresource: &'static str,
    ) -> Result<Written, Box<Failure>> {
        let name = object.metadata().name.clone().unwrap_or_default();
        let updated = self.api.update(kind, object, subresource).await;
        let updated = updated.map_err(failure(Verb::Update, kind, &name))?;
        Ok(Written::Revision(kind.clone(), updated.revision()))
    }

    async fn create(&self, create: Create) -> Result<Option<Written>, Box<Failure>> {
        let Create {
            kind,
            object,
            ignore_already_exists,
            report,
        } = create;
        let meta = object.metadata();
        let name = meta
            .name
            .clone()
            .or_else(|| meta.generate_name.clone())
            .unwrap_or_default();
        match self.api.create(&kind, object).await {
            Ok(created) => {
                self.done(report, created.name());
                Ok(Some(Written::Revision(kind, created.revision())))
            }
            Err(error) if ignore_already_exists && error.is_already_exists() => Ok(None),
            Err(error) => {
                // A terminating namespace rejects new objects: that is not worth an event.
                if !is_namespace_terminating(&error) {
                    self.failed(report, &error);
                }
                Err(failure(Verb::Create, &kind, &name)(error))
            }
        }
    }

    async fn create_many(&self, creates: Vec<Create>, outcome: &mut Outcome) -> Result<(), Box<Failure>> {
        let mut rest = creates.into_iter();
        let mut batch = FIRST_BATCH;
        loop {
            let now: Vec<_> = rest.by_ref().take(batch).map(|c| self.create(c)).collect();
            if now.is_empty() {
                return Ok(());
            }
            all_of(join_all(now).await, outcome)?;
            batch *= 2;
        }
    }

    async fn delete(&self, delete: Delete) -> Result<Option<Written>, Box<Failure>> {
        let Delete {
            kind,
            key,
            uid,
            resource_version,
            dependents,
            report,
        } = delete;
        let options = DeleteOptions {
            grace_period_seconds: None,
            preconditions: Preconditions {
                uid: Some(uid.clone()),
                resource_version,
            },
            propagation: match dependents {
                Dependents::Default => None,
                Dependents::Background => Some(Propagation::Background),
                Dependents::Foreground => Some(Propagation::Foreground),
                Dependents::Orphan => Some(Propagation::Orphan),
            },
        };
        match self.api.delete(&kind, &key.namespace, &key.name, options).await {
            Ok(_) => {
                self.done(report, &key.name);
                Ok(Some(Written::Deleted { kind, key, uid }))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => {
                self.failed(report, &error);
                Err(failure(Verb::Delete, &kind, &key.name)(error))
            }
        }
    }

    /// The only request of a controller that completes a pod's deletion; only PodGC can create its argument.
    async fn release(&self, release: Release) -> Result<Option<Written>, Box<Failure>> {
        let (key, uid) = (release.key().clone(), release.uid().to_string());
        let kind = &registry::POD;
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Preconditions {
                uid: Some(uid.clone()),
                resource_version: None,
            },
            propagation: None,
        };
        match self.api.delete(kind, &key.namespace, &key.name, options).await {
            Ok(_) => Ok(Some(Written::Deleted {
                kind: kind.clone(),
                key,
                uid,
            })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(failure(Verb::Delete, kind, &key.name)(error)),
        }
    }

    async fn require(&self, fact: LiveCheck) -> Result<(), Box<Failure>> {
        match fact {
            LiveCheck::Exists { kind, key, uid } => {
                let failure = failure(Verb::Require, &kind, &key.name);
                match self.api.get(&kind, &key.namespace, &key.name).await {
                    Err(error) => Err(failure(error)),
                    Ok(live) if live.uid() != uid => {
                        let why = format!("its uid is {} and not {uid}", live.uid());
                        Err(failure(Error::conflict(kind.resource_ref(&key.name), &why)))
                    }
                    Ok(live) if live.metadata().deletion_timestamp.is_some() => {
                        let why = "it is being deleted";
                        Err(failure(Error::conflict(kind.resource_ref(&key.name), why)))
                    }
                    Ok(_) => Ok(()),
                }
            }
            LiveCheck::Deleting { kind, key, uid } => {
                let is_deleting =
                    |live: &Object| live.uid() == uid && live.metadata().deletion_timestamp.is_some();
                let why = "it is not being deleted";
                self.require_object(&kind, &key, is_deleting, why).await
            }
            LiveCheck::Generation {
                kind,
                key,
                uid,
                generation,
            } => {
                let is_same = |live: &Object| live.uid() == uid && live.metadata().generation == generation;
                let why = "its spec has changed";
                self.require_object(&kind, &key, is_same, why).await
            }
            LiveCheck::Held {
                namespace,
                pods,
                finalizer,
            } => {
                // One list, whatever their number: Kubernetes' role of the job controller has no `get` of pods. The API server finds the
                // pod of one name without a scan.
                let kind = &registry::POD;
                let field_selector = only_name(&pods).map(|name| format!("metadata.name={name}"));
                let options = ListOptions {
                    namespace,
                    field_selector: field_selector.unwrap_or_default(),
                    ..ListOptions::default()
                };
                let failure = failure(Verb::Require, kind, "");
                let found = self.api.list(kind, options).await.map_err(&failure)?;
                let is_held = |o: &Object| {
                    pods.get(o.name()).is_some_and(|uid| uid == o.uid())
                        && has_finalizer(o.metadata(), finalizer)
                };
                let held: BTreeSet<&str> = found
                    .items
                    .iter()
                    .filter(|o| is_held(o))
                    .map(|o| o.name())
                    .collect();
                match pods.keys().find(|name| !held.contains(name.as_str())) {
                    None => Ok(()),
                    Some(name) => {
                        let why = format!("it has no finalizer {finalizer}");
                        Err(failure(Error::conflict(kind.resource_ref(name), &why)))
                    }
                }
            }
            LiveCheck::NoneHeld {
                namespace,
                owner,
                uids,
                finalizer,
            } => {
                let kind = &registry::POD;
                let failure = failure(Verb::Require, kind, "");
                let options = ListOptions {
                    namespace,
                    ..ListOptions::default()
                };
                let pods = self.api.list(kind, options).await.map_err(&failure)?;
                let is_one = |o: &Object| o.controller_uid() == owner && uids.contains(o.uid());
                let mut items = pods.items.iter().filter(|o| is_one(o));
                match items.find(|o| has_finalizer(o.metadata(), finalizer)) {
                    None => Ok(()),
                    Some(held) => {
                        let why = format!("it has the finalizer {finalizer}");
                        Err(failure(Error::conflict(kind.resource_ref(held.name()), &why)))
                    }
                }
            }
            LiveCheck::Absent { kind, key } => {
                let failure = failure(Verb::Require, &kind, &key.name);
                match self.api.get(&kind, &key.namespace, &key.name).await {
                    Err(error) if error.is_not_found() => Ok(()),
                    Err(error) => Err(failure(error)),
                    Ok(_) => Err(failure(Error::conflict(
                        kind.resource_ref(&key.name),
                        "it is there",
                    ))),
                }
            }
            LiveCheck::AbsentUid { kind, key, uid } => {
                let failure = failure(Verb::Require, &kind, &key.name);
                match self.api.get(&kind, &key.namespace, &key.name).await {
                    Err(error) if error.is_not_found() => Ok(()),
                    Err(error) => Err(failure(error)),
                    Ok(live) if live.uid() != uid => Ok(()),
                    Ok(_) => Err(failure(Error::conflict(
                        kind.resource_ref(&key.name),
                        "it is there",
                    ))),
                }
            }
            LiveCheck::OutOfService { node } => {
                let why = "it is not out of service";
                self.require_node(&node, is_out_of_service, why).await
            }
            LiveCheck::NotRenewed { lease, renewed } => {
                let kind = &registry::LEASE;
                let failure = failure(Verb::Require, kind, &lease.name);
                let live = match self.api.get(kind, &lease.namespace, &lease.name).await {
                    Err(error) if error.is_not_found() => return Ok(()),
                    live => live.map_err(&failure)?,
                };
                let spec = live.get::<Lease>().and_then(|lease| lease.spec.as_ref());
                if spec.and_then(|s| s.renew_time.as_ref()) == renewed.as_ref() {
                    return Ok(());
                }
                let why = "it has been renewed";
                Err(failure(Error::conflict(kind.resource_ref(&lease.name), why)))
            }
            LiveCheck::Unreachable { node } => {
                let why = "it is not unreachable";
                self.require_node(&node, is_unreachable, why).await
            }
            LiveCheck::Tainted { node, taints } => {
                let is_tainted = |live: &Node| has_taints(live, &taints);
                let why = "its taints have changed";
                self.require_node(&node, is_tainted, why).await
            }
            LiveCheck::Allowed { about, any_of } => {
                let kind = &registry::SUBJECT_ACCESS_REVIEW;
                let failure = failure(Verb::Require, kind, &about.name);
                for spec in any_of {
                    let review = SubjectAccessReview {
                        spec,
                        ..SubjectAccessReview::default()
                    };
                    let response = self
                        .api
                        .create(kind, review.into_object())
                        .await
                        .map_err(&failure)?;
                    let status = response
                        .get::<SubjectAccessReview>()
                        .and_then(|r| r.status.as_ref());
                    if status.is_some_and(|s| s.allowed) {
                        return Ok(());
                    }
                }
                let about = registry::CERTIFICATE_SIGNING_REQUEST.resource_ref(&about.name);
                Err(failure(Error::forbidden(
                    about,
                    "the requester is not allowed to have it",
                )))
            }
            LiveCheck::NotAttachedElsewhere { volume, node } => {
                let kind = &registry::VOLUME_ATTACHMENT;
                let failure = failure(Verb::Require, kind, "");
                let all = self.api.list(kind, ListOptions::default()).await;
                let all = all.map_err(&failure)?;
                let is_elsewhere =
                    |attachment: &VolumeAttachment| csi_attach::is_elsewhere(attachment, &volume, &node);
                let mut attachments = all.items.iter();
                match attachments.find(|o| o.get::<VolumeAttachment>().is_some_and(is_elsewhere)) {
                    None => Ok(()),
                    Some(other) => {
                        let why = format!("it attaches volume {volume} to another node");
                        Err(failure(Error::conflict(kind.resource_ref(other.name()), &why)))
                    }
                }
            }
            LiveCheck::ClaimUnused { claim } => {
                let kind = &registry::POD;
                let failure = failure(Verb::Require, kind, "");
                let options = ListOptions {
                    namespace: claim.namespace.clone(),
                    ..ListOptions::default()
                };
                let pods = self.api.list(kind, options).await.map_err(&failure)?;
                let user = pods.items.iter().find(|o| {
                    o.get::<Pod>()
                        .is_some_and(|pod| protection::uses(pod, &claim.name))
                });
                match user {
                    None => Ok(()),
                    Some(pod) => Err(failure(Error::conflict(
                        registry::PERSISTENT_VOLUME_CLAIM.resource_ref(&claim.name),
                        &format!("pod {} uses it", pod.name()),
                    ))),
                }
            }
            LiveCheck::NoneInNamespace { kind, namespace } => self.require_none_left(&kind, namespace).await,
            LiveCheck::NoCustomResources { namespace } => {
                let definitions = &registry::CUSTOM_RESOURCE_DEFINITION;
                let all = self.api.list(definitions, ListOptions::default()).await;
                let all = all.map_err(failure(Verb::Require, definitions, ""))?;
                for kind in all.items.iter().filter_map(|o| kind_of(o)) {
                    if !kind.namespaced() {
                        continue;
                    }
                    match self.require_none_left(&kind, namespace.clone()).await {
                        // The kind was removed meanwhile, and its objects with it.
                        Err(failure) if failure.error.is_not_found() => {}
                        other => other?,
                    }
                }
                Ok(())
            }
        }
    }

    /// Requires that an object exists and is as the decision assumes; `why` says what it is otherwise.
    async fn require_object(
        &self,
        kind: &Kind,
        key: &ObjectKey,
        holds: impl Fn(&Object) -> bool + Send,
        why: &str,
    ) -> Result<(), Box<Failure>> {
        let failure = failure(Verb::Require, kind, &key.name);
        let live = self.api.get(kind, &key.namespace, &key.name).await;
        if holds(&*live.map_err(&failure)?) {
            return Ok(());
        }
        Err(failure(Error::conflict(kind.resource_ref(&key.name), why)))
    }

    async fn require_node(
        &self,
        node: &str,
        holds: impl Fn(&Node) -> bool + Send,
        why: &str,
    ) -> Result<(), Box<Failure>> {
        let key = ObjectKey::new("", node);
        let holds = move |live: &Object| live.get::<Node>().is_some_and(&holds);
        self.require_object(&registry::NODE, &key, holds, why).await
    }

    async fn require_none_left(&self, kind: &Kind, namespace: String) -> Result<(), Box<Failure>> {
        let failure = failure(Verb::Require, kind, "");
        let options = ListOptions {
            namespace,
            limit: 1,
            ..ListOptions::default()
        };
        let list = self.api.list(kind, options).await.map_err(&failure)?;
        match list.items.first() {
            None => Ok(()),
            Some(left) => Err(failure(Error::conflict(
                kind.resource_ref(left.name()),
                "it is still there",
            ))),
        }
    }

    fn done(&self, report: Option<Report>, name: &str) {
        if let Some(Report {
            about,
            done: Some((reason, message)),
            ..
        }) = report
        {
            let message = format!("{message}{name}");
            self.events.event(&about, EventType::Normal, reason, message);
        }
    }

    fn failed(&self, report: Option<Report>, error: &Error) {
        if let Some(Report {
            about,
            failed: (reason, message),
            ..
        }) = report
        {
            let message = format!("{message}{error}");
            self.events.event(&about, EventType::Warning, reason, message);
        }
    }

    /// An event of the driver's own.
    pub fn event(&self, about: &ObjectReference, type_: EventType, reason: &str, message: String) {
        self.events.event(about, type_, reason, message);
    }
}

/// Collects the writes, and returns the first failure.
fn all_of<W: IntoIterator<Item = Written>>(
    results: Vec<Result<W, Box<Failure>>>,
    outcome: &mut Outcome,
) -> Result<(), Box<Failure>> {
    let mut first = None;
    for result in results {
        match result {
            Ok(written) => outcome.written.extend(written),
            Err(failure) => {
                first.get_or_insert(failure);
            }
        }
    }
    first.map_or(Ok(()), Err)
}

fn failure<'a>(verb: Verb, kind: &'a Kind, name: &'a str) -> impl Fn(Error) -> Box<Failure> + use<'a> {
    move |error| {
        Box::new(Failure {
            verb,
            kind: kind.clone(),
            name: name.to_string(),
            error,
        })
    }
}

/// Whether a create was rejected because its namespace is being deleted.
pub fn is_namespace_terminating(error: &Error) -> bool {
    error.has_cause("NamespaceTerminating")
}
