//! The context of a request: whose it is, what it may do, and what it leaves for the response and the audit log.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use knarr_api::{Object, k8s_openapi};
use knarr_client::{Component, Term};

use super::warnings::Warnings;
use crate::user::User;

/// The manager of the fields that the server itself writes, as kube-apiserver's user agent names it.
const FIELD_MANAGER: &str = "kube-apiserver";

/// The context of a request.
#[derive(Clone, Debug)]
pub struct Ctx {
    /// Shared with the connection or the component that makes the request.
    pub user: Arc<User>,
    /// The authorized verb of the request.
    pub verb: &'static str,
    /// Whether the server itself writes a bootstrap object: such a write is exempt from the checks for privilege escalation.
    pub(crate) by_server: bool,
    /// The origin of the request.
    pub origin: Origin,
    /// When the request was received; all times that it writes are this one.
    pub now: Timestamp,
    /// The field manager of the write; `None` if the object already has its managed fields.
    pub manager: Option<String>,
    /// The leader's term that its writes belong to.
    pub term: Option<Term>,
    /// `dryRun=All`: everything but the write.
    pub dry_run: bool,
    /// The request's object as the component that makes the request has read it.
    pub(crate) read: Option<Arc<Object>>,
    /// Whether the cache is known to have caught up with the store since the request was received, see `Pipeline::catch_up`.
    pub(crate) caught_up: bool,
    /// The object that admission policies and webhooks get.
    pub admission_object: AdmissionObject,
    /// For the response's `Warning` headers.
    pub warnings: Warnings,
    /// Annotations for the audit event, by key.
    pub audit_annotations: BTreeMap<String, String>,
}

/// The origin of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    #[default]
    Unknown,
    /// A component of this process.
    InProcess,
    /// The peer of the connection.
    Remote(IpAddr),
}

impl Ctx {
    pub fn new(user: impl Into<Arc<User>>, now: Timestamp) -> Self {
        let user = user.into();
        // The last part of `system:serviceaccount:kube-system:job-controller`.
        let manager = user.name.rsplit(':').next().map(str::to_string);
        Ctx {
            user,
            verb: "",
            by_server: false,
            origin: Origin::default(),
            now,
            manager,
            term: None,
            dry_run: false,
            read: None,
            caught_up: false,
            admission_object: AdmissionObject::default(),
            warnings: Warnings::default(),
            audit_annotations: BTreeMap::new(),
        }
    }

    /// A context for the server's own writes, which are not authorized: no request makes them.
    pub(crate) fn of_server(now: Timestamp) -> Self {
        let user = User::new(Component::ApiServer.user(), [""; 0]).authenticated();
        Ctx {
            by_server: true,
            manager: Some(FIELD_MANAGER.into()),
            ..Ctx::new(user, now)
        }
    }

    /// The stored object; with its typed value, if the cache has dropped that and the component that makes the request has it: it is not decoded
    /// again. An object that the component has read at another revision is not used.
    pub(crate) fn as_read(&self, stored: Arc<Object>) -> Arc<Object> {
        match &self.read {
            Some(read) if stored.is_slim() && read.shares_encoding(&stored) => read.clone(),
            _ => stored,
        }
    }

    /// Adds an annotation to the audit event.
    pub fn note(&mut self, key: impl Into<String>, value: &str) {
        self.audit_annotations.insert(key.into(), value.to_string());
    }

    /// Adds a warning, unless there is the same already.
    pub fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.add(warning.into());
    }
}

/// The object of a write that policies and webhooks get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmissionObject {
    /// The object that is written.
    #[default]
    Written,
    /// Its Scale, because the request is one for the scale subresource.
    Scale,
    /// None: they were called with the request's own object (a Binding, an Eviction).
    None,
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use knarr_api::registry::CONFIG_MAP;

    use super::*;

    fn config_map(value: &str, revision: u64) -> Arc<Object> {
        let mut map = ConfigMap::default();
        map.metadata.name = Some("m".into());
        // Large enough to become slim.
        map.data = Some([("k".to_string(), value.repeat(2048))].into());
        let mut typed: Box<dyn knarr_api::AnyObject> = Box::new(map);
        let stored = Object::encode_for_store(&mut *typed);
        Arc::new(Object::from_stored(&CONFIG_MAP, typed, &stored, revision))
    }

    #[test]
    fn what_a_component_has_read_is_used_only_if_it_is_the_stored_object() {
        let read = config_map("a", 1);
        let slim = read.slim();
        for (stored, uses_read) in [
            (slim.clone(), true),
            (read.clone(), true),
            (config_map("a", 1), false),
            (config_map("a", 1).slim(), false),
            (config_map("b", 1).slim(), false),
            (config_map("a", 2).slim(), false),
        ] {
            let mut ctx = Ctx::of_server(Timestamp::UNIX_EPOCH);
            assert!(Arc::ptr_eq(&ctx.as_read(stored.clone()), &stored));
            ctx.read = Some(read.clone());
            let used = ctx.as_read(stored.clone());
            assert!(
                Arc::ptr_eq(&used, if uses_read { &read } else { &stored }),
                "{stored:?}"
            );
            assert_eq!(used.json(), stored.json());
        }
        assert!(slim.is_slim(), "it was not decoded");
    }
}
