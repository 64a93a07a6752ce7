//! Parses a request's path and query.

use percent_encoding::percent_decode_str;

use super::response::HttpError;

/// One of a pod's containers, or (without `container`) the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodPath {
    pub namespace: String,
    pub pod: String,
    pub uid: Option<String>,
    pub container: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Healthz,
    /// The settings that hold.
    Configz,
    Pods,
    RunningPods,
    /// What is below `/var/log`.
    NodeLogs(String),
    Summary,
    Metrics,
    ResourceMetrics,
    CadvisorMetrics,
    ProbeMetrics,
    NetworkMetrics,
    ContainerLogs(PodPath),
    Exec(PodPath),
    Attach(PodPath),
    PortForward(PodPath),
}

impl Target {
    pub(super) fn parse(path: &str) -> Result<Self, HttpError> {
        let parts: Result<Vec<String>, _> = path
            .trim_matches('/')
            .split('/')
            .map(|part| percent_decode_str(part).decode_utf8().map(String::from))
            .collect();
        let parts = parts.map_err(|_| HttpError::bad_request(format!("path {path:?} is not UTF-8")))?;
        let mut parts = parts.into_iter();
        let kind = parts.next().unwrap_or_default();
        let parts: Vec<String> = parts.collect();
        let target = match (kind.as_str(), parts.as_slice()) {
            ("healthz", _) => Some(Target::Healthz),
            ("configz", []) => Some(Target::Configz),
            ("pods", []) => Some(Target::Pods),
            ("runningpods", []) => Some(Target::RunningPods),
            ("logs", below) => {
                let directory = if path.ends_with('/') && !below.is_empty() {
                    "/"
                } else {
                    ""
                };
                Some(Target::NodeLogs(below.join("/") + directory))
            }
            ("stats", [summary]) if summary == "summary" => Some(Target::Summary),
            ("metrics", []) => Some(Target::Metrics),
            ("metrics", [which]) if which == "resource" => Some(Target::ResourceMetrics),
            ("metrics", [which]) if which == "cadvisor" => Some(Target::CadvisorMetrics),
            ("metrics", [which]) if which == "probes" => Some(Target::ProbeMetrics),
            ("metrics", [which]) if which == "network" => Some(Target::NetworkMetrics),
            ("containerLogs", [namespace, pod, container]) => {
                Some(Target::ContainerLogs(pod_path(namespace, pod, None, container)))
            }
            ("exec", parts) => container_path(parts).map(Target::Exec),
            ("attach", parts) => container_path(parts).map(Target::Attach),
            ("portForward", [namespace, pod]) => {
                Some(Target::PortForward(pod_path(namespace, pod, None, "")))
            }
            ("portForward", [namespace, pod, uid]) => {
                Some(Target::PortForward(pod_path(namespace, pod, Some(uid), "")))
            }
            _ => None,
        };
        target.ok_or_else(|| HttpError::not_found("404 page not found"))
    }
}

fn container_path(parts: &[String]) -> Option<PodPath> {
    match parts {
        [namespace, pod, container] => Some(pod_path(namespace, pod, None, container)),
        [namespace, pod, uid, container] => Some(pod_path(namespace, pod, Some(uid), container)),
        _ => None,
    }
}

fn pod_path(namespace: &str, pod: &str, uid: Option<&String>, container: &str) -> PodPath {
    PodPath {
        namespace: namespace.into(),
        pod: pod.into(),
        uid: uid.cloned(),
        container: container.into(),
    }
}

/// A query string's pairs, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(query: &str) -> Result<Self, HttpError> {
        let decode = |text: &str| {
            let spaced = text.replace('+', " ");
            let decoded = percent_decode_str(&spaced).decode_utf8().map(String::from);
            decoded.map_err(|_| HttpError::bad_request(format!("query {text:?} is not UTF-8")))
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(name)?, decode(value)?))
        });
        pairs.collect::<Result<_, HttpError>>().map(Query)
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs()
            .filter(move |(n, _)| *n == name)
            .map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_the_kubelets() {
        let container = pod_path("ns", "p", None, "c");
        let with_uid = pod_path("ns", "p", Some(&"u".to_string()), "c");
        for (path, target) in [
            ("/healthz", Target::Healthz),
            ("/pods/", Target::Pods),
            ("/logs/apt/", Target::NodeLogs("apt/".into())),
            ("/stats/summary", Target::Summary),
            ("/metrics", Target::Metrics),
            ("/metrics/resource", Target::ResourceMetrics),
            ("/metrics/cadvisor", Target::CadvisorMetrics),
            ("/metrics/probes", Target::ProbeMetrics),
            ("/metrics/network", Target::NetworkMetrics),
            ("/containerLogs/ns/p/c", Target::ContainerLogs(container.clone())),
            ("/exec/ns/p/c", Target::Exec(container.clone())),
            ("/exec/ns/p/u/c", Target::Exec(with_uid.clone())),
            ("/attach/ns/p/c", Target::Attach(container)),
            ("/attach/ns/p/u/c", Target::Attach(with_uid)),
            (
                "/portForward/ns/p",
                Target::PortForward(pod_path("ns", "p", None, "")),
            ),
        ] {
            assert_eq!(Target::parse(path), Ok(target), "{path}");
        }
        for path in [
            "/",
            "/exec",
            "/exec/ns/p",
            "/containerLogs/ns/p/c/d",
            "/portForward/ns",
            "/nothing",
        ] {
            assert_eq!(Target::parse(path).unwrap_err().code, 404, "{path}");
        }
    }

    #[test]
    fn queries_keep_order_and_repetition() {
        let query = Query::parse("command=sh&command=-c&command=echo+%22a%26b%22%2B&input=1&tty").unwrap();
        let command: Vec<&str> = query.values("command").collect();
        assert_eq!(command, ["sh", "-c", "echo \"a&b\"+"]);
        assert_eq!(query.values("tty").collect::<Vec<_>>(), [""]);
        assert_eq!(Query::parse("a=%ff").unwrap_err().code, 400);
    }
}
