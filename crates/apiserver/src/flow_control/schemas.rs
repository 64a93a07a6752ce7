//! Classifies requests: the FlowSchema of a request is the first that matches it, by precedence and then by name.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, FlowSchemaSpec, NonResourcePolicyRule, PriorityLevelConfiguration, ResourcePolicyRule,
    Subject,
};
use knarr_api::{Object, k8s_openapi};
use knarr_client::metrics::Samples;

use super::lending::{Bounds, LevelDemand, allocate_seats};
use super::priority_level::{Limits, PriorityLevel, Seats};
use crate::request::RequestInfo;
use crate::user::User;

/// A FlowSchema with its priority level.
struct ConfiguredSchema {
    name: String,
    uid: String,
    spec: FlowSchemaSpec,
    level: Arc<PriorityLevel>,
    requests: Arc<Requests>,
}

/// The requests of one FlowSchema, for the metrics.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub waiting: AtomicI64,
    pub executing: AtomicI64,
    pub dispatched: AtomicU64,
}

/// All FlowSchemas and priority levels. See the module.
#[derive(Default)]
pub(super) struct FlowSchemas {
    /// All FlowSchemas whose priority level exists, in the order in which they are matched.
    schemas: Vec<ConfiguredSchema>,
    levels: Vec<Arc<PriorityLevel>>,
}

/// The flow of a request.
#[derive(Clone)]
pub(crate) struct Flow {
    pub schema: String,
    pub schema_uid: String,
    pub level: Arc<PriorityLevel>,
    pub requests: Arc<Requests>,
    /// The requests of one FlowSchema and one distinguisher (user or namespace) wait in one queue.
    pub queue: String,
}

/// `nominalConcurrencyShares` of a priority level that does not set it.
const SHARES: i32 = 30;

impl FlowSchemas {
    /// `seats` is the number of seats of all levels together. Levels that exist in `before` keep their requests.
    pub fn new(schemas: &[Arc<Object>], levels: &[Arc<Object>], seats: usize, before: &FlowSchemas) -> Self {
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
        let known: HashMap<&str, &Arc<PriorityLevel>> =
            before.levels.iter().map(|l| (l.uid.as_str(), l)).collect();
        let mut by_name: HashMap<&str, Arc<PriorityLevel>> = HashMap::new();
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
                    queue: queuing.map_or(0, |q| number(q.hand_size) * number(q.queue_length_limit)),
                    waiting: queuing.map_or(0, |q| number(q.queues) * number(q.queue_length_limit)),
                }
            });
            let level = known.get(object.uid()).map(|level| (*level).clone());
            let level = level.unwrap_or_else(|| Arc::new(PriorityLevel::new(object.name(), object.uid())));
            level.set(limits, bounds);
            by_name.insert(object.name(), level);
        }
        let counted = before
            .schemas
            .iter()
            .map(|c| ((c.uid.as_str(), c.level.uid.as_str()), &c.requests));
        let counted: HashMap<_, _> = counted.collect();
        let mut schemas: Vec<ConfiguredSchema> = schemas
            .iter()
            .filter_map(|object| {
                let spec = object.get::<FlowSchema>()?.spec.clone()?;
                let level = by_name
                    .get(spec.priority_level_configuration.name.as_str())?
                    .clone();
                let requests = counted.get(&(object.uid(), level.uid.as_str()));
                Some(ConfiguredSchema {
                    requests: requests.map(|found| (*found).clone()).unwrap_or_default(),
                    name: object.name().to_string(),
                    uid: object.uid().to_string(),
                    spec,
                    level,
                })
            })
            .collect();
        schemas.sort_by(|a, b| {
            let key = |c: &ConfiguredSchema| c.spec.matching_precedence.unwrap_or(0);
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        FlowSchemas {
            schemas,
            levels: by_name.into_values().collect(),
        }
    }

    /// Sets each level's seats by the demand since the last time.
    pub fn adjust_seats(&self) {
        let mut levels = Vec::new();
        let (mut all, mut exempt) = (0_usize, 0_usize);
        for level in &self.levels {
            let demand = level.take_demand();
            all = all.saturating_add(demand.bounds.nominal);
            if level.is_exempt() {
                exempt = exempt.saturating_add(demand.bounds.min.max(demand.highest));
            } else {
                levels.push((level, demand));
            }
        }
        let borrowers: Vec<LevelDemand> = levels.iter().map(|(_, demand)| *demand).collect();
        for ((level, _), seats) in levels.iter().zip(allocate_seats(&borrowers, all, exempt)) {
            level.set_seats(seats);
        }
    }

    /// Classifies a request; `None` only if the mandatory FlowSchemas are missing.
    pub fn classify(&self, user: &User, request: &RequestInfo) -> Option<Flow> {
        let schema = self.schemas.iter().find(|schema| schema.matches(user, request))?;
        let distinguisher_method = schema
            .spec
            .distinguisher_method
            .as_ref()
            .map(|m| m.type_.as_str());
        let distinguisher = match distinguisher_method {
            Some("ByUser") => &user.name,
            Some("ByNamespace") => &request.namespace,
            _ => "",
        };
        Some(Flow {
            schema: schema.name.clone(),
            schema_uid: schema.uid.clone(),
            level: schema.level.clone(),
            requests: schema.requests.clone(),
            queue: format!("{}/{distinguisher}", schema.name),
        })
    }
}

impl FlowSchemas {
    /// Adds the metrics by level, then by level and FlowSchema, under kube-apiserver's names.
    pub fn write_metrics(&self, samples: &mut Samples) {
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
                "Nominal number of execution seats configured for each priority level",
                |s| s.bounds.nominal,
            ),
            (
                "lower_limit_seats",
                "Seats of each priority level that are never lent.",
                |s| s.bounds.min,
            ),
            (
                "upper_limit_seats",
                "Seats of each priority level with all that it may borrow.",
                |s| s.bounds.max,
            ),
            (
                "current_limit_seats",
                "Seats that each priority level has now.",
                |s| s.current,
            ),
        ];
        for (name, help, read) in of_seats {
            samples.gauge(&format!("apiserver_flowcontrol_{name}"), help);
            for (level, seats) in &levels {
                samples.add(&[("priority_level", level)], read(seats) as f64);
            }
        }
        type OfRequests = fn(&Requests) -> f64;
        let executing: OfRequests = |r| r.executing.load(Ordering::Relaxed) as f64;
        let of_requests: [(&str, &str, OfRequests); 3] = [
            (
                "current_inqueue_requests",
                "Number of requests currently pending in queues of the API Priority and Fairness subsystem",
                |r| r.waiting.load(Ordering::Relaxed) as f64,
            ),
            (
                "current_executing_requests",
                "Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem",
                executing,
            ),
            (
                "current_executing_seats",
                "Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in \
                 the API Priority and Fairness subsystem",
                executing,
            ),
        ];
        let add_all = |samples: &mut Samples, read: OfRequests| {
            for schema in &self.schemas {
                let labels = [
                    ("flow_schema", schema.name.as_str()),
                    ("priority_level", &schema.level.name),
                ];
                samples.add(&labels, read(&schema.requests));
            }
        };
        for (name, help, read) in of_requests {
            samples.gauge(&format!("apiserver_flowcontrol_{name}"), help);
            add_all(samples, read);
        }
        samples.counter(
            "apiserver_flowcontrol_dispatched_requests_total",
            "Number of requests executed by API Priority and Fairness subsystem",
        );
        add_all(samples, |r| r.dispatched.load(Ordering::Relaxed) as f64);
    }
}

impl ConfiguredSchema {
    fn matches(&self, user: &User, request: &RequestInfo) -> bool {
        self.spec.rules.iter().flatten().any(|rule| {
            rule.subjects.iter().any(|s| matches_subject(s, user))
                && match request.is_resource {
                    true => rule
                        .resource_rules
                        .iter()
                        .flatten()
                        .any(|r| matches_resource_rule(r, request)),
                    false => rule
                        .non_resource_rules
                        .iter()
                        .flatten()
                        .any(|r| matches_non_resource_rule(r, request)),
                }
        })
    }
}

fn matches_subject(subject: &Subject, user: &User) -> bool {
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

fn one_of(all: &[String], desired: &str) -> bool {
    all.iter().any(|one| one == "*" || one == desired)
}

fn matches_resource_rule(rule: &ResourcePolicyRule, request: &RequestInfo) -> bool {
    one_of(&rule.verbs, request.verb)
        && one_of(&rule.api_groups, &request.group)
        && one_of(&rule.resources, &request.qualified_resource())
        && match request.namespace.as_str() {
            "" => rule.cluster_scope.unwrap_or(false),
            namespace => rule.namespaces.as_ref().is_some_and(|all| one_of(all, namespace)),
        }
}

fn matches_non_resource_rule(rule: &NonResourcePolicyRule, request: &RequestInfo) -> bool {
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
    use knarr_strategy::KindStrategy;
    use serde_json::{Value, json};

    use super::*;
    use crate::flow_control::objects;

    fn object(kind: &Kind, mut document: Value) -> Arc<Object> {
        document["metadata"]["uid"] = format!("uid of {}", document["metadata"]["name"]).into();
        let mut object = kind.ops.decode(document.to_string().as_bytes()).unwrap().object;
        kind.strategy().set_defaults(&mut *object).unwrap();
        Arc::new(Object::from_typed(kind, object))
    }

    fn schemas(more: Vec<Value>) -> FlowSchemas {
        let all = objects::objects().into_iter();
        let all = all.chain(more.into_iter().map(|schema| (&registry::FLOW_SCHEMA, schema)));
        let (schemas, levels): (Vec<_>, Vec<_>) = all
            .map(|(kind, document)| object(kind, document))
            .partition(|o| *o.kind() == registry::FLOW_SCHEMA);
        FlowSchemas::new(&schemas, &levels, 600, &FlowSchemas::default())
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
        let schemas = schemas(vec![mine, lost]);
        let authenticated = |name: &str, group: &str| User::new(name, [group]).authenticated();
        for (user, method, path, queue, level) in [
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
            let flow = schemas
                .classify(&user, &RequestInfo::parse(&method, path, false))
                .unwrap();
            assert_eq!(
                (flow.queue.as_str(), flow.level.name.as_str()),
                (queue, level),
                "{path}"
            );
        }
    }

    #[test]
    fn seats_are_shared_out_by_the_levels_shares() {
        let schemas = schemas(Vec::new());
        let seats = |name: &str| {
            let schema = schemas.schemas.iter().find(|c| c.level.name == name);
            schema
                .and_then(|c| c.level.limits())
                .map(|l| (l.seats, l.queue, l.waiting))
        };
        assert_eq!(seats("exempt"), None);
        // Of 600, by shares of 245 in total.
        assert_eq!(seats("workload-low"), Some((245, 300, 6400)));
        assert_eq!(seats("leader-election"), Some((25, 200, 800)));
        assert_eq!(seats("catch-all"), Some((13, 0, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_level_with_more_demand_than_seats_borrows_from_others() {
        let schemas = schemas(Vec::new());
        let level = |name: &str| {
            let level = schemas.levels.iter().find(|l| l.name == name);
            level.unwrap().clone()
        };
        let seats = |name: &str| level(name).limits().unwrap().seats;
        let (demanding, wait_limit) = (level("global-default"), std::time::Duration::from_secs(60));
        assert_eq!((seats("global-default"), seats("workload-low")), (49, 245));
        let request = |n: usize| {
            let demanding = demanding.clone();
            tokio::spawn(async move { demanding.acquire(&format!("{}", n % 50), wait_limit).await })
        };
        let requests: Vec<_> = (0..200).map(request).collect();
        for _ in 0..requests.len() {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(std::time::Duration::from_secs(10)).await;
        schemas.adjust_seats();
        let (has, lent) = (seats("global-default"), seats("workload-low"));
        assert!(has > 100, "{has}");
        // A tenth is not lendable, however much other levels need.
        assert!((24..245).contains(&lent), "{lent}");
        let all: usize = schemas
            .levels
            .iter()
            .filter_map(|l| Some(l.limits()?.seats))
            .sum();
        assert!(
            all.abs_diff(604) <= 4,
            "as many as there were, but for rounding: {all}"
        );
        for one in requests {
            // The seat is returned to the level that lent it.
            drop(
                one.await
                    .unwrap()
                    .unwrap_or_else(|_| panic!("a request was rejected")),
            );
        }
        // Without demand the seats are returned after a while.
        for _ in 0..400 {
            tokio::time::advance(std::time::Duration::from_secs(10)).await;
            schemas.adjust_seats();
        }
        assert!(seats("global-default") < has / 2, "{}", seats("global-default"));
    }
}
