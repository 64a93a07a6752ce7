//! The documents of paths that belong to no kind: discovery, the version, the keys of service account tokens.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIGroupList, APIResourceList, APIVersions};
use k8s_openapi::apimachinery::pkg::version::Info;
use knarr_api::registry::ServedKinds;

use super::operations::{Endpoint, Operation, tag, title};
use super::schemas::Schemas;

/// `api/v1`, `apis/apps/v1`: how a group version's document is called.
pub(super) fn group_version_path(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// Group and version of a document's name.
pub(super) fn parse_group_version(path: &str) -> Option<(&str, &str)> {
    let mut parts = path.split('/');
    match (parts.next()?, parts.next()?, parts.next(), parts.next()) {
        ("api", version, None, None) => Some(("", version)),
        ("apis", group, Some(version), None) if !group.is_empty() => Some((group, version)),
        _ => None,
    }
}

/// The documents that are no group version's.
pub(super) fn paths(served: &ServedKinds) -> Vec<String> {
    let fixed = [
        ".well-known/openid-configuration",
        "api",
        "apis",
        "openid/v1/jwks",
        "version",
    ];
    let groups = served.groups().into_iter().filter(|(group, _)| !group.is_empty());
    let mut paths: Vec<String> = fixed.iter().map(ToString::to_string).collect();
    paths.extend(groups.map(|(group, _)| format!("apis/{group}")));
    paths
}

fn get(path: &str, id: String, description: &str, response_type: Option<String>) -> Endpoint<'static> {
    Endpoint {
        path: format!("/{path}/"),
        parameters: Vec::new(),
        operations: vec![Operation {
            method: "get",
            id,
            description: description.to_string(),
            action: "",
            gvk: None,
            parameters: &[],
            body: None,
            response_type,
            codes: &[200],
            watchable: false,
        }],
    }
}

/// The endpoint of one of [`paths`], and its tag.
pub(super) fn endpoint(
    served: &ServedKinds,
    path: &str,
    schemas: &mut Schemas,
) -> Option<(Endpoint<'static>, String)> {
    let found = match path {
        "api" => {
            let response_type = schemas.meta::<APIVersions>();
            let endpoint = get(
                path,
                "getCoreAPIVersions".into(),
                "get the API's versions",
                Some(response_type),
            );
            (endpoint, "core".to_string())
        }
        "apis" => {
            let response_type = schemas.meta::<APIGroupList>();
            let endpoint = get(
                path,
                "getAPIVersions".into(),
                "get the API's groups",
                Some(response_type),
            );
            (endpoint, "apis".to_string())
        }
        "version" => {
            let response_type = schemas.meta::<Info>();
            let endpoint = get(
                path,
                "getCodeVersion".into(),
                "get the server's version",
                Some(response_type),
            );
            (endpoint, "version".to_string())
        }
        ".well-known/openid-configuration" => {
            let id = "getServiceAccountIssuerOpenIDConfiguration".into();
            let endpoint = get(path, id, "get who issues service account tokens", None);
            (endpoint, "WellKnown".to_string())
        }
        "openid/v1/jwks" => {
            let id = "getServiceAccountIssuerOpenIDKeyset".into();
            let endpoint = get(path, id, "get the keys that check service account tokens", None);
            (endpoint, "openid".to_string())
        }
        _ => {
            let group = path.strip_prefix("apis/")?;
            served.groups().iter().find(|(known, _)| *known == group)?;
            let response_type = schemas.meta::<APIGroup>();
            let id = format!("get{}APIGroup", title(group, ""));
            (get(path, id, "get a group", Some(response_type)), tag(group, ""))
        }
    };
    Some(found)
}

/// The list of a group version's resources, at its root (`/apis/apps/v1`).
pub(super) fn resources(root: &str, group: &str, version: &str, schemas: &mut Schemas) -> Endpoint<'static> {
    let response_type = schemas.meta::<APIResourceList>();
    let id = format!("get{}APIResources", title(group, version));
    get(
        root.trim_start_matches('/'),
        id,
        "get the group version's resources",
        Some(response_type),
    )
}
