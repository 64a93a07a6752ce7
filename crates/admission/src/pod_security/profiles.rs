//! Confinement by the kernel: AppArmor, SELinux and seccomp profiles.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::SELinuxOptions;
use knarr_api::kinds::text;

use super::{Check, ContainerView, Level, Subject, Violation, containers, plural, quoted, setters};

pub(super) const APP_ARMOR: Check = Check {
    name: "appArmorProfile",
    level: Level::Baseline,
    versions: &[(0, app_armor)],
    instead_of: None,
};

pub(super) const SE_LINUX: Check = Check {
    name: "seLinuxOptions",
    level: Level::Baseline,
    versions: &[
        (0, |s| se_linux(s, &SE_LINUX_TYPES[..4])),
        (31, |s| se_linux(s, &SE_LINUX_TYPES)),
    ],
    instead_of: None,
};

pub(super) const SECCOMP_BASELINE: Check = Check {
    name: "seccompProfile_baseline",
    level: Level::Baseline,
    versions: &[(0, seccomp_annotations), (19, seccomp_baseline)],
    instead_of: None,
};

pub(super) const SECCOMP_RESTRICTED: Check = Check {
    name: "seccompProfile_restricted",
    level: Level::Restricted,
    versions: &[(19, seccomp_restricted), (25, seccomp_restricted_but_windows)],
    instead_of: Some("seccompProfile_baseline"),
};

/// Named containers' profiles before they had a field.
const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_OF_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// The last was added in 1.31.
const SE_LINUX_TYPES: [&str; 5] = [
    "",
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_engine_t",
];

fn is_confined(profile: &str) -> bool {
    matches!(profile, "RuntimeDefault" | "Localhost")
}

fn app_armor(subject: &Subject<'_>) -> Option<Violation> {
    fn of<'a>(container: &ContainerView<'a>) -> Option<&'a str> {
        let profile = container.security?.app_armor_profile.as_ref()?;
        Some(profile.type_.as_str()).filter(|t| !is_confined(t))
    }
    let pod = subject.spec.security_context.as_ref();
    let pod = pod.and_then(|s| Some(s.app_armor_profile.as_ref()?.type_.as_str()));
    let pod = pod.filter(|t| !is_confined(t));
    let names = subject.containers_that(|c| of(c).is_some());
    let values: BTreeSet<&str> = subject.containers.iter().filter_map(of).chain(pod).collect();
    let allowed = |profile: &str| {
        profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/")
    };
    let annotated: BTreeSet<String> = subject
        .metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(key, value)| key.starts_with(APP_ARMOR_ANNOTATION) && !allowed(value))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    let by_annotation =
        (!annotated.is_empty()).then(|| plural(annotated.len(), "annotation", "annotations").to_string());
    let who: Vec<String> = setters(pod.is_some(), &names)
        .into_iter()
        .chain(by_annotation)
        .collect();
    if who.is_empty() {
        return None;
    }
    let bad: Vec<String> = values.into_iter().map(str::to_string).chain(annotated).collect();
    let reason = plural(
        bad.len(),
        "forbidden AppArmor profile",
        "forbidden AppArmor profiles",
    );
    let detail = format!(
        "{} must not set AppArmor profile type to {}",
        who.join(" and "),
        quoted(&bad)
    );
    Some(Violation::new(reason, detail))
}

fn se_linux(subject: &Subject<'_>, types: &[&str]) -> Option<Violation> {
    let bad = |options: &SELinuxOptions| {
        !types.contains(&text(&options.type_))
            || !text(&options.user).is_empty()
            || !text(&options.role).is_empty()
    };
    let of_pod = subject
        .spec
        .security_context
        .as_ref()
        .and_then(|s| s.se_linux_options.as_ref());
    let of = |c: &ContainerView<'_>| {
        c.security
            .is_some_and(|s| s.se_linux_options.as_ref().is_some_and(bad))
    };
    let names = subject.containers_that(of);
    let who = setters(of_pod.is_some_and(bad), &names)?;
    let of_containers = subject
        .containers
        .iter()
        .filter_map(|c| c.security?.se_linux_options.as_ref());
    let all: Vec<&SELinuxOptions> = of_pod.into_iter().chain(of_containers).collect();
    let bad_types: BTreeSet<&str> = all
        .iter()
        .map(|o| text(&o.type_))
        .filter(|t| !types.contains(t))
        .collect();
    let mut what = Vec::new();
    if !bad_types.is_empty() {
        what.push(format!(
            "{} {}",
            plural(bad_types.len(), "type", "types"),
            quoted(&bad_types)
        ));
    }
    if all.iter().any(|o| !text(&o.user).is_empty()) {
        what.push("user may not be set".into());
    }
    if all.iter().any(|o| !text(&o.role).is_empty()) {
        what.push("role may not be set".into());
    }
    let detail = format!(
        "{who} set forbidden securityContext.seLinuxOptions: {}",
        what.join("; ")
    );
    Some(Violation::new("seLinuxOptions", detail))
}

/// Before 1.19 profiles were named in annotations.
fn seccomp_annotations(subject: &Subject<'_>) -> Option<Violation> {
    let allowed = |profile: &str| {
        matches!(profile, "runtime/default" | "docker/default") || profile.starts_with("localhost/")
    };
    let annotations = subject.metadata.annotations.as_ref()?;
    let keys = subject
        .containers
        .iter()
        .map(|c| format!("{SECCOMP_OF_CONTAINER}{}", c.name));
    let forbidden: BTreeSet<String> = keys
        .chain([SECCOMP_OF_POD.to_string()])
        .filter_map(|key| {
            let value = annotations.get(&key).filter(|v| !allowed(v))?;
            Some(format!("{key}={value:?}"))
        })
        .collect();
    (!forbidden.is_empty()).then(|| {
        let noun = plural(forbidden.len(), "annotation", "annotations");
        let all: Vec<String> = forbidden.into_iter().collect();
        Violation::new("seccompProfile", format!("forbidden {noun} {}", all.join(", ")))
    })
}

/// The type of seccomp profile that a container names.
fn seccomp_of<'a>(container: &ContainerView<'a>) -> Option<&'a str> {
    Some(container.security?.seccomp_profile.as_ref()?.type_.as_str())
}

fn seccomp_of_pod<'a>(subject: &Subject<'a>) -> Option<&'a str> {
    let context = subject.spec.security_context.as_ref()?;
    Some(context.seccomp_profile.as_ref()?.type_.as_str())
}

fn seccomp_baseline(subject: &Subject<'_>) -> Option<Violation> {
    let bad = |profile: &&str| !is_confined(profile);
    let pod = seccomp_of_pod(subject).filter(bad);
    let names = subject.containers_that(|c| seccomp_of(c).as_ref().is_some_and(bad));
    let who = setters(pod.is_some(), &names)?;
    let of_containers = subject.containers.iter().filter_map(seccomp_of).filter(bad);
    let values: BTreeSet<&str> = of_containers.chain(pod).collect();
    let detail = format!(
        "{who} must not set securityContext.seccompProfile.type to {}",
        quoted(&values)
    );
    Some(Violation::new("seccompProfile", detail))
}

fn seccomp_restricted(subject: &Subject<'_>) -> Option<Violation> {
    if let Some(violation) = seccomp_baseline(subject) {
        return Some(violation);
    }
    if seccomp_of_pod(subject).is_some() {
        return None;
    }
    let silent = subject.containers_that(|c| seccomp_of(c).is_none());
    (!silent.is_empty()).then(|| {
        let detail = format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            containers(&silent)
        );
        Violation::new("seccompProfile", detail)
    })
}

fn seccomp_restricted_but_windows(subject: &Subject<'_>) -> Option<Violation> {
    if subject.is_windows() {
        None
    } else {
        seccomp_restricted(subject)
    }
}
