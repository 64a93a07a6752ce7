//! The table: every resource and subresource of discovery, with every verb.

use knarr_api::registry;
use knarr_strategy::KindStrategy;
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// The namespace of namespaced objects.
pub const NAMESPACE: &str = "default";
/// The name of every object that is requested; none exists.
pub const NAME: &str = "x";

pub const MERGE: &str = "application/merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";
pub const JSON: &str = "application/json";

/// One request, and every permission that it requires.
#[derive(Clone, Debug)]
pub struct Row {
    pub method: &'static str,
    pub path: String,
    pub media: &'static str,
    pub body: Option<Value>,
    pub asks: Vec<String>,
}

impl Row {
    fn new(method: &'static str, path: impl Into<String>, asks: impl Into<String>) -> Self {
        Row {
            method,
            path: path.into(),
            media: JSON,
            body: None,
            asks: vec![asks.into()],
        }
    }

    fn with(mut self, media: &'static str, body: &Value) -> Self {
        self.media = media;
        self.body = Some(body.clone());
        self
    }

    fn also(mut self, asks: impl Into<String>) -> Self {
        self.asks.push(asks.into());
        self
    }
}

/// A resource of discovery.
struct Resource {
    group: String,
    version: String,
    plural: String,
    sub: String,
    kind: String,
    api_version: String,
    namespaced: bool,
    verbs: Vec<String>,
}

impl Resource {
    fn of(root: &str, found: &Value) -> Self {
        let text = |field: &str| found[field].as_str().unwrap_or("").to_string();
        let (group, version) = match root.strip_prefix("/apis/").and_then(|r| r.split_once('/')) {
            Some((group, version)) => (group.to_string(), version.to_string()),
            None => (String::new(), "v1".to_string()),
        };
        let name = text("name");
        let (plural, sub) = name.split_once('/').unwrap_or((&name, ""));
        let own = |own: String, other: &String| if own.is_empty() { other.clone() } else { own };
        let (of_group, of_version) = (own(text("group"), &group), own(text("version"), &version));
        Resource {
            plural: plural.to_string(),
            sub: sub.to_string(),
            kind: text("kind"),
            api_version: match of_group.as_str() {
                "" => of_version,
                group => format!("{group}/{of_version}"),
            },
            namespaced: found["namespaced"] == true,
            verbs: found["verbs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v.as_str().unwrap().to_string())
                .collect(),
            group,
            version,
        }
    }

    fn root(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }

    /// The path of the collection, with a prefix such as `watch/`.
    fn all(&self, prefix: &str) -> String {
        let within = if self.namespaced {
            format!("namespaces/{NAMESPACE}/")
        } else {
            String::new()
        };
        format!("{}/{prefix}{within}{}", self.root(), self.plural)
    }

    fn one(&self, prefix: &str) -> String {
        format!("{}/{NAME}", self.all(prefix))
    }

    /// The permission for a verb: for one object, for all of a namespace, or for all namespaces.
    fn asks(&self, verb: &str, name: &str, everywhere: bool) -> String {
        // The namespace of a request for a Namespace is its own name.
        let namespace = match (self.group.as_str(), self.plural.as_str()) {
            ("", "namespaces") => name,
            _ if self.namespaced && !everywhere => NAMESPACE,
            _ => "",
        };
        let Resource {
            group, plural, sub, ..
        } = self;
        format!("{verb} {group}/{plural}/{sub} {namespace}/{name}")
    }

    fn body(&self) -> Value {
        json!({"apiVersion": self.api_version, "kind": self.kind, "metadata": {"name": NAME}})
    }

    /// Kinds that a PUT creates, as Kubernetes' strategies say.
    fn is_created_by_update(&self) -> bool {
        registry::ALL
            .iter()
            .find(|k| (k.group(), k.version(), k.plural()) == (&self.group, &self.version, &self.plural))
            .is_some_and(|k| k.strategy().create_on_update())
    }

    fn rows(&self) -> Vec<Row> {
        match self.sub.as_str() {
            "" => self.verbs.iter().flat_map(|verb| self.main(verb)).collect(),
            _ => self
                .verbs
                .iter()
                .flat_map(|verb| self.subresource(verb))
                .collect(),
        }
    }

    fn main(&self, verb: &str) -> Vec<Row> {
        let (all, one) = (self.all(""), self.one(""));
        let everywhere = format!("{}/{}", self.root(), self.plural);
        let chosen = format!("fieldSelector=metadata.name%3D{NAME}");
        let own = |name: &str| self.asks(verb, name, false);
        // The path has no namespace here, also where the selector names one.
        let by_name = self.asks(verb, "", false) + NAME;
        match verb {
            "get" => vec![
                Row::new("GET", &one, own(NAME)),
                // No watch: only collections are watched by query.
                Row::new("GET", format!("{one}?watch=true"), own(NAME)),
            ],
            "list" => vec![
                Row::new("GET", &all, own("")),
                Row::new("GET", format!("{all}?{chosen}"), &by_name),
                Row::new("GET", &everywhere, self.asks(verb, "", true)),
            ],
            "watch" => vec![
                Row::new("GET", format!("{all}?watch=true"), own("")),
                Row::new("GET", format!("{all}?watch=1&{chosen}"), &by_name),
                Row::new(
                    "GET",
                    format!("{everywhere}?watch=true"),
                    self.asks(verb, "", true),
                ),
                Row::new("GET", self.all("watch/"), own("")),
                Row::new("GET", self.one("watch/"), own(NAME)),
                // The prefix ignores selectors (KEP-4601).
                Row::new("GET", format!("{}?{chosen}", self.all("watch/")), own("")),
            ],
            "create" => {
                let generated = json!({"apiVersion": self.api_version, "kind": self.kind,
                    "metadata": {"generateName": "x-"}});
                vec![
                    Row::new("POST", &all, own("")).with(JSON, &self.body()),
                    Row::new("POST", format!("{all}?dryRun=All"), own("")).with(JSON, &generated),
                ]
            }
            "update" => ["", "?dryRun=All"]
                .into_iter()
                .map(|query| {
                    let row = Row::new("PUT", format!("{one}{query}"), own(NAME)).with(JSON, &self.body());
                    match self.is_created_by_update() {
                        true => row.also(self.asks("create", NAME, false)),
                        false => row,
                    }
                })
                .collect(),
            "patch" => {
                let create = self.asks("create", NAME, false);
                let apply = |query: &str| {
                    let path = format!("{one}?fieldManager=m{query}");
                    Row::new("PATCH", path, own(NAME))
                        .with(APPLY, &self.body())
                        .also(&create)
                };
                vec![
                    Row::new("PATCH", &one, own(NAME)).with(MERGE, &self.body()),
                    apply(""),
                    apply("&dryRun=All"),
                    apply("&force=true"),
                ]
            }
            "delete" => vec![Row::new("DELETE", &one, own(NAME))],
            "deletecollection" => vec![
                Row::new("DELETE", format!("{all}?dryRun=All"), own("")),
                Row::new("DELETE", format!("{all}?dryRun=All&{chosen}"), own("")),
            ],
            other => panic!("{all} has the verb {other}"),
        }
    }

    fn subresource(&self, verb: &str) -> Vec<Row> {
        let path = format!("{}/{}", self.one(""), self.sub);
        let own = self.asks(verb, NAME, false);
        let method = match verb {
            "get" => "GET",
            "create" => "POST",
            "update" => "PUT",
            "patch" => "PATCH",
            "delete" => "DELETE",
            other => panic!("{path} has the verb {other}"),
        };
        let row = Row::new(method, &path, &own);
        match (self.sub.as_str(), verb) {
            // A stream that begins with a GET requires `create` all the same (AuthorizePodWebsocketUpgradeCreatePermission).
            ("exec" | "attach" | "portforward", "get") => {
                vec![row.also(self.asks("create", NAME, false))]
            }
            ("exec" | "attach" | "portforward" | "log", _) => vec![row],
            ("proxy", _) => vec![row, Row::new(method, format!("{path}/a/b"), &own)],
            (_, "get") => vec![row],
            (_, "patch") => vec![
                row.with(MERGE, &self.body()),
                Row::new("PATCH", format!("{path}?fieldManager=m"), &own).with(APPLY, &self.body()),
            ],
            _ => vec![row.with(JSON, &self.body())],
        }
    }
}

/// All rows.
pub async fn rows(cluster: &Cluster) -> Vec<Row> {
    let mut roots = vec!["/api/v1".to_string()];
    let groups = cluster.admin("GET", "/apis", None).await.expect(200);
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            roots.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        }
    }
    let mut all = Vec::new();
    for root in roots {
        all.push(Row::new("GET", &root, format!("get {root}")));
        let list = cluster.admin("GET", &root, None).await.expect(200);
        for found in list["resources"].as_array().unwrap() {
            all.extend(Resource::of(&root, found).rows());
        }
    }
    let others = [
        "/api",
        "/apis",
        "/version",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/nothing",
        "/",
    ];
    all.extend(others.map(|path| Row::new("GET", path, format!("get {path}"))));
    all
}
