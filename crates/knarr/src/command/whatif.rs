//! `knarr whatif` (SPEC B2): what a change would do to the pods of a cluster, without doing it.

use clap::{Args, Subcommand};
use knarr_scheduler::whatif::{Change, Snapshot, WhatIf};

use super::Failure;
use super::columns::table;
use super::plan::{Planning, PolicyChoice};
use super::snapshot::Source;
use super::version::Output;
use crate::config::Config;

pub const HELP: &str = "\
Nothing is written: the scheduler runs on a copy of the cluster until no pod is moved any more, as it would in the \
cluster itself. Deleted pods that have a controller are created again as the controller would. A scale-down deletes \
the pods that the controller would delete; the cluster's --scale-down-policy is taken from this command's settings.

  knarr whatif drain node-3                          which pods move, stay pending, or are blocked by a budget
  knarr whatif scale deployment/web 50 -n shop       where new pods are placed, and which pods they preempt
  knarr whatif lose-zone eu-west-1b                  which pods still run without the zone
  knarr whatif priority web-7d4b9c high -n shop      which pods a pod would preempt
  knarr whatif rebalance --policy rebalance.yaml     the moves of `knarr plan rebalance`, and what follows from them
  kubectl get nodes,pods,deploy,rs,sts,svc,pdb,priorityclasses,pvc,pv,sc -A -o json > dump.json
  knarr whatif drain node-3 --from dump.json         without the cluster

The cluster is that of --kubeconfig, else of $KUBECONFIG, else of knarr on this host.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct WhatIfArgs {
    #[command(subcommand)]
    command: WhatIfCommand,
}

#[derive(Args)]
struct Common {
    #[command(flatten)]
    source: Source,
    /// Print as `text` or `json`.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Subcommand)]
enum WhatIfCommand {
    /// Cordon a node and evict its pods, as `kubectl drain --ignore-daemonsets --force` does.
    Drain {
        /// The node, as NODE or node/NODE.
        node: String,
        #[command(flatten)]
        common: Common,
    },
    /// Scale a workload.
    Scale {
        /// The workload, as KIND/NAME, such as deployment/web, sts/db, rs/web-7d4b.
        workload: String,
        /// The new number of replicas.
        replicas: usize,
        #[command(flatten)]
        common: Common,
    },
    /// Lose all nodes of a zone (topology.kubernetes.io/zone) for good.
    LoseZone {
        zone: String,
        #[command(flatten)]
        common: Common,
    },
    /// Create a pod again with another PriorityClass.
    Priority {
        /// The pod, as POD or pod/POD.
        pod: String,
        /// The name of the PriorityClass.
        class: String,
        #[command(flatten)]
        common: Common,
    },
    /// Evict the pods that `knarr plan rebalance` would move, wave by wave.
    Rebalance {
        #[command(flatten)]
        choice: PolicyChoice,
        #[command(flatten)]
        common: Common,
    },
}

/// The kinds that can be scaled, with the names that kubectl accepts.
const WORKLOADS: [(&str, &[&str]); 5] = [
    ("Deployment", &["deployment", "deployments", "deploy"]),
    ("ReplicaSet", &["replicaset", "replicasets", "rs"]),
    ("StatefulSet", &["statefulset", "statefulsets", "sts"]),
    (
        "ReplicationController",
        &["replicationcontroller", "replicationcontrollers", "rc"],
    ),
    ("Job", &["job", "jobs"]),
];

fn workload(named: &str) -> Result<(&'static str, &str), Failure> {
    let expected = || {
        Failure::new(format!(
            "{named:?} is not a workload: expected KIND/NAME with deployment, replicaset, statefulset, \
             replicationcontroller or job, such as deployment/web"
        ))
    };
    let (kind, name) = named.split_once('/').ok_or_else(expected)?;
    // `deployment.apps/web` is what kubectl prints.
    let kind = kind.split('.').next().unwrap_or(kind).to_lowercase();
    let found = WORKLOADS.iter().find(|(_, names)| names.contains(&&*kind));
    match found {
        Some((kind, _)) if !name.is_empty() => Ok((kind, name)),
        _ => Err(expected()),
    }
}

/// What is to be computed, and on which snapshot.
struct Simulation {
    snapshot: Snapshot,
    change: Change,
    output: Output,
}

/// The moves of the plan, on the snapshot that it was made from.
async fn rebalance(
    choice: &PolicyChoice,
    common: &Common,
    config: &Config,
    kubeconfig_named: bool,
) -> Result<Simulation, Failure> {
    let planning = Planning::read(config, kubeconfig_named, &common.source, choice).await?;
    let snapshot = Snapshot::new(config.scheduler.scheduler(), &planning.objects, planning.now);
    let evictions = planning.evictions()?;
    for ignored in &evictions.ignored {
        eprintln!("knarr: warning: {ignored}");
    }
    Ok(Simulation {
        snapshot,
        change: evictions.change,
        output: common.output,
    })
}

async fn simulation(
    command: WhatIfCommand,
    config: &Config,
    kubeconfig_named: bool,
) -> Result<Simulation, Failure> {
    let (change, common) = match command {
        WhatIfCommand::Rebalance { choice, common } => {
            return rebalance(&choice, &common, config, kubeconfig_named).await;
        }
        WhatIfCommand::Drain { node, common } => {
            let node = super::bare_name(&node, &["node", "nodes", "no"])?.into();
            (Change::Drain { node }, common)
        }
        WhatIfCommand::LoseZone { zone, common } => (Change::LoseZone { zone }, common),
        WhatIfCommand::Scale {
            workload: named,
            replicas,
            common,
        } => {
            let (kind, name) = workload(&named)?;
            let change = Change::Scale {
                kind: kind.into(),
                namespace: common.source.namespace.clone(),
                name: name.into(),
                replicas,
            };
            (change, common)
        }
        WhatIfCommand::Priority { pod, class, common } => {
            let change = Change::Priority {
                namespace: common.source.namespace.clone(),
                pod: super::bare_name(&pod, &["pod", "pods", "po"])?.to_string(),
                class,
            };
            (change, common)
        }
    };
    Ok(Simulation {
        snapshot: common.source.snapshot(config, kubeconfig_named).await?,
        change,
        output: common.output,
    })
}

pub async fn run(config: Config, args: WhatIfArgs, kubeconfig_named: bool) -> Result<(), Failure> {
    let Simulation {
        snapshot,
        change,
        output,
    } = simulation(args.command, &config, kubeconfig_named).await?;
    let what = snapshot
        .what_if(&change)
        .map_err(|e| Failure::new("cannot compute the change").because(e))?;
    match output {
        Output::Text => print!("{}", to_text(&what)),
        Output::Json => super::print_json(&what)?,
    }
    Ok(())
}

fn to_text(what: &WhatIf) -> String {
    let mut rows = vec![["POD", "WHAT", "FROM", "TO", "WHY"].map(String::from).to_vec()];
    let mut row = |pod: &str, what: &str, from: &str, to: &str, why: &str| {
        rows.push([pod, what, from, to, why].map(String::from).to_vec());
    };
    for p in &what.placements {
        match &p.from {
            Some(from) => row(&p.pod, "moves", from, &p.to, ""),
            None => row(&p.pod, "placed", "", &p.to, ""),
        }
    }
    for v in &what.victims {
        let why = format!("makes room for {}", v.by);
        row(&v.pod, "preempted", &v.node, "", &why);
    }
    let groups = [
        ("pending", &what.pending),
        ("deleted", &what.gone),
        ("blocked", &what.blocked),
    ];
    for (group, pods) in groups {
        for pod in pods {
            row(&pod.pod, group, "", "", &pod.words);
        }
    }
    if rows.len() == 1 {
        return "Nothing would change: no pod is placed, moved or pending.\n".into();
    }
    let sum = format!(
        "\n{} placed, {} preempted, {} pending, {} deleted, {} blocked\n",
        what.placements.len(),
        what.victims.len(),
        what.pending.len(),
        what.gone.len(),
        what.blocked.len()
    );
    table(&rows) + &sum
}

#[cfg(test)]
mod tests {
    use knarr_scheduler::whatif::{Placement, PodMessage};

    use super::*;

    #[test]
    fn b2_a_workload_is_named_as_kubectl_names_it() {
        for named in ["deploy/web", "Deployment/web", "deployment.apps/web"] {
            assert_eq!(workload(named).unwrap(), ("Deployment", "web"), "{named}");
        }
        for wrong in ["web", "deploy/", "node/web", ""] {
            let error = workload(wrong).unwrap_err().to_string();
            assert!(error.contains("expected KIND/NAME"), "{wrong}: {error}");
        }
    }

    #[test]
    fn b2_the_text_output_is_a_table_with_a_summary() {
        let what = WhatIf {
            placements: vec![Placement {
                pod: "default/web-1".into(),
                from: Some("n1".into()),
                to: "n2".into(),
            }],
            pending: vec![PodMessage {
                pod: "default/big".into(),
                words: "0/2 nodes are available".into(),
            }],
            ..WhatIf::default()
        };
        assert_eq!(
            to_text(&what),
            "POD            WHAT     FROM  TO  WHY\n\
             default/web-1  moves    n1    n2\n\
             default/big    pending            0/2 nodes are available\n\n\
             1 placed, 0 preempted, 1 pending, 0 deleted, 0 blocked\n"
        );
        assert!(to_text(&WhatIf::default()).starts_with("Nothing would change"));
    }

    #[tokio::test]
    async fn b3_the_moves_of_a_plan_are_what_then_happens() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let common = Common {
            source: Source {
                namespace: "default".into(),
                from: vec![crates.join("src/command/plan/tests/cluster.json")],
            },
            output: Output::Text,
        };
        let choice = PolicyChoice {
            policy: Some(crates.join("../../examples/rebalance.yaml")),
            name: None,
        };
        let config = Config::load(&crate::config::Flags::default()).unwrap();
        let simulation = rebalance(&choice, &common, &config, false).await.unwrap();
        let Change::Evict { waves } = &simulation.change else {
            panic!("{:?}", simulation.change);
        };
        assert_eq!(waves.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        let what = simulation.snapshot.what_if(&simulation.change).unwrap();
        // As in the output of `knarr plan rebalance` (`plan/tests.rs`).
        assert_eq!(
            to_text(&what),
            "POD               WHAT   FROM  TO  WHY\n\
             shop/api-5c9-x7   moves  n5    n4\n\
             shop/web-7d4b-m4  moves  n1    n4\n\
             shop/web-7d4b-r8  moves  n2    n3\n\n\
             3 placed, 0 preempted, 0 pending, 0 deleted, 0 blocked\n"
        );
    }
}
