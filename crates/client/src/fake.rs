//! An [`Api`] in memory, for tests of components that do not need the real one.
//!
//! It has one revision counter, preconditions, finalizers, graceful deletion (by the kind's rules), generated names,
//! label and field selectors and watches with history; it has no admission, no validation and no storage. Times
//! come from the [`Clock`] handed in, uids and generated names from a counter: the same requests give the same objects.

mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::deletion::Propagation;
use knarr_api::k8s_openapi;
use knarr_api::registry::{self, Registered};
use knarr_api::{AnyObject, Kind, Object, ObjectKey};
use knarr_apimachinery::time::seconds;
use knarr_apimachinery::{Error, Result};
use knarr_strategy::KindStrategy;
use knarr_strategy::Part;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use self::watch::{Filter, ObjectChange, Watcher};
use crate::api::{
    Api, DeleteOptions, List, ListOptions, Patch, Preconditions, WatchEvent, WatchOptions, WatchStream,
};
use crate::clock::Clock;
use crate::term::Term;

/// A request, as interceptors get it.
#[derive(Clone, Debug)]
pub struct Request {
    /// `create`, `update`, `patch`, `delete`, `get`, `list`, `watch`.
    pub verb: &'static str,
    pub kind: Kind,
    pub namespace: String,
    /// The name, or the generateName of a create without a name.
    pub name: String,
    pub subresource: String,
}

type Interceptor = Box<dyn FnMut(&Request) -> Option<Error> + Send>;
type Delays = Arc<dyn Fn(&Request) -> Duration + Send + Sync>;
type RawResponses = Arc<dyn Fn(&str) -> serde_json::Value + Send + Sync>;
/// Group and plural, then namespace and name.
type StoreKey = (String, String, ObjectKey);

#[derive(Default)]
struct State {
    revision: u64,
    names: u64,
    objects: BTreeMap<StoreKey, Arc<Object>>,
    /// All changes, in the order of their revisions.
    history: Vec<ObjectChange>,
    watchers: Vec<Watcher>,
    interceptors: Vec<Interceptor>,
    requests: Vec<Request>,
    raw_responses: Option<RawResponses>,
    delays: Option<Delays>,
}

/// See the module.
pub struct FakeApi {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
    /// The term that writes are made in.
    term: Option<Term>,
}

fn store_key(kind: &Kind, namespace: &str, name: &str) -> StoreKey {
    let key = ObjectKey::new(namespace, name);
    (kind.group().to_string(), kind.plural().to_string(), key)
}

impl State {
    fn record_request(&mut self, request: Request) -> Result<()> {
        self.requests.push(request.clone());
        for interceptor in &mut self.interceptors {
            if let Some(error) = interceptor(&request) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn find(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Object>> {
        let object = self.objects.get(&store_key(kind, namespace, name)).cloned();
        object.ok_or_else(|| Error::not_found(kind.resource_ref(name)))
    }

    fn record_change(&mut self, change: ObjectChange) {
        self.watchers.retain(|watcher| watcher.send(&change));
        self.history.push(change);
    }

    fn write(&mut self, kind: &Kind, mut typed: Box<dyn AnyObject>) -> Arc<Object> {
        self.revision += 1;
        let stored = Object::encode_for_store(&mut *typed);
        let object = Arc::new(Object::from_stored(kind, typed, &stored, self.revision));
        let old = self
            .objects
            .insert(store_key(kind, object.namespace(), object.name()), object.clone());
        self.record_change(ObjectChange {
            revision: self.revision,
            old,
            new: object.clone(),
            deleted: false,
        });
        object
    }

    fn remove(&mut self, kind: &Kind, mut typed: Box<dyn AnyObject>) -> Arc<Object> {
        self.revision += 1;
        let stored = Object::encode_for_store(&mut *typed);
        let object = Arc::new(Object::from_stored(kind, typed, &stored, self.revision));
        let old = self
            .objects
            .remove(&store_key(kind, object.namespace(), object.name()));
        self.record_change(ObjectChange {
            revision: self.revision,
            old,
            new: object.clone(),
            deleted: true,
        });
        object
    }
}

impl FakeApi {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        FakeApi {
            clock,
            state: Arc::default(),
            term: None,
        }
    }

    /// Calls the interceptor before every request from now on; an error that it returns is the response.
    pub fn intercept(&self, interceptor: impl FnMut(&Request) -> Option<Error> + Send + 'static) {
        self.state.lock().interceptors.push(Box::new(interceptor));
    }

    /// Updates are made at once, and their responses are delayed from now on.
    pub fn delay_update_responses(&self, delay: impl Fn(&Request) -> Duration + Send + Sync + 'static) {
        self.state.lock().delays = Some(Arc::new(delay));
    }

    /// Responds to [`Api::get_raw`] from now on.
    pub fn respond_raw(&self, response: impl Fn(&str) -> serde_json::Value + Send + Sync + 'static) {
        self.state.lock().raw_responses = Some(Arc::new(response));
    }

    /// The names of all objects of a kind.
    pub fn names(&self, kind: &Kind) -> Vec<String> {
        let state = self.state.lock();
        let of_kind = state
            .objects
            .keys()
            .filter(|(group, plural, _)| group == kind.group() && plural == kind.plural());
        of_kind.map(|(_, _, key)| key.name.clone()).collect()
    }

    /// All requests so far, rejected ones included.
    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().requests.clone()
    }

    fn update_now(
        &self,
        kind: &Kind,
        mut object: Box<dyn AnyObject>,
        subresource: &str,
    ) -> Result<Arc<Object>> {
        let mut state = self.state.lock();
        let meta = object.metadata();
        let namespace = meta.namespace.clone().unwrap_or_default();
        let name = meta.name.clone().unwrap_or_default();
        state.record_request(request("update", kind, &namespace, &name, subresource))?;
        self.check_term(&state)?;
        let old = state.find(kind, &namespace, &name)?;
        let seen = meta.resource_version.as_deref().filter(|v| !v.is_empty());
        let other_uid = meta.uid.as_deref().is_some_and(|uid| uid != old.uid());
        if other_uid || seen.is_some_and(|v| v != old.revision().to_string()) {
            return Err(Error::conflict(
                kind.resource_ref(&name),
                "the object has been modified; please apply your changes to the latest version and try again",
            ));
        }
        let kept = old.metadata().clone();
        let meta = object.metadata_mut();
        meta.uid = kept.uid;
        meta.creation_timestamp = kept.creation_timestamp;
        meta.deletion_timestamp = kept.deletion_timestamp;
        meta.deletion_grace_period_seconds = kept.deletion_grace_period_seconds;
        kind.strategy().set_defaults(&mut *object)?;
        let part = match subresource {
            "" => Part::Main,
            "status" => Part::Status,
            "finalize" => Part::Other("finalize"),
            _ => return Err(Error::not_found(kind.resource_ref(&name))),
        };
        kind.strategy()
            .prepare_for_update(&mut *object, old.typed(), part)?;
        if can_be_removed(&*object) {
            return Ok(state.remove(kind, object));
        }
        Ok(state.write(kind, object))
    }

    fn check_term(&self, state: &State) -> Result<()> {
        let Some(term) = &self.term else { return Ok(()) };
        let lease = state.find(&registry::LEASE, &term.namespace, &term.name).ok();
        term.check(lease.as_ref().and_then(|l| l.get::<Lease>()))
    }

    /// Closes all watches. With `forget`, the history is dropped as well: resuming a watch fails with `Expired`.
    pub fn break_watches(&self, forget: bool) {
        let mut state = self.state.lock();
        state.watchers.clear();
        if forget {
            state.history.clear();
        }
    }

    /// Changes a stored object as another client would.
    pub async fn edit<T: Registered>(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        edit: impl FnOnce(&mut T) + Send,
    ) -> Result<Arc<Object>> {
        let mut typed: T = {
            let object = self.state.lock().find(T::kind_of(), namespace, name)?;
            object
                .to_typed()
                .ok_or_else(|| Error::internal("stored under another kind's name"))?
        };
        edit(&mut typed);
        self.update(T::kind_of(), typed.into_object(), subresource).await
    }
}

fn request(verb: &'static str, kind: &Kind, namespace: &str, name: &str, subresource: &str) -> Request {
    Request {
        verb,
        kind: kind.clone(),
        namespace: namespace.to_string(),
        name: name.to_string(),
        subresource: subresource.to_string(),
    }
}

fn can_be_removed(object: &dyn AnyObject) -> bool {
    let meta = object.metadata();
    meta.deletion_timestamp.is_some()
        && meta.deletion_grace_period_seconds.unwrap_or(0) == 0
        && meta.finalizers.as_ref().is_none_or(Vec::is_empty)
}

#[async_trait]
impl Api for FakeApi {
    fn with_term(self: Arc<Self>, term: Term) -> Arc<dyn Api> {
        Arc::new(FakeApi {
            clock: self.clock.clone(),
            state: self.state.clone(),
            term: Some(term),
        })
    }

    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Object>> {
        let mut state = self.state.lock();
        state.record_request(request("get", kind, namespace, name, ""))?;
        state.find(kind, namespace, name)
    }

    async fn list(&self, kind: &Kind, options: ListOptions) -> Result<List> {
        let mut state = self.state.lock();
        state.record_request(request("list", kind, &options.namespace, "", ""))?;
        let filter = Filter::new(
            kind,
            &options.namespace,
            &options.label_selector,
            &options.field_selector,
        )?;
        let items = state
            .objects
            .values()
            .filter(|o| o.kind() == kind && filter.matches(o));
        let limit = if options.limit == 0 {
            usize::MAX
        } else {
            options.limit
        };
        Ok(List {
            resource_version: state.revision,
            items: items.take(limit).cloned().collect(),
            continue_token: String::new(),
        })
    }

    async fn watch(&self, kind: &Kind, options: WatchOptions) -> Result<WatchStream> {
        let mut state = self.state.lock();
        state.record_request(request("watch", kind, &options.namespace, "", ""))?;
        let filter = Filter::new(
            kind,
            &options.namespace,
            &options.label_selector,
            &options.field_selector,
        )?;
        let (events, stream) = mpsc::unbounded_channel();
        // The receiver is in this function: sending cannot fail.
        let send = |event| {
            let _ = events.send(Ok(event));
        };
        match options.after {
            None => {
                let objects = state.objects.values().filter(|o| o.kind() == kind);
                for object in objects.filter(|o| filter.matches(o)) {
                    send(WatchEvent::Added(object.clone()));
                }
                send(WatchEvent::Bookmark(state.revision));
            }
            Some(after) => {
                let first = state.history.first().map_or(state.revision, |t| t.revision - 1);
                if after < first {
                    return Err(Error::expired(format!(
                        "too old resource version: {after} ({first})"
                    )));
                }
                let missed = state
                    .history
                    .iter()
                    .filter(|t| t.revision > after && t.new.kind() == kind);
                missed.filter_map(|change| filter.event(change)).for_each(send);
            }
        }
        state.watchers.push(Watcher {
            kind: kind.clone(),
            filter,
            events,
        });
        Ok(UnboundedReceiverStream::new(stream).boxed())
    }

    async fn create(&self, kind: &Kind, mut object: Box<dyn AnyObject>) -> Result<Arc<Object>> {
        let mut state = self.state.lock();
        let meta = object.metadata_mut();
        let requested_name = meta.name.clone().or_else(|| meta.generate_name.clone());
        let namespace = meta.namespace.clone().unwrap_or_default();
        state.record_request(request(
            "create",
            kind,
            &namespace,
            &requested_name.unwrap_or_default(),
            "",
        ))?;
        self.check_term(&state)?;
        if meta.name.as_ref().is_none_or(String::is_empty) {
            let Some(prefix) = meta.generate_name.clone() else {
                return Err(Error::bad_request("name or generateName is required"));
            };
            state.names += 1;
            meta.name = Some(format!("{prefix}{:05}", state.names));
        }
        if kind.namespaced() && namespace.is_empty() {
            return Err(Error::bad_request(
                "an empty namespace may not be set during creation",
            ));
        }
        let name = meta.name.clone().unwrap_or_default();
        if state.objects.contains_key(&store_key(kind, &namespace, &name)) {
            return Err(Error::already_exists(kind.resource_ref(&name)));
        }
        meta.uid = Some(format!("uid-{}", state.revision + 1));
        meta.creation_timestamp = Some(seconds(self.clock.now()));
        meta.deletion_timestamp = None;
        kind.strategy().set_defaults(&mut *object)?;
        kind.strategy().prepare_for_create(&mut *object)?;
        Ok(state.write(kind, object))
    }

    async fn update(
        &self,
        kind: &Kind,
        object: Box<dyn AnyObject>,
        subresource: &str,
    ) -> Result<Arc<Object>> {
        let delays = self.state.lock().delays.clone();
        let delay = delays.map(|delay| {
            let meta = object.metadata();
            let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
            let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
            delay(&request("update", kind, namespace, name, subresource))
        });
        let response = self.update_now(kind, object, subresource);
        if let Some(delay) = delay.filter(|delay| !delay.is_zero()) {
            tokio::time::sleep(delay).await;
        }
        response
    }

    async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: Patch,
    ) -> Result<Arc<Object>> {
        let object = {
            let mut state = self.state.lock();
            state.record_request(request("patch", kind, namespace, name, subresource))?;
            let old = state.find(kind, namespace, name)?;
            let mut document: serde_json::Value =
                serde_json::from_slice(old.json()).map_err(Error::internal)?;
            match &patch {
                Patch::Json(patch) => knarr_api::patch::json::apply(&mut document, patch)?,
                Patch::Merge(patch) => knarr_api::patch::merge::apply(&mut document, patch),
                Patch::Strategic(patch) => knarr_api::patch::strategic::apply(kind, &mut document, patch)?,
            }
            let bytes = serde_json::to_vec(&document).map_err(Error::internal)?;
            let decoded = kind.ops.decode(&bytes);
            decoded.map_err(|e| Error::bad_request(e.to_string()))?.object
        };
        self.update(kind, object, subresource).await
    }

    async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: DeleteOptions,
    ) -> Result<Arc<Object>> {
        let mut state = self.state.lock();
        state.record_request(request("delete", kind, namespace, name, ""))?;
        self.check_term(&state)?;
        let old = state.find(kind, namespace, name)?;
        let preconditions = options.preconditions;
        if preconditions.uid.is_some_and(|uid| uid != old.uid()) {
            return Err(Error::conflict(
                kind.resource_ref(name),
                "the UID in the precondition is another",
            ));
        }
        if preconditions
            .resource_version
            .is_some_and(|v| v != old.revision().to_string())
        {
            return Err(Error::conflict(
                kind.resource_ref(name),
                "the ResourceVersion in the precondition is another",
            ));
        }
        let mut object = old.typed().clone_box();
        let grace_seconds = kind
            .strategy()
            .deletion_grace_seconds(&*object, options.grace_period_seconds)?;
        let grace_seconds = grace_seconds.unwrap_or(0);
        let meta = object.metadata_mut();
        let finalizer = match options.propagation {
            Some(Propagation::Foreground) => Some("foregroundDeletion"),
            Some(Propagation::Orphan) => Some("orphan"),
            Some(Propagation::Background) | None => None,
        };
        if let Some(finalizer) = finalizer
            && meta.deletion_timestamp.is_none()
        {
            meta.finalizers
                .get_or_insert_default()
                .push(finalizer.to_string());
        }
        let now = self.clock.now();
        let at = now
            .checked_add(k8s_openapi::jiff::SignedDuration::from_secs(grace_seconds))
            .map_err(Error::internal)?;
        let shorter = meta
            .deletion_grace_period_seconds
            .is_none_or(|had| grace_seconds < had);
        if meta.deletion_timestamp.is_some() && !shorter && !can_be_removed(&*object) {
            return Ok(old);
        }
        let meta = object.metadata_mut();
        if shorter || meta.deletion_timestamp.is_none() {
            meta.deletion_timestamp = Some(seconds(at));
            meta.deletion_grace_period_seconds = Some(grace_seconds);
        }
        if can_be_removed(&*object) {
            return Ok(state.remove(kind, object));
        }
        Ok(state.write(kind, object))
    }

    async fn get_raw(&self, path: &str) -> Result<serde_json::Value> {
        let raw_responses = self.state.lock().raw_responses.clone();
        let raw_responses = raw_responses
            .ok_or_else(|| Error::new(404, "NotFound", format!("no API server serves {path}")))?;
        Ok(raw_responses(path))
    }

    async fn create_subresource(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: serde_json::Value,
    ) -> Result<serde_json::Value> {
        if subresource == "eviction" {
            // Without PodDisruptionBudgets: an interceptor rejects in their place.
            self.state
                .lock()
                .record_request(request("create", kind, namespace, name, subresource))?;
            let uid = body.pointer("/deleteOptions/preconditions/uid");
            let grace = body.pointer("/deleteOptions/gracePeriodSeconds");
            let options = DeleteOptions {
                grace_period_seconds: grace.and_then(serde_json::Value::as_i64),
                preconditions: Preconditions {
                    uid: uid.and_then(|uid| uid.as_str()).map(str::to_string),
                    resource_version: None,
                },
                propagation: None,
            };
            self.delete(kind, namespace, name, options).await?;
            return Ok(serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
        }
        let mut state = self.state.lock();
        state.record_request(request("create", kind, namespace, name, subresource))?;
        self.check_term(&state)?;
        let old = state.find(kind, namespace, name)?;
        let (Some(mut pod), "binding") = (old.to_typed::<Pod>(), subresource) else {
            return Err(Error::not_found(kind.resource_ref(name)));
        };
        let uid = body.pointer("/metadata/uid").and_then(|u| u.as_str());
        if uid.is_some_and(|uid| uid != old.uid()) {
            return Err(Error::conflict(kind.resource_ref(name), "the pod is another"));
        }
        let Some(node) = body.pointer("/target/name").and_then(|n| n.as_str()) else {
            return Err(Error::bad_request("target.name is required"));
        };
        let spec = pod.spec.get_or_insert_default();
        if spec.node_name.is_some() {
            return Err(Error::conflict(
                kind.resource_ref(name),
                "the pod is bound already",
            ));
        }
        spec.node_name = Some(node.to_string());
        state.write(kind, pod.into_object());
        Ok(serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }
}
