//! Plays recorded scenarios against the strategies and compares the responses.

mod matching;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use knarr_api::k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Service, Taint};
use knarr_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::managed_fields::{Managed, ManagerId, Operation, blank};
use knarr_api::{AnyObject, Kind, Object, convert, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::cidr::Cidr;
use knarr_strategy::KindStrategy;
use knarr_strategy::Part;
use knarr_strategy::kinds::priority_class;
use knarr_strategy::kinds::service_ips::{self, Allocators, NodePorts};
use knarr_strategy::metadata;
use knarr_strategy::table_response::{self, Head, Include};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::recordings::{self, NAMESPACE};
use matching::Matcher;

#[derive(Deserialize)]
struct Scenario {
    id: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    request: Request,
    response: Response,
}

#[derive(Deserialize)]
struct Request {
    method: String,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: Value,
}

#[derive(Deserialize)]
struct Response {
    status: u16,
    #[serde(default)]
    headers: BTreeMap<String, Value>,
    body: Value,
}

/// The managed fields of a creation are computed by a faster function than those of an update: both must agree.
fn assert_create_owns_what_differs_from_blank(kind: &Kind, object: &mut dyn AnyObject) {
    let mut json = Vec::new();
    object.encode_into(&mut json);
    let manager = || ManagerId::new("creator", Operation::Update, kind, "");
    let after: Value = serde_json::from_slice(&json).expect("JSON");
    let on_update = Managed::default().update(kind, blank(kind), &after, manager(), now());
    let on_create = Managed::create(kind, object, manager(), now()).expect("an object that serializes");
    assert_eq!(on_create, on_update.encode(), "{}", after);
}

pub enum Outcome {
    Passed,
    Failed(String),
}

/// The id and the outcome of every scenario of a file.
pub fn run(file: &str) -> Vec<(String, Outcome)> {
    recordings::read(file)
        .replace("{ns}", NAMESPACE)
        .lines()
        .map(|line| {
            let scenario: Scenario = serde_json::from_str(line).expect("a scenario");
            let id = scenario.id.clone();
            let outcome = match play(scenario) {
                Ok(()) => Outcome::Passed,
                Err(error) => Outcome::Failed(error),
            };
            (id, outcome)
        })
        .collect()
}

fn play(scenario: Scenario) -> Result<(), String> {
    let mut cluster = Cluster::with_namespace_and_system_classes();
    let mut matcher = Matcher::default();
    for (i, step) in scenario.steps.into_iter().enumerate() {
        let body = matcher.fill(&step.request.body);
        let path = matcher.fill_text(&step.request.path);
        let (status, body, warnings) = cluster.respond(&step.request, &path, body);
        if status != step.response.status {
            return Err(format!(
                "step {i}: status {status} for {}: {} for {}",
                step.response.status, body["message"], step.response.body["message"]
            ));
        }
        // In the scenarios about tables only responses with a table are compared.
        let compared = !scenario.id.starts_with("tables") || step.response.body["kind"] == "Table";
        if compared {
            matcher
                .compare(&step.response.body, &body)
                .map_err(|error| format!("step {i}{error}"))?;
        }
        let expected: Vec<String> = match step.response.headers.get("Warning") {
            Some(warnings) => serde_json::from_value(warnings.clone()).expect("texts"),
            None => Vec::new(),
        };
        let warnings: Vec<String> = warnings.iter().map(|w| format!("299 - {w:?}")).collect();
        if compared && warnings != expected {
            return Err(format!("step {i}: warnings {warnings:?} for {expected:?}"));
        }
    }
    Ok(())
}

/// The stored objects.
#[derive(Default)]
struct Cluster {
    objects: BTreeMap<(String, String), Arc<Object>>,
    revision: u64,
}

/// The object or collection that a request addresses.
struct Target {
    kind: &'static Kind,
    name: String,
    subresource: String,
    query: BTreeMap<String, String>,
}

impl Target {
    fn parse(path: &str) -> Option<Self> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let mut parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (group, version) = match parts.remove(0) {
            "api" => ("", parts.remove(0)),
            _ => (parts.remove(0), parts.remove(0)),
        };
        if parts.len() > 2 && parts[0] == "namespaces" {
            parts.drain(..2);
        }
        let part = |i: usize| parts.get(i).copied().unwrap_or("").to_string();
        let query = query.split('&').filter_map(|q| q.split_once('='));
        Some(Target {
            kind: registry::by_resource(group, version, parts.first()?)?,
            name: part(1),
            subresource: part(2),
            query: query.map(|(k, v)| (k.to_string(), v.to_string())).collect(),
        })
    }

    fn query_parameter(&self, key: &str) -> &str {
        self.query.get(key).map_or("", String::as_str)
    }

    fn stored_kind(&self) -> Kind {
        self.kind.stored()
    }
}

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("a time")
}

/// Code, body, warnings.
type HttpResponse = (u16, Value, Vec<String>);
/// Code, objects, warnings.
type Success = (u16, Vec<Arc<Object>>, Vec<String>);

impl Cluster {
    /// The namespace of the scenarios and the two system classes.
    fn with_namespace_and_system_classes() -> Self {
        let mut cluster = Cluster::default();
        let namespace = json!({"metadata": {"name": NAMESPACE}});
        cluster.insert("/api/v1/namespaces", namespace);
        for class in priority_class::system_classes() {
            let class = serde_json::to_value(class).expect("JSON");
            cluster.insert("/apis/scheduling.k8s.io/v1/priorityclasses", class);
        }
        cluster
    }

    fn insert(&mut self, path: &str, body: Value) {
        let target = Target::parse(path).expect("a resource");
        self.create(&target, body).expect("an object");
    }

    /// What v1.36's admission plugins add to objects of these kinds.
    fn admit(object: &mut dyn AnyObject) {
        let any = object.as_any_mut();
        if let Some(claim) = any.downcast_mut::<PersistentVolumeClaim>() {
            claim.metadata.finalizers = Some(vec!["kubernetes.io/pvc-protection".into()]);
        } else if let Some(volume) = any.downcast_mut::<PersistentVolume>() {
            volume.metadata.finalizers = Some(vec!["kubernetes.io/pv-protection".into()]);
        } else if let Some(node) = any.downcast_mut::<Node>() {
            let taints = &mut node.spec.get_or_insert_default().taints;
            taints.get_or_insert_default().push(Taint {
                key: "node.kubernetes.io/not-ready".into(),
                effect: "NoSchedule".into(),
                ..Taint::default()
            });
        }
    }

    fn respond(&mut self, request: &Request, path: &str, body: Value) -> HttpResponse {
        let Some(target) = Target::parse(path) else {
            return (404, Value::Null, Vec::new());
        };
        let result = match request.method.as_str() {
            "POST" => self.create(&target, body),
            "PATCH" => self.patch(&target, &body),
            "GET" => self.read(&target),
            "DELETE" => self.mark(&target),
            other => Err(Error::bad_request(format!("{other} is not played"))),
        };
        match result {
            Ok((code, objects, mut warnings)) => {
                warnings.extend(target.kind.deprecation().map(String::from));
                let single = !target.name.is_empty() || request.method == "POST";
                let body = if request
                    .headers
                    .get("Accept")
                    .is_some_and(|a| a.contains("as=Table"))
                {
                    self.table(&target, &objects)
                } else {
                    let shown = objects.iter().map(|o| parse(o.json())).collect();
                    if single {
                        objects_first(shown)
                    } else {
                        Value::Array(shown)
                    }
                };
                (code, body, warnings)
            }
            Err(error) => {
                let mut status = serde_json::to_value(error.status()).expect("JSON");
                status["metadata"] = json!({});
                (error.code(), status, Vec::new())
            }
        }
    }

    fn table(&self, target: &Target, objects: &[Arc<Object>]) -> Value {
        let include = match target.query_parameter("includeObject") {
            "None" => Include::None,
            "Object" => Include::Object,
            _ => Include::Metadata,
        };
        let version = self.revision.to_string();
        let mut head = Head {
            resource_version: &version,
            ..Head::default()
        };
        // Two pages: `limit` objects, and the rest.
        let mut page = objects;
        if let Ok(limit) = target.query_parameter("limit").parse::<usize>() {
            if target.query_parameter("continue").is_empty() {
                page = &objects[..limit];
                head.continue_token = "next";
                head.remaining_item_count = i64::try_from(objects.len() - limit).ok();
            } else {
                page = &objects[limit..];
            }
        }
        let bytes = table_response::render_with(target.kind, page, include, now(), &head).expect("a table");
        let mut table = parse(&bytes);
        for column in table["columnDefinitions"].as_array_mut().into_iter().flatten() {
            column.as_object_mut().expect("a column").remove("description");
        }
        table
    }

    fn create(&mut self, target: &Target, body: Value) -> Result<Success, Error> {
        let kind = target.kind;
        let strategy = kind.strategy();
        let mut object = decode(kind, &body)?;
        let metadata = object.metadata_mut();
        if kind.namespaced() {
            metadata.namespace = Some(NAMESPACE.into());
        }
        metadata.uid = Some("01234567-89ab-cdef-0123-456789abcdef".into());
        metadata.creation_timestamp = Some(Time(now()));
        strategy.set_defaults(&mut *object)?;
        let metadata = object.metadata_mut();
        if metadata.name.is_none()
            && let Some(prefix) = &metadata.generate_name
        {
            metadata.name = Some(format!("{prefix}4x2gk"));
        }
        assert_create_owns_what_differs_from_blank(kind, &mut *object);
        Self::admit(&mut *object);
        strategy.prepare_for_create(&mut *object)?;
        self.allocate(kind, &mut *object, None)?;
        let name = object.metadata().name.clone().unwrap_or_default();
        if self.stored(target, &name).is_ok() {
            return Err(Error::already_exists(kind.resource_ref(&name)));
        }
        let mut errs = knarr_apimachinery::field::ErrorList::new();
        if kind.strategy().checks_metadata() {
            errs.extend(metadata::validate(kind, object.metadata()));
        }
        errs.extend(strategy.validate(&*object)?);
        if !errs.is_empty() {
            return Err(Error::invalid(kind.kind_ref(&name), &errs));
        }
        let mut warnings = strategy.early_warnings(&*object)?;
        warnings.extend(strategy.warnings(&*object)?);
        Ok((201, vec![self.store(target, object)?], warnings))
    }

    fn store(&mut self, target: &Target, object: Box<dyn AnyObject>) -> Result<Arc<Object>, Error> {
        self.revision += 1;
        let kind = target.stored_kind();
        let mut typed = convert::typed(target.kind, &kind, object)?;
        let bytes = Object::encode_for_store(&mut *typed);
        let stored = Arc::new(Object::from_stored(&kind, typed, &bytes, self.revision));
        let key = (kind.qualified(), stored.name().to_string());
        if !target.query_parameter("dryRun").is_empty() {
            let mut unwritten = stored.typed().clone_box();
            unwritten.metadata_mut().resource_version = None;
            let typed = convert::typed(&kind, target.kind, unwritten)?;
            return Ok(Arc::new(Object::from_typed(target.kind, typed)));
        }
        self.objects.insert(key, stored.clone());
        convert::object(&stored, target.kind)
    }

    fn stored(&self, target: &Target, name: &str) -> Result<Arc<Object>, Error> {
        let key = (target.stored_kind().qualified(), name.to_string());
        let found = self.objects.get(&key);
        let found = found.ok_or_else(|| Error::not_found(target.kind.resource_ref(name)))?;
        convert::object(found, target.kind)
    }

    fn patch(&mut self, target: &Target, patch: &Value) -> Result<Success, Error> {
        let kind = target.kind;
        let old = self.stored(target, &target.name)?;
        let mut merged = parse(old.json());
        knarr_api::patch::merge::apply(&mut merged, patch);
        let mut object = decode(kind, &merged)?;
        let part = match target.subresource.as_str() {
            "" => Part::Main,
            "status" => Part::Status,
            _ => Part::Other("approval"),
        };
        kind.strategy().set_defaults(&mut *object)?;
        kind.strategy()
            .prepare_for_update(&mut *object, old.typed(), part)?;
        self.allocate(kind, &mut *object, Some(&old))?;
        let mut errs = metadata::validate_update(kind, part, object.metadata(), old.metadata());
        errs.extend(kind.strategy().validate_update(&*object, old.typed(), part)?);
        if !errs.is_empty() {
            return Err(Error::invalid(kind.kind_ref(&target.name), &errs));
        }
        Ok((200, vec![self.store(target, object)?], Vec::new()))
    }

    /// Sets `deletionTimestamp` as a graceful deletion does; nothing completes the deletion here.
    fn mark(&mut self, target: &Target) -> Result<Success, Error> {
        let object = self.stored(target, &target.name)?;
        let mut typed = object.typed().clone_box();
        typed.metadata_mut().deletion_timestamp = Some(Time(now()));
        Ok((200, vec![self.store(target, typed)?], Vec::new()))
    }

    fn read(&self, target: &Target) -> Result<Success, Error> {
        if !target.name.is_empty() {
            return Ok((200, vec![self.stored(target, &target.name)?], Vec::new()));
        }
        let of = target.stored_kind().qualified();
        let objects = self.objects.iter().filter(|((kind, _), _)| *kind == of);
        let objects: Result<Vec<_>, Error> = objects
            .map(|(_, object)| convert::object(object, target.kind))
            .collect();
        Ok((200, objects?, Vec::new()))
    }

    fn allocate(
        &self,
        kind: &Kind,
        object: &mut dyn AnyObject,
        old: Option<&Arc<Object>>,
    ) -> Result<(), Error> {
        let Some(service) = object.as_any_mut().downcast_mut::<Service>() else {
            return Ok(());
        };
        let allocated: Vec<(Vec<IpAddr>, Vec<i32>)> = self
            .objects
            .values()
            .filter_map(|o| o.get::<Service>())
            .map(knarr_api::kinds::service_ips::allocated_to)
            .collect();
        let allocators = Allocators {
            ranges: &[Cidr::parse("10.97.0.0/16").expect("a range")],
            additional_ranges: &[],
            node_ports: NodePorts::default(),
            ip_is_used: &|ip| allocated.iter().any(|(ips, _)| ips.contains(&ip)),
            port_is_used: &|port| allocated.iter().any(|(_, ports)| ports.contains(&port)),
            random: 0,
        };
        let errs = service_ips::allocate(service, old.and_then(|o| o.get::<Service>()), &allocators);
        if errs.is_empty() {
            return Ok(());
        }
        let name = service.metadata.name.clone().unwrap_or_default();
        Err(Error::invalid(kind.kind_ref(&name), &errs))
    }
}

fn objects_first(mut shown: Vec<Value>) -> Value {
    if shown.is_empty() {
        Value::Null
    } else {
        shown.remove(0)
    }
}

fn parse(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

fn decode(kind: &Kind, body: &Value) -> Result<Box<dyn AnyObject>, Error> {
    let bytes = serde_json::to_vec(body).expect("JSON");
    let decoded = kind.ops.decode(&bytes).map_err(|e| {
        Error::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {}",
            kind.kind(),
            kind.version(),
            kind.kind(),
            e.message
        ))
    })?;
    Ok(decoded.object)
}
