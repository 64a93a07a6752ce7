//! Host ports, DNS configuration and host names of a pod.

use k8s_openapi::api::core::v1::PodSpec;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::text;

/// Maximum number of name servers (a limit of libc's resolver).
const NAMESERVERS_MAX: usize = 3;
/// Maximum number of search domains.
const SEARCHES_MAX: usize = 32;
/// Maximum length of the search domains joined by spaces, in bytes.
const SEARCH_LIST_MAX: usize = 2048;
/// Maximum length of a host name on Linux.
const HOSTNAME_MAX: usize = 64;

/// With `hostNetwork` a container's port is a port of the node: `hostPort` must equal it. Templates may omit it.
pub(super) fn host_ports(spec: &PodSpec, is_pod: bool, path: &Path, errors: &mut ErrorList) {
    if spec.host_network != Some(true) {
        return;
    }
    for (i, container) in spec.containers.iter().enumerate() {
        for (j, port) in container.ports.iter().flatten().enumerate() {
            let host_port = port.host_port.unwrap_or(0);
            if (is_pod || host_port != 0) && host_port != port.container_port {
                let at = path.child("containers").index(i).child("ports").index(j);
                errors.invalid(
                    &at.child("hostPort"),
                    host_port,
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        }
    }
}

pub(super) fn dns_config(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let config = spec.dns_config.as_ref();
    let nameservers = config.and_then(|c| c.nameservers.as_deref()).unwrap_or_default();
    if text(&spec.dns_policy) == "None" {
        if config.is_none() {
            return errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        if nameservers.is_empty() {
            return errors.required(
                &path.child("nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            );
        }
    }
    let Some(config) = config else {
        return;
    };
    let at = path.child("nameservers");
    if nameservers.len() > NAMESERVERS_MAX {
        errors.invalid(
            &at,
            serde_json::Value::from(nameservers),
            format!("must not have more than {NAMESERVERS_MAX} nameservers"),
        );
    }
    for (i, server) in nameservers.iter().enumerate() {
        errors.all_invalid(&at.index(i), server, names::ip_address(server));
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    let at = path.child("searches");
    if searches.len() > SEARCHES_MAX {
        errors.invalid(
            &at,
            serde_json::Value::from(searches),
            format!("must not have more than {SEARCHES_MAX} search paths"),
        );
    }
    if searches.join(" ").len() > SEARCH_LIST_MAX {
        errors.invalid(
            &at,
            serde_json::Value::from(searches),
            format!(
                "must not have more than {SEARCH_LIST_MAX} characters (including spaces) in the search list"
            ),
        );
    }
    for (i, search) in searches.iter().enumerate().filter(|(_, s)| *s != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        let messages = names::dns1123_subdomain_with_underscore(search);
        errors.all_invalid(&at.index(i), search, messages);
    }
    for (i, option) in config.options.iter().flatten().enumerate() {
        if text(&option.name).is_empty() {
            errors.required(&path.child("options").index(i), "must not be empty");
        }
    }
}

pub(super) fn hostname_override(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let Some(name) = &spec.hostname_override else {
        return;
    };
    let at = path.child("hostnameOverride");
    if spec.set_hostname_as_fqdn == Some(true) {
        errors.forbidden(&at, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.host_network == Some(true) {
        errors.forbidden(&at, "may not be specified when hostNetwork is true");
    }
    if name.len() > HOSTNAME_MAX {
        errors.too_long(&at, HOSTNAME_MAX);
    }
    errors.all_invalid(&at, name, names::dns1123_subdomain(name));
}

pub(super) fn host_aliases(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let at = path.index(i);
        errors.all_invalid(&at.child("ip"), &alias.ip, names::ip_address(&alias.ip));
        for (j, name) in alias.hostnames.iter().flatten().enumerate() {
            let at = at.child("hostnames").index(j);
            errors.all_invalid(&at, name, names::dns1123_subdomain(name));
        }
    }
}
