//! `knarr plan` (SPEC B3): what a controller of knarr would do, computed once and shown. Nothing is written.

use knarr_apimachinery::ids::PodUid;

mod output;
mod policies;
#[cfg(test)]
mod tests;
mod usage;

use std::path::Path;
use std::sync::Arc;

use clap::{Args, Subcommand};
use knarr_api::Object;
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_client::{Clock, SystemClock};
use knarr_rebalance::plan::Move;
use knarr_rebalance::snapshot::{Snapshot, Usage};
use knarr_scheduler::Profile;
use knarr_scheduler::whatif::Change;

use self::output::{Planned, Plans};
use self::policies::NamedPolicy;
pub use self::policies::PolicyChoice;
use super::Failure;
use super::snapshot::{DocumentKind, ObjectReader, Source, scheduling};
use super::version::Output;
use crate::config::Config;

pub const HELP: &str = "\
Nothing is written: a plan is computed from a copy of the cluster. `rebalance` takes pods away from that copy, asks the \
scheduler's own filters and scores where their replacements would be placed, and keeps a move only if no rule is violated more \
there and one that the policy names is violated less.

  knarr plan rebalance                             with the policies of the cluster, or the built-in one
  knarr plan rebalance --policy rebalance.yaml     with a policy that is not in the cluster (yet)
  knarr plan rebalance --policy descheduler.yaml   with the descheduler's policy, descheduler/v1alpha2
  knarr plan rebalance --name shop/spread --all    one policy of several, and why each other pod stays
  kubectl get nodes,pods,ns,rs,sts,svc,pdb,priorityclasses,pvc,pv,sc -A -o json > dump.json
  knarr plan rebalance --policy rebalance.yaml --from dump.json -o json
  knarr whatif rebalance --policy rebalance.yaml   what happens to the cluster's pods after these moves

WAVE: the moves of a wave may be carried out together; the next wave waits until their replacements are Ready. TO: where the \
scheduler would place the replacement (`or 2 equal`: it may choose 2 other nodes, which are as good). WHY: the rule that the pod \
is moved for, and each rule whose violation changes.

The built-in policy restores topology spread constraints, taints, pod anti-affinity, required node affinity and even distributions \
of workloads over nodes. The cluster is that of --kubeconfig, else of $KUBECONFIG, else of knarr on this host. The exit code is 0, \
whether pods are to be moved or not.";

/// What is read beyond what scheduling depends on.
const DOCUMENTS: [DocumentKind; 4] = [
    policies::CLUSTER_REBALANCE_POLICY,
    policies::REBALANCE_POLICY,
    usage::NODE_METRICS,
    usage::POD_METRICS,
];

#[derive(Args)]
#[command(after_help = HELP)]
pub struct PlanArgs {
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Subcommand)]
enum PlanCommand {
    /// Show which pods a rebalancer would move, where to and why, and why others stay.
    #[command(after_help = HELP)]
    Rebalance {
        #[command(flatten)]
        choice: PolicyChoice,
        #[command(flatten)]
        source: Source,
        /// Show why the other pods that violate a rule stay, also if pods are moved.
        #[arg(long)]
        all: bool,
        /// Print as `text` or `json`.
        #[arg(short, long, value_enum, default_value = "text")]
        output: Output,
    },
}

pub async fn run(config: Config, args: PlanArgs, kubeconfig_named: bool) -> Result<(), Failure> {
    let PlanCommand::Rebalance {
        choice,
        source,
        all,
        output,
    } = args.command;
    let planning = Planning::read(&config, kubeconfig_named, &source, &choice).await?;
    let plans = planning.plans();
    match output {
        Output::Text => print!("{}", plans.to_text(all)),
        Output::Json => super::print_json(&plans)?,
    }
    Ok(())
}

/// All that plans are made from.
pub struct Planning {
    policies: Vec<NamedPolicy>,
    profiles: Vec<Profile>,
    pub objects: Vec<Arc<Object>>,
    usage: Usage,
    pub now: Timestamp,
}

impl Planning {
    pub async fn read(
        config: &Config,
        kubeconfig_named: bool,
        source: &Source,
        choice: &PolicyChoice,
    ) -> Result<Self, Failure> {
        let is_standard_input = |path: &Path| path.as_os_str() == "-";
        let policy = choice.policy.as_deref();
        if policy.is_some_and(is_standard_input) && source.from.iter().any(|path| is_standard_input(path)) {
            return Err(Failure::new(
                "--policy and --from both read standard input: expected one file or `-` for only one of them",
            ));
        }
        // An error in a policy's file is reported before the cluster is read.
        let from_file = choice.read_file(&source.namespace)?;
        let reader = ObjectReader::open(&source.from, config, kubeconfig_named).await?;
        let policies = match from_file {
            Some(policy) => vec![policy],
            None => choice.read_cluster(&reader).await?,
        };
        let objects = reader.objects(&scheduling(&DOCUMENTS)).await?;
        let usage = if usage::is_needed(policies.iter().map(|p| &p.policy)) {
            usage::read(&reader).await
        } else {
            Usage::default()
        };
        Ok(Planning {
            policies,
            profiles: config.scheduler.profiles.iter().map(Profile::from).collect(),
            objects,
            usage,
            now: SystemClock.now(),
        })
    }

    /// The plan of each policy, each from the present state.
    fn plans(self) -> Plans {
        let snapshot = Snapshot::new(self.profiles, &self.objects, self.now).with_usage(self.usage);
        let plan = |policy: NamedPolicy| Planned {
            plan: knarr_rebalance::plan(&snapshot, &policy.policy),
            policy,
        };
        Plans {
            plans: self.policies.into_iter().map(plan).collect(),
        }
    }

    /// The moves of the only policy's plan.
    pub fn evictions(self) -> Result<Evictions, Failure> {
        let mut plans = self.plans().plans;
        match (plans.pop(), plans.is_empty()) {
            (Some(planned), true) => Ok(Evictions::of(planned)),
            (last, _) => {
                let names = plans.iter().chain(&last).map(|p| p.policy.full_name());
                Err(Failure::new(format!(
                    "the cluster has several policies: choose one with --name: {}",
                    names.collect::<Vec<_>>().join(", ")
                )))
            }
        }
    }
}

/// A plan as the evictions that carry it out.
pub struct Evictions {
    pub change: Change,
    /// What of the policy has no effect here.
    pub ignored: Vec<String>,
}

impl Evictions {
    fn of(Planned { policy, plan }: Planned) -> Self {
        let uids = |wave: &[Move]| -> Vec<PodUid> { wave.iter().map(|step| step.pod.uid.clone()).collect() };
        let waves = plan.moves.chunk_by(|a, b| a.wave == b.wave).map(uids).collect();
        Evictions {
            change: Change::Evict { waves },
            ignored: policy.ignored,
        }
    }
}
