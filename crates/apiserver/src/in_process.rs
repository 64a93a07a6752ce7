//! [`knarr_client::Api`] without HTTP: components in this process share the cache's objects, each as its own user.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream;
use http::Method;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::{Binding, Pod, PodCondition};
use knarr_api::{AnyObject, Kind, Object, Shared, convert, k8s_openapi, registry};
use knarr_apimachinery::{Error, Result};
use knarr_client::{
    Api, Component, DeleteOptions, Identities, List, ListOptions, Patch, Term, WatchEvent, WatchOptions,
    WatchStream,
};
use parking_lot::Mutex;
use tracing::instrument;

use crate::aggregation::ExtensionServers;
use crate::authz::{Attributes, Selectors, forbidden};
use crate::cache::change::EventType;
use crate::controllers::Controllers;
use crate::metrics::DeniedRequest;
use crate::pipeline::Pipeline;
use crate::pipeline::decode::FieldValidation;
use crate::pipeline::patch::PatchBody;
use crate::pipeline::read::ListQuery;
use crate::pipeline::write::DeleteRequest;
use crate::request::{Ctx, Origin, Target, not_served};
use crate::resource_metrics::ResourceMetrics;
use crate::subresource::Subresources;
use crate::subresource::scale::scale_of;
use crate::user::User;
use crate::watch::Item;

/// The most users of components that a server keeps, about 0.5 MB. The control plane has fewer than 100 components and
/// a node has two; only a process in which many nodes follow each other, such as a simulation, has more.
const MAX_COMPONENT_USERS: usize = 1024;

/// What the components of this process use of the server.
pub(crate) struct InProcessServer {
    pub users: ComponentUsers,
    pub pipeline: Arc<Pipeline>,
    pub subresources: Arc<Subresources>,
    pub extension_servers: Arc<ExtensionServers>,
    pub resource_metrics: Arc<ResourceMetrics>,
    /// Whether writes update `managedFields`.
    pub tracks_fields: bool,
    pub _controllers: Arc<Controllers>,
}

/// The users of this process' components, at most [`MAX_COMPONENT_USERS`]. All are dropped when another one does not
/// fit: a user depends on nothing but its component, clients hold their own, and it is made again when it is needed.
#[derive(Default)]
pub(crate) struct ComponentUsers(Mutex<BTreeMap<Component, Arc<User>>>);

impl ComponentUsers {
    fn of(&self, component: &Component) -> Arc<User> {
        let mut users = self.0.lock();
        if let Some(user) = users.get(component) {
            return user.clone();
        }
        let user = User::new(component.user(), component.groups()).authenticated();
        let user = Arc::new(user);
        if users.len() >= MAX_COMPONENT_USERS {
            users.clear();
        }
        users.insert(component.clone(), user.clone());
        user
    }
}

#[derive(Clone)]
pub(crate) struct InProcess {
    server: Arc<InProcessServer>,
    user: Arc<User>,
    /// Set if the user is one of knarr's own components.
    component: Option<Component>,
    term: Option<Term>,
}

impl InProcess {
    pub fn of_user(server: Arc<InProcessServer>, user: impl Into<Arc<User>>) -> Self {
        InProcess {
            server,
            user: user.into(),
            component: None,
            term: None,
        }
    }

    pub fn of_component(server: Arc<InProcessServer>, component: Component) -> Self {
        let user = server.users.of(&component);
        InProcess {
            component: Some(component),
            ..Self::of_user(server, user)
        }
    }

    fn ctx(&self, verb: &'static str) -> Ctx {
        let mut ctx = Ctx::new(self.user.clone(), self.server.pipeline.clock.now());
        ctx.verb = verb;
        ctx.origin = Origin::InProcess;
        ctx.term.clone_from(&self.term);
        if let Some(manager) = self.component.as_ref().and_then(Component::field_manager) {
            ctx.manager = Some(manager.to_string());
        }
        if !self.server.tracks_fields {
            ctx.manager = None;
        }
        ctx
    }

    /// The served kind: components know kinds of custom resources by name only.
    async fn served(&self, kind: &Kind) -> Result<Kind> {
        if kind.ops.custom().is_none() {
            return Ok(kind.clone());
        }
        self.server
            .pipeline
            .kind_of_resource(kind.group(), kind.version(), kind.plural())
            .await?
            .ok_or_else(not_served)
    }

    /// An update of the object; `read` is the object as the component has read it, if it has.
    async fn put(
        &self,
        kind: &Kind,
        object: Box<dyn AnyObject>,
        subresource: &str,
        read: Option<Arc<Object>>,
    ) -> Result<Arc<Object>> {
        let kind = &self.served(kind).await?;
        let meta = object.metadata();
        let namespace = meta.namespace.clone().unwrap_or_default();
        let name = meta.name.clone().unwrap_or_default();
        let target = self.allowed("update", kind, &namespace, &name, subresource)?;
        let mut ctx = self.ctx("update");
        ctx.read = read;
        let updated = self.server.pipeline.put(&mut ctx, &target, object).await?;
        Ok(updated.object)
    }

    /// The target of a request, if its user is authorized for it.
    fn allowed<'a>(
        &self,
        verb: &'a str,
        kind: &'a Kind,
        namespace: &'a str,
        name: &'a str,
        subresource: &'a str,
    ) -> Result<Target<'a>> {
        self.allowed_of(verb, kind, (namespace, name, subresource), Selectors::default())
    }

    fn allowed_of<'a>(
        &self,
        verb: &'a str,
        kind: &'a Kind,
        (namespace, name, subresource): (&'a str, &'a str, &'a str),
        selectors: Selectors<'a>,
    ) -> Result<Target<'a>> {
        self.server.pipeline.metrics.count_in_process();
        let target = Target::checked(kind, verb, namespace, name, subresource)?;
        let attributes = Attributes::of_target(verb, &target, selectors);
        if self.server.pipeline.authorizer.allows(&self.user, &attributes) {
            return Ok(target);
        }
        let denied = forbidden(&self.user, &attributes);
        match &self.component {
            // What a kubelet may read depends on its pods, which are created and deleted.
            None | Some(Component::Node(_)) => {}
            Some(_) => {
                tracing::error!("a request of a component was denied: its role does not allow it: {denied}");
                self.server.pipeline.metrics.component_denied(&DeniedRequest {
                    user: &self.user.name,
                    verb: attributes.verb,
                    group: attributes.group,
                    resource: attributes.resource,
                    subresource: attributes.subresource,
                });
            }
        }
        Err(denied)
    }
}

/// The API of one server for all components of its process.
pub(crate) struct Components {
    server: Arc<InProcessServer>,
    term: Option<Term>,
}

impl Components {
    pub fn new(server: Arc<InProcessServer>) -> Self {
        Components { server, term: None }
    }
}

impl Identities for Components {
    fn of(&self, component: &Component) -> Arc<dyn Api> {
        Arc::new(InProcess {
            term: self.term.clone(),
            ..InProcess::of_component(self.server.clone(), component.clone())
        })
    }

    fn with_term(self: Arc<Self>, term: Term) -> Arc<dyn Identities> {
        Arc::new(Components {
            server: self.server.clone(),
            term: Some(term),
        })
    }
}

#[async_trait]
impl Api for InProcess {
    fn with_term(self: Arc<Self>, term: Term) -> Arc<dyn Api> {
        Arc::new(InProcess {
            term: Some(term),
            ..(*self).clone()
        })
    }

    #[instrument(name = "request", level = "debug", skip_all, fields(verb = "get", resource = kind.plural(), namespace = namespace, name = name, user = self.user.name))]
    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Object>> {
        let kind = &self.served(kind).await?;
        let target = self.allowed("get", kind, namespace, name, "")?;
        self.server.pipeline.get_now(&mut self.ctx("get"), &target).await
    }

    #[instrument(name = "request", level = "debug", skip_all, fields(verb = "list", resource = kind.plural(), namespace = options.namespace, user = self.user.name))]
    async fn list(&self, kind: &Kind, options: ListOptions) -> Result<List> {
        let kind = &self.served(kind).await?;
        let selectors = Selectors {
            fields: &options.field_selector,
            labels: &options.label_selector,
        };
        self.allowed_of("list", kind, (&options.namespace, "", ""), selectors)?;
        let query = ListQuery {
            label_selector: options.label_selector,
            field_selector: options.field_selector,
            limit: i64::try_from(options.limit).unwrap_or(i64::MAX),
            continue_token: options.continue_token,
            ..ListQuery::default()
        };
        let listed = self
            .server
            .pipeline
            .list(kind, &options.namespace, &query)
            .await?;
        Ok(List {
            resource_version: listed.revision,
            items: listed.items,
            continue_token: listed.continue_token,
        })
    }

    #[instrument(name = "request", level = "debug", skip_all, fields(verb = "watch", resource = kind.plural(), namespace = options.namespace, user = self.user.name))]
    async fn watch(&self, kind: &Kind, options: WatchOptions) -> Result<WatchStream> {
        let kind = self.served(kind).await?;
        let selectors = Selectors {
            fields: &options.field_selector,
            labels: &options.label_selector,
        };
        self.allowed_of("watch", &kind, (&options.namespace, "", ""), selectors)?;
        let query = ListQuery {
            label_selector: options.label_selector,
            field_selector: options.field_selector,
            ..ListQuery::default()
        };
        let filter = self.server.pipeline.filter(&kind, &options.namespace, &query)?;
        if options.after.is_none() {
            self.server.pipeline.wait_until_caught_up().await?;
        }
        let watcher = self.server.pipeline.follow(filter, options.after).await?;
        // The initial state ends with a bookmark.
        let bookmark = options.after.is_none().then(|| watcher.revision());
        let initial = watcher.initial_len();
        let state = (Some((watcher, kind)), initial, bookmark);
        Ok(stream::unfold(state, |(watched, initial, bookmark)| async move {
            let (mut watcher, kind) = watched?;
            if let (0, Some(revision)) = (initial, bookmark) {
                return Some((
                    Ok(WatchEvent::Bookmark(revision)),
                    (Some((watcher, kind)), 0, None),
                ));
            }
            // It ends when it falls behind or the cache starts over. A client that watches again from its last revision gets the changes it
            // missed, or 410.
            let event = match watcher.next().await? {
                Item::Bookmark { revision, .. } => Ok(WatchEvent::Bookmark(revision)),
                Item::Failed(error) => Err(error),
                Item::Event(event_type, object, _) => {
                    convert::object(&object, &kind).map(|object| match event_type {
                        EventType::Added => WatchEvent::Added(object),
                        EventType::Modified => WatchEvent::Modified(object),
                        EventType::Deleted => WatchEvent::Deleted(object),
                    })
                }
            };
            Some((
                event,
                (Some((watcher, kind)), initial.saturating_sub(1), bookmark),
            ))
        })
        .boxed())
    }

    #[instrument(name = "request", level = "debug", skip_all, fields(verb = "create", resource = kind.plural(), namespace = object.metadata().namespace, name = object.metadata().name, user = self.user.name))]
    async fn create(&self, kind: &Kind, object: Box<dyn AnyObject>) -> Result<Arc<Object>> {
        let kind = &self.served(kind).await?;
        let namespace = object.metadata().namespace.clone().unwrap_or_default();
        let target = self.allowed("create", kind, &namespace, "", "")?;
        if !kind.is_stored() {
            let mut body = Vec::new();
            object.encode_into(&mut body);
            let body = serde_json::from_slice(&body).map_err(Error::internal)?;
            let response = self
                .server
                .subresources
                .review(&mut self.ctx("create"), &target, body, object)
                .await?;
            let decoded = kind.ops.decode(response.to_string().as_bytes());
            let object = decoded.map_err(|e| Error::internal(e.message))?.object;
            return Ok(Arc::new(Object::from_typed(kind, object)));
        }
        self.server
            .pipeline
            .create(&mut self.ctx("create"), &target, object)
            .await
    }

    #[instrument(name = "request", level = "debug", skip_all, fields(verb = "update", resource = kind.plural(), subresource = subresource, namespace = object.metadata().namespace, name = object.metadata().name, user = self.user.name))]
    async fn update(
        &self,
        kind: &Kind,
        object: Box<dyn AnyObject>,
        subresource: &str,
    ) -> Result<Arc<Object>> {
        self.put(kind, object, subresource, None).await
    }

    #[instrument(name = "request", level = "debug", skip_all, fields(verb = "update", resource = read.kind().plural(), subresource = "status", namespace = read.namespace(), name = read.name(), user = self.user.name))]
    async fn update_status(&self, read: &Arc<Object>, object: Box<dyn AnyObject>) -> Result<Arc<Object>> {
        self.put(read.kind(), object, "status", Some(read.clone())).await
    }

    #[instrument(name = "request", level = "debug", skip_all, fields(verb = "patch", resource = kind.plural(), subresource = subresource, namespace = namespace, name = name, user = self.user.name))]
    async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: Patch,
    ) -> Result<Arc<Object>> {
        let kind = &self.served(kind).await?;
        let target = self.allowed("patch", kind, namespace, name, subresource)?;
        let body = PatchBody::from(patch);
        self.server
            .pipeline
            .patch(&mut self.ctx("patch"), &target, &body, FieldValidation::Warn)
            .await
    }

    #[instrument(name = "request", level = "debug", skip_all, fields(verb = "delete", resource = kind.plural(), namespace = namespace, name = name, user = self.user.name))]
    async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: DeleteOptions,
    ) -> Result<Arc<Object>> {
        let kind = &self.served(kind).await?;
        let target = self.allowed("delete", kind, namespace, name, "")?;
        let request = DeleteRequest {
            options,
            ..DeleteRequest::default()
        };
        Ok(self
            .server
            .pipeline
            .delete(&mut self.ctx("delete"), &target, &request)
            .await?
            .object)
    }

    async fn disrupt(
        &self,
        pod: &Shared<Pod>,
        condition: PodCondition,
        options: DeleteOptions,
    ) -> Result<Arc<Object>> {
        let (namespace, name) = (pod.object().namespace(), pod.object().name());
        self.allowed("patch", &registry::POD, namespace, name, "status")?;
        let target = self.allowed("delete", &registry::POD, namespace, name, "")?;
        let request = DeleteRequest {
            options,
            pod_condition: Some(condition),
            ..DeleteRequest::default()
        };
        let mut ctx = self.ctx("delete");
        ctx.read = Some(pod.object().clone());
        let deleted = self.server.pipeline.delete(&mut ctx, &target, &request).await?;
        Ok(deleted.object)
    }

    async fn scale(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Scale> {
        let kind = &self.served(kind).await?;
        self.allowed("get", kind, namespace, name, "scale")?;
        let main = Target::main(kind, namespace, name);
        scale_of(&*self.server.pipeline.get_now(&mut self.ctx("get"), &main).await?)
    }

    async fn update_scale(&self, kind: &Kind, scale: Scale) -> Result<Scale> {
        let kind = &self.served(kind).await?;
        let meta = scale.metadata.clone();
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        self.allowed("update", kind, namespace, name, "scale")?;
        let main = Target::main(kind, namespace, name);
        self.server
            .pipeline
            .replace_scale(&mut self.ctx("update"), &main, scale)
            .await
    }

    async fn get_raw(&self, path: &str) -> Result<serde_json::Value> {
        self.server.pipeline.metrics.count_in_process();
        if let Some(response) = self.server.resource_metrics.get(&self.user, path).await {
            return response;
        }
        let response = self
            .server
            .extension_servers
            .request_extension_server(&self.user, Method::GET, path);
        response.await?.ok_or_else(not_served)
    }

    async fn delete_extension_contents(&self, namespace: &str) -> Result<()> {
        self.server.pipeline.metrics.count_in_process();
        self.server
            .extension_servers
            .delete_extension_content(&self.user, namespace)
            .await
    }

    #[instrument(name = "request", level = "debug", skip_all, fields(verb = "create", resource = registry::POD.plural(), subresource = "binding", namespace = binding.metadata.namespace, name = binding.metadata.name, user = self.user.name))]
    async fn create_binding(&self, binding: Binding, pod: Option<&Shared<Pod>>) -> Result<()> {
        let meta = &binding.metadata;
        let namespace = meta.namespace.clone().unwrap_or_default();
        let name = meta.name.clone().unwrap_or_default();
        let target = self.allowed("create", &registry::POD, &namespace, &name, "binding")?;
        let mut ctx = self.ctx("create");
        ctx.read = pod.map(|pod| pod.object().clone());
        self.server
            .subresources
            .create_binding(&mut ctx, &target, binding)
            .await
    }

    #[instrument(name = "request", level = "debug", skip_all, fields(verb = "create", resource = kind.plural(), subresource = subresource, namespace = namespace, name = name, user = self.user.name))]
    async fn create_subresource(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: serde_json::Value,
    ) -> Result<serde_json::Value> {
        let kind = &self.served(kind).await?;
        let target = self.allowed("create", kind, namespace, name, subresource)?;
        self.server
            .subresources
            .create_subresource(&mut self.ctx("create"), &target, body)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a6_the_users_of_components_have_a_limit_and_a_dropped_one_is_made_again() {
        let users = ComponentUsers::default();
        let node = |number: usize| Component::Node(format!("n{number}"));
        let first = users.of(&node(0));
        for number in 0..MAX_COMPONENT_USERS {
            assert_eq!(users.of(&node(number)).node(), Some(&*format!("n{number}")));
        }
        assert!(Arc::ptr_eq(&first, &users.of(&node(0))), "all of them fit");
        for number in MAX_COMPONENT_USERS..3 * MAX_COMPONENT_USERS {
            users.of(&node(number));
            assert!(users.0.lock().len() <= MAX_COMPONENT_USERS, "after node {number}");
        }
        let again = users.of(&node(0));
        assert!(!Arc::ptr_eq(&first, &again), "it was dropped");
        assert_eq!(first, again);
    }
}
