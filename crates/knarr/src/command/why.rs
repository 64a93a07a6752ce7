//! `knarr why` (SPEC B1): which plugin rejects which node for a pod, and the smallest change with which it would be scheduled.

use clap::Args;
use knarr_scheduler::why::{Verdict, Why};

use super::Failure;
use super::columns::{some, table};
use super::snapshot::Source;
use super::version::Output;
use crate::config::Config;

/// How many nodes of a group are shown; `-o json` has all.
const NAMED: usize = 6;

pub const HELP: &str = "\
Nothing is written: the scheduler's own plugins run on a copy of the cluster. Every suggested change was tried on that \
copy, and the pod was scheduled with it.

  knarr why web-7d4b9c                       a pod of the namespace default
  knarr why web-7d4b9c -n shop -o json       of another namespace, as JSON
  kubectl get nodes,pods,rs,pvc,pv,sc -A -o json > dump.json
  knarr why web-7d4b9c --from dump.json      without the cluster

The cluster is that of --kubeconfig, else of $KUBECONFIG, else of knarr on this host.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct WhyArgs {
    /// The pod, as POD or pod/POD.
    pod: String,
    #[command(flatten)]
    source: Source,
    /// Print as `text` or `json`.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

pub async fn run(config: Config, args: WhyArgs, kubeconfig_named: bool) -> Result<(), Failure> {
    let snapshot = args.source.snapshot(&config, kubeconfig_named).await?;
    let name = super::bare_name(&args.pod, &["pod", "pods", "po"])?;
    let why = snapshot.why(&args.source.namespace, name).map_err(|e| {
        Failure::new(format!("cannot explain the pod {}/{name}", args.source.namespace)).because(e)
    })?;
    match args.output {
        Output::Text => print!("{}", to_text(&why)),
        Output::Json => super::print_json(&why)?,
    }
    Ok(())
}

fn to_text(why: &Why) -> String {
    let pod = &why.pod;
    let mut text = match &why.verdict {
        Verdict::Finished => format!("{pod} has terminated: it is not scheduled again.\n"),
        Verdict::Bound { node } => format!("{pod} is assigned to {node}.\n"),
        Verdict::Gated { gates } => format!(
            "{pod} waits until its scheduling gates are removed: {}.\n",
            gates.join(", ")
        ),
        Verdict::NotMine { scheduler_name } => {
            format!(
                "{pod} waits for the scheduler {scheduler_name}, which is not a profile of this cluster's scheduler.\n"
            )
        }
        Verdict::Fits { nodes } => {
            format!("{pod} fits on {nodes} nodes now: it waits in the scheduling queue.\n")
        }
        Verdict::Waits { message } => format!("{pod} fits on no node: {message}\n"),
    };
    if !why.rejected.is_empty() {
        let mut rows = vec![["PLUGIN", "NODES", "WHY", "WHICH"].map(String::from).to_vec()];
        for rejected in &why.rejected {
            let nodes = &rejected.nodes;
            rows.push(vec![
                if rejected.plugin.is_empty() {
                    "(not evaluated)"
                } else {
                    rejected.plugin
                }
                .to_string(),
                if nodes.is_empty() {
                    "all".into()
                } else {
                    nodes.len().to_string()
                },
                rejected.words.clone(),
                some(nodes, NAMED),
            ]);
        }
        text.push('\n');
        text.push_str(&table(&rows));
    }
    if !why.domains.is_empty() {
        text.push('\n');
        for domain in &why.domains {
            text.push_str(&format!("{domain}.\n"));
        }
    }
    if let Some(preemption) = why.preemption.as_ref().filter(|p| !p.is_empty()) {
        text.push_str(&format!("\nPreemption: {preemption}\n"));
    }
    if let Verdict::Waits { .. } = why.verdict {
        if why.help.is_empty() {
            text.push_str(
                "\nNo single change of the pod, nor two together, would make it fit on a node now.\n",
            );
        } else {
            let rows = why.help.iter().map(|help| {
                vec![
                    "  ".to_string() + &help.change,
                    format!("then it is scheduled to {}", help.node),
                ]
            });
            text.push_str("\nEach of these changes would make it fit:\n");
            text.push_str(&table(&rows.collect::<Vec<_>>()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use knarr_scheduler::why::{RejectedNodes, Suggestion};

    use super::*;

    #[test]
    fn b1_the_text_output_names_the_plugin_the_nodes_and_what_would_help() {
        let why = Why {
            pod: "default/web".into(),
            verdict: Verdict::Waits {
                message: "0/9 nodes are available: 9 Insufficient cpu.".into(),
            },
            rejected: vec![RejectedNodes {
                plugin: "NodeResourcesFit",
                words: "has left only 1 cpu of the 2 requested".into(),
                nodes: (1..10).map(|n| format!("n{n}").into()).collect(),
            }],
            preemption: None,
            domains: Vec::new(),
            help: vec![Suggestion {
                change: "request 1 cpu in all".into(),
                node: "n1".into(),
            }],
        };
        assert_eq!(
            to_text(&why),
            "default/web fits on no node: 0/9 nodes are available: 9 Insufficient cpu.\n\n\
             PLUGIN            NODES  WHY                                     WHICH\n\
             NodeResourcesFit  9      has left only 1 cpu of the 2 requested  n1, n2, n3, n4, n5, n6 and 3 more\n\n\
             Each of these changes would make it fit:\n  request 1 cpu in all  then it is scheduled to n1\n"
        );
        let json = serde_json::to_value(&why).unwrap();
        assert_eq!(json["verdict"], "Waits");
        assert_eq!(json["refused"][0]["nodes"][8], "n9");
    }

    #[test]
    fn b3_the_text_output_has_the_declared_domains() {
        let why = Why {
            pod: "default/web".into(),
            verdict: Verdict::Fits { nodes: 2 },
            rejected: Vec::new(),
            preemption: None,
            domains: vec!["zone=c (TopologyDomains zones) is lost".into()],
            help: Vec::new(),
        };
        assert_eq!(
            to_text(&why),
            "default/web fits on 2 nodes now: it waits in the scheduling queue.\n\n\
             zone=c (TopologyDomains zones) is lost.\n"
        );
    }
}
