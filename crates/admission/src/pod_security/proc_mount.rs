//! The proc mount type of containers.

use std::collections::BTreeSet;

use super::{Check, ContainerView, Level, Subject, Violation, containers, quoted};

pub(super) const BASELINE: Check = Check {
    name: "procMount",
    level: Level::Baseline,
    versions: &[(0, masked), (35, masked_but_own_users)],
    instead_of: None,
};

pub(super) const RESTRICTED: Check = Check {
    name: "procMount_restricted",
    level: Level::Restricted,
    versions: &[(35, masked)],
    instead_of: Some("procMount"),
};

fn masked(subject: &Subject<'_>) -> Option<Violation> {
    fn other<'a>(container: &ContainerView<'a>) -> Option<&'a str> {
        let mount = container.security?.proc_mount.as_deref()?;
        Some(mount).filter(|m| *m != "Default")
    }
    let names = subject.containers_that(|c| other(c).is_some());
    let mounts: BTreeSet<&str> = subject.containers.iter().filter_map(other).collect();
    (!names.is_empty()).then(|| {
        let detail = format!(
            "{} must not set securityContext.procMount to {}",
            containers(&names),
            quoted(&mounts)
        );
        Violation::new("procMount", detail)
    })
}

fn masked_but_own_users(subject: &Subject<'_>) -> Option<Violation> {
    if subject.has_own_users() {
        None
    } else {
        masked(subject)
    }
}
