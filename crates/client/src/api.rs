//! The requests that components make, with the API's own semantics: a write may carry preconditions (uid,
//! resourceVersion), and every error is a Kubernetes `Status`.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::deletion::Propagation;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_api::{AnyObject, Kind, Object, Shared};
use knarr_apimachinery::codec;
use knarr_apimachinery::ids::NodeName;
use knarr_apimachinery::{Error, Result};

use crate::term::Term;

/// The preconditions of a delete or an update; where they do not hold the response is 409 Conflict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

/// As meta/v1 DeleteOptions.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// `None`: the kind's own default.
    pub grace_period_seconds: Option<i64>,
    pub preconditions: Preconditions,
    pub propagation: Option<Propagation>,
}

/// Which objects are listed. An empty namespace means all namespaces.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    pub namespace: String,
    /// In the query string's syntax: `app=web,tier!=db`.
    pub label_selector: String,
    /// In the query string's syntax: `spec.nodeName=a`.
    pub field_selector: String,
    /// 0 is no limit.
    pub limit: usize,
    pub continue_token: String,
}

/// A list of objects as of one resourceVersion.
#[derive(Clone, Debug, Default)]
pub struct List {
    pub resource_version: u64,
    pub items: Vec<Arc<Object>>,
    /// The token for the next page; empty on the last one.
    pub continue_token: String,
}

/// Which objects are watched, and from which resourceVersion.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    pub namespace: String,
    pub label_selector: String,
    pub field_selector: String,
    /// Changes after this resourceVersion. `None` begins with the initial state as `Added` events and a `Bookmark`
    /// (`sendInitialEvents`, KEP-3157); changes follow.
    pub after: Option<u64>,
}

/// An event of a watch (meta/v1 WatchEvent). An ERROR event is the error of the stream.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    Added(Arc<Object>),
    Modified(Arc<Object>),
    Deleted(Arc<Object>),
    /// All changes up to this resourceVersion have been sent.
    Bookmark(u64),
}

/// The events of a watch. It ends with an error (`Expired`: the resourceVersion is too old, list again), or when the
/// server closes it or the client reads too slowly: then the client resumes after the last resourceVersion that it received.
pub type WatchStream = BoxStream<'static, Result<WatchEvent>>;

/// A patch's body, by its content type.
#[derive(Clone, Debug)]
pub enum Patch {
    Json(serde_json::Value),
    Merge(serde_json::Value),
    Strategic(serde_json::Value),
}

/// The cluster, as a component sees it. `namespace` is empty for cluster-scoped kinds.
///
/// Implemented in-process by the API server and remotely over HTTPS. Both run the whole pipeline:
/// authorization, admission, validation.
///
/// # Examples
///
/// A delete carries the uid of the object that it was decided on, so that another object of the same name is not deleted (SPEC S2).
///
/// ```no_run
/// use knarr_client::{Api, DeleteOptions, Object, Preconditions, Result};
///
/// async fn delete_seen(api: &dyn Api, seen: &Object) -> Result<()> {
///     let options = DeleteOptions {
///         preconditions: Preconditions {
///             uid: Some(seen.uid().into()),
///             ..Preconditions::default()
///         },
///         ..DeleteOptions::default()
///     };
///     api.delete(seen.kind(), seen.namespace(), seen.name(), options).await?;
///     Ok(())
/// }
/// ```
#[async_trait]
pub trait Api: Send + Sync + 'static {
    /// The same API for a leader: writes are made only while `term` lasts; after it the response is 409 Conflict.
    fn with_term(self: Arc<Self>, term: Term) -> Arc<dyn Api>;
    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Object>>;
    async fn list(&self, kind: &Kind, options: ListOptions) -> Result<List>;
    async fn watch(&self, kind: &Kind, options: WatchOptions) -> Result<WatchStream>;
    async fn create(&self, kind: &Kind, object: Box<dyn AnyObject>) -> Result<Arc<Object>>;
    /// Updates the object, with its resourceVersion as precondition if it has one. `subresource` is empty, or `status`, …
    async fn update(&self, kind: &Kind, object: Box<dyn AnyObject>, subresource: &str)
    -> Result<Arc<Object>>;
    /// Updates the status of an object, as [`Api::update`] does. `read` is the object as the caller has read it, see
    /// [`Api::disrupt`].
    async fn update_status(&self, read: &Arc<Object>, object: Box<dyn AnyObject>) -> Result<Arc<Object>> {
        self.update(read.kind(), object, "status").await
    }
    async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: Patch,
    ) -> Result<Arc<Object>>;
    /// Deletes an object and returns its last state: with a deletionTimestamp, or as it was when it was removed.
    async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: DeleteOptions,
    ) -> Result<Arc<Object>>;
    /// Deletes a pod and sets its DisruptionTarget condition: in one write where the server can do so; otherwise the
    /// condition is written first. `pod` is the pod as the caller has read it, perhaps at an earlier revision: only the uid of `options`
    /// is a precondition. A server of this process does not decode the pod again while it is at that revision.
    async fn disrupt(
        &self,
        pod: &Shared<Pod>,
        why: PodCondition,
        options: DeleteOptions,
    ) -> Result<Arc<Object>> {
        let kind = Pod::kind_of();
        let (namespace, name) = (pod.object().namespace(), pod.object().name());
        let mut patch = serde_json::json!({"status": {"conditions": [why]}});
        if let Some(uid) = &options.preconditions.uid {
            patch["metadata"] = serde_json::json!({"uid": uid});
        }
        self.patch(kind, namespace, name, "status", Patch::Strategic(patch))
            .await?;
        self.delete(kind, namespace, name, options).await
    }
    /// The object's `scale` subresource; 404 for kinds without one.
    async fn scale(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Scale> {
        let object = self.get(kind, namespace, name).await?;
        knarr_api::scale::get(kind, &object).ok_or_else(|| Error::not_found(kind.resource_ref(name)))
    }
    /// Sets the replicas of the object that the scale names, with its resourceVersion as precondition, if it has one.
    async fn update_scale(&self, kind: &Kind, scale: Scale) -> Result<Scale> {
        let meta = &scale.metadata;
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let old = self.get(kind, namespace, name).await?;
        let mut object = old.typed().clone_box();
        let replicas = scale.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
        if !knarr_api::scale::set(kind, &mut *object, replicas) {
            return Err(Error::not_found(kind.resource_ref(name)));
        }
        object
            .metadata_mut()
            .resource_version
            .clone_from(&meta.resource_version);
        let new = self.update(kind, object, "").await?;
        knarr_api::scale::get(kind, &new).ok_or_else(|| Error::not_found(kind.resource_ref(name)))
    }
    /// The JSON at a path of an API without stored objects: resource metrics, or what an extension API server serves,
    /// such as `/apis/custom.metrics.k8s.io/v1beta1/namespaces/a/pods/*/requests`; 404 if there is none.
    async fn get_raw(&self, path: &str) -> Result<serde_json::Value> {
        Err(Error::new(
            404,
            "NotFound",
            format!("no API server serves {path}"),
        ))
    }
    /// Deletes all objects in a namespace that extension API servers serve; an error while one of them is left or an
    /// extension API server is not available.
    async fn delete_extension_contents(&self, _namespace: &str) -> Result<()> {
        Ok(())
    }
    /// Creates a Binding: assigns the pod that it names to its target, with the uid in its metadata as precondition. A server of this process
    /// takes it as it is; others get it as JSON. `pod` is the pod as the caller has read it, see [`Api::disrupt`]; `None` if it has not.
    async fn create_binding(&self, binding: Binding, _pod: Option<&Shared<Pod>>) -> Result<()> {
        let body = codec::to_plain_value(&binding).map_err(Error::internal)?;
        let meta = binding.metadata;
        let (namespace, name) = (meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default());
        self.create_subresource(Pod::kind_of(), &namespace, &name, "binding", body)
            .await
            .map(drop)
    }
    /// A `create` on a subresource whose body and response are JSON of kinds that are not stored
    /// (`binding`, `eviction`, `token`).
    async fn create_subresource(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: serde_json::Value,
    ) -> Result<serde_json::Value>;
}

/// [`Api`] with Rust types. Implemented for every [`Api`].
#[async_trait]
pub trait TypedApi {
    async fn get_as<T: Registered>(&self, namespace: &str, name: &str) -> Result<Shared<T>>;
    async fn create_as<T: Registered>(&self, object: T) -> Result<Shared<T>>;
    async fn update_as<T: Registered>(&self, object: T) -> Result<Shared<T>>;
    async fn update_status_as<T: Registered>(&self, object: T) -> Result<Shared<T>>;
    /// Binds a pod to a node (the `binding` subresource), with the pod's uid as precondition.
    async fn bind(&self, pod: &Pod, node: &NodeName) -> Result<()>;
    /// The same for a pod that was read from this API, see [`Api::disrupt`].
    async fn bind_read(&self, pod: &Shared<Pod>, node: &NodeName) -> Result<()>;
}

fn binding(pod: &ObjectMeta, node: &NodeName) -> Binding {
    Binding {
        metadata: ObjectMeta {
            name: Some(pod.name.clone().unwrap_or_default()),
            namespace: Some(pod.namespace.clone().unwrap_or_default()),
            uid: pod.uid.clone(),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            kind: Some("Node".into()),
            name: Some(node.into()),
            ..ObjectReference::default()
        },
    }
}

#[async_trait]
impl<A: Api + ?Sized> TypedApi for A {
    async fn get_as<T: Registered>(&self, namespace: &str, name: &str) -> Result<Shared<T>> {
        Shared::new(self.get(T::kind_of(), namespace, name).await?)
    }

    async fn create_as<T: Registered>(&self, object: T) -> Result<Shared<T>> {
        Shared::new(self.create(T::kind_of(), object.into_object()).await?)
    }

    async fn update_as<T: Registered>(&self, object: T) -> Result<Shared<T>> {
        Shared::new(self.update(T::kind_of(), object.into_object(), "").await?)
    }

    async fn update_status_as<T: Registered>(&self, object: T) -> Result<Shared<T>> {
        Shared::new(self.update(T::kind_of(), object.into_object(), "status").await?)
    }

    async fn bind(&self, pod: &Pod, node: &NodeName) -> Result<()> {
        self.create_binding(binding(&pod.metadata, node), None).await
    }

    async fn bind_read(&self, pod: &Shared<Pod>, node: &NodeName) -> Result<()> {
        let binding = binding(pod.object().metadata(), node);
        self.create_binding(binding, Some(pod)).await
    }
}
