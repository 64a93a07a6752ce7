//! The requests of [`Api`]: recorded for the story, distorted by mutants, and sent.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use knarr_api::k8s_openapi::api::autoscaling::v1::Scale;
use knarr_api::k8s_openapi::api::core::v1::{Binding, Pod};
use knarr_api::{AnyObject, Shared, registry};
use knarr_client::{
    Api, Component, DeleteOptions, Error, Identities, Kind, List, ListOptions, Object, Patch, Result, Term,
    WatchOptions, WatchStream,
};

use super::watch::{Watched, full_name, next, seen};
use super::{ComponentApi, Identity};
use crate::Mutation;
use crate::disks;
use crate::distortion;
use crate::upgrade;

/// How the field selector of a kubelet's watch of its pods begins.
const OF_NODE: &str = "spec.nodeName=";

impl ComponentApi {
    /// The UID of the pod whose eviction the rebalancer requests with this.
    fn moves(&self, subresource: &str, body: &serde_json::Value) -> Option<String> {
        let Identity::Component(Component::Controller(account)) = &self.identity else {
            return None;
        };
        let is_move = *account == knarr_control::rebalancing::ACCOUNT && subresource == "eviction";
        let uid = body["deleteOptions"]["preconditions"]["uid"].as_str();
        uid.filter(|_| is_move).map(String::from)
    }
}

impl Identities for ComponentApi {
    fn of(&self, component: &Component) -> Arc<dyn Api> {
        Arc::new(self.acting_as(Identity::Component(component.clone())))
    }

    fn with_term(self: Arc<Self>, term: Term) -> Arc<dyn Identities> {
        Arc::new(self.in_term(term))
    }
}

#[async_trait]
impl Api for ComponentApi {
    fn with_term(self: Arc<Self>, term: Term) -> Arc<dyn Api> {
        Arc::new(self.in_term(term))
    }

    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Object>> {
        if let Some(node) = self.reports_all_attached(kind) {
            return disks::attached_to(node, name);
        }
        if self.misses(kind) {
            return Err(Error::not_found(kind.resource_ref(name)));
        }
        let (kind, namespace, name) = (kind.clone(), namespace.to_string(), name.to_string());
        self.send(
            false,
            |api| async move { api.get(&kind, &namespace, &name).await },
        )
        .await
    }

    async fn list(&self, kind: &Kind, options: ListOptions) -> Result<List> {
        let (asked, namespace) = (kind.clone(), options.namespace.clone());
        let list = self.send(false, |api| async move { api.list(&asked, options).await });
        let mut list = self.distort_list(kind, &namespace, list.await?);
        if self.misses(kind) {
            list.items.clear();
        }
        if self.observer.has_story() {
            for object in &list.items {
                self.observer
                    .record(|| seen(&self.network.name, object) + " in a list");
            }
        }
        Ok(list)
    }

    async fn watch(&self, kind: &Kind, options: WatchOptions) -> Result<WatchStream> {
        let is_of_node = *kind == registry::POD && options.field_selector.starts_with(OF_NODE);
        let begun = async {
            // The stream ends when the server dies that it comes from.
            let Some(connection) = self.connect() else {
                return Err(self.rejected().await);
            };
            let api = self.api(&connection);
            let stopped = connection.stopped;
            let asked = kind.clone();
            let request = async move { api.watch(&asked, options).await };
            let stream = self.send_to(false, &stopped, request).await?;
            Ok((stream, stopped))
        };
        let (stream, stopped) = tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            begun = begun => begun?,
        };
        self.observer
            .note(&format!("{} watches {}", self.network.name, kind.plural()));
        let stream = match self.misses(kind) {
            true => futures::stream::pending().boxed(),
            false => self.distort_watch(kind, stream),
        };
        let watched = Watched {
            inner: stream,
            stopped,
            network: self.network.clone(),
            observer: self.observer.clone(),
            breaks: self.network.breaks(),
            is_of_node,
        };
        let events = futures::stream::unfold(Some(watched), |watched| async move {
            match watched {
                Some(watched) => next(watched).await,
                None => None,
            }
        });
        Ok(events.boxed())
    }

    async fn scale(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Scale> {
        let (kind, namespace, name) = (kind.clone(), namespace.to_string(), name.to_string());
        self.send(
            false,
            |api| async move { api.scale(&kind, &namespace, &name).await },
        )
        .await
    }

    async fn update_scale(&self, kind: &Kind, scale: Scale) -> Result<Scale> {
        let kind = kind.clone();
        self.send(true, |api| async move { api.update_scale(&kind, scale).await })
            .await
    }

    async fn create(&self, kind: &Kind, object: Box<dyn AnyObject>) -> Result<Arc<Object>> {
        let kind = kind.clone();
        let meta = object.metadata();
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().or(meta.generate_name.as_deref());
        let what = self.observer.has_story().then(|| {
            let name = full_name(namespace, name.unwrap_or_default());
            format!("create {} {name}", kind.plural())
        });
        // The creation of the lease is the first renewal.
        let sent = self.renewal_begins(&kind, &*object);
        let asked = distortion::requested(self.mutation, &*object);
        let of = kind.clone();
        let created = self.send(true, |api| async move { api.create(&kind, object).await });
        let answer = self.record_request(what, created).await;
        let answer = distortion::answer(self.mutation, &self.observer, &of, asked, answer);
        self.observer.answered(&self.network.name, &answer);
        if let Some(sent) = sent.filter(|_| answer.is_ok()) {
            self.observer.renewal_answered(&self.network.name, sent);
        }
        answer
    }

    async fn update(
        &self,
        kind: &Kind,
        mut object: Box<dyn AnyObject>,
        subresource: &str,
    ) -> Result<Arc<Object>> {
        let subresource = subresource.to_string();
        distortion::update(self.mutation, kind, &mut *object);
        if self.is_former {
            upgrade::as_former_writes(&mut *object);
        }
        if kind == &registry::POD && self.is_kubelet() {
            distortion::report(self.mutation, &self.observer, &mut *object);
        }
        let is_lost = self.mutation == Some(Mutation::NeverCountAgain) && kind == &registry::RESOURCE_QUOTA;
        if self.reports_all_attached(kind).is_some() || is_lost {
            return Ok(Arc::new(Object::from_typed(kind, object)));
        }
        if kind == &registry::POD && self.is_kubelet() {
            let meta = object.metadata().clone();
            if self.mutation == Some(Mutation::DeleteBeforeTheEnd) && meta.deletion_timestamp.is_some() {
                let (namespace, name) = (meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default());
                let mut options = DeleteOptions {
                    grace_period_seconds: Some(0),
                    ..DeleteOptions::default()
                };
                options.preconditions.uid = meta.uid;
                let kind = kind.clone();
                // Without the rule about requests: the rule about the store has to find it.
                return self
                    .send(true, |api| async move {
                        api.delete(&kind, &namespace, &name, options).await
                    })
                    .await;
            }
        }
        let sent = self.renewal_begins(kind, &*object);
        let meta = object.metadata();
        let what = self.observer.has_story().then(|| {
            let name = meta.name.as_deref().unwrap_or_default();
            let name = full_name(meta.namespace.as_deref().unwrap_or_default(), name);
            let since = meta.resource_version.as_deref().unwrap_or("any revision");
            format!("update {} {name} {subresource} (from {since})", kind.plural())
        });
        let asked = distortion::requested(self.mutation, &*object);
        let takes_sent_for_renewed = sent.is_some() && self.mutation == Some(Mutation::TakeSentForRenewed);
        let renewed = takes_sent_for_renewed.then(|| object.clone_box());
        let updated = self.send_repeatable(
            object,
            |object| (**object).clone_box(),
            |api, object| {
                let (kind, subresource) = (kind.clone(), subresource.clone());
                async move { api.update(&kind, object, &subresource).await }
            },
        );
        let answer = self.record_request(what, updated).await;
        let answer = distortion::answer(self.mutation, &self.observer, kind, asked, answer);
        self.observer.answered(&self.network.name, &answer);
        let answer = match (answer, renewed) {
            (Err(_), Some(renewed)) => return Ok(Arc::new(Object::from_typed(kind, renewed))),
            (answer, _) => answer,
        };
        if let Some(sent) = sent.filter(|_| answer.is_ok()) {
            self.observer.renewal_answered(&self.network.name, sent);
        }
        answer
    }

    async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: Patch,
    ) -> Result<Arc<Object>> {
        let is_unannounced = self.is_former || self.mutation == Some(Mutation::StartUnannounced);
        if is_unannounced && upgrade::is_announcement(&patch) {
            return self.get(kind, namespace, name).await;
        }
        let (namespace, name) = (namespace.to_string(), name.to_string());
        let (kind, subresource) = (kind.clone(), subresource.to_string());
        let what = self.observer.has_story().then(|| {
            let of = full_name(&namespace, &name);
            format!("patch {} {of} {subresource}", kind.plural())
        });
        let patched = self.send(true, |api| async move {
            api.patch(&kind, &namespace, &name, &subresource, patch).await
        });
        self.record_request(what, patched).await
    }

    async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        mut options: DeleteOptions,
    ) -> Result<Arc<Object>> {
        let (namespace, name) = (namespace.to_string(), name.to_string());
        if kind == &registry::POD {
            match self.mutation {
                Some(Mutation::ForceAway) if !self.is_kubelet() => options.grace_period_seconds = Some(0),
                Some(Mutation::ReplaceLost)
                    if !self.is_kubelet() && self.observer.is_lost_set_pod(&namespace, &name) =>
                {
                    options.grace_period_seconds = Some(0);
                }
                Some(Mutation::ForgetUid) => options.preconditions.uid = None,
                Some(Mutation::LoseLastStep) if self.is_kubelet() => {
                    return self.get(kind, &namespace, &name).await;
                }
                Some(Mutation::LeaveVictims) if self.leaves(&namespace, &name) => {
                    return self.get(kind, &namespace, &name).await;
                }
                _ => {}
            }
            if !self.dead.is_cancelled() {
                self.observer.delete_asked(&self.network.name, &name, &options);
            }
        }
        let what = self.observer.has_story().then(|| {
            let grace = options.grace_period_seconds;
            let grace = grace.map_or("its own".to_string(), |seconds| format!("{seconds} s"));
            let of = full_name(&namespace, &name);
            format!("delete {} {of} (grace: {grace})", kind.plural())
        });
        let body = (namespace, name, options);
        let deleted = self.send_repeatable(body, Clone::clone, |api, (namespace, name, options)| {
            let kind = kind.clone();
            async move { api.delete(&kind, &namespace, &name, options).await }
        });
        self.record_request(what, deleted).await
    }

    async fn create_binding(&self, binding: Binding, pod: Option<&Shared<Pod>>) -> Result<()> {
        let what = self.observer.has_story().then(|| {
            let meta = &binding.metadata;
            let of = full_name(
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            );
            format!("create {} {of} binding", registry::POD.plural())
        });
        let pod = pod.cloned();
        let created = self.send(true, |api| async move {
            api.create_binding(binding, pod.as_ref()).await
        });
        self.record_request(what, created).await
    }

    async fn create_subresource(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: serde_json::Value,
    ) -> Result<serde_json::Value> {
        let (namespace, name) = (namespace.to_string(), name.to_string());
        let (kind, subresource) = (kind.clone(), subresource.to_string());
        let of = full_name(&namespace, &name);
        let what = self
            .observer
            .has_story()
            .then(|| format!("create {} {of} {subresource}", kind.plural()));
        let moved = self.moves(&subresource, &body);
        if let Some(uid) = moved.as_deref().filter(|_| !self.dead.is_cancelled()) {
            self.observer.move_asked(&of, uid);
        }
        let created = self.send(true, |api| async move {
            api.create_subresource(&kind, &namespace, &name, &subresource, body)
                .await
        });
        let answer = self.record_request(what, created).await;
        if let (Some(uid), Err(error)) = (&moved, &answer)
            && error.code() < 500
        {
            self.observer.move_rejected(uid);
        }
        answer
    }
}
