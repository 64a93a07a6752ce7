//! Which FlowSchema a request belongs to: the first that matches it, by precedence and then by name.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, FlowSchemaSpec, NonResourcePolicyRule, PriorityLevelConfiguration, ResourcePolicyRule,
    Subject,
};
use knarr_api::{Object, k8s_openapi};

use super::lending::{Borrower, Bounds, shared_out};
use super::level::{Level, Limits, Seats};
use crate::metrics::head;
use crate::request::RequestInfo;
use crate::user::User;

/// One schema, with its level.
struct Class {
    name: String,
    uid: String,
    spec: FlowSchemaSpec,
    level: Arc<Level>,
    requests: Arc<Requests>,
}

/// The requests that belong to one schema, for the metrics.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub waiting: AtomicI64,
    pub executing: AtomicI64,
    pub dispatched: AtomicU64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Classes {
    /// All schemas whose level exists, in the order in which they are asked.
    classes: Vec<Class>,
    levels: Vec<Arc<Level>>,
}

/// What a request belongs to.
#[derive(Clone)]
pub(crate) struct Flow {
    pub schema: String,
    pub schema_uid: String,
    pub level: Arc<Level>,
    pub requests: Arc<Requests>,
    /// Requests of one schema and one user or namespace, as the schema tells them apart, wait in one row.
    pub row: String,
}

/// Shares of a level that says nothing of them.
const SHARES: i32 = 30;

impl Classes {
    /// `seats` are those of all levels together. Levels that were there before keep who is in them.
    pub fn new(schemas: &[Arc<Object>], levels: &[Arc<Object>], seats: usize, before: &Classes) -> Self {
        let specs = levels
            .iter()
            .filter_map(|o| Some((o, o.get::<PriorityLevelConfiguration>()?.spec.clone()?)));
        let specs: Vec<_> = specs.collect();
        let shares =
            |spec: &k8s_openapi::api::flowcontrol::v1::PriorityLevelConfigurationSpec| match &spec.limited {
                Some(limited) => limited.nominal_concurrency_shares.unwrap_or(SHARES),
                None => spec
                    .exempt
                    .as_ref()
                    .and_then(|e| e.nominal_concurrency_shares)
                    .unwrap_or(0),
            };
        let all: i64 = specs.iter().map(|(_, spec)| i64::from(shares(spec).max(0))).sum();
        let known: HashMap<&str, &Arc<Level>> = before.levels.iter().map(|l| (l.uid.as_str(), l)).collect();
        let mut made: HashMap<&str, Arc<Level>> = HashMap::new();
        for (object, spec) in &specs {
            let part = usize::try_from(shares(spec)).unwrap_or(0).saturating_mul(seats);
            let nominal = part.div_ceil(usize::try_from(all).unwrap_or(1).max(1));
            let number = |n: Option<i32>| n.and_then(|n| usize::try_from(n).ok());
            let (limited, exempt) = (spec.limited.as_ref(), spec.exempt.as_ref());
            let lendable = limited.and_then(|l| l.lendable_percent);
            let lendable = number(lendable.or_else(|| exempt?.lendable_percent)).unwrap_or(0);
            let borrowed = number(limited.and_then(|l| l.borrowing_limit_percent));
            let bounds = Bounds::new(nominal, lendable, borrowed, seats);
            let limits = limited.map(|limited| {
                let response = limited.limit_response.as_ref();
                let queuing = response
                    .filter(|r| r.type_ == "Queue")
                    .and_then(|r| r.queuing.as_ref());
                let number = |n: Option<i32>| number(n).unwrap_or(0);
                Limits {
                    seats: nominal,
                    row: queuing.map_or(0, |q| number(q.hand_size) * number(q.queue_length_limit)),
                    waiting: queuing.map_or(0, |q| number(q.queues) * number(q.queue_length_limit)),
                }
            });
            let level = known.get(object.uid()).map(|level| (*level).clone());
            let level = level.unwrap_or_else(|| Arc::new(Level::new(object.name(), object.uid())));
            level.set(limits, bounds);
            made.insert(object.name(), level);
        }
        let counted = before
            .classes
            .iter()
            .map(|c| ((c.uid.as_str(), c.level.uid.as_str()), &c.requests));
        let counted: HashMap<_, _> = counted.collect();
        let mut classes: Vec<Class> = schemas
            .iter()
            .filter_map(|object| {
                let spec = object.get::<FlowSchema>()?.spec.clone()?;
                let level = made.get(spec.priority_level_configuration.name.as_str())?.clone();
                let requests = counted.get(&(object.uid(), level.uid.as_str()));
                Some(Class {
                    requests: requests.map(|found| (*found).clone()).unwrap_or_default(),
                    name: object.name().to_string(),
                    uid: object.uid().to_string(),
                    spec,
                    level,
                })
            })
            .collect();
        classes.sort_by(|a, b| {
            let key = |c: &Class| c.spec.matching_precedence.unwrap_or(0);
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        Classes {
            classes,
            levels: made.into_values().collect(),
        }
    }

    /// Gives each level the seats that what was asked of it since the last time comes to.
    pub fn lend(&self) {
        let mut levels = Vec::new();
        let (mut all, mut exempt) = (0_usize, 0_usize);
        for level in &self.levels {
            let asked = level.asked();
            all = all.saturating_add(asked.bounds.nominal);
            if level.is_exempt() {
                exempt = exempt.saturating_add(asked.bounds.least.max(asked.highest));
            } else {
                levels.push((level, asked));
            }
        }
        let borrowers: Vec<Borrower> = levels.iter().map(|(_, asked)| *asked).collect();
        for ((level, _), seats) in levels.iter().zip(shared_out(&borrowers, all, exempt)) {
            level.give(seats);
        }
    }

    /// `None` only where the mandatory schemas are missing.
    pub fn of(&self, user: &User, request: &RequestInfo) -> Option<Flow> {
        let class = self.classes.iter().find(|class| class.matches(user, request))?;
        let told_apart = class.spec.distinguisher_method.as_ref().map(|m| m.type_.as_str());
        let distinguisher = match told_apart {
            Some("ByUser") => &user.name,
            Some("ByNamespace") => &request.namespace,
            _ => "",
        };
        Some(Flow {
            schema: class.name.clone(),
            schema_uid: class.uid.clone(),
            level: class.level.clone(),
            requests: class.requests.clone(),
            row: format!("{}/{distinguisher}", class.name),
        })
    }
}

impl Classes {
    /// By level, then by level and schema, in the words of kube-apiserver's metrics.
    pub fn write_metrics(&self, out: &mut String) {
        let mut levels: Vec<_> = self
            .levels
            .iter()
            .map(|level| (level.name.as_str(), level.seats()))
            .collect();
        levels.sort_by_key(|(name, _)| *name);
        type OfSeats = fn(&Seats) -> usize;
        let of_seats: [(&str, &str, OfSeats); 4] = [
            (
                "nominal_limit_seats",
                "Nominal number of execution seats of each priority level.",
                |s| s.bounds.nominal,
            ),
            (
                "lower_limit_seats",
                "Seats of each priority level that are never lent.",
                |s| s.bounds.least,
            ),
            (
                "upper_limit_seats",
                "Seats of each priority level with all that it may borrow.",
                |s| s.bounds.most,
            ),
            (
                "current_limit_seats",
                "Seats that each priority level has now.",
                |s| s.current,
            ),
        ];
        for (name, help, read) in of_seats {
            let name = format!("apiserver_flowcontrol_{name}");
            head(out, &name, "gauge", help);
            for (level, seats) in &levels {
                let _ = writeln!(out, "{name}{{priority_level=\"{level}\"}} {}", read(seats));
            }
        }
        type OfRequests = fn(&Requests) -> i64;
        let executing: OfRequests = |r| r.executing.load(Ordering::Relaxed);
        let of_requests: [(&str, &str, &str, OfRequests); 4] = [
            (
                "current_inqueue_requests",
                "gauge",
                "Requests that wait for a seat.",
                |r| r.waiting.load(Ordering::Relaxed),
            ),
            (
                "current_executing_requests",
                "gauge",
                "Requests that have a seat.",
                executing,
            ),
            (
                "current_executing_seats",
                "gauge",
                "Seats that requests have.",
                executing,
            ),
            (
                "dispatched_requests_total",
                "counter",
                "Requests that were given a seat.",
                |r| i64::try_from(r.dispatched.load(Ordering::Relaxed)).unwrap_or(i64::MAX),
            ),
        ];
        for (name, form, help, read) in of_requests {
            let name = format!("apiserver_flowcontrol_{name}");
            head(out, &name, form, help);
            for class in &self.classes {
                let labels = format!(
                    "flow_schema=\"{}\",priority_level=\"{}\"",
                    class.name, class.level.name
                );
                let _ = writeln!(out, "{name}{{{labels}}} {}", read(&class.requests));
            }
        }
    }
}

impl Class {
    fn matches(&self, user: &User, request: &RequestInfo) -> bool {
        self.spec.rules.iter().flatten().any(|rule| {
            rule.subjects.iter().any(|s| is(s, user))
                && match request.is_resource {
                    true => rule
                        .resource_rules
                        .iter()
                        .flatten()
                        .any(|r| about_resource(r, request)),
                    false => rule
                        .non_resource_rules
                        .iter()
                        .flatten()
                        .any(|r| about_path(r, request)),
                }
        })
    }
}

fn is(subject: &Subject, user: &User) -> bool {
    match subject.kind.as_str() {
        "User" => subject
            .user
            .as_ref()
            .is_some_and(|u| u.name == "*" || u.name == user.name),
        "Group" => subject
            .group
            .as_ref()
            .is_some_and(|g| g.name == "*" || user.groups.contains(&g.name)),
        "ServiceAccount" => subject.service_account.as_ref().is_some_and(|account| {
            let name = user.name.strip_prefix("system:serviceaccount:");
            name.and_then(|n| n.split_once(':'))
                .is_some_and(|(namespace, name)| {
                    namespace == account.namespace && (account.name == "*" || name == account.name)
                })
        }),
        _ => false,
    }
}

fn one_of(all: &[String], wanted: &str) -> bool {
    all.iter().any(|one| one == "*" || one == wanted)
}

fn about_resource(rule: &ResourcePolicyRule, request: &RequestInfo) -> bool {
    one_of(&rule.verbs, request.verb)
        && one_of(&rule.api_groups, &request.group)
        && one_of(&rule.resources, &request.qualified_resource())
        && match request.namespace.as_str() {
            "" => rule.cluster_scope.unwrap_or(false),
            namespace => rule.namespaces.as_ref().is_some_and(|all| one_of(all, namespace)),
        }
}

fn about_path(rule: &NonResourcePolicyRule, request: &RequestInfo) -> bool {
    one_of(&rule.verbs, request.verb)
        && rule
            .non_resource_urls
            .iter()
            .any(|url| match url.strip_suffix('*') {
                Some(prefix) => request.path.starts_with(prefix),
                None => *url == request.path,
            })
}

#[cfg(test)]
mod tests {
    use http::Method;
    use knarr_api::{Kind, registry};
    use serde_json::{Value, json};

    use super::*;
    use crate::flow_control::objects;

    fn object(kind: &Kind, mut document: Value) -> Arc<Object> {
        document["metadata"]["uid"] = format!("uid of {}", document["metadata"]["name"]).into();
        let mut object = kind.ops.decode(document.to_string().as_bytes()).unwrap().object;
        kind.ops.set_defaults(&mut *object).unwrap();
        Arc::new(Object::from_typed(kind, object))
    }

    fn classes(more: Vec<Value>) -> Classes {
        let all = objects::objects().into_iter();
        let all = all.chain(more.into_iter().map(|schema| (&registry::FLOW_SCHEMA, schema)));
        let (schemas, levels): (Vec<_>, Vec<_>) = all
            .map(|(kind, document)| object(kind, document))
            .partition(|o| *o.kind() == registry::FLOW_SCHEMA);
        Classes::new(&schemas, &levels, 600, &Classes::default())
    }

    #[test]
    fn requests_belong_to_the_first_schema_that_matches() {
        let mine = json!({"metadata": {"name": "mine"}, "spec": {
            "priorityLevelConfiguration": {"name": "workload-low"}, "matchingPrecedence": 100,
            "rules": [{"subjects": [{"kind": "User", "user": {"name": "ann"}}],
                "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["a"]}]}]}});
        let mut lost = mine.clone();
        lost["metadata"]["name"] = "lost".into();
        lost["spec"]["matchingPrecedence"] = 50.into();
        lost["spec"]["priorityLevelConfiguration"]["name"] = "nowhere".into();
        let classes = classes(vec![mine, lost]);
        let authenticated = |name: &str, group: &str| User::new(name, [group]).authenticated();
        for (user, method, path, row, level) in [
            (
                authenticated("root", "system:masters"),
                "GET",
                "/api/v1/pods",
                "exempt/",
                "exempt",
            ),
            (User::anonymous(), "GET", "/livez", "probes/", "exempt"),
            (
                User::anonymous(),
                "GET",
                "/livez/ping",
                "global-default/system:anonymous",
                "global-default",
            ),
            (
                authenticated("system:node:n", "system:nodes"),
                "PATCH",
                "/api/v1/nodes/n/status",
                "system-node-high/system:node:n",
                "node-high",
            ),
            (
                authenticated("system:node:n", "system:nodes"),
                "GET",
                "/api/v1/namespaces/a/pods/p",
                "system-nodes/system:node:n",
                "system",
            ),
            (
                authenticated("system:serviceaccount:kube-system:x", "system:serviceaccounts"),
                "GET",
                "/api/v1/namespaces/a/pods",
                "kube-system-service-accounts/a",
                "workload-high",
            ),
            (
                authenticated("system:serviceaccount:a:x", "system:serviceaccounts"),
                "GET",
                "/api/v1/namespaces/a/pods",
                "service-accounts/system:serviceaccount:a:x",
                "workload-low",
            ),
            (
                authenticated("ann", "dev"),
                "GET",
                "/api/v1/namespaces/a/pods/p",
                "mine/",
                "workload-low",
            ),
            (
                authenticated("ann", "dev"),
                "GET",
                "/api/v1/namespaces/b/pods/p",
                "global-default/ann",
                "global-default",
            ),
            (
                authenticated("ann", "dev"),
                "GET",
                "/api/v1/namespaces/a/pods/p/log",
                "global-default/ann",
                "global-default",
            ),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let flow = classes
                .of(&user, &RequestInfo::parse(&method, path, false))
                .unwrap();
            assert_eq!(
                (flow.row.as_str(), flow.level.name.as_str()),
                (row, level),
                "{path}"
            );
        }
    }

    #[test]
    fn seats_are_shared_out_by_the_levels_shares() {
        let classes = classes(Vec::new());
        let seats = |name: &str| {
            let class = classes.classes.iter().find(|c| c.level.name == name);
            class
                .and_then(|c| c.level.limits())
                .map(|l| (l.seats, l.row, l.waiting))
        };
        assert_eq!(seats("exempt"), None);
        // Of 600, by shares of 245 in all.
        assert_eq!(seats("workload-low"), Some((245, 300, 6400)));
        assert_eq!(seats("leader-election"), Some((25, 200, 800)));
        assert_eq!(seats("catch-all"), Some((13, 0, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_more_than_his_level_has_gets_what_others_lend() {
        let classes = classes(Vec::new());
        let level = |name: &str| {
            let level = classes.levels.iter().find(|l| l.name == name);
            level.unwrap().clone()
        };
        let seats = |name: &str| level(name).limits().unwrap().seats;
        let (asking, patience) = (level("global-default"), std::time::Duration::from_secs(60));
        assert_eq!((seats("global-default"), seats("workload-low")), (49, 245));
        let asks = |n: usize| {
            let asking = asking.clone();
            tokio::spawn(async move { asking.enter(&format!("{}", n % 50), patience).await })
        };
        let wanting: Vec<_> = (0..200).map(asks).collect();
        for _ in 0..wanting.len() {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(std::time::Duration::from_secs(10)).await;
        classes.lend();
        let (has, lent) = (seats("global-default"), seats("workload-low"));
        assert!(has > 100, "{has}");
        // It keeps a tenth whatever others want.
        assert!((24..245).contains(&lent), "{lent}");
        let all: usize = classes
            .levels
            .iter()
            .filter_map(|l| Some(l.limits()?.seats))
            .sum();
        assert!(
            all.abs_diff(604) <= 4,
            "as many as there were, but for rounding: {all}"
        );
        for one in wanting {
            // With a seat, which is then another's.
            drop(one.await.unwrap().unwrap_or_else(|_| panic!("one was refused")));
        }
        // What nobody asks for any more goes back in time.
        for _ in 0..400 {
            tokio::time::advance(std::time::Duration::from_secs(10)).await;
            classes.lend();
        }
        assert!(seats("global-default") < has / 2, "{}", seats("global-default"));
    }
}
