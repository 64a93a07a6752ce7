//! The schema of both kinds of policies, which `kubectl explain` shows. It has types and bounds; what it cannot say, such as
//! thresholds that must name the same resources, [`crate::policy::rebalance_policy`] reports in the condition Ready.

use serde_json::{Map, Value, json};

use crate::policy::strategy_args::LIFE_TIME_STATES;

/// The most planned moves that a status shows.
pub const PLANNED_MOVES_MAX: usize = 20;
/// The longest reason of a planned move in bytes: selectors of pods' constraints are in it, which may be long.
pub const WHY_MAX: usize = 1_024;
/// The most recent moves of a status, some 100 kB; a policy cannot have a larger budget per hour.
pub const RECENT_MOVES_MAX: usize = 300;
/// The most held workloads that a status shows.
pub const HELD_WORKLOADS_MAX: usize = 20;
/// The most items of a list in a spec.
const ITEMS_MAX: u32 = 100;
/// The longest name of an object.
const NAME_MAX: u32 = 253;
/// The largest number of pods, restarts or nodes.
const COUNT_MAX: u32 = 100_000;
/// The longest time in seconds: ten years.
const SECONDS_MAX: u32 = 315_360_000;
/// The longest message of a condition (meta/v1 Condition).
pub const MESSAGE_MAX: usize = 32_768;

/// The schema of a policy; a namespaced one is for its own namespace, and cannot choose others.
pub fn policy(namespaced: bool) -> Value {
    let pods = if namespaced {
        "pods of its namespace"
    } else {
        "pods"
    };
    let text = format!(
        "Moves {pods} so that the rules that they violate are violated less, by evicting them. A pod is evicted only if the scheduler would place \
         its replacement where no rule is violated more and one of the policy's is violated less."
    );
    json!({
        "type": "object", "required": ["spec"], "description": text,
        "properties": {"spec": spec(namespaced), "status": status()},
    })
}

fn object(description: &str, properties: Value) -> Value {
    json!({"type": "object", "description": description, "properties": properties})
}

fn boolean(description: &str) -> Value {
    json!({"type": "boolean", "description": description})
}

fn integer(minimum: u32, maximum: u32, description: &str) -> Value {
    json!({"type": "integer", "format": "int64", "minimum": minimum, "maximum": maximum, "description": description})
}

fn text(description: &str) -> Value {
    json!({"type": "string", "maxLength": NAME_MAX, "description": description})
}

fn texts(description: &str) -> Value {
    json!({
        "type": "array", "maxItems": ITEMS_MAX, "description": description,
        "items": {"type": "string", "maxLength": NAME_MAX},
    })
}

fn choices(of: &[&str], description: &str) -> Value {
    json!({
        "type": "array", "maxItems": ITEMS_MAX, "description": description,
        "items": {"type": "string", "enum": of},
    })
}

fn exit_codes() -> Value {
    json!({
        "type": "array", "maxItems": ITEMS_MAX, "description": "Exit codes, of which one of the pod's terminated containers must have one.",
        "items": {"type": "integer", "format": "int32"},
    })
}

fn selector(description: &str) -> Value {
    json!({
        "type": "object", "description": description, "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "type": "object", "maxProperties": ITEMS_MAX, "description": "Labels with these values.",
                "additionalProperties": {"type": "string"},
            },
            "matchExpressions": {
                "type": "array", "maxItems": ITEMS_MAX, "description": "Requirements on labels, all of which must be met.",
                "items": {
                    "type": "object", "required": ["key", "operator"],
                    "properties": {
                        "key": {"type": "string", "description": "The label."},
                        "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                            "description": "How the label's value relates to values."},
                        "values": {"type": "array", "maxItems": ITEMS_MAX, "items": {"type": "string"},
                            "description": "For In and NotIn."},
                    },
                },
            },
        },
    })
}

/// An object of which not both fields may be set.
fn exclusive(mut schema: Value, one: &str, other: &str) -> Value {
    schema["x-kubernetes-validations"] = json!([{
        "rule": format!("!(has(self.{one}) && has(self.{other}))"),
        "message": format!("only one of {one} and {other} may be set"),
    }]);
    schema
}

fn names(description: &str, of: &str) -> Value {
    let properties = json!({
        "include": texts(&format!("Only these {of}.")), "exclude": texts(&format!("All {of} but these.")),
    });
    exclusive(object(description, properties), "include", "exclude")
}

fn thresholds(description: &str) -> Value {
    json!({
        "type": "object", "minProperties": 1, "maxProperties": ITEMS_MAX, "description": description,
        "additionalProperties": {"type": "number", "minimum": 0, "maximum": 100},
    })
}

fn spec(namespaced: bool) -> Value {
    let mut properties = json!({
        "dryRun": {"type": "boolean", "default": true,
            "description": "The plan is only shown, in the status and in events. Pods are evicted only with false."},
        "nodeSelector": selector("Pods are moved away from these nodes only."),
        "gracePeriodSeconds": integer(1, SECONDS_MAX, "The grace period of the evictions; without it the pod's own."),
        "budgets": budgets(),
        "protections": protections(),
        "strategies": strategies(namespaced),
    });
    if !namespaced {
        properties["namespaces"] = names(
            "The namespaces whose pods are moved; all by default.",
            "namespaces",
        );
    }
    json!({
        "type": "object", "required": ["strategies"], "properties": properties,
        "description": "Which rules are restored, for which pods, and how many pods may be moved.",
    })
}

fn budgets() -> Value {
    object(
        "How many pods may be moved.",
        json!({
            "perHour": integer(0, u32::try_from(RECENT_MOVES_MAX).unwrap_or(u32::MAX),
                "Moves within an hour, 60 by default; 0 pauses the policy."),
            "perNode": integer(0, COUNT_MAX, "Moves away from one node within an hour, 10 by default."),
            "perNamespace": integer(0, COUNT_MAX, "Moves of one namespace's pods within an hour; unlimited by default."),
            "perWorkload": integer(0, COUNT_MAX, "Moves of one workload's pods within an hour, 10 by default."),
            "atOncePerWorkload": integer(1, COUNT_MAX,
                "Pods of one workload that are replaced at the same time, 1 by default."),
        }),
    )
}

fn protections() -> Value {
    let mut threshold = object(
        "Pods of this priority or a higher one are not moved.",
        json!({
            "value": {"type": "integer", "format": "int32", "description": "The priority."},
            "name": text("The PriorityClass that has the priority."),
        }),
    );
    threshold["x-kubernetes-validations"] = json!([{"rule": "has(self.value) != has(self.name)", "message": "one of value and name must be set"}]);
    object(
        "Pods that are not moved. The annotation knarr.io/rebalance of a pod or its namespace lifts them (\"true\") or forbids any move (\"false\").",
        json!({
            "labelSelector": selector("Only pods that it selects are moved."),
            "namespaceSelector": selector("Only pods of namespaces that it selects are moved."),
            "destinationSelector": selector("Pods are moved only to nodes that it selects."),
            "priorityThreshold": threshold,
            "minReplicas": integer(0, COUNT_MAX, "Pods of workloads with fewer pods are not moved."),
            "minPodAge": {"type": "string", "maxLength": 32, "pattern": "^([0-9]+(\\.[0-9]+)?(ns|us|ms|s|m|h))+$",
                "description": "Pods that started a shorter time ago are not moved, such as 5m."},
            "preferNoEvictionIsMandatory": boolean(
                "Pods with the annotation descheduler.alpha.kubernetes.io/prefer-no-eviction are not moved; by default they are the last."),
            "localStorage": boolean("Whether pods with emptyDir or hostPath volumes stay, true by default."),
            "systemCritical": boolean("Whether pods of priority 2000000000 and higher stay, true by default."),
            "persistentVolumeClaims": boolean("Whether pods with PersistentVolumeClaims stay."),
            "storageClasses": texts("Pods with PersistentVolumeClaims of these storage classes stay."),
            "withoutDisruptionBudget": boolean("Whether pods that no PodDisruptionBudget selects stay."),
        }),
    )
}

/// The strategies with their arguments. Those on pods may choose pods by namespace (in a ClusterRebalancePolicy) and by label.
fn strategies(namespaced: bool) -> Value {
    let scoped = |description: &str, of: Value, by_label: bool| {
        let mut strategy = object(description, of);
        if !namespaced {
            strategy["properties"]["namespaces"] = names(
                "The namespaces of the pods, if the policy has none.",
                "namespaces",
            );
        }
        if by_label {
            strategy["properties"]["labelSelector"] = selector("Only pods that it selects.");
        }
        strategy
    };
    let init = || boolean("Init containers count, too.");
    let mut all = Map::new();
    let mut put = |name: &str, schema: Value| drop(all.insert(name.to_string(), schema));
    let spread = json!({"constraints": choices(&["DoNotSchedule", "ScheduleAnyway"],
        "Constraints with these values of whenUnsatisfiable, DoNotSchedule by default.")});
    put(
        "topologySpread",
        scoped("Restores topology spread constraints.", spread, true),
    );
    let taints = json!({
        "includePreferNoSchedule": boolean("Taints of the effect PreferNoSchedule count, too."),
        "includedTaints": texts("Only these taints, as key or key=value."),
        "excludedTaints": texts("All taints but these, as key or key=value."),
    });
    let taints = scoped(
        "Moves pods away from nodes whose taints they do not tolerate.",
        taints,
        true,
    );
    put(
        "nodeTaints",
        exclusive(taints, "includedTaints", "excludedTaints"),
    );
    put(
        "podAntiAffinity",
        scoped("Restores required pod anti-affinity.", json!({}), true),
    );
    put(
        "podAffinity",
        scoped("Restores required pod affinity.", json!({}), true),
    );
    let affinity = json!({"nodeAffinityType": choices(
        &["requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"],
        "Which terms.")});
    let mut affinity = scoped("Restores node affinity.", affinity, true);
    affinity["required"] = json!(["nodeAffinityType"]);
    put("nodeAffinity", affinity);
    let owners = json!({"excludeOwnerKinds": texts("Pods whose owners have one of these kinds stay.")});
    put(
        "duplicates",
        scoped("Distributes the pods of one owner over the nodes.", owners, false),
    );
    put("lowNodeUtilization", low_node_utilization(namespaced));
    put("highNodeUtilization", high_node_utilization(namespaced));
    put("podLifeTime", pod_life_time(scoped));
    let mut restarts = scoped(
        "Replaces pods whose containers were restarted too often.",
        json!({
            "podRestartThreshold": integer(1, COUNT_MAX, "So many restarts of all containers together, or more."),
            "includingInitContainers": init(),
            "states": choices(&["CrashLoopBackOff", "Running"], "Only pods in one of these states."),
        }),
        true,
    );
    restarts["required"] = json!(["podRestartThreshold"]);
    put("tooManyRestarts", restarts);
    let failed = scoped(
        "Deletes failed pods.",
        json!({
            "minPodLifetimeSeconds": integer(0, SECONDS_MAX, "Only pods that are older."),
            "reasons": texts("Only pods that failed for one of these reasons."),
            "exitCodes": exit_codes(),
            "includingInitContainers": init(),
            "excludeOwnerKinds": texts("Pods whose owners have one of these kinds stay."),
        }),
        true,
    );
    put("failedPods", failed);
    json!({
        "type": "object", "minProperties": 1, "properties": all,
        "description": "The rules to restore, by name, with the arguments of the descheduler's plugins.",
    })
}

fn evictable_namespaces(properties: &mut Value, namespaced: bool) {
    if !namespaced {
        properties["evictableNamespaces"] = object(
            "The namespaces whose pods are moved.",
            json!({"exclude": texts("All namespaces but these.")}),
        );
    }
}

fn low_node_utilization(namespaced: bool) -> Value {
    let mut properties = json!({
        "thresholds": thresholds("A node with less of each resource, in percent, is underutilized."),
        "targetThresholds": thresholds("A node with more of any resource, in percent, is overutilized. The same resources as in thresholds."),
        "useDeviationThresholds": boolean("Both are distances from the utilization of all nodes together."),
        "numberOfNodes": integer(0, COUNT_MAX, "Nothing is moved while no more nodes than this are underutilized."),
        "metricsUtilization": object(
            "Measured usage counts, not requests.",
            json!({
                "metricsServer": boolean("Usage from metrics.k8s.io."),
                "source": {"type": "string", "enum": ["KubernetesMetrics"], "description": "Where usage is read from."},
            }),
        ),
    });
    evictable_namespaces(&mut properties, namespaced);
    let mut strategy = object(
        "Moves pods of overutilized nodes while others are underutilized.",
        properties,
    );
    strategy["required"] = json!(["thresholds", "targetThresholds"]);
    strategy
}

fn high_node_utilization(namespaced: bool) -> Value {
    let mut properties = json!({
        "thresholds": thresholds("A node with less of each resource, in percent, is underutilized."),
        "numberOfNodes": integer(0, COUNT_MAX, "Nothing is moved while no more nodes than this are underutilized."),
        "evictionModes": choices(&["OnlyThresholdingResources"], "Only pods that request one of the resources of thresholds."),
    });
    evictable_namespaces(&mut properties, namespaced);
    let mut strategy = object(
        "Moves the pods of underutilized nodes to others, so that nodes become empty.",
        properties,
    );
    strategy["required"] = json!(["thresholds"]);
    strategy
}

fn pod_life_time(scoped: impl Fn(&str, Value, bool) -> Value) -> Value {
    let condition = json!({
        "type": text("The condition's type."), "status": text("Its status."), "reason": text("Its reason."),
        "minTimeSinceLastTransitionSeconds": integer(0, SECONDS_MAX, "How long its status has not changed."),
    });
    let properties = json!({
        "maxPodLifeTimeSeconds": integer(0, SECONDS_MAX, "Only pods that are older."),
        "states": choices(&LIFE_TIME_STATES, "Only pods in one of these states."),
        "conditions": {"type": "array", "maxItems": ITEMS_MAX, "description": "Of which the pod must have one.",
            "items": {"type": "object", "minProperties": 1, "properties": condition}},
        "exitCodes": exit_codes(),
        "includingInitContainers": boolean("Init containers count, too."),
        "includingEphemeralContainers": boolean("Ephemeral containers count, too."),
        "ownerKinds": names("The kinds of the pods' owners.", "kinds"),
    });
    scoped(
        "Replaces pods that are too old or too long in a state.",
        properties,
        true,
    )
}

fn status() -> Value {
    let time =
        |description: &str| json!({"type": "string", "format": "date-time", "description": description});
    let count = |description: &str| json!({"type": "integer", "format": "int64", "minimum": 0, "description": description});
    let line = |description: &str| json!({"type": "string", "description": description});
    let planned = json!({
        "type": "array", "maxItems": PLANNED_MOVES_MAX, "description": "The first moves of the last plan.",
        "items": {"type": "object", "properties": {
            "namespace": line("Of the pod."), "pod": line("Its name."), "from": line("Its node."),
            "to": line("Where the scheduler would place the replacement; absent: a finished pod is deleted."),
            "why": line("The rule, and how its violation changes."),
        }},
    });
    let recent = json!({
        "type": "array", "maxItems": RECENT_MOVES_MAX,
        "description": "The moves of the last hour, and those whose replacements are not Ready.",
        "items": {
            "type": "object",
            "required": ["time", "namespace", "pod", "uid", "from", "workloadKind", "workloadName", "rule", "planned",
                "podsBefore", "readyBefore", "replaced"],
            "properties": {
                "time": time("When it was evicted."), "namespace": line("Of the pod."), "pod": line("Its name."),
                "uid": line("Its UID."), "from": line("Its node."), "to": line("The node of the replacement in the plan."),
                "workloadKind": line("The kind of the pod's workload."), "workloadName": line("Its name."),
                "rule": line("The rule that it was moved for."),
                "planned": count("Moves of the workload for the rule in the plan."),
                "podsBefore": count("Pods of the workload before."), "readyBefore": count("How many of them were Ready."),
                "surging": {"type": "boolean", "description": "Whether its eviction waits until it is replaced (surge-first eviction)."},
                "replaced": {"type": "boolean", "description": "Whether its replacement is Ready, or no longer waited for."},
            },
        },
    });
    let condition = json!({
        "type": "object", "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {"type": "string", "maxLength": 316, "description": "Ready, Progressing or Degraded."},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it holds."},
            "reason": {"type": "string", "minLength": 1, "maxLength": 1024, "description": "Why, in one word."},
            "message": {"type": "string", "maxLength": MESSAGE_MAX, "description": "Why, in a sentence."},
            "lastTransitionTime": time("When the status changed."),
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0,
                "description": "The generation of the policy that it is about."},
        },
    });
    object(
        "What the controller found, planned and did.",
        json!({
            "observedGeneration": {"type": "integer", "format": "int64", "description": "The generation of the policy that the status is about."},
            "moves": count("Moves of the last plan."),
            "movesLastHour": count("Moves that were carried out in the last hour."),
            "podsNotMoved": count("Pods that violate a rule of the policy and stay."),
            "plannedMoves": planned,
            "recentMoves": recent,
            "heldWorkloads": {"type": "array", "maxItems": HELD_WORKLOADS_MAX, "items": {"type": "string"},
                "description": "Workloads that are not moved for now, because the same rule has moved them before."},
            "retryTime": time("No pod is evicted before, because an eviction was rejected."),
            "conditions": {"type": "array", "maxItems": 8, "items": condition, "description": "Ready, Progressing and Degraded.",
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        }),
    )
}
