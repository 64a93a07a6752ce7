//! Parses URLs (apiserver `endpoints/request.RequestInfo`): group, version, resource, namespace, name,
//! subresource and verb.

use http::Method;

/// The target of a request. `resource` is empty for non-resource paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    pub path: String,
    pub verb: &'static str,
    /// `/api/…` or `/apis/…` with a resource in it.
    pub is_resource: bool,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// What follows the subresource (`proxy/some/path`).
    pub rest: String,
    /// The path has the legacy prefix `/watch/`.
    pub legacy_watch: bool,
    /// The path has `namespaces/<namespace>/` before the resource.
    pub in_namespace: bool,
    /// More path segments than a resource has, or one that is not a valid name.
    pub malformed: bool,
    /// A path segment that another server could parse as several, as another one or as none.
    pub unreadable: bool,
}

/// Subresources of namespaces; any other segment after a namespace's name is a resource in it.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    /// `watch`: whether the query requests a watch.
    pub fn parse(method: &Method, path: &str, watch: bool) -> Self {
        let mut info = RequestInfo {
            path: path.to_string(),
            verb: plain_verb(method),
            ..Self::default()
        };
        let decoded: Vec<String> = path
            .split('/')
            .filter(|s| !s.is_empty())
            .map(|s| {
                percent_encoding::percent_decode_str(s)
                    .decode_utf8_lossy()
                    .into_owned()
            })
            .collect();
        let inner = path.strip_prefix('/').unwrap_or(path);
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        info.unreadable = inner.split('/').any(str::is_empty) || !decoded.iter().all(|s| is_readable(s));
        let mut parts = decoded.iter().map(String::as_str);
        match parts.next() {
            Some("api") => {}
            Some("apis") => match parts.next() {
                Some(group) => info.group = group.to_string(),
                None => return info,
            },
            _ => return info,
        }
        match parts.next() {
            Some(version) => info.version = version.to_string(),
            None => return info,
        }
        let mut rest: Vec<&str> = parts.collect();
        if rest.first() == Some(&"watch") && rest.len() > 1 {
            info.legacy_watch = true;
            rest.remove(0);
        }
        if rest.is_empty() {
            return info;
        }
        info.is_resource = true;
        if rest[0] == "namespaces" && rest.len() > 1 {
            info.namespace = rest[1].to_string();
            if rest.len() > 2 && !NAMESPACE_SUBRESOURCES.contains(&rest[2]) {
                rest.drain(..2);
                info.in_namespace = true;
            }
        }
        info.resource = rest[0].to_string();
        info.name = rest.get(1).unwrap_or(&"").to_string();
        info.subresource = rest.get(2).unwrap_or(&"").to_string();
        let named = [
            &info.group,
            &info.version,
            &info.namespace,
            &info.resource,
            &info.name,
            &info.subresource,
        ];
        info.malformed = !named.into_iter().all(|part| is_readable(part));
        if rest.len() > 3 {
            info.malformed |= info.subresource != "proxy";
            // As it was sent: the proxied server decodes it.
            let skip = path.split('/').filter(|s| !s.is_empty()).count() - (rest.len() - 3);
            info.rest = path
                .split('/')
                .filter(|s| !s.is_empty())
                .skip(skip)
                .collect::<Vec<_>>()
                .join("/");
            if path.ends_with('/') {
                info.rest.push('/');
            }
        }
        info.verb = match (method.as_str(), info.name.is_empty()) {
            ("GET" | "HEAD", _) if info.legacy_watch => "watch",
            ("GET" | "HEAD", true) if watch => "watch",
            ("GET" | "HEAD", true) => "list",
            ("GET" | "HEAD", false) => "get",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "deletecollection",
            ("DELETE", false) => "delete",
            _ => "",
        };
        info
    }

    /// Whether it runs as long as its client likes: a watch or a stream.
    pub fn is_long_running(&self) -> bool {
        self.verb == "watch"
            || matches!(
                self.subresource.as_str(),
                "log" | "exec" | "attach" | "portforward" | "proxy"
            )
    }

    /// Whether it may change objects.
    pub fn is_mutating(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch" | "head" | "options")
    }

    /// `pods` or `pods/log`.
    pub fn qualified_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// Whether a decoded segment can be a name. An encoded slash would be parsed as two segments elsewhere, and bytes that are
/// not UTF-8 are no name.
fn is_readable(segment: &str) -> bool {
    !matches!(segment, "." | "..") && !segment.contains(['/', '%', char::REPLACEMENT_CHARACTER])
}

fn plain_verb(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "get",
        "HEAD" => "head",
        "POST" => "post",
        "PUT" => "put",
        "PATCH" => "patch",
        "DELETE" => "delete",
        "OPTIONS" => "options",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_what_they_ask_for() {
        let table = [
            ("GET", "/api/v1/namespaces", "list //v1/namespaces///"),
            ("GET", "/api/v1/namespaces/a", "get //v1/namespaces/a/a/"),
            (
                "PUT",
                "/api/v1/namespaces/a/finalize",
                "update //v1/namespaces/a/a/finalize",
            ),
            ("GET", "/api/v1/namespaces/a/pods", "list //v1/pods/a//"),
            (
                "DELETE",
                "/api/v1/namespaces/a/pods",
                "deletecollection //v1/pods/a//",
            ),
            ("GET", "/api/v1/namespaces/a/pods/p/log", "get //v1/pods/a/p/log"),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/d/scale",
                "patch /apps/v1/deployments/a/d/scale",
            ),
            ("GET", "/api/v1/watch/namespaces/a/pods", "watch //v1/pods/a//"),
            ("GET", "/api/v1/nodes/n/proxy/x/y", "get //v1/nodes//n/proxy"),
            ("GET", "/healthz", "get //////"),
            ("GET", "/apis/apps/v1", "get /apps/v1////"),
        ];
        for (method, path, expected) in table {
            let i = RequestInfo::parse(&Method::from_bytes(method.as_bytes()).unwrap(), path, false);
            let found = format!(
                "{} /{}/{}/{}/{}/{}/{}",
                i.verb, i.group, i.version, i.resource, i.namespace, i.name, i.subresource
            );
            assert_eq!(found, expected, "{method} {path}");
        }
    }

    #[test]
    fn a1_paths_that_two_servers_could_read_differently_are_known() {
        for (path, unreadable) in [
            ("/apis/g/v1/namespaces/a/things/x/console/80/tcp", false),
            ("/apis/g/v1/namespaces/a/pods/%2A/http_requests/", false),
            ("/apis/g/v1/namespaces/a%2Fsecrets%2Fx", true),
            ("/apis/g/v1//things", true),
            ("/apis/g/v1/../v2/things", true),
            ("/apis/g/v1/things/a/%2e%2e/b", true),
            ("/apis/g/v1/things/%ff", true),
            ("/apis/g/v1/things/a%252Fb", true),
        ] {
            assert_eq!(
                RequestInfo::parse(&Method::GET, path, false).unreadable,
                unreadable,
                "{path}"
            );
        }
    }

    #[test]
    fn a_proxied_path_is_kept_as_it_was_sent() {
        let i = RequestInfo::parse(
            &Method::GET,
            "/api/v1/namespaces/a/services/s/proxy/x%20y/z/",
            false,
        );
        assert_eq!((i.rest.as_str(), i.malformed), ("x%20y/z/", false));
        assert!(RequestInfo::parse(&Method::GET, "/api/v1/namespaces/a/pods/p/log/x", false).malformed);
    }
}
