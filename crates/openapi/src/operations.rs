//! The operations of a kind, independent of the document's version.

use knarr_api::kind::{Kind, Subresource};

use super::parameters::{self as params, Parameter};
use super::schemas::{Gvk, Schemas};

/// A path and its operations.
pub(super) struct Endpoint<'a> {
    pub path: String,
    /// Of every operation.
    pub parameters: Vec<&'static Parameter>,
    pub operations: Vec<Operation<'a>>,
}

pub(super) struct Operation<'a> {
    /// In lower case, as documents write it.
    pub method: &'static str,
    pub id: String,
    pub description: String,
    /// The verb for the authorizer: `list`, `post`, `connect` …; empty for documents' own paths.
    pub action: &'static str,
    pub gvk: Option<Gvk<'a>>,
    pub parameters: &'static [&'static Parameter],
    pub body: Option<Body>,
    /// The type of the response; `None`: text or a stream.
    pub response_type: Option<String>,
    pub codes: &'static [u16],
    pub watchable: bool,
}

pub(super) enum Body {
    /// An object of this type.
    Object(String),
    /// The same, and optional.
    Optional(String),
    /// A patch (of this type) in one of its forms.
    Patch(String),
}

const READ: &[u16] = &[200];
const CREATED: &[u16] = &[200, 201, 202];
const WRITTEN: &[u16] = &[200, 201];
const ACCEPTED: &[u16] = &[200, 202];

/// `CoreV1`, `RbacAuthorizationV1`: how operation ids name a group version.
pub(super) fn title(group: &str, version: &str) -> String {
    let group = if group.is_empty() { "core" } else { group };
    let group = group.strip_suffix(".k8s.io").unwrap_or(group);
    group.split('.').chain([version]).map(capitalised).collect()
}

pub(super) fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars
        .next()
        .map(|first| first.to_uppercase().chain(chars).collect())
        .unwrap_or_default()
}

/// `core_v1`, `rbacAuthorization_v1`: how operations are grouped.
pub(super) fn tag(group: &str, version: &str) -> String {
    let title = title(group, "");
    let mut chars = title.chars();
    let group: String = chars
        .next()
        .map(|first| first.to_lowercase().chain(chars).collect())
        .unwrap_or_default();
    if version.is_empty() {
        group
    } else {
        format!("{group}_{version}")
    }
}

/// `/api/v1`, `/apis/apps/v1`.
pub(super) fn root(kind: &Kind) -> String {
    if kind.group().is_empty() {
        format!("/api/{}", kind.version())
    } else {
        format!("/apis/{}/{}", kind.group(), kind.version())
    }
}

/// One kind's endpoints, with their types added to `schemas`.
struct Requests<'a, 's> {
    kind: &'a Kind,
    schemas: &'s mut Schemas,
    /// Before the kind's name in operation ids.
    title: String,
    /// `Namespaced` or nothing.
    scope: &'static str,
}

/// All paths of a kind. The deprecated `/watch/` paths are served and not documented.
pub(super) fn of<'a>(kind: &'a Kind, schemas: &mut Schemas) -> Vec<Endpoint<'a>> {
    let title = title(kind.group(), kind.version());
    let scope = if kind.namespaced() { "Namespaced" } else { "" };
    let mut requests = Requests {
        kind,
        schemas,
        title,
        scope,
    };
    let root = root(kind);
    let (collection, scoped) = if kind.namespaced() {
        let collection = format!("{root}/namespaces/{{namespace}}/{}", kind.plural());
        (collection, vec![params::NAMESPACE])
    } else {
        (format!("{root}/{}", kind.plural()), Vec::new())
    };
    let item = format!("{collection}/{{name}}");
    let mut named = vec![params::NAME];
    named.extend(&scoped);

    let mut endpoints = vec![
        Endpoint {
            path: collection,
            parameters: scoped,
            operations: requests.of_collection(),
        },
        Endpoint {
            path: item.clone(),
            parameters: named.clone(),
            operations: requests.of_item(),
        },
    ];
    for sub in kind.subresources {
        let path = format!("{item}/{}", sub.name);
        let mut parameters = named.clone();
        parameters.extend(params::of_subresource(sub.name));
        endpoints.push(Endpoint {
            path: path.clone(),
            parameters: parameters.clone(),
            operations: requests.of_subresource(sub, ""),
        });
        if sub.name == "proxy" {
            parameters.push(params::PROXIED);
            endpoints.push(Endpoint {
                path: format!("{path}/{{path}}"),
                parameters,
                operations: requests.of_subresource(sub, "WithPath"),
            });
        }
    }
    if kind.namespaced() && kind.verbs.contains(&"list") {
        endpoints.push(Endpoint {
            path: format!("{root}/{}", kind.plural()),
            parameters: Vec::new(),
            operations: vec![requests.list(format!("list{}{}ForAllNamespaces", requests.title, kind.kind()))],
        });
    }
    endpoints.retain(|endpoint| !endpoint.operations.is_empty());
    for endpoint in &mut endpoints {
        let streams = endpoint.operations.iter().any(|o| o.action == "connect");
        if !streams {
            endpoint.parameters.push(params::PRETTY);
        }
    }
    endpoints
}

impl<'a> Requests<'a, '_> {
    fn gvk(&self) -> Option<Gvk<'a>> {
        Some((self.kind.group(), self.kind.version(), self.kind.kind()))
    }

    /// `createCoreV1NamespacedPod`, with the subresource's name after it.
    fn id(&self, verb: &str, sub: &str) -> String {
        format!(
            "{verb}{}{}{}{}",
            self.title,
            self.scope,
            self.kind.kind(),
            capitalised(sub)
        )
    }

    fn list(&mut self, id: String) -> Operation<'a> {
        let watchable = self.kind.verbs.contains(&"watch");
        let does = if watchable { "list or watch" } else { "list" };
        Operation {
            method: "get",
            id,
            description: format!("{does} objects of kind {}", self.kind.kind()),
            action: "list",
            gvk: self.gvk(),
            parameters: params::LIST,
            body: None,
            response_type: Some(self.schemas.list(self.kind)),
            codes: READ,
            watchable,
        }
    }

    fn of_collection(&mut self) -> Vec<Operation<'a>> {
        let kind = self.kind;
        let mut operations = Vec::new();
        for verb in kind.verbs {
            operations.push(match *verb {
                "list" => self.list(self.id("list", "")),
                "create" => Operation {
                    method: "post",
                    id: self.id("create", ""),
                    description: format!("create a {}", kind.kind()),
                    action: "post",
                    gvk: self.gvk(),
                    parameters: params::WRITE,
                    body: Some(Body::Object(self.schemas.kind(kind))),
                    response_type: Some(self.schemas.kind(kind)),
                    codes: CREATED,
                    watchable: false,
                },
                "deletecollection" => Operation {
                    method: "delete",
                    id: format!("delete{}Collection{}{}", self.title, self.scope, kind.kind()),
                    description: format!("delete collection of {}", kind.kind()),
                    action: "deletecollection",
                    gvk: self.gvk(),
                    parameters: params::DELETE_COLLECTION,
                    body: Some(Body::Optional(self.schemas.delete_options())),
                    response_type: Some(self.schemas.status()),
                    codes: READ,
                    watchable: false,
                },
                _ => continue,
            });
        }
        operations
    }

    fn of_item(&mut self) -> Vec<Operation<'a>> {
        let kind = self.kind;
        // Pods and some others respond to a delete with the object, the rest with a Status.
        let schema = self.schemas.kind(kind);
        let mut operations = self.reads_and_writes(kind.verbs, "", &schema, self.gvk());
        if kind.verbs.contains(&"delete") {
            operations.push(Operation {
                method: "delete",
                id: self.id("delete", ""),
                description: format!("delete a {}", kind.kind()),
                action: "delete",
                gvk: self.gvk(),
                parameters: params::DELETE,
                body: Some(Body::Optional(self.schemas.delete_options())),
                response_type: Some(if returns_object(kind) {
                    schema
                } else {
                    self.schemas.status()
                }),
                codes: ACCEPTED,
                watchable: false,
            });
        }
        operations
    }

    /// Get, update and patch of an object or a subresource.
    fn reads_and_writes(
        &mut self,
        verbs: &[&str],
        sub: &str,
        schema: &str,
        gvk: Option<Gvk<'a>>,
    ) -> Vec<Operation<'a>> {
        let kind = self.kind.kind();
        let what = if sub.is_empty() {
            format!("the specified {kind}")
        } else {
            format!("{sub} of the specified {kind}")
        };
        let mut operations = Vec::new();
        for verb in verbs {
            let (method, name, does, parameters, body, codes) = match *verb {
                "get" => ("get", "read", "read", &[][..], None, READ),
                "update" => {
                    let body = Body::Object(schema.to_string());
                    ("put", "replace", "replace", params::WRITE, Some(body), WRITTEN)
                }
                "patch" => {
                    let body = Body::Patch(self.schemas.patch());
                    (
                        "patch",
                        "patch",
                        "partially update",
                        params::PATCH,
                        Some(body),
                        WRITTEN,
                    )
                }
                _ => continue,
            };
            operations.push(Operation {
                method,
                id: self.id(name, sub),
                description: format!("{does} {what}"),
                action: method,
                gvk,
                parameters,
                body,
                // A log is text.
                response_type: (sub != "log").then(|| schema.to_string()),
                codes,
                watchable: false,
            });
        }
        operations
    }

    fn of_subresource(&mut self, sub: &'static Subresource, suffix: &str) -> Vec<Operation<'a>> {
        let kind = self.kind;
        let version = if sub.version.is_empty() {
            (kind.group(), kind.version())
        } else {
            (sub.group, sub.version)
        };
        let gvk = Some((version.0, version.1, sub.kind(kind)));
        let Some(schema) = self.schemas.subresource(kind, sub) else {
            return self.connections(sub, suffix, gvk);
        };
        let mut operations = self.reads_and_writes(sub.verbs, sub.name, &schema, gvk);
        if sub.verbs.contains(&"create") {
            operations.push(Operation {
                method: "post",
                id: self.id("create", sub.name),
                description: format!("create {} of a {}", sub.name, kind.kind()),
                action: "post",
                gvk,
                parameters: params::WRITE,
                body: Some(Body::Object(schema.clone())),
                response_type: Some(schema),
                codes: CREATED,
                watchable: false,
            });
        }
        operations
    }

    /// Streams and proxies.
    fn connections(&self, sub: &Subresource, suffix: &str, gvk: Option<Gvk<'a>>) -> Vec<Operation<'a>> {
        let mut methods: Vec<&'static str> = sub
            .verbs
            .iter()
            .filter_map(|verb| match *verb {
                "create" => Some("post"),
                "update" => Some("put"),
                "get" => Some("get"),
                "patch" => Some("patch"),
                "delete" => Some("delete"),
                _ => None,
            })
            .collect();
        if sub.name == "proxy" {
            methods.extend(["head", "options"]);
        }
        let of = |method: &'static str| Operation {
            method,
            id: format!(
                "connect{}{}{}{}{}{suffix}",
                self.title,
                capitalised(method),
                self.scope,
                self.kind.kind(),
                capitalised(sub.name)
            ),
            description: format!(
                "connect {} requests to {} of {}",
                method.to_uppercase(),
                sub.name,
                self.kind.kind()
            ),
            action: "connect",
            gvk,
            parameters: &[],
            body: None,
            response_type: None,
            codes: READ,
            watchable: false,
        };
        methods.into_iter().map(of).collect()
    }
}

/// Kinds whose deletion returns the object in its last state.
fn returns_object(kind: &Kind) -> bool {
    match kind.group() {
        "" => matches!(
            kind.kind(),
            "PersistentVolume"
                | "PersistentVolumeClaim"
                | "Pod"
                | "PodTemplate"
                | "ResourceQuota"
                | "Service"
                | "ServiceAccount"
        ),
        "resource.k8s.io" => true,
        "storage.k8s.io" => kind.kind() != "CSIStorageCapacity",
        _ => false,
    }
}
