//! `knarr node`: what the machine's own scripts tell the node that runs on it.

use clap::{Args, Subcommand};
use knarr_node::kubelet::shutdown::{Progress, Request};

use super::Failure;
use crate::config::Config;
use crate::node_socket;

pub const SHUTDOWN_HELP: &str = "\
To be called when the machine goes down, while knarr still runs. Pods end by priority, the lowest first, in the time that
the KubeletConfiguration (--kubelet-config) gives them: shutdownGracePeriod and shutdownGracePeriodCriticalPods, or
shutdownGracePeriodByPodPriority. They end as Failed with the reason Terminated; meanwhile, and until knarr is started
again, the node is not Ready and takes no pods. Ending knarr itself ends no pod, so it may be restarted at any time.

knarr does not ask systemd to hold a shutdown back. A unit beside its own does, as units stop in the reverse order:

    [Unit]
    Description=End the pods of this node before the machine goes down
    After=knarr.service
    Requires=knarr.service
    [Service]
    Type=oneshot
    RemainAfterExit=yes
    ExecStart=/bin/true
    ExecStop=/bin/sh -c 'case \"$(systemctl is-system-running)\" in stopping) exec knarr node shutdown;; esac'
    TimeoutStopSec=10min
    [Install]
    WantedBy=multi-user.target";

#[derive(Args)]
pub struct NodeArgs {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Subcommand)]
enum NodeCommand {
    /// End this node's pods because the machine goes down, and wait for them.
    #[command(after_help = SHUTDOWN_HELP)]
    Shutdown {
        /// The machine stays up after all: the node takes pods again. What has ended stays ended.
        #[arg(long)]
        cancel: bool,
    },
}

pub async fn run(config: Config, args: NodeArgs) -> Result<(), Failure> {
    let NodeCommand::Shutdown { cancel } = args.command;
    let request = if cancel {
        Request::Cancel
    } else {
        Request::Shutdown
    };
    let last = node_socket::ask(&config.data_dir, request, |said| match said {
        Progress::Begun { longest_seconds } => {
            println!("the node shuts down, within {longest_seconds} s at the most");
        }
        Progress::Group {
            priority,
            seconds,
            pods,
        } => println!("ending {pods} pods of priority {priority} and more, within {seconds} s"),
        Progress::Done { .. } | Progress::Rejected { .. } | Progress::Cancelled => {}
    })
    .await?;
    match last {
        Progress::Done { left: 0 } => println!("all pods have ended"),
        Progress::Done { left } => {
            return Err(Failure::new(format!("{left} pods have not ended in their time")));
        }
        Progress::Rejected { why } => return Err(Failure::new(why)),
        Progress::Cancelled if cancel => println!("the node takes pods again"),
        Progress::Cancelled => return Err(Failure::new("the shutdown was called off")),
        Progress::Begun { .. } | Progress::Group { .. } => {}
    }
    Ok(())
}
