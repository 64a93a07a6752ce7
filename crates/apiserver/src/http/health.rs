//! `/healthz`, `/livez` and `/readyz`, as a whole (`?verbose`, `?exclude=`) and by check.

use http::{Response, StatusCode};

use super::Http;
use super::body::Body;
use super::response::text;
use crate::cache::Cache;
use crate::metrics::Metrics;

/// A health check.
struct Check {
    name: &'static str,
    ok: bool,
    /// Whether `/livez` leaves it out: a live server need not be ready.
    only_ready: bool,
}

/// The post-start hooks of kube-apiserver v1.36, by their names, where knarr has the same part.
const POST_START_HOOKS: [&str; 25] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/storage-object-count-tracker-hook",
    "poststarthook/storage-readiness",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
];

fn checks(cache: &Cache) -> Vec<Check> {
    let is_synced = cache.is_synced();
    let check = |name, ok, only_ready| Check { name, ok, only_ready };
    let mut checks = vec![
        check("ping", true, false),
        check("log", true, false),
        check("etcd", is_synced, false),
        check("etcd-readiness", is_synced, true),
        check("informer-sync", is_synced, true),
    ];
    // All of these are done before the first connection is accepted.
    checks.extend(POST_START_HOOKS.iter().map(|name| check(name, true, false)));
    checks.push(check("shutdown", true, true));
    checks
}

/// `segments` begin with the endpoint: `healthz`, `livez` or `readyz`.
pub(super) fn health(cache: &Cache, metrics: &Metrics, http: &Http, segments: &[&str]) -> Response<Body> {
    let [which, rest @ ..] = segments else {
        return text(StatusCode::NOT_FOUND, "404 page not found\n");
    };
    let checks: Vec<Check> = checks(cache)
        .into_iter()
        .filter(|c| *which == "readyz" || !c.only_ready)
        .collect();
    let of = *["healthz", "livez", "readyz"]
        .iter()
        .find(|of| *of == which)
        .unwrap_or(&"healthz");
    for check in checks
        .iter()
        .filter(|c| rest.is_empty() || rest.join("/") == c.name)
    {
        metrics.health_checked(check.name, of, check.ok);
    }
    if !rest.is_empty() {
        let name = rest.join("/");
        return match checks.iter().find(|c| c.name == name) {
            None => text(StatusCode::NOT_FOUND, "404 page not found\n"),
            Some(check) if check.ok => text(StatusCode::OK, "ok"),
            Some(_) => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal server error: reason withheld\n",
            ),
        };
    }
    let excluded: Vec<&str> = http.query.all("exclude").collect();
    let (mut report, mut passed) = (String::new(), true);
    for Check { name, ok, .. } in &checks {
        report += &if excluded.contains(name) {
            format!("[+]{name} excluded: ok\n")
        } else if *ok {
            format!("[+]{name} ok\n")
        } else {
            passed = false;
            format!("[-]{name} failed: reason withheld\n")
        };
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|e| !checks.iter().any(|c| c.name == **e))
        .map(|e| format!("{e:?}"))
        .collect();
    if !unknown.is_empty() {
        report += &format!(
            "warn: some health checks cannot be excluded: no matches for {}\n",
            unknown.join(", ")
        );
    }
    if !passed {
        report += &format!("{which} check failed\n");
        return text(StatusCode::INTERNAL_SERVER_ERROR, report);
    }
    if !http.query.has("verbose") {
        return text(StatusCode::OK, "ok");
    }
    text(StatusCode::OK, report + &format!("{which} check passed\n"))
}
