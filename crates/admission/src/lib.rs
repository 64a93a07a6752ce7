//! Admission policies and webhooks: which requests they match, and how the expressions of policies are evaluated. Pure: calls
//! over the network and reads of the cluster's objects are the API server's. Pod Security Standards are in [`pod_security`].

pub mod matching;
pub mod pod_security;
pub mod policy;

use serde_json::{Value, json};

use knarr_api::kind::Kind;

/// A write as admission sees it.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub operation: &'static str,
    /// The kind whose resource is written, in the version of the request.
    pub kind: Kind,
    pub subresource: String,
    /// Empty for cluster-scoped kinds; a namespace's own name for namespaces.
    pub namespace: String,
    pub name: String,
    /// As `kind`, or its subresource, shows it; `None` for deletions.
    pub object: Option<Value>,
    /// `None` for creations.
    pub old: Option<Value>,
    /// CreateOptions, UpdateOptions or DeleteOptions; null for connections, which have none.
    pub options: Value,
    /// An authentication.k8s.io/v1 UserInfo.
    pub user: Value,
    pub dry_run: bool,
}

impl Attributes {
    /// Whether the object written is itself an admission policy or webhook configuration. Those are exempt from policies and
    /// webhooks, so that a broken one can always be corrected.
    pub fn is_exempt(&self) -> bool {
        self.kind.group() == "admissionregistration.k8s.io"
    }

    /// Group, version and kind of the request's objects: the subresource's own where it has one.
    fn object_kind<'a>(&self, kind: &'a Kind) -> (&'a str, &'a str, &'a str) {
        match kind.subresource(&self.subresource) {
            None => (kind.group(), kind.version(), kind.kind()),
            Some(part) if part.version.is_empty() => (kind.group(), kind.version(), part.kind(kind)),
            Some(part) => (part.group, part.version, part.kind(kind)),
        }
    }

    /// Whether its objects are of the kind itself. Those of a subresource with a kind of its own are the same whatever
    /// the version of the kind.
    pub fn has_objects_of_kind(&self) -> bool {
        self.object_kind(&self.kind).2 == self.kind.kind()
    }

    /// An admission.k8s.io/v1 AdmissionRequest without its uid and objects. `matched` is the kind by which a rule matched.
    pub fn request(&self, matched: &Kind) -> Value {
        let kind = |kind: &Kind| {
            let (group, version, kind) = self.object_kind(kind);
            json!({"group": group, "version": version, "kind": kind})
        };
        let resource = |kind: &Kind| json!({"group": kind.group(), "version": kind.version(), "resource": kind.plural()});
        let mut request = json!({
            "kind": kind(matched),
            "resource": resource(matched),
            "requestKind": kind(&self.kind),
            "requestResource": resource(&self.kind),
            "operation": self.operation,
            "userInfo": self.user,
            "dryRun": self.dry_run,
            "options": self.options,
        });
        for (field, text) in [
            ("subResource", &self.subresource),
            ("requestSubResource", &self.subresource),
            ("name", &self.name),
            ("namespace", &self.namespace),
        ] {
            if !text.is_empty() {
                request[field] = text.as_str().into();
            }
        }
        request
    }
}
