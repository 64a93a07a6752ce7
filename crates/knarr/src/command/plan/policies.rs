//! The policies that plans are made with: of a file, the RebalancePolicies of the cluster, or the built-in one.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use knarr_apimachinery::document::{Fields, Report};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_rebalance::policy::{Policy, Read, descheduler, rebalance_policy};
use serde::Serialize;
use serde_json::{Value, json};

use crate::command::Failure;
use crate::command::snapshot::{DocumentKind, ObjectReader, text};

const API_VERSION: &str = "placement.knarr.io/v1alpha1";
pub const CLUSTER_REBALANCE_POLICY: DocumentKind = DocumentKind {
    api_version: API_VERSION,
    kind: "ClusterRebalancePolicy",
    path: "/apis/placement.knarr.io/v1alpha1/clusterrebalancepolicies",
};
pub const REBALANCE_POLICY: DocumentKind = DocumentKind {
    api_version: API_VERSION,
    kind: "RebalancePolicy",
    path: "/apis/placement.knarr.io/v1alpha1/rebalancepolicies",
};
/// The kind of the built-in policy in the output.
const BUILT_IN: &str = "BuiltIn";

#[derive(Args, Clone, Debug, Default)]
pub struct PolicyChoice {
    /// Read the policy from a file (YAML or JSON) instead of from the cluster: a RebalancePolicy or ClusterRebalancePolicy
    /// (placement.knarr.io/v1alpha1), or a DeschedulerPolicy (descheduler/v1alpha2). `-` reads standard input. A RebalancePolicy
    /// without a namespace is in that of --namespace.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Use the policy of this name: NAME, or NAMESPACE/NAME for a RebalancePolicy [default: all of the cluster, or the only one
    /// of the file].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// A policy and where it is from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NamedPolicy {
    pub kind: &'static str,
    /// Of a RebalancePolicy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    /// Empty: it is not from a file.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    pub dry_run: bool,
    /// What of the policy has no effect here, as `path: why`.
    pub ignored: Vec<String>,
    #[serde(skip)]
    pub policy: Policy,
}

impl NamedPolicy {
    fn new(kind: &'static str, namespace: &str, read: Read) -> Self {
        NamedPolicy {
            kind,
            namespace: namespace.to_string(),
            name: read.policy.name.clone(),
            file: String::new(),
            dry_run: read.policy.dry_run,
            ignored: read.ignored,
            policy: read.policy,
        }
    }

    /// What `--name` selects it by.
    pub fn full_name(&self) -> String {
        full_name(&self.namespace, &self.name)
    }
}

fn full_name(namespace: &str, name: &str) -> String {
    match namespace {
        "" => name.to_string(),
        namespace => format!("{namespace}/{name}"),
    }
}

impl fmt::Display for NamedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            BUILT_IN => {
                f.write_str("built in, because the cluster has no RebalancePolicy: ")?;
                let strategies = self.policy.strategies();
                let names: Vec<&str> = strategies.map(|(_, strategy)| strategy.rule.name()).collect();
                f.write_str(&names.join(", "))?;
            }
            // It has no name of its own.
            descheduler::KIND => f.write_str(descheduler::KIND)?,
            kind => write!(f, "{kind} {}", self.full_name())?,
        }
        match self.file.as_str() {
            "" => Ok(()),
            file => write!(f, " ({file})"),
        }
    }
}

/// A policy that cannot be used.
#[derive(Debug)]
struct Invalid {
    /// As [`NamedPolicy::full_name`].
    full_name: String,
    /// The file, the kind, the name: what each line of the message begins with.
    location: String,
    errors: ErrorList,
}

/// A line for each error.
impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self
            .errors
            .iter()
            .map(|error| format!("{}: {error}", self.location));
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

impl PolicyChoice {
    /// The policy of the file; `None`: no file is named. The namespace is that of a RebalancePolicy that has none.
    pub fn read_file(&self, namespace: &str) -> Result<Option<NamedPolicy>, Failure> {
        let Some(path) = &self.policy else {
            return Ok(None);
        };
        let file = path.display().to_string();
        let policies = of_text(&file, &text(path)?, namespace)?;
        let mut chosen = match &self.name {
            None => policies,
            Some(name) => named(policies, name, &file)?,
        };
        match (chosen.pop(), chosen.is_empty()) {
            (only, true) => Ok(only),
            (last, false) => {
                let names = chosen.iter().chain(&last).map(NamedPolicy::full_name);
                Err(Failure::new(format!(
                    "{file} has several policies: choose one with --name: {}",
                    names.collect::<Vec<_>>().join(", ")
                )))
            }
        }
    }

    /// The policies of the cluster, or the built-in one if there are none. One that is not valid is skipped with a warning,
    /// unless it is the one that is named, or there is no valid one.
    pub async fn read_cluster(&self, reader: &ObjectReader) -> Result<Vec<NamedPolicy>, Failure> {
        let mut policies = Vec::new();
        let mut invalid = Vec::new();
        for kind in [&CLUSTER_REBALANCE_POLICY, &REBALANCE_POLICY] {
            for document in reader.documents(kind).await? {
                match read_rebalance_policy(kind.kind, &document, "") {
                    Ok(policy) => policies.push(policy),
                    Err(error) => invalid.push(error),
                }
            }
        }
        if let Some(name) = &self.name {
            return match invalid.iter().find(|error| error.full_name == *name) {
                Some(error) => Err(Failure::new(error.to_string())),
                None => named(policies, name, "the cluster"),
            };
        }
        match (policies.is_empty(), invalid.is_empty()) {
            (true, true) => Ok(vec![built_in()?]),
            (true, false) => Err(Failure::new(lines(&invalid))),
            (false, _) => {
                for error in invalid {
                    eprintln!("knarr: warning: skipping a policy: {error}");
                }
                Ok(policies)
            }
        }
    }
}

fn lines(invalid: &[Invalid]) -> String {
    let lines: Vec<String> = invalid.iter().map(Invalid::to_string).collect();
    lines.join("\n")
}

/// The policies with the name; one at least.
fn named(policies: Vec<NamedPolicy>, name: &str, of: &str) -> Result<Vec<NamedPolicy>, Failure> {
    let names: Vec<String> = policies.iter().map(NamedPolicy::full_name).collect();
    let chosen: Vec<NamedPolicy> = policies.into_iter().filter(|p| p.full_name() == name).collect();
    if !chosen.is_empty() {
        return Ok(chosen);
    }
    let has = match names.as_slice() {
        [] => "none".to_string(),
        names => names.join(", "),
    };
    Err(Failure::new(format!("{of} has no policy {name:?}; it has {has}")))
}

/// The strategies that restore what pods and nodes ask of the scheduler: they replace no pod for its age or state, and none
/// works against the scheduler's scores.
fn built_in() -> Result<NamedPolicy, Failure> {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let spec = json!({"strategies": {
        "topologySpread": {},
        "nodeTaints": {},
        "podAntiAffinity": {},
        "nodeAffinity": {"nodeAffinityType": [required]},
        "duplicates": {},
    }});
    let read = rebalance_policy::read_with_notes("built-in", "", &spec);
    let read = read.map_err(|e| Failure::new("the built-in policy is not valid").because(e))?;
    Ok(NamedPolicy::new(BUILT_IN, "", read))
}

/// The policies of a file: documents, or lists of them. All errors of all documents are reported at once.
fn of_text(file: &str, text: &str, namespace: &str) -> Result<Vec<NamedPolicy>, Failure> {
    let documents = serde_saphyr::from_multiple::<Value>(text)
        .map_err(|e| Failure::new(format!("{file} is not valid YAML")).because(e))?;
    let mut policies = Vec::new();
    let mut invalid = Vec::new();
    for document in &documents {
        let items = document.get("items").and_then(Value::as_array);
        let all = items.map_or(std::slice::from_ref(document), Vec::as_slice);
        for document in all.iter().filter(|document| !document.is_null()) {
            match read(document, namespace) {
                Ok(policy) => policies.push(NamedPolicy {
                    file: file.to_string(),
                    ..policy
                }),
                Err(error) => invalid.push(Invalid {
                    location: format!("{file}: {}", error.location),
                    ..error
                }),
            }
        }
    }
    if !invalid.is_empty() {
        return Err(Failure::new(lines(&invalid)));
    }
    if policies.is_empty() {
        return Err(Failure::new(format!(
            "{file} has no policy: expected a RebalancePolicy or ClusterRebalancePolicy ({API_VERSION}), or a {} ({})",
            descheduler::KIND,
            descheduler::API_VERSION
        )));
    }
    Ok(policies)
}

fn read(document: &Value, namespace: &str) -> Result<NamedPolicy, Invalid> {
    let of = |field: &str| document.get(field).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (of("apiVersion"), of("kind"));
    let invalid = |location: &str, errors: ErrorList| Invalid {
        full_name: location.to_string(),
        location: location.to_string(),
        errors,
    };
    if kind == descheduler::KIND {
        let read = descheduler::read(document).map_err(|errors| invalid(kind, errors))?;
        return Ok(NamedPolicy::new(descheduler::KIND, "", read));
    }
    let mut errors = ErrorList::new();
    let mut ours = [CLUSTER_REBALANCE_POLICY.kind, REBALANCE_POLICY.kind].into_iter();
    let Some(kind) = ours.find(|known| *known == kind) else {
        let known = [
            REBALANCE_POLICY.kind,
            CLUSTER_REBALANCE_POLICY.kind,
            descheduler::KIND,
        ];
        errors.not_supported(&Path::new("kind"), kind, &known);
        return Err(invalid("a document", errors));
    };
    if api_version != API_VERSION {
        errors.not_supported(&Path::new("apiVersion"), api_version, &[API_VERSION]);
        return Err(invalid(kind, errors));
    }
    read_rebalance_policy(kind, document, namespace)
}

/// `default_namespace`: of a RebalancePolicy that has none; if empty, it must have one.
fn read_rebalance_policy(
    kind: &'static str,
    document: &Value,
    default_namespace: &str,
) -> Result<NamedPolicy, Invalid> {
    let mut report = Report::default();
    let report = &mut report;
    let mut fields = Fields::new(document, Path::default(), report);
    for name in ["apiVersion", "kind", "status"] {
        fields.take(name);
    }
    let (mut name, mut namespace) = ("", "");
    if let Some(mut metadata) = fields.object("metadata", report) {
        name = metadata.text("name", report).unwrap_or_default();
        namespace = metadata.text("namespace", report).unwrap_or_default();
    }
    let at = fields.at("metadata");
    if name.is_empty() {
        report.errors.required(&at.child("name"), "");
    }
    match (kind == REBALANCE_POLICY.kind, namespace) {
        (true, "") => {
            namespace = default_namespace;
            if namespace.is_empty() {
                report.errors.required(&at.child("namespace"), "");
            }
        }
        (true, _) | (false, "") => {}
        (false, _) => {
            let detail = "a ClusterRebalancePolicy has no namespace";
            report.errors.forbidden(&at.child("namespace"), detail);
            namespace = "";
        }
    }
    let spec = fields.take("spec").unwrap_or(&Value::Null);
    fields.finish(report);
    let mut errors = std::mem::take(&mut report.errors);
    match rebalance_policy::read_with_notes(name, namespace, spec) {
        Ok(read) if errors.is_empty() => return Ok(NamedPolicy::new(kind, namespace, read)),
        Ok(_) => {}
        Err(more) => errors.extend(more),
    }
    let full_name = full_name(namespace, name);
    Err(Invalid {
        location: format!("{kind} {full_name}").trim_end().to_string(),
        full_name,
        errors,
    })
}
