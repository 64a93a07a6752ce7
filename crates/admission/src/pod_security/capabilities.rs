//! Linux capabilities: none beyond the default ones, and at the restricted level only NET_BIND_SERVICE.

use std::collections::BTreeSet;

use super::{Check, ContainerView, Level, Subject, Violation, containers, quoted};

pub(super) const BASELINE: Check = Check {
    name: "capabilities_baseline",
    level: Level::Baseline,
    versions: &[(0, baseline)],
    instead_of: None,
};

pub(super) const RESTRICTED: Check = Check {
    name: "capabilities_restricted",
    level: Level::Restricted,
    versions: &[(22, restricted), (25, restricted_but_windows)],
    instead_of: Some("capabilities_baseline"),
};

/// The default capabilities of container runtimes, without NET_RAW.
const DEFAULT: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

fn added<'a>(container: &ContainerView<'a>) -> &'a [String] {
    let capabilities = container.security.and_then(|s| s.capabilities.as_ref());
    capabilities.and_then(|c| c.add.as_deref()).unwrap_or(&[])
}

/// The containers that add other capabilities than these, and those capabilities.
fn adding<'a>(subject: &Subject<'a>, allowed: &[&str]) -> (Vec<&'a str>, BTreeSet<&'a str>) {
    let forbidden = |c: &&String| !allowed.contains(&c.as_str());
    let names = subject.containers_that(|c| added(c).iter().any(|c| forbidden(&c)));
    let all = subject.containers.iter().flat_map(|c| added(c));
    (names, all.filter(forbidden).map(String::as_str).collect())
}

fn detail_of(names: &[&str], capabilities: &BTreeSet<&str>) -> Option<String> {
    (!names.is_empty()).then(|| {
        format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers(names),
            quoted(capabilities)
        )
    })
}

fn baseline(subject: &Subject<'_>) -> Option<Violation> {
    let (names, capabilities) = adding(subject, &DEFAULT);
    detail_of(&names, &capabilities).map(|detail| Violation::new("non-default capabilities", detail))
}

fn restricted(subject: &Subject<'_>) -> Option<Violation> {
    let keeping = subject.containers_that(|c| {
        let capabilities = c.security.and_then(|s| s.capabilities.as_ref());
        let mut dropped = capabilities.iter().flat_map(|c| c.drop.iter().flatten());
        !dropped.any(|c| c == "ALL")
    });
    let keeping = (!keeping.is_empty()).then(|| {
        let containers = containers(&keeping);
        format!("{containers} must set securityContext.capabilities.drop=[\"ALL\"]")
    });
    let (names, capabilities) = adding(subject, &["NET_BIND_SERVICE"]);
    let details: Vec<String> = keeping
        .into_iter()
        .chain(detail_of(&names, &capabilities))
        .collect();
    (!details.is_empty()).then(|| Violation::new("unrestricted capabilities", details.join("; ")))
}

fn restricted_but_windows(subject: &Subject<'_>) -> Option<Violation> {
    if subject.is_windows() {
        None
    } else {
        restricted(subject)
    }
}
