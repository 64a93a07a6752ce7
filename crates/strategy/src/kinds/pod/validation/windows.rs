//! Validation of options for Windows. knarr has no Windows nodes, but its API has Kubernetes' rules.

use k8s_openapi::api::core::v1::{PodSpec, WindowsSecurityContextOptions};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::{every_container, text};

/// Maximum length of a credential spec in bytes.
const CREDENTIAL_SPEC_MAX: usize = 64 * 1024;
/// Maximum length of a user's domain in bytes.
const DOMAIN_MAX: usize = 256;
/// Maximum length of a user's name in bytes.
const USER_MAX: usize = 104;

pub(super) fn options(options: Option<&WindowsSecurityContextOptions>, path: &Path, errors: &mut ErrorList) {
    let Some(options) = options else {
        return;
    };
    if let Some(name) = &options.gmsa_credential_spec_name {
        for detail in names::dns1123_subdomain(name) {
            errors.invalid(&path.child("gmsaCredentialSpecName"), name, detail);
        }
    }
    if let Some(spec) = &options.gmsa_credential_spec {
        let at = path.child("gmsaCredentialSpec");
        if spec.is_empty() {
            errors.invalid(&at, spec, "gmsaCredentialSpec cannot be an empty string");
        } else if spec.len() > CREDENTIAL_SPEC_MAX {
            errors.invalid(&at, spec, "gmsaCredentialSpec size must be under 64 KiB");
        }
    }
    if let Some(user) = &options.run_as_user_name {
        for detail in user_name_errors(user) {
            errors.invalid(&path.child("runAsUserName"), user, detail);
        }
    }
}

/// The errors of a user name, `DOMAIN\user` or `user`.
fn user_name_errors(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["runAsUserName cannot be an empty string".into()];
    }
    if name.bytes().any(|c| c.is_ascii_control()) {
        return vec!["runAsUserName cannot contain control characters".into()];
    }
    let (domain, user) = match name.split_once('\\') {
        Some((_, rest)) if rest.contains('\\') => {
            return vec!["runAsUserName cannot contain more than one backslash".into()];
        }
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    let mut messages = Vec::new();
    if domain.is_some_and(|d| d.len() >= DOMAIN_MAX) {
        messages.push(format!(
            "runAsUserName's Domain length must be under {DOMAIN_MAX} characters"
        ));
    }
    if domain.is_some_and(|d| !is_net_bios(d) && !is_dns_domain(d)) {
        messages.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format".into());
    }
    if user.is_empty() {
        messages.push("runAsUserName's User cannot be empty".into());
    } else if user.len() > USER_MAX {
        messages.push(format!(
            "runAsUserName's User length must not be longer than {USER_MAX} characters"
        ));
    }
    if !user.is_empty() && user.bytes().all(|c| matches!(c, b'.' | b' ')) {
        messages.push("runAsUserName's User cannot contain only periods or spaces".into());
    }
    if user.contains(|c| "\"/\\:;|=,+*?<>@[]".contains(c)) {
        messages
            .push("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]".into());
    }
    messages
}

fn is_net_bios(domain: &str) -> bool {
    let count = domain.chars().count();
    (1..=15).contains(&count) && !domain.starts_with('.') && !domain.contains(|c| "\\/:*?\"<>|".contains(c))
}

fn is_dns_domain(domain: &str) -> bool {
    domain.split('.').all(|label| {
        let is_alphanumeric = |c: u8| c.is_ascii_alphanumeric();
        let bytes = label.as_bytes();
        bytes.len() <= 63
            && bytes.first().is_some_and(|c| is_alphanumeric(*c))
            && bytes.last().is_some_and(|c| is_alphanumeric(*c))
            && bytes.iter().all(|c| is_alphanumeric(*c) || *c == b'-')
    })
}

/// Checks HostProcess containers: all containers of a pod or none, and only with `hostNetwork`.
pub(super) fn host_process(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let own = |options: Option<&WindowsSecurityContextOptions>| options.and_then(|o| o.host_process);
    let of_pod = own(spec
        .security_context
        .as_ref()
        .and_then(|c| c.windows_options.as_ref()));
    let containers = every_container(spec, path);
    let mut count = 0;
    for (container, at) in &containers {
        let of_container = own(container
            .security_context
            .as_ref()
            .and_then(|c| c.windows_options.as_ref()));
        if let (Some(of_pod), Some(of_container)) = (of_pod, of_container)
            && of_pod != of_container
        {
            errors.invalid(
                &at.child("securityContext")
                    .child("windowsOptions")
                    .child("hostProcess"),
                of_container,
                format!("pod hostProcess value must be identical if both are specified, was {of_pod}"),
            );
        }
        count += usize::from(of_container.or(of_pod) == Some(true));
    }
    if count == 0 {
        return;
    }
    if count != containers.len() {
        errors.invalid(
            path,
            "",
            "If pod contains any hostProcess containers then all containers must be HostProcess containers",
        );
    }
    if spec.host_network != Some(true) {
        errors.invalid(
            &path.child("hostNetwork"),
            false,
            "hostNetwork must be true if pod contains any hostProcess containers",
        );
    }
}

/// Checks that a Linux pod has no Windows options.
pub(super) fn validate_linux(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    const DETAIL: &str = "windows options cannot be set for a linux pod";
    if spec
        .security_context
        .as_ref()
        .is_some_and(|c| c.windows_options.is_some())
    {
        errors.forbidden(&path.child("securityContext").child("windowsOptions"), DETAIL);
    }
    for (container, at) in every_container(spec, path) {
        if container
            .security_context
            .as_ref()
            .is_some_and(|c| c.windows_options.is_some())
        {
            errors.forbidden(&at.child("securityContext").child("windowsOptions"), DETAIL);
        }
    }
}

/// Checks that a Windows pod has no Linux options.
pub(super) fn validate_windows(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let context = spec.security_context.clone().unwrap_or_default();
    let of_pod = [
        (
            "securityContext.appArmorProfile",
            context.app_armor_profile.is_some(),
        ),
        (
            "securityContext.seLinuxOptions",
            context.se_linux_options.is_some(),
        ),
        ("hostUsers", spec.host_users.is_some()),
        ("hostPID", spec.host_pid == Some(true)),
        ("hostIPC", spec.host_ipc == Some(true)),
        (
            "securityContext.seccompProfile",
            context.seccomp_profile.is_some(),
        ),
        ("securityContext.fsGroup", context.fs_group.is_some()),
        (
            "securityContext.fsGroupChangePolicy",
            context.fs_group_change_policy.is_some(),
        ),
        (
            "securityContext.sysctls",
            context.sysctls.is_some_and(|s| !s.is_empty()),
        ),
        ("shareProcessNamespace", spec.share_process_namespace.is_some()),
        ("securityContext.runAsUser", context.run_as_user.is_some()),
        ("securityContext.runAsGroup", context.run_as_group.is_some()),
        (
            "securityContext.supplementalGroups",
            context.supplemental_groups.is_some_and(|g| !g.is_empty()),
        ),
        (
            "securityContext.supplementalGroupsPolicy",
            context.supplemental_groups_policy.is_some(),
        ),
    ];
    const DETAIL: &str = "cannot be set for a windows pod";
    for (field, given) in of_pod {
        if given {
            errors.forbidden(&path.child(field), DETAIL);
        }
    }
    for (container, at) in every_container(spec, path) {
        let Some(context) = &container.security_context else {
            continue;
        };
        for (field, given) in [
            ("appArmorProfile", context.app_armor_profile.is_some()),
            ("seLinuxOptions", context.se_linux_options.is_some()),
            ("seccompProfile", context.seccomp_profile.is_some()),
            ("capabilities", context.capabilities.is_some()),
            (
                "readOnlyRootFilesystem",
                context.read_only_root_filesystem.is_some(),
            ),
            ("privileged", context.privileged.is_some()),
            (
                "allowPrivilegeEscalation",
                context.allow_privilege_escalation.is_some(),
            ),
            ("procMount", !text(&context.proc_mount).is_empty()),
            ("runAsUser", context.run_as_user.is_some()),
            ("runAsGroup", context.run_as_group.is_some()),
        ] {
            if given {
                errors.forbidden(&at.child("securityContext").child(field), DETAIL);
            }
        }
    }
}
