//! KubeSchedulerConfiguration (SPEC P6): the configuration files of kube-scheduler.
//!
//! v1 is supported in full; v1beta3 and v1alpha1 as well, because Kubernetes' documentation still shows them. A file
//! is parsed to its end and every error is reported with its path. A field that is accepted and has no effect here
//! (such as the number of threads) becomes a note. A field that would change placement and is not supported is an
//! error.

mod args;
mod plugins;
mod profile;
mod v1alpha1;
mod version;

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_apimachinery::field::{ErrorList, Path};
use serde_json::Value;

pub use args::{
    DefaultPreemptionArgs, InterPodAffinityArgs, NodeResourcesFitArgs, PluginArgs, PodTopologySpreadArgs,
    PreemptionExtensionArgs, ResourceSpec, ScoringStrategy, UtilizationShapePoint,
};
pub use plugins::{ExtensionPoint, Plugin, Plugins};
pub use version::Version;

use knarr_apimachinery::document::{Fields, Report};

/// What every version's `kind` must be.
const KIND: &str = "KubeSchedulerConfiguration";
/// The profile of pods without `spec.schedulerName`.
const DEFAULT_SCHEDULER_NAME: &str = "default-scheduler";

/// Leader election of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    pub leader_elect: bool,
    pub lease_duration: SignedDuration,
    pub renew_deadline: SignedDuration,
    pub retry_period: SignedDuration,
    pub resource_name: String,
    pub resource_namespace: String,
}

impl Default for LeaderElection {
    fn default() -> Self {
        LeaderElection {
            leader_elect: true,
            lease_duration: SignedDuration::from_secs(15),
            renew_deadline: SignedDuration::from_secs(10),
            retry_period: SignedDuration::from_secs(2),
            resource_name: "kube-scheduler".into(),
            resource_namespace: "kube-system".into(),
        }
    }
}

/// The settings for pods that name one scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeSchedulerProfile {
    pub scheduler_name: String,
    /// Parsed only; all nodes are filtered and scored whatever it says.
    pub percentage_of_nodes_to_score: Option<i32>,
    pub plugins: Plugins,
    pub args: PluginArgs,
}

impl Default for KubeSchedulerProfile {
    fn default() -> Self {
        KubeSchedulerProfile {
            scheduler_name: DEFAULT_SCHEDULER_NAME.into(),
            percentage_of_nodes_to_score: None,
            plugins: Plugins::default(),
            args: PluginArgs::default(),
        }
    }
}

/// See the module. [`Default`] is the behaviour of kube-scheduler without a file.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeSchedulerConfiguration {
    pub leader_election: LeaderElection,
    /// Parsed only; all nodes are filtered and scored whatever it says.
    pub percentage_of_nodes_to_score: Option<i32>,
    /// Backoff after a pod's first failed attempt.
    pub pod_initial_backoff: SignedDuration,
    /// The longest backoff.
    pub pod_max_backoff: SignedDuration,
    /// At least one; names are unique.
    pub profiles: Vec<KubeSchedulerProfile>,
    /// `path: detail` of what was accepted and has no effect.
    pub notes: Vec<String>,
}

impl Default for KubeSchedulerConfiguration {
    fn default() -> Self {
        KubeSchedulerConfiguration {
            leader_election: LeaderElection::default(),
            percentage_of_nodes_to_score: None,
            pod_initial_backoff: SignedDuration::from_secs(1),
            pod_max_backoff: SignedDuration::from_secs(10),
            profiles: vec![KubeSchedulerProfile::default()],
            notes: Vec::new(),
        }
    }
}

/// Parses a file (YAML or JSON).
///
/// # Examples
///
/// Every error is reported at once, each with its path (SPEC P6).
///
/// ```
/// use knarr_scheduler::config::parse;
///
/// let good = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
/// assert_eq!(parse(good).expect("a valid file").profiles.len(), 1);
///
/// let errors = parse(&format!("{good}podInitialBackoffSeconds: -1\nnonsense: true\n")).expect_err("two errors");
/// let text = errors.to_string();
/// assert!(text.contains("podInitialBackoffSeconds") && text.contains("nonsense"), "{text}");
/// ```
pub fn parse(text: &str) -> Result<KubeSchedulerConfiguration, ErrorList> {
    let mut report = Report::default();
    let mut configuration = KubeSchedulerConfiguration::default();
    if let Some(document) = document(text, &mut report) {
        configuration.read(&document, &mut report);
    }
    if !report.errors.is_empty() {
        return Err(report.errors);
    }
    configuration.notes = report.notes;
    Ok(configuration)
}

/// The object of a file. The v1alpha1 documents show omitted lines as `...`, which ends a YAML document: what follows
/// without an apiVersion and a kind of its own belongs to the same object.
fn document(text: &str, report: &mut Report) -> Option<Value> {
    let root = Path::default();
    let mut documents = match serde_saphyr::from_multiple::<Value>(text) {
        Ok(documents) => documents,
        Err(error) => {
            let detail = format!("invalid YAML: {error}");
            report.errors.type_invalid(&root, "", detail);
            return None;
        }
    };
    documents.retain(|d| !d.is_null());
    let mut documents = documents.into_iter();
    let Some(mut first) = documents.next() else {
        report
            .errors
            .required(&root, format!("the file is empty; expected a {KIND}"));
        return None;
    };
    let is_v1alpha1 = first.get("apiVersion").and_then(Value::as_str) == Some(Version::ALL[2]);
    for further in documents {
        match (&mut first, further) {
            (Value::Object(first), Value::Object(further))
                if is_v1alpha1 && !further.contains_key("apiVersion") && !further.contains_key("kind") =>
            {
                for (name, value) in further {
                    if first.contains_key(&name) {
                        report.errors.duplicate(&root.child(&name), &value);
                    } else {
                        first.insert(name, value);
                    }
                }
            }
            (_, further) => {
                report
                    .errors
                    .invalid(&root, further, "a file holds one configuration; this is another")
            }
        }
    }
    Some(first)
}

impl KubeSchedulerConfiguration {
    fn read(&mut self, document: &Value, report: &mut Report) {
        let mut fields = Fields::new(document, Path::default(), report);
        let Some(version) = read_version(&mut fields, document, report) else {
            return;
        };
        if version == Version::V1Alpha1 {
            return self.read_v1alpha1(fields, report);
        }
        self.read_shared(&mut fields, report);
        if let Some(parallelism) = fields.integer("parallelism", report) {
            let at = fields.at("parallelism");
            if parallelism <= 0 {
                let detail = "should be an integer value greater than zero";
                report.errors.invalid(&at, parallelism, detail);
            }
            report.note(&at, "has no effect: pods are scheduled one after the other");
        }
        if fields.boolean("delayCacheUntilActive", report) == Some(true) {
            let detail = "has no effect: the caches are shared with the other components";
            report.note(&fields.at("delayCacheUntilActive"), detail);
        }
        if let Some(profiles) = fields.list("profiles", report)
            && !profiles.is_empty()
        {
            let alone = profiles.len() == 1;
            self.profiles = Vec::new();
            for (item, path) in profiles {
                let profile = read_profile(Fields::new(item, path.clone(), report), alone, version, report);
                let same = |p: &KubeSchedulerProfile| p.scheduler_name == profile.scheduler_name;
                if !profile.scheduler_name.is_empty() && self.profiles.iter().any(same) {
                    report
                        .errors
                        .duplicate(&path.child("schedulerName"), &profile.scheduler_name);
                }
                self.profiles.push(profile);
            }
        }
        let extenders = fields.list("extenders", report).unwrap_or_default();
        if !extenders.is_empty() {
            let detail = "extenders are not supported";
            report.errors.forbidden(&fields.at("extenders"), detail);
        }
        fields.finish(report);
    }

    /// The fields that all versions have at the top level.
    fn read_shared(&mut self, fields: &mut Fields, report: &mut Report) {
        if let Some(election) = fields.object("leaderElection", report) {
            self.leader_election.read(election, report);
        }
        if let Some(connection) = fields.object("clientConnection", report) {
            read_client_connection(connection, report);
        }
        for name in ["enableProfiling", "enableContentionProfiling"] {
            if fields.boolean(name, report) == Some(true) {
                report.note(
                    &fields.at(name),
                    "has no effect: there is no Go runtime to profile",
                );
            }
        }
        self.percentage_of_nodes_to_score = read_percentage(fields, report);
        let initial = fields.long("podInitialBackoffSeconds", report).unwrap_or(1);
        let max = fields.long("podMaxBackoffSeconds", report).unwrap_or(10);
        if initial <= 0 {
            let at = fields.at("podInitialBackoffSeconds");
            report.errors.invalid(&at, initial, "must be greater than 0");
        }
        if max < initial {
            let detail = "must be greater than or equal to PodInitialBackoffSeconds";
            let at = fields.at("podMaxBackoffSeconds");
            report.errors.invalid(&at, max, detail);
        }
        self.pod_initial_backoff = SignedDuration::from_secs(initial);
        self.pod_max_backoff = SignedDuration::from_secs(max);
    }
}

fn read_version(fields: &mut Fields, document: &Value, report: &mut Report) -> Option<Version> {
    let kind = fields.text("kind", report);
    let api_version = fields.text("apiVersion", report);
    if !document.is_object() {
        return None;
    }
    match kind {
        Some(KIND) => {}
        Some(other) => report.errors.not_supported(&fields.at("kind"), other, &[KIND]),
        None if fields.take("kind").is_none() => report.errors.required(&fields.at("kind"), KIND),
        None => {}
    }
    let Some(api_version) = api_version else {
        if fields.take("apiVersion").is_none() {
            let detail = format!("one of {}", Version::ALL.join(", "));
            report.errors.required(&fields.at("apiVersion"), detail);
        }
        return None;
    };
    let version = Version::parse(api_version);
    if version.is_none() {
        report
            .errors
            .not_supported(&fields.at("apiVersion"), api_version, &Version::ALL);
    }
    version
}

fn read_profile(
    mut fields: Fields,
    alone: bool,
    version: Version,
    report: &mut Report,
) -> KubeSchedulerProfile {
    let given = fields.take("schedulerName").is_some();
    let name = fields.text("schedulerName", report).unwrap_or_default();
    let scheduler_name = if alone && !given {
        DEFAULT_SCHEDULER_NAME
    } else {
        name
    };
    let is_text = fields.take("schedulerName").is_none_or(Value::is_string);
    if scheduler_name.is_empty() && is_text {
        report.errors.required(&fields.at("schedulerName"), "");
    }
    let percentage_of_nodes_to_score = read_percentage(&mut fields, report);
    let plugins = match fields.object("plugins", report) {
        Some(of) => plugins::read(of, version, report),
        None => Plugins::default(),
    };
    let args = fields.list("pluginConfig", report).unwrap_or_default();
    let args = args::read(args, version, report);
    fields.finish(report);
    KubeSchedulerProfile {
        scheduler_name: scheduler_name.to_string(),
        percentage_of_nodes_to_score,
        plugins,
        args,
    }
}

fn read_percentage(fields: &mut Fields, report: &mut Report) -> Option<i32> {
    const NAME: &str = "percentageOfNodesToScore";
    let percentage = fields.integer(NAME, report)?;
    let at = fields.at(NAME);
    if !(0..=100).contains(&percentage) {
        report
            .errors
            .invalid(&at, percentage, "not in valid range [0-100]");
    } else if percentage != 100 {
        report.note(&at, "has no effect: all nodes are considered");
    }
    Some(percentage)
}

impl LeaderElection {
    fn read(&mut self, mut fields: Fields, report: &mut Report) {
        if let Some(elect) = fields.boolean("leaderElect", report) {
            self.leader_elect = elect;
        }
        // Zero means the default.
        let set = |of: &mut SignedDuration, given: Option<SignedDuration>| {
            if let Some(given) = given.filter(|d| !d.is_zero()) {
                *of = given;
            }
        };
        set(&mut self.lease_duration, fields.duration("leaseDuration", report));
        set(&mut self.renew_deadline, fields.duration("renewDeadline", report));
        set(&mut self.retry_period, fields.duration("retryPeriod", report));
        // Their names in v1alpha1, in addition to the later ones.
        let name = fields.text("lockObjectName", report);
        let name = fields.text("resourceName", report).or(name);
        let namespace = fields.text("lockObjectNamespace", report);
        let namespace = fields.text("resourceNamespace", report).or(namespace);
        if let Some(name) = name.filter(|n| !n.is_empty()) {
            self.resource_name = name.to_string();
        }
        if let Some(namespace) = namespace.filter(|n| !n.is_empty()) {
            self.resource_namespace = namespace.to_string();
        }
        let lock = fields.text("resourceLock", report).unwrap_or_default();
        if self.leader_elect {
            if !matches!(lock, "" | "leases") {
                let detail = "resourceLock value must be \"leases\"";
                report.errors.invalid(&fields.at("resourceLock"), lock, detail);
            }
            let spans = [
                ("leaseDuration", self.lease_duration),
                ("renewDeadline", self.renew_deadline),
                ("retryPeriod", self.retry_period),
            ];
            for (name, span) in spans {
                if !span.is_positive() {
                    let at = fields.at(name);
                    report
                        .errors
                        .invalid(&at, format!("{span}"), "must be greater than zero");
                }
            }
            if self.lease_duration <= self.renew_deadline {
                let at = fields.at("leaseDuration");
                let shown = format!("{}", self.lease_duration);
                report
                    .errors
                    .invalid(&at, shown, "must be greater than `RenewDeadline`");
            }
        }
        fields.finish(report);
    }
}

fn read_client_connection(mut fields: Fields, report: &mut Report) {
    let mut given = Vec::new();
    for name in ["kubeconfig", "acceptContentTypes", "contentType"] {
        if fields.text(name, report).is_some_and(|text| !text.is_empty()) {
            given.push(name);
        }
    }
    if fields.number("qps", report).is_some() {
        given.push("qps");
    }
    if let Some(burst) = fields.integer("burst", report) {
        if burst < 0 {
            let at = fields.at("burst");
            report.errors.invalid(&at, burst, "must be non-negative");
        }
        given.push("burst");
    }
    for name in given {
        let detail = "has no effect: the scheduler uses the API client of this process";
        report.note(&fields.at(name), detail);
    }
    fields.finish(report);
}

#[cfg(test)]
mod tests;
