//! A leader's term, and writes that are made only while it lasts (fencing of a former leader).
//!
//! A lease decides who leads; it cannot stop requests that a leader has already sent. The requests of a node that was paused, or a
//! request that the network delayed for a minute, arrive when another leader has taken over. So each write of a leader carries the
//! term it was decided in ([`crate::Api::with_term`]), and the API server commits it in one transaction of the store with the
//! comparison that the lease is still in that term. A late write is rejected with 409 Conflict and changes nothing.

use http::HeaderValue;
use k8s_openapi::api::coordination::v1::Lease;
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::Error;
use serde::{Deserialize, Serialize};

/// The HTTP header that carries a [`Term`], as JSON.
pub const HEADER: &str = "knarr-term";

/// The time for which one holder holds a lease without interruption. Renewals do not end it; a lease that another holder had in
/// between, that was released or that was deleted starts a new term.
///
/// # Examples
///
/// ```
/// use knarr_api::k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
/// use knarr_client::Term;
///
/// let mut lease = Lease {
///     spec: Some(LeaseSpec { holder_identity: Some("a".into()), ..LeaseSpec::default() }),
///     ..Lease::default()
/// };
/// let term = Term::of(&lease);
/// assert_eq!(Term::from_header(&term.to_header()).as_ref(), Ok(&term));
/// assert!(term.check(Some(&lease)).is_ok());
///
/// lease.spec = Some(LeaseSpec {
///     holder_identity: Some("b".into()),
///     lease_transitions: Some(1),
///     ..LeaseSpec::default()
/// });
/// let late = term.check(Some(&lease)).expect_err("b has taken over");
/// assert_eq!(late.code(), 409);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Term {
    pub namespace: String,
    pub name: String,
    /// The lease's uid.
    pub uid: String,
    pub holder: String,
    /// The lease's `leaseTransitions`.
    pub transitions: i32,
}

impl Term {
    /// The current term of the lease.
    pub fn of(lease: &Lease) -> Self {
        let meta = &lease.metadata;
        let spec = lease.spec.as_ref();
        Term {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            holder: spec.and_then(|s| s.holder_identity.clone()).unwrap_or_default(),
            transitions: spec.and_then(|s| s.lease_transitions).unwrap_or_default(),
        }
    }

    pub fn to_header(&self) -> HeaderValue {
        let text = serde_json::to_vec(self).unwrap_or_default();
        // A write must not be sent without its term: the server rejects this value.
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("unreadable"))
    }

    pub fn from_header(value: &HeaderValue) -> Result<Self, Error> {
        serde_json::from_slice(value.as_bytes()).map_err(|e| {
            Error::bad_request(format!("header {HEADER}: expected a leader's term as JSON: {e}"))
        })
    }

    /// Whether the current lease is still in this term; otherwise the error for a write of this term.
    pub fn check(&self, lease: Option<&Lease>) -> Result<(), Error> {
        let found = match lease.map(Term::of) {
            Some(now) if now == *self => return Ok(()),
            Some(now) if now.holder.is_empty() => "the lease has no holder".to_string(),
            Some(now) => format!(
                "the lease is held by {:?} (transition {})",
                now.holder, now.transitions
            ),
            None => "the lease does not exist".to_string(),
        };
        let Term {
            holder, transitions, ..
        } = self;
        let why = format!(
            "the write of leader {holder:?} (transition {transitions}) arrived after its term: {found}"
        );
        Err(Error::conflict(registry::LEASE.resource_ref(&self.name), &why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(uid: &str, holder: &str, transitions: Option<i32>) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.namespace = Some("kube-system".into());
        lease.metadata.name = Some("control".into());
        lease.metadata.uid = Some(uid.into());
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(holder.into());
        spec.lease_transitions = transitions;
        lease
    }

    #[test]
    fn a_term_survives_its_header_and_an_invalid_header_is_rejected() {
        let term = Term::of(&lease("u1", "n\u{f8}de \"a\"\n", Some(7)));
        assert_eq!(Term::from_header(&term.to_header()), Ok(term));
        for bad in ["", "unreadable", "{}", r#"{"name":"control"}"#] {
            let error = Term::from_header(&HeaderValue::from_static(bad)).unwrap_err();
            assert_eq!(error.code(), 400, "{error}");
        }
    }

    #[test]
    fn a_term_ends_with_another_holder_another_transition_or_another_lease() {
        let term = Term::of(&lease("u1", "a", None));
        let check = |now: Option<&Lease>| term.check(now).map_err(|e| (e.code(), e.to_string()));
        assert_eq!(check(Some(&lease("u1", "a", Some(0)))), Ok(()));
        for (now, found) in [
            (
                Some(lease("u1", "b", Some(1))),
                "the lease is held by \"b\" (transition 1)",
            ),
            (
                Some(lease("u1", "a", Some(2))),
                "the lease is held by \"a\" (transition 2)",
            ),
            (Some(lease("u1", "", Some(0))), "the lease has no holder"),
            (
                Some(lease("u2", "a", Some(0))),
                "the lease is held by \"a\" (transition 0)",
            ),
            (None, "the lease does not exist"),
        ] {
            let (code, message) = check(now.as_ref()).unwrap_err();
            assert_eq!(code, 409);
            assert!(message.ends_with(found), "{message}");
        }
    }
}
