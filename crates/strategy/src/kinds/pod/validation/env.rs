//! Environment variables: names and sources of values. References to fields and resources of the pod are also used by
//! downwardAPI volumes.

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, FileKeySelector, ObjectFieldSelector, PodSpec, ResourceFieldSelector,
};
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;

use super::local_paths::no_backsteps;
use super::{every_container, text};

/// Fields of the pod that `fieldRef` of a variable supports.
const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Resources of a container that `resourceFieldRef` supports, in addition to huge pages.
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
];

const BYTE_DIVISORS: [&str; 13] = [
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
];

pub(super) fn variables(variables: &[EnvVar], path: &Path, errors: &mut ErrorList) {
    for (i, variable) in variables.iter().enumerate() {
        let at = path.index(i);
        if variable.name.is_empty() {
            errors.required(&at.child("name"), "");
        } else {
            errors.all_invalid(
                &at.child("name"),
                &variable.name,
                names::env_var_name(&variable.name),
            );
        }
        value_from(variable, &at.child("valueFrom"), errors);
    }
}

fn value_from(variable: &EnvVar, path: &Path, errors: &mut ErrorList) {
    let Some(from) = &variable.value_from else {
        return;
    };
    let mut sources = 0;
    if let Some(field) = &from.field_ref {
        sources += 1;
        field_ref(field, &FIELDS, &path.child("fieldRef"), errors);
    }
    if let Some(resource) = &from.resource_field_ref {
        sources += 1;
        resource_field_ref(resource, false, &path.child("resourceFieldRef"), errors);
    }
    if let Some(key) = &from.config_map_key_ref {
        sources += 1;
        key_ref(&key.name, &key.key, &path.child("configMapKeyRef"), errors);
    }
    if let Some(key) = &from.secret_key_ref {
        sources += 1;
        key_ref(&key.name, &key.key, &path.child("secretKeyRef"), errors);
    }
    if let Some(key) = &from.file_key_ref {
        sources += 1;
        file_key_ref(key, &path.child("fileKeyRef"), errors);
    }
    if sources == 0 {
        errors.invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if !text(&variable.value).is_empty() {
        errors.invalid(path, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        errors.invalid(path, "", "may not have more than one field specified at a time");
    }
}

fn key_ref(name: &str, key: &str, path: &Path, errors: &mut ErrorList) {
    errors.all_invalid(&path.child("name"), name, names::dns1123_subdomain(name));
    if key.is_empty() {
        errors.required(&path.child("key"), "");
    } else {
        errors.all_invalid(&path.child("key"), key, names::config_map_key(key));
    }
}

fn file_key_ref(file: &FileKeySelector, path: &Path, errors: &mut ErrorList) {
    let at = path.child("key");
    if file.key.is_empty() {
        errors.required(&at, "");
    } else {
        errors.all_invalid(&at, &file.key, names::env_var_name(&file.key));
    }
    let at = path.child("volumeName");
    if file.volume_name.is_empty() {
        errors.required(&at, "");
    } else {
        errors.all_invalid(&at, &file.volume_name, names::dns1123_label(&file.volume_name));
    }
    let at = path.child("path");
    if file.path.is_empty() {
        errors.required(&at, "");
    } else {
        no_backsteps(&file.path, &at, errors);
    }
}

/// Checks that the volume of a `fileKeyRef` is an emptyDir.
pub(super) fn file_key_volumes(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    for (container, at) in every_container(spec, path) {
        for (i, variable) in container.env.iter().flatten().enumerate() {
            let Some(file) = variable.value_from.as_ref().and_then(|f| f.file_key_ref.as_ref()) else {
                continue;
            };
            let at = at
                .child("env")
                .index(i)
                .child("valueFrom")
                .child("fileKeyRef")
                .child("volumeName");
            match spec.volumes.iter().flatten().find(|v| v.name == file.volume_name) {
                None => errors.not_found(&at, &file.volume_name),
                Some(volume) if volume.empty_dir.is_none() => {
                    errors.invalid(
                        &at,
                        &file.volume_name,
                        "referenced volume must be of type emptyDir",
                    );
                }
                Some(_) => {}
            }
        }
    }
}

pub(super) fn sources(sources: &[EnvFromSource], path: &Path, errors: &mut ErrorList) {
    for (i, source) in sources.iter().enumerate() {
        let at = path.index(i);
        let prefix = text(&source.prefix);
        if !prefix.is_empty() {
            errors.all_invalid(&at.child("prefix"), prefix, names::env_var_name(prefix));
        }
        let given = [
            (
                "configMapRef",
                source.config_map_ref.as_ref().map(|r| r.name.as_str()),
            ),
            ("secretRef", source.secret_ref.as_ref().map(|r| r.name.as_str())),
        ];
        let mut count = 0;
        for (field, name) in given {
            let Some(name) = name else {
                continue;
            };
            count += 1;
            let at = at.child(field).child("name");
            if name.is_empty() {
                errors.required(&at, "");
            } else {
                errors.all_invalid(&at, name, names::generated(name, names::dns1123_subdomain));
            }
        }
        // The path is that of the list, not of the entry.
        match count {
            0 => errors.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(path, "", "may not have more than one field specified at a time"),
        }
    }
}

/// Splits `metadata.labels['app']` into path and subscript.
fn subscripted(path: &str) -> Option<(&str, &str)> {
    let (before, subscript) = path.strip_suffix("']")?.split_once("['")?;
    (!before.is_empty()).then_some((before, subscript))
}

/// Checks a reference to one of the `supported` fields, or to one label or annotation.
pub(super) fn field_ref(
    field: &ObjectFieldSelector,
    supported: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    let version = text(&field.api_version);
    if version.is_empty() {
        return errors.required(&path.child("apiVersion"), "");
    }
    if field.field_path.is_empty() {
        return errors.required(&path.child("fieldPath"), "");
    }
    let at = path.child("fieldPath");
    let cannot = |errors: &mut ErrorList, detail: String| {
        errors.invalid(
            &at,
            &field.field_path,
            format!("error converting fieldPath: {detail}"),
        );
    };
    if version != "v1" {
        return cannot(errors, format!("unsupported pod version: {version}"));
    }
    match (subscripted(&field.field_path), field.field_path.as_str()) {
        (Some(("metadata.annotations", key)), _) => {
            let key = key.to_lowercase();
            errors.all_invalid(path, &key, names::qualified_name(&key));
        }
        (Some(("metadata.labels", key)), _) => {
            errors.all_invalid(path, key, names::qualified_name(key));
        }
        (Some(_), whole) => cannot(errors, format!("field label does not support subscript: {whole}")),
        (
            None,
            known @ ("metadata.annotations"
            | "metadata.labels"
            | "metadata.name"
            | "metadata.namespace"
            | "metadata.uid"
            | "spec.nodeName"
            | "spec.restartPolicy"
            | "spec.serviceAccountName"
            | "spec.schedulerName"
            | "status.phase"
            | "status.hostIP"
            | "status.hostIPs"
            | "status.podIP"
            | "status.podIPs"
            | "spec.host"),
        ) => {
            let known = if known == "spec.host" {
                "spec.nodeName"
            } else {
                known
            };
            if !supported.contains(&known) {
                errors.not_supported(&at, known, supported);
            }
        }
        (None, other) => cannot(errors, format!("field label not supported: {other}")),
    }
}

/// Checks a reference to a container's requests or limits; in a volume it must name the container.
pub(super) fn resource_field_ref(
    field: &ResourceFieldSelector,
    in_file: bool,
    path: &Path,
    errors: &mut ErrorList,
) {
    let name = field.resource.as_str();
    let hugepages = name.starts_with("requests.hugepages-") || name.starts_with("limits.hugepages-");
    if in_file && text(&field.container_name).is_empty() {
        errors.required(&path.child("containerName"), "");
    } else if name.is_empty() {
        errors.required(&path.child("resource"), "");
    } else if !RESOURCES.contains(&name) && !hugepages {
        errors.not_supported(&path.child("resource"), name, &RESOURCES);
    }
    let Some(divisor) = field.divisor.as_ref() else {
        return;
    };
    if Quantity::of(divisor).is_ok_and(|d| d.is_zero()) {
        return;
    }
    let at = path.child("divisor");
    let (is_known, detail) = match name {
        "limits.cpu" | "requests.cpu" => (
            matches!(divisor.0.as_str(), "1m" | "1"),
            "only divisor's values 1m and 1 are supported with the cpu resource".to_string(),
        ),
        _ => {
            let of = match name {
                "limits.memory" | "requests.memory" => "memory",
                "limits.ephemeral-storage" | "requests.ephemeral-storage" => "local ephemeral storage",
                _ if hugepages => "hugepages",
                _ => return,
            };
            let list = BYTE_DIVISORS.join(", ");
            (
                BYTE_DIVISORS.contains(&divisor.0.as_str()),
                format!("only divisor's values {list} are supported with the {of} resource"),
            )
        }
    };
    if !is_known {
        errors.invalid(&at, name, detail);
    }
}
