//! `knarr why` (SPEC B1): which rule refuses which node to a pod, and the smallest change that would place it.

use clap::Args;
use knarr_scheduler::why::{Verdict, Why};

use super::Failure;
use super::columns::{some, table};
use super::snapshot::Source;
use super::version::Output;
use crate::config::Config;

/// So many nodes of a group are named; `-o json` has all.
const NAMED: usize = 6;

pub const HELP: &str = "\
Nothing is written: the scheduler's own rules are asked on a copy of the cluster. What is offered as help was tried on \
that copy and placed the pod.

  knarr why web-7d4b9c                       a pod of the namespace default
  knarr why web-7d4b9c -n shop -o json       for programs
  kubectl get nodes,pods,rs,pvc,pv,sc -A -o json > dump.json
  knarr why web-7d4b9c --from dump.json      without the cluster

The cluster is that of --kubeconfig, else of $KUBECONFIG, else of this machine's knarr.";

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
    let picture = args.source.picture(&config, kubeconfig_named).await?;
    let name = super::bare_name(&args.pod, &["pod", "pods", "po"])?;
    let why = picture
        .why(&args.source.namespace, name)
        .map_err(|e| Failure::new("cannot say why").because(e))?;
    match args.output {
        Output::Text => print!("{}", shown(&why)),
        Output::Json => super::print_json(&why)?,
    }
    Ok(())
}

fn shown(why: &Why) -> String {
    let pod = &why.pod;
    let mut text = match &why.verdict {
        Verdict::Finished => format!("{pod} has finished: it needs no node.\n"),
        Verdict::Bound { node } => format!("{pod} is on {node}.\n"),
        Verdict::Gated { gates } => format!(
            "{pod} waits for its scheduling gates to be taken away: {}.\n",
            gates.join(", ")
        ),
        Verdict::NotMine { scheduler_name } => {
            format!(
                "{pod} waits for the scheduler {scheduler_name}, which is not of this cluster's control plane.\n"
            )
        }
        Verdict::Fits { nodes } => {
            format!("{pod} fits on {nodes} of the nodes as they are now: it is only to be its turn.\n")
        }
        Verdict::Waits { message } => format!("{pod} fits on no node: {message}\n"),
    };
    if !why.refused.is_empty() {
        let mut rows = vec![["RULE", "NODES", "WHY", "WHICH"].map(String::from).to_vec()];
        for refused in &why.refused {
            let nodes = &refused.nodes;
            rows.push(vec![
                if refused.plugin.is_empty() {
                    "(not asked)"
                } else {
                    refused.plugin
                }
                .to_string(),
                if nodes.is_empty() {
                    "all".into()
                } else {
                    nodes.len().to_string()
                },
                refused.words.clone(),
                some(nodes, NAMED),
            ]);
        }
        text.push('\n');
        text.push_str(&table(&rows));
    }
    if let Some(preemption) = why.preemption.as_ref().filter(|p| !p.is_empty()) {
        text.push_str(&format!("\nMaking room by preemption: {preemption}\n"));
    }
    if let Verdict::Waits { .. } = why.verdict {
        if why.help.is_empty() {
            text.push_str("\nNo single change of the pod, nor two together, would place it now.\n");
        } else {
            let rows = why.help.iter().map(|help| {
                vec![
                    "  ".to_string() + &help.change,
                    format!("then it goes to {}", help.node),
                ]
            });
            text.push_str("\nAny one of these would place it:\n");
            text.push_str(&table(&rows.collect::<Vec<_>>()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use knarr_scheduler::why::{Help, Refused};

    use super::*;

    #[test]
    fn b1_the_answer_names_the_rule_the_nodes_and_what_would_help() {
        let why = Why {
            pod: "default/web".into(),
            verdict: Verdict::Waits {
                message: "0/9 nodes are available: 9 Insufficient cpu.".into(),
            },
            refused: vec![Refused {
                plugin: "NodeResourcesFit",
                words: "has left only 1 cpu of the 2 asked for".into(),
                nodes: (1..10).map(|n| format!("n{n}")).collect(),
            }],
            preemption: None,
            help: vec![Help {
                change: "ask for 1 cpu in all".into(),
                node: "n1".into(),
            }],
        };
        assert_eq!(
            shown(&why),
            "default/web fits on no node: 0/9 nodes are available: 9 Insufficient cpu.\n\n\
             RULE              NODES  WHY                                     WHICH\n\
             NodeResourcesFit  9      has left only 1 cpu of the 2 asked for  n1, n2, n3, n4, n5, n6 and 3 more\n\n\
             Any one of these would place it:\n  ask for 1 cpu in all  then it goes to n1\n"
        );
        let json = serde_json::to_value(&why).unwrap();
        assert_eq!(json["verdict"], "Waits");
        assert_eq!(json["refused"][0]["nodes"][8], "n9");
    }
}
