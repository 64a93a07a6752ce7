//! The Pod Security Standards: which pods are `baseline`, which are `restricted`, and the violations of those that
//! are not. Each group of checks has one file; each check has the versions from which it applies.
//!
//! Source: <https://kubernetes.io/docs/concepts/security/pod-security-standards/>.

mod capabilities;
mod host;
mod policy;
mod privileges;
mod proc_mount;
mod profiles;
mod sysctls;
#[cfg(test)]
mod tests;
mod users;
mod volumes;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EphemeralContainer, Lifecycle, PodSpec, Probe, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use policy::{LABELS, Level, LevelVersion, Policy, Version};

/// The last minor version in which a check changed; later versions have the same checks.
const NEWEST: u32 = 35;

/// The subject of the checks: a pod or a pod template.
struct Subject<'a> {
    metadata: &'a ObjectMeta,
    spec: &'a PodSpec,
    /// Init containers, containers, ephemeral containers.
    containers: Vec<ContainerView<'a>>,
}

/// The fields of a container that checks read, of any container type.
struct ContainerView<'a> {
    name: &'a str,
    security: Option<&'a SecurityContext>,
    ports: &'a [ContainerPort],
    probes: [Option<&'a Probe>; 3],
    lifecycle: Option<&'a Lifecycle>,
}

impl<'a> From<&'a Container> for ContainerView<'a> {
    fn from(c: &'a Container) -> Self {
        ContainerView {
            name: &c.name,
            security: c.security_context.as_ref(),
            ports: c.ports.as_deref().unwrap_or(&[]),
            probes: [
                c.liveness_probe.as_ref(),
                c.readiness_probe.as_ref(),
                c.startup_probe.as_ref(),
            ],
            lifecycle: c.lifecycle.as_ref(),
        }
    }
}

impl<'a> From<&'a EphemeralContainer> for ContainerView<'a> {
    fn from(c: &'a EphemeralContainer) -> Self {
        ContainerView {
            name: &c.name,
            security: c.security_context.as_ref(),
            ports: c.ports.as_deref().unwrap_or(&[]),
            probes: [
                c.liveness_probe.as_ref(),
                c.readiness_probe.as_ref(),
                c.startup_probe.as_ref(),
            ],
            lifecycle: c.lifecycle.as_ref(),
        }
    }
}

impl<'a> Subject<'a> {
    fn new(metadata: &'a ObjectMeta, spec: &'a PodSpec) -> Self {
        let init = spec.init_containers.iter().flatten();
        let containers = init.chain(&spec.containers).map(ContainerView::from);
        let ephemeral = spec
            .ephemeral_containers
            .iter()
            .flatten()
            .map(ContainerView::from);
        Subject {
            metadata,
            spec,
            containers: containers.chain(ephemeral).collect(),
        }
    }

    /// The names of the containers for which this holds.
    fn containers_that(&self, holds: impl Fn(&ContainerView<'a>) -> bool) -> Vec<&'a str> {
        let chosen = self.containers.iter().filter(|c| holds(c));
        chosen.map(|c| c.name).collect()
    }

    fn is_windows(&self) -> bool {
        self.spec.os.as_ref().is_some_and(|os| os.name == "windows")
    }

    /// Whether the pod has a user namespace of its own.
    fn has_own_users(&self) -> bool {
        self.spec.host_users == Some(false)
    }
}

/// A violation of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Violation {
    reason: String,
    detail: String,
}

impl Violation {
    fn new(reason: impl Into<String>, detail: impl Into<String>) -> Self {
        Violation {
            reason: reason.into(),
            detail: detail.into(),
        }
    }
}

type CheckFn = fn(&Subject<'_>) -> Option<Violation>;

/// One rule of a level.
struct Check {
    name: &'static str,
    level: Level,
    /// The function of the check, from these minor versions on, ascending.
    versions: &'static [(u32, CheckFn)],
    /// The baseline's weaker check that this one replaces.
    instead_of: Option<&'static str>,
}

impl Check {
    fn at(&self, minor: u32) -> Option<CheckFn> {
        let mut found = self.versions.iter().rev();
        found.find(|(from, _)| *from <= minor).map(|(_, check)| *check)
    }
}

/// In the order in which they are reported: the baseline's by name, then the restricted level's.
const CHECKS: [&Check; 19] = [
    &profiles::APP_ARMOR,
    &capabilities::BASELINE,
    &host::NAMESPACES,
    &volumes::HOST_PATH,
    &host::PORTS,
    &host::PROBES_AND_LIFECYCLE,
    &privileges::PRIVILEGED,
    &proc_mount::BASELINE,
    &profiles::SE_LINUX,
    &profiles::SECCOMP_BASELINE,
    &sysctls::SYSCTLS,
    &privileges::WINDOWS_HOST_PROCESS,
    &privileges::ESCALATION,
    &capabilities::RESTRICTED,
    &proc_mount::RESTRICTED,
    &volumes::RESTRICTED,
    &users::NON_ROOT,
    &users::RUN_AS_USER,
    &profiles::SECCOMP_RESTRICTED,
];

/// The violations of a pod at a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// In short: `host namespaces, hostPort`.
    pub fn reasons(&self) -> String {
        let all: Vec<&str> = self.0.iter().map(|v| v.reason.as_str()).collect();
        all.join(", ")
    }

    /// With details: `host namespaces (hostNetwork=true), …`.
    pub fn details(&self) -> String {
        let all: Vec<String> = self
            .0
            .iter()
            .map(|v| format!("{} ({})", v.reason, v.detail))
            .collect();
        all.join(", ")
    }
}

/// The violations of a pod at this level; `None` if there are none.
pub fn evaluate(level_version: LevelVersion, metadata: &ObjectMeta, spec: &PodSpec) -> Option<Violations> {
    if level_version.level == Level::Privileged {
        return None;
    }
    let minor = match level_version.version {
        Version::Minor(minor) => minor.min(NEWEST),
        Version::Latest => NEWEST,
    };
    let in_force: Vec<(&Check, CheckFn)> = CHECKS
        .into_iter()
        .filter(|check| check.level <= level_version.level)
        .filter_map(|check| Some((check, check.at(minor)?)))
        .collect();
    let subject = Subject::new(metadata, spec);
    let replaced = |name: &str| in_force.iter().any(|(check, _)| check.instead_of == Some(name));
    let found: Vec<Violation> = in_force
        .iter()
        .filter(|(check, _)| !replaced(check.name))
        .filter_map(|(_, check)| check(&subject))
        .collect();
    (!found.is_empty()).then_some(Violations(found))
}

/// `"a", "b"`.
fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = items.into_iter().map(|i| format!("\"{}\"", i.as_ref())).collect();
    all.join(", ")
}

fn plural(count: usize, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

/// `container "a"`, `containers "a", "b"`.
fn containers(names: &[&str]) -> String {
    let noun = plural(names.len(), "container", "containers");
    format!("{noun} {}", quoted(names))
}

/// The pod and containers that set a field: `pod and container "a"`; `None` if none does.
fn setters(pod: bool, names: &[&str]) -> Option<String> {
    match (pod, names) {
        (false, []) => None,
        (true, []) => Some("pod".into()),
        (false, names) => Some(containers(names)),
        (true, names) => Some(format!("pod and {}", containers(names))),
    }
}
