//! The default FlowSchemas and PriorityLevelConfigurations of v1.36.

use knarr_api::{Kind, registry};
use serde_json::{Value, json};

const GROUPS_OF_ALL: [&str; 2] = ["system:unauthenticated", "system:authenticated"];

/// Each kind with an object of it.
pub(crate) fn objects() -> Vec<(&'static Kind, Value)> {
    levels().into_iter().chain(schemas()).collect()
}

fn levels() -> Vec<(&'static Kind, Value)> {
    let level = |name: &str, spec: Value| {
        let document = json!({"metadata": meta(name), "spec": spec});
        (&registry::PRIORITY_LEVEL_CONFIGURATION, document)
    };
    let mut all = vec![
        level(
            "exempt",
            json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}),
        ),
        level(
            "catch-all",
            json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 5, "lendablePercent": 0,
                "limitResponse": {"type": "Reject"}}}),
        ),
    ];
    // Name, shares, percent that may be lent, queues and hand size.
    for (name, shares, lendable, queues, hand) in [
        ("system", 30, 33, 64, 6),
        ("node-high", 40, 25, 64, 6),
        ("leader-election", 10, 0, 16, 4),
        ("workload-high", 40, 50, 128, 6),
        ("workload-low", 100, 90, 128, 6),
        ("global-default", 20, 50, 128, 6),
    ] {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        all.push(level(
            name,
            json!({"type": "Limited", "limited": {"nominalConcurrencyShares": shares,
                "lendablePercent": lendable, "limitResponse": {"type": "Queue", "queuing": queuing}}}),
        ));
    }
    all
}

fn meta(name: &str) -> Value {
    json!({"name": name, "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}})
}

/// Name, level, precedence, distinguisher, subjects, resource rules, non-resource rules.
type Row = (
    &'static str,
    &'static str,
    i32,
    &'static str,
    Vec<Value>,
    Vec<Value>,
    Value,
);

fn schemas() -> Vec<(&'static Kind, Value)> {
    let groups = |names: &[&str]| -> Vec<Value> {
        let group = |n: &&str| json!({"kind": "Group", "group": {"name": n}});
        names.iter().map(group).collect()
    };
    let users = |names: &[&str]| -> Vec<Value> {
        let user = |n: &&str| json!({"kind": "User", "user": {"name": n}});
        names.iter().map(user).collect()
    };
    let accounts = |name: &str| {
        vec![json!({"kind": "ServiceAccount", "serviceAccount": {"name": name, "namespace": "kube-system"}})]
    };
    let resources = |verbs: &[&str], group: &str, names: &[&str], cluster: bool| {
        let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": names, "namespaces": ["*"]});
        if cluster {
            rule["clusterScope"] = true.into();
        }
        rule
    };
    let everything = || json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]);
    let all = || vec![resources(&["*"], "*", &["*"], true)];
    let leases = |verbs: &[&str]| resources(verbs, "coordination.k8s.io", &["leases"], false);
    let control_plane = ["system:kube-controller-manager", "system:kube-scheduler"];
    let table: Vec<Row> = vec![
        (
            "exempt",
            "exempt",
            1,
            "",
            groups(&["system:masters"]),
            all(),
            everything(),
        ),
        (
            "probes",
            "exempt",
            2,
            "",
            groups(&GROUPS_OF_ALL),
            vec![],
            json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]),
        ),
        (
            "system-leader-election",
            "leader-election",
            100,
            "ByUser",
            [users(&control_plane), accounts("*")].concat(),
            vec![leases(&["get", "create", "update"])],
            Value::Null,
        ),
        (
            "system-node-high",
            "node-high",
            400,
            "ByUser",
            groups(&["system:nodes"]),
            vec![
                resources(&["*"], "", &["nodes", "nodes/status"], true),
                leases(&["*"]),
            ],
            Value::Null,
        ),
        (
            "system-nodes",
            "system",
            500,
            "ByUser",
            groups(&["system:nodes"]),
            all(),
            everything(),
        ),
        (
            "kube-controller-manager",
            "workload-high",
            800,
            "ByNamespace",
            users(&control_plane[..1]),
            all(),
            everything(),
        ),
        (
            "kube-scheduler",
            "workload-high",
            800,
            "ByNamespace",
            users(&control_plane[1..]),
            all(),
            everything(),
        ),
        (
            "kube-system-service-accounts",
            "workload-high",
            900,
            "ByNamespace",
            accounts("*"),
            all(),
            everything(),
        ),
        (
            "service-accounts",
            "workload-low",
            9000,
            "ByUser",
            groups(&["system:serviceaccounts"]),
            all(),
            everything(),
        ),
        (
            "global-default",
            "global-default",
            9900,
            "ByUser",
            groups(&GROUPS_OF_ALL),
            all(),
            everything(),
        ),
        (
            "catch-all",
            "catch-all",
            10_000,
            "ByUser",
            groups(&GROUPS_OF_ALL),
            all(),
            everything(),
        ),
    ];
    table
        .into_iter()
        .map(
            |(name, level, precedence, distinguisher, subjects, resource_rules, other_rules)| {
                let mut rule = json!({"subjects": subjects});
                if !resource_rules.is_empty() {
                    rule["resourceRules"] = resource_rules.into();
                }
                if !other_rules.is_null() {
                    rule["nonResourceRules"] = other_rules;
                }
                let mut spec = json!({
                    "priorityLevelConfiguration": {"name": level},
                    "matchingPrecedence": precedence,
                    "rules": [rule],
                });
                if !distinguisher.is_empty() {
                    spec["distinguisherMethod"] = json!({"type": distinguisher});
                }
                (
                    &registry::FLOW_SCHEMA,
                    json!({"metadata": meta(name), "spec": spec}),
                )
            },
        )
        .collect()
}
