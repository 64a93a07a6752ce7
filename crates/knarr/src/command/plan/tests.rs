//! Plans of dumps, as the command makes them: from files to the output.

mod applied;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::output::Plans;
use super::{Planning, PolicyChoice};
use crate::command::Failure;
use crate::command::snapshot::Source;
use crate::config::{Config, Flags};

/// The output of the example policy for `tests/cluster.json`.
const EXAMPLE: &str = "\
Policy: ClusterRebalancePolicy spread (rebalance.yaml)

WAVE  POD               FROM  TO  WHY
1     shop/api-5c9-x7   n5    n4  NodeTaints: untolerated taints 1 -> 0
1     shop/web-7d4b-m4  n1    n4  TopologySpread: spread of app=web in shop over topology.kubernetes.io/zone (maxSkew 1, DoNotSchedule) 3 -> 1
2     shop/web-7d4b-r8  n2    n3  TopologySpread: spread of app=web in shop over topology.kubernetes.io/zone (maxSkew 1, DoNotSchedule) 1 -> 0

3 moves in 2 waves; 4 pods violate a rule and stay (--all shows why)

VIOLATED                                                                               BEFORE  AFTER
untolerated taints                                                                     5       4
spread of app=web in shop over topology.kubernetes.io/zone (maxSkew 1, DoNotSchedule)  3       0
";

/// The part that `--all` adds.
const STAY: &str = "
STAY  REASON            MESSAGE                                                                 PODS
2     NoController      it has no controller that would create it again                         shop/debug-1, shop/debug-2
1     AtMostOne         it must never run twice, and no annotation consents to its replacement  shop/db-0
1     DisruptionBudget  the PodDisruptionBudget cache allows no disruption                      shop/cache-88f-b3
";

fn cluster() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/command/plan/tests/cluster.json")
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rebalance.yaml")
}

/// The files of one run of the command.
#[derive(Default)]
struct Run {
    from: Vec<PathBuf>,
    policy: Option<PathBuf>,
    name: Option<String>,
    directory: Option<tempfile::TempDir>,
}

impl Run {
    fn of(cluster: &Path) -> Self {
        Run {
            from: vec![cluster.to_path_buf()],
            ..Run::default()
        }
    }

    fn file(&mut self, name: &str, text: &str) -> PathBuf {
        let directory = self.directory.get_or_insert_with(|| tempfile::tempdir().unwrap());
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn policy(mut self, text: &str) -> Self {
        self.policy = Some(self.file("policy.yaml", text));
        self
    }

    /// Further objects of the cluster.
    fn objects(mut self, objects: &[Value]) -> Self {
        let number = self.from.len();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let path = self.file(&format!("{number}.json"), &list.to_string());
        self.from.push(path);
        self
    }

    fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    async fn planning(&self) -> Result<Planning, Failure> {
        let config = Config::load(&Flags::default()).unwrap();
        let source = Source {
            namespace: "default".into(),
            from: self.from.clone(),
        };
        let choice = PolicyChoice {
            policy: self.policy.clone(),
            name: self.name.clone(),
        };
        Planning::read(&config, false, &source, &choice).await
    }

    async fn plans(&self) -> Plans {
        self.planning().await.unwrap().plans()
    }

    async fn error(&self) -> String {
        self.planning().await.map(|_| ()).unwrap_err().to_string()
    }
}

/// The text without the directory of the policy's file.
fn shown(text: &str, policy: &Path) -> String {
    let directory = policy.parent().unwrap().display().to_string();
    text.replace(&format!("{directory}/"), "")
}

fn spread_policy(kind: &str, namespace: &str, name: &str) -> Value {
    let mut metadata = json!({"name": name, "uid": name, "resourceVersion": "7"});
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    json!({
        "apiVersion": "placement.knarr.io/v1alpha1", "kind": kind, "metadata": metadata,
        "spec": {"strategies": {"topologySpread": {}}}, "status": {"moves": 0},
    })
}

#[tokio::test]
async fn b3_the_text_has_the_moves_in_waves_the_violations_and_why_others_stay() {
    let run = Run {
        policy: Some(example()),
        ..Run::of(&cluster())
    };
    let plans = run.plans().await;
    assert_eq!(shown(&plans.to_text(false), &example()), EXAMPLE);
    let all = EXAMPLE.replace(" (--all shows why)", "") + STAY;
    assert_eq!(shown(&plans.to_text(true), &example()), all);
}

#[tokio::test]
async fn b3_the_documented_example_is_what_the_command_prints_and_the_documented_policies_are_valid() {
    let document = include_str!("../../../../../docs/rebalancing.md");
    assert!(
        document.contains(EXAMPLE),
        "docs/rebalancing.md has another output"
    );
    let mut policies = 0;
    for block in document.split("```yaml\n").skip(1) {
        let text = block.split("```").next().unwrap();
        let run = Run::of(&cluster()).policy(text);
        run.planning().await.unwrap_or_else(|e| panic!("{e}\n{text}"));
        policies += 1;
    }
    assert_eq!(policies, 2);
}

#[tokio::test]
async fn b3_the_json_has_the_policy_the_moves_the_reasons_and_the_violations() {
    let run = Run {
        policy: Some(example()),
        ..Run::of(&cluster())
    };
    let json = serde_json::to_value(run.plans().await).unwrap();
    let plan = &json["plans"][0];
    let file = example().display().to_string();
    assert_eq!(
        plan["policy"],
        json!({"kind": "ClusterRebalancePolicy", "name": "spread", "file": file, "dryRun": true, "ignored": []})
    );
    assert_eq!(plan["waves"], 2);
    let spread = json!({
        "type": "TopologySpread", "namespace": "shop", "topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": "app=web",
    });
    assert_eq!(
        plan["moves"][1],
        json!({
            "pod": {"namespace": "shop", "name": "web-7d4b-m4", "uid": "uid-web-7d4b-m4"},
            "workload": {"namespace": "shop", "kind": "Deployment", "name": "web"},
            "from": "n1", "to": "n4", "equalNodes": 1, "wave": 1, "isReplacement": false, "rule": "TopologySpread",
            "changes": [{"constraint": spread, "before": 3, "after": 1}],
        })
    );
    assert_eq!(
        plan["notMoved"][0],
        json!({
            "pod": {"namespace": "shop", "name": "cache-88f-b3", "uid": "uid-cache-88f-b3"}, "node": "n5",
            "violates": [{"type": "NodeTaints"}],
            "reason": {
                "code": "DisruptionBudget", "name": "cache",
                "message": "the PodDisruptionBudget cache allows no disruption",
            },
        })
    );
    let violations = json!([
        {"constraint": {"type": "NodeTaints"}, "before": 5, "after": 4},
        {"constraint": spread, "before": 3, "after": 0},
    ]);
    assert_eq!(plan["violations"], violations);
}

#[tokio::test]
async fn b3_what_a_plan_does_not_list_is_counted_in_the_text_and_the_json() {
    let run = Run {
        policy: Some(example()),
        ..Run::of(&cluster())
    };
    let mut plans = run.plans().await;
    let plan = &mut plans.plans[0].plan;
    plan.not_listed.insert("SimulationLimit", 40);
    plan.violations_not_listed = 3;
    let text = plans.to_text(true);
    assert!(
        text.contains("3 moves in 2 waves; 44 pods violate a rule and stay\n"),
        "{text}"
    );
    assert!(text.contains("\n3 rules more\n"), "{text}");
    let last = text.lines().last().unwrap();
    let expected = "40    SimulationLimit   more of them, which are only counted";
    assert!(last.starts_with(expected), "{text}");
    let json = serde_json::to_value(&plans).unwrap();
    assert_eq!(json["plans"][0]["notListed"], json!({"SimulationLimit": 40}));
    assert_eq!(json["plans"][0]["violationsNotListed"], 3);
}

#[tokio::test]
async fn b3_without_a_policy_the_built_in_one_is_used_and_named() {
    let text = Run::of(&cluster()).plans().await.to_text(false);
    let first = text.lines().next().unwrap();
    assert_eq!(
        first,
        "Policy: built in, because the cluster has no RebalancePolicy: TopologySpread, NodeTaints, PodAntiAffinity, \
         NodeAffinity, Duplicates"
    );
    assert!(text.contains("shop/web-7d4b-m4"), "{text}");
}

#[tokio::test]
async fn b3_the_policies_of_the_cluster_are_used_each_with_a_plan_of_its_own() {
    let policies = [
        spread_policy("ClusterRebalancePolicy", "", "all"),
        spread_policy("RebalancePolicy", "shop", "spread"),
        spread_policy("RebalancePolicy", "elsewhere", "spread"),
    ];
    let run = Run::of(&cluster()).objects(&policies);
    let plans = run.plans().await.plans;
    let moves: Vec<(String, usize)> = plans
        .iter()
        .map(|p| (p.policy.to_string(), p.plan.moves.len()))
        .collect();
    assert_eq!(
        moves,
        [
            ("ClusterRebalancePolicy all".to_string(), 2),
            ("RebalancePolicy shop/spread".to_string(), 2),
            // A policy of a namespace is for its pods.
            ("RebalancePolicy elsewhere/spread".to_string(), 0),
        ]
    );
    let several = run.planning().await.unwrap().evictions().map(|_| ()).unwrap_err();
    assert!(
        several
            .to_string()
            .ends_with("choose one with --name: all, shop/spread, elsewhere/spread"),
        "{several}"
    );
    let named = run.named("elsewhere/spread");
    assert_eq!(
        named.plans().await.to_text(false),
        "Policy: RebalancePolicy elsewhere/spread\n\nNothing to move: no rule of the policy is violated.\n"
    );
    let absent = named.named("spread").error().await;
    assert_eq!(
        absent,
        "the cluster has no policy \"spread\"; it has all, shop/spread, elsewhere/spread"
    );
}

#[tokio::test]
async fn b3_an_invalid_policy_of_the_cluster_affects_no_other() {
    let mut broken = spread_policy("RebalancePolicy", "shop", "broken");
    broken["spec"]["budgets"] = json!({"perHour": -1});
    let location = "RebalancePolicy shop/broken: spec.budgets.perHour: Invalid value: -1";
    let only = Run::of(&cluster()).objects(std::slice::from_ref(&broken));
    assert!(only.error().await.starts_with(location), "{}", only.error().await);
    let other = spread_policy("ClusterRebalancePolicy", "", "all");
    let both = Run::of(&cluster()).objects(&[broken, other]);
    assert_eq!(both.plans().await.plans.len(), 1);
    let named = both.named("shop/broken").error().await;
    assert!(named.starts_with(location), "{named}");
}

#[tokio::test]
async fn b3_the_file_of_a_descheduler_is_read_and_what_has_no_effect_is_named() {
    let policy = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerPolicy\nmaxNoOfPodsToEvictTotal: 1\nprofiles:\n\
                  - name: p\n  plugins:\n    balance: {enabled: [RemovePodsViolatingTopologySpreadConstraint, Other]}\n";
    let run = Run::of(&cluster()).policy(policy);
    let path = run.policy.clone().unwrap();
    let text = shown(&run.plans().await.to_text(false), &path);
    let head = "Policy: DeschedulerPolicy (policy.yaml)\n  \
                ignored: maxNoOfPodsToEvictTotal: counts per hour, not per cycle\n  \
                ignored: profiles[0].plugins.balance.enabled[1]: Other has no meaning here\n\n";
    assert!(text.starts_with(head), "{text}");
    assert!(
        text.contains("\n1 move in 1 wave; 3 pods violate a rule"),
        "{text}"
    );
}

#[tokio::test]
async fn b3_errors_of_a_policy_have_the_file_the_policy_and_the_field() {
    let head = "apiVersion: placement.knarr.io/v1alpha1\nkind: ClusterRebalancePolicy\nmetadata: {name: p}\n";
    let spread = "spec: {strategies: {topologySpread: {}}}\n";
    let in_namespace = head.replace("{name: p}", "{name: p, namespace: shop}");
    let cases = [
        ("{".to_string(), "policy.yaml is not valid YAML"),
        (
            String::new(),
            "policy.yaml has no policy: expected a RebalancePolicy",
        ),
        (
            "apiVersion: v1\nkind: Pod\n".into(),
            "policy.yaml: a document: kind: Unsupported value: \"Pod\"",
        ),
        (
            head.replace("v1alpha1", "v1") + spread,
            "policy.yaml: ClusterRebalancePolicy: apiVersion: Unsupported value: \"placement.knarr.io/v1\"",
        ),
        (
            head.replace("name: p", "") + spread,
            "policy.yaml: ClusterRebalancePolicy: metadata.name: Required value",
        ),
        (
            in_namespace + spread,
            "policy.yaml: ClusterRebalancePolicy p: metadata.namespace: Forbidden: a ClusterRebalancePolicy has no",
        ),
        (
            head.into(),
            "policy.yaml: ClusterRebalancePolicy p: spec.strategies: Required value",
        ),
        (
            format!("{head}{spread}specs: {{}}\n"),
            "policy.yaml: ClusterRebalancePolicy p: specs: Forbidden: unknown field",
        ),
        (
            "apiVersion: descheduler/v1alpha1\nkind: DeschedulerPolicy\n".into(),
            "policy.yaml: DeschedulerPolicy: apiVersion: Unsupported value: \"descheduler/v1alpha1\"",
        ),
        (
            format!(
                "{head}spec: {{strategies: {{duplicates: {{}}}}, budgets: {{perHour: -1, perDay: 2}}}}\n"
            ),
            "policy.yaml: ClusterRebalancePolicy p: spec.budgets.perHour: Invalid value: -1: must be greater than or equal \
             to 0\npolicy.yaml: ClusterRebalancePolicy p: spec.budgets.perDay: Forbidden: unknown field",
        ),
    ];
    for (text, expected) in cases {
        let run = Run::of(&cluster()).policy(&text);
        let error = shown(&run.error().await, run.policy.as_deref().unwrap());
        assert!(error.starts_with(expected), "{text}\n{error}");
    }
    let missing = Run {
        policy: Some("/nonexistent/policy.yaml".into()),
        ..Run::of(&cluster())
    };
    let error = missing.error().await;
    assert!(
        error.starts_with("cannot read /nonexistent/policy.yaml: "),
        "{error}"
    );
    let twice = Run {
        policy: Some("-".into()),
        ..Run::of(Path::new("-"))
    };
    let error = twice.error().await;
    assert!(
        error.starts_with("--policy and --from both read standard input"),
        "{error}"
    );
}

#[tokio::test]
async fn b3_of_several_policies_in_a_file_one_is_chosen_by_its_name() {
    let documents = [
        spread_policy("ClusterRebalancePolicy", "", "a"),
        // Without a namespace it is in that of --namespace.
        spread_policy("RebalancePolicy", "", "b"),
        json!({"kind": "List", "items": [spread_policy("RebalancePolicy", "shop", "c")]}),
    ];
    let texts: Vec<String> = documents.iter().map(Value::to_string).collect();
    let run = Run::of(&cluster()).policy(&texts.join("\n---\n"));
    let path = run.policy.clone().unwrap();
    assert_eq!(
        shown(&run.error().await, &path),
        "policy.yaml has several policies: choose one with --name: a, default/b, shop/c"
    );
    let chosen = run.named("shop/c");
    assert_eq!(chosen.plans().await.plans[0].plan.moves.len(), 2);
    let other = chosen.named("default/b");
    assert_eq!(other.plans().await.plans[0].plan.moves.len(), 0);
    assert_eq!(
        shown(&other.named("c").error().await, &path),
        "policy.yaml has no policy \"c\"; it has a, default/b, shop/c"
    );
}

#[tokio::test]
async fn b3_measured_usage_is_read_from_the_metrics_of_the_dump() {
    let policy = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerPolicy\nprofiles:\n- name: p\n  pluginConfig:\n  \
                  - name: LowNodeUtilization\n    args: {thresholds: {cpu: 20}, targetThresholds: {cpu: 50}, \
                  metricsUtilization: {source: KubernetesMetrics}}\n  \
                  plugins: {balance: {enabled: [LowNodeUtilization]}}\n";
    let without = Run::of(&cluster()).policy(policy);
    assert_eq!(without.plans().await.plans[0].plan.moves.len(), 0);
    let api_version = "metrics.k8s.io/v1beta1";
    let node = |name: &str, cpu: &str| json!({"apiVersion": api_version, "kind": "NodeMetrics", "metadata": {"name": name}, "usage": {"cpu": cpu}});
    let mut metrics = vec![
        node("n1", "3"),
        node("n2", "1"),
        node("n3", "100m"),
        node("n4", "1"),
    ];
    for name in ["api-5c9-f1", "web-7d4b-k2", "web-7d4b-m4"] {
        let containers = json!([{"name": "c", "usage": {"cpu": "1"}}]);
        metrics.push(json!({
            "apiVersion": api_version, "kind": "PodMetrics", "metadata": {"name": name, "namespace": "shop"},
            "containers": containers,
        }));
    }
    let with = without.objects(&metrics);
    let plans = with.plans().await.plans;
    let moves = &plans[0].plan.moves;
    assert!(
        moves.len() == 1 && moves[0].from == "n1",
        "{}",
        Plans { plans }.to_text(true)
    );
}
