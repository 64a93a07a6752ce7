//! Privileges: privileged containers, privilege escalation, and Windows HostProcess containers.

use k8s_openapi::api::core::v1::WindowsSecurityContextOptions;

use super::{Check, Level, Subject, Violation, containers, setters};

pub(super) const PRIVILEGED: Check = Check {
    name: "privileged",
    level: Level::Baseline,
    versions: &[(0, privileged)],
    instead_of: None,
};

pub(super) const WINDOWS_HOST_PROCESS: Check = Check {
    name: "windowsHostProcess",
    level: Level::Baseline,
    versions: &[(0, windows_host_process)],
    instead_of: None,
};

pub(super) const ESCALATION: Check = Check {
    name: "allowPrivilegeEscalation",
    level: Level::Restricted,
    versions: &[(8, escalation), (25, escalation_but_windows)],
    instead_of: None,
};

fn privileged(subject: &Subject<'_>) -> Option<Violation> {
    let names = subject.containers_that(|c| c.security.is_some_and(|s| s.privileged == Some(true)));
    (!names.is_empty()).then(|| {
        let detail = format!(
            "{} must not set securityContext.privileged=true",
            containers(&names)
        );
        Violation::new("privileged", detail)
    })
}

fn windows_host_process(subject: &Subject<'_>) -> Option<Violation> {
    let is_set = |options: Option<&WindowsSecurityContextOptions>| {
        options.is_some_and(|options| options.host_process == Some(true))
    };
    let of_pod = subject.spec.security_context.as_ref();
    let pod = is_set(of_pod.and_then(|s| s.windows_options.as_ref()));
    let names = subject.containers_that(|c| is_set(c.security.and_then(|s| s.windows_options.as_ref())));
    let who = setters(pod, &names)?;
    let detail = format!("{who} must not set securityContext.windowsOptions.hostProcess=true");
    Some(Violation::new("hostProcess", detail))
}

fn escalation(subject: &Subject<'_>) -> Option<Violation> {
    let names =
        subject.containers_that(|c| c.security.and_then(|s| s.allow_privilege_escalation) != Some(false));
    (!names.is_empty()).then(|| {
        let detail = format!(
            "{} must set securityContext.allowPrivilegeEscalation=false",
            containers(&names)
        );
        Violation::new("allowPrivilegeEscalation != false", detail)
    })
}

fn escalation_but_windows(subject: &Subject<'_>) -> Option<Violation> {
    if subject.is_windows() {
        None
    } else {
        escalation(subject)
    }
}
