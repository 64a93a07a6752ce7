//! The users of containers: at the restricted level not root, unless the pod has a user namespace.

use super::{Check, Level, Subject, Violation, containers, setters};

pub(super) const NON_ROOT: Check = Check {
    name: "runAsNonRoot",
    level: Level::Restricted,
    versions: &[(0, non_root), (35, non_root_but_own_users)],
    instead_of: None,
};

pub(super) const RUN_AS_USER: Check = Check {
    name: "runAsUser",
    level: Level::Restricted,
    versions: &[(23, run_as_user), (35, run_as_user_but_own_users)],
    instead_of: None,
};

fn non_root(subject: &Subject<'_>) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    let pod = subject
        .spec
        .security_context
        .as_ref()
        .and_then(|s| s.run_as_non_root);
    let violating = subject.containers_that(|c| c.security.and_then(|s| s.run_as_non_root) == Some(false));
    if let Some(who) = setters(pod == Some(false), &violating) {
        let detail = format!("{who} must not set securityContext.runAsNonRoot=false");
        return Some(Violation::new(REASON, detail));
    }
    if pod == Some(true) {
        return None;
    }
    let silent = subject.containers_that(|c| c.security.and_then(|s| s.run_as_non_root).is_none());
    (!silent.is_empty()).then(|| {
        let containers = containers(&silent);
        let detail = format!("pod or {containers} must set securityContext.runAsNonRoot=true");
        Violation::new(REASON, detail)
    })
}

fn non_root_but_own_users(subject: &Subject<'_>) -> Option<Violation> {
    if subject.has_own_users() {
        None
    } else {
        non_root(subject)
    }
}

fn run_as_user(subject: &Subject<'_>) -> Option<Violation> {
    let pod = subject.spec.security_context.as_ref().and_then(|s| s.run_as_user);
    let names = subject.containers_that(|c| c.security.and_then(|s| s.run_as_user) == Some(0));
    let who = setters(pod == Some(0), &names)?;
    Some(Violation::new(
        "runAsUser=0",
        format!("{who} must not set runAsUser=0"),
    ))
}

fn run_as_user_but_own_users(subject: &Subject<'_>) -> Option<Violation> {
    if subject.has_own_users() {
        None
    } else {
        run_as_user(subject)
    }
}
