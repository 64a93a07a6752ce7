//! `knarr whatif` (SPEC B2): what a change would do to the pods of a cluster, without doing it.

use clap::{Args, Subcommand};
use knarr_scheduler::whatif::{Change, WhatIf};

use super::Failure;
use super::columns::table;
use super::snapshot::Source;
use super::version::Output;
use crate::config::Config;

pub const HELP: &str = "\
Nothing is written: the scheduler decides on a copy of the cluster until nothing moves any more, as it would decide in \
the cluster itself. Pods that go and have a controller come back as it would make them.

  knarr whatif drain node-3                          which pods move, which wait, which a budget holds back
  knarr whatif scale deployment/web 50 -n shop       where new pods go, whom they cost
  knarr whatif lose-zone eu-west-1b                  what is left when a zone is gone
  knarr whatif priority web-7d4b9c high -n shop      whom a pod would push aside
  kubectl get nodes,pods,deploy,rs,sts,svc,pdb,priorityclasses,pvc,pv,sc -A -o json > dump.json
  knarr whatif drain node-3 --from dump.json         without the cluster

The cluster is that of --kubeconfig, else of $KUBECONFIG, else of this machine's knarr.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct WhatIfArgs {
    #[command(subcommand)]
    what: What,
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
enum What {
    /// A node is cordoned and its pods are evicted, as `kubectl drain --ignore-daemonsets --force` does it.
    Drain {
        /// The node, as NODE or node/NODE.
        node: String,
        #[command(flatten)]
        common: Common,
    },
    /// A workload has more pods, or fewer.
    Scale {
        /// KIND/NAME, such as deployment/web, sts/db, rs/web-7d4b.
        workload: String,
        /// How many pods it has then.
        replicas: usize,
        #[command(flatten)]
        common: Common,
    },
    /// All nodes of a zone (topology.kubernetes.io/zone) are gone for good.
    LoseZone {
        zone: String,
        #[command(flatten)]
        common: Common,
    },
    /// A pod is made anew with another priority class.
    Priority {
        /// The pod, as POD or pod/POD.
        pod: String,
        /// The name of the class.
        class: String,
        #[command(flatten)]
        common: Common,
    },
}

/// What can be scaled, under the names that kubectl knows.
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
            "{named:?} names no workload: expected KIND/NAME with deployment, replicaset, statefulset, \
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

fn change(what: What) -> Result<(Change, Common), Failure> {
    Ok(match what {
        What::Drain { node, common } => {
            let node = super::bare_name(&node, &["node", "nodes", "no"])?.to_string();
            (Change::Drain { node }, common)
        }
        What::LoseZone { zone, common } => (Change::LoseZone { zone }, common),
        What::Scale {
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
        What::Priority { pod, class, common } => {
            let change = Change::Priority {
                namespace: common.source.namespace.clone(),
                pod: super::bare_name(&pod, &["pod", "pods", "po"])?.to_string(),
                class,
            };
            (change, common)
        }
    })
}

pub async fn run(config: Config, args: WhatIfArgs, kubeconfig_named: bool) -> Result<(), Failure> {
    let (change, common) = change(args.what)?;
    let picture = common.source.picture(&config, kubeconfig_named).await?;
    let what = picture
        .what_if(&change)
        .map_err(|e| Failure::new("cannot imagine that").because(e))?;
    match common.output {
        Output::Text => print!("{}", shown(&what)),
        Output::Json => super::print_json(&what)?,
    }
    Ok(())
}

fn shown(what: &WhatIf) -> String {
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
        ("gone", &what.gone),
        ("blocked", &what.blocked),
    ];
    for (group, said) in groups {
        for of in said {
            row(&of.pod, group, "", "", &of.words);
        }
    }
    if rows.len() == 1 {
        return "Nothing would change: no pod is placed, moved or left waiting.\n".into();
    }
    let sum = format!(
        "\n{} placed, {} preempted, {} left waiting, {} gone, {} blocked\n",
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
    use knarr_scheduler::whatif::{Placement, Said};

    use super::*;

    #[test]
    fn b2_a_workload_is_named_as_kubectl_names_it() {
        for named in ["deploy/web", "Deployment/web", "deployment.apps/web"] {
            assert_eq!(workload(named).unwrap(), ("Deployment", "web"), "{named}");
        }
        for wrong in ["web", "deploy/", "node/web", ""] {
            let said = workload(wrong).unwrap_err().to_string();
            assert!(said.contains("expected KIND/NAME"), "{wrong}: {said}");
        }
    }

    #[test]
    fn b2_the_answer_is_a_table_with_its_sum() {
        let what = WhatIf {
            placements: vec![Placement {
                pod: "default/web-1".into(),
                from: Some("n1".into()),
                to: "n2".into(),
            }],
            pending: vec![Said {
                pod: "default/big".into(),
                words: "0/2 nodes are available".into(),
            }],
            ..WhatIf::default()
        };
        assert_eq!(
            shown(&what),
            "POD            WHAT     FROM  TO  WHY\n\
             default/web-1  moves    n1    n2\n\
             default/big    pending            0/2 nodes are available\n\n\
             1 placed, 0 preempted, 1 left waiting, 0 gone, 0 blocked\n"
        );
        assert!(shown(&WhatIf::default()).starts_with("Nothing would change"));
    }
}
