//! `knarr node`: commands for the node of this host, such as its graceful shutdown.

use clap::{Args, Subcommand};
use knarr_node::kubelet::shutdown::{Progress, Request};

use super::Failure;
use crate::config::Config;
use crate::node_socket;

pub const SHUTDOWN_HELP: &str = "\
Graceful node shutdown: to be called when the host shuts down, while knarr still runs. Pods are terminated by priority, the
lowest first, within the time that the KubeletConfiguration (--kubelet-config) sets: shutdownGracePeriod and
shutdownGracePeriodCriticalPods, or shutdownGracePeriodByPodPriority. Their phase is then Failed with the reason Terminated;
meanwhile, and until knarr is started again, the node is not Ready and accepts no pods. Stopping knarr itself terminates no
pod, so it may be restarted at any time.

knarr takes no systemd inhibitor lock. A second unit delays the shutdown, as units stop in the reverse order:

    [Unit]
    Description=Terminate the pods of this node before the host shuts down
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
    /// Terminate this node's pods because the host shuts down, and wait for them.
    #[command(after_help = SHUTDOWN_HELP)]
    Shutdown {
        /// The host does not shut down after all: the node accepts pods again. Pods that are terminated stay terminated.
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
    let last = node_socket::send(&config.data_dir, request, |progress| match progress {
        Progress::Begun { max_seconds } => {
            println!("the node shuts down, within {max_seconds} s");
        }
        Progress::Group {
            priority,
            seconds,
            pods,
        } => println!("terminating {pods} pods of priority {priority} or higher, within {seconds} s"),
        Progress::Done { .. } | Progress::Rejected { .. } | Progress::Cancelled => {}
    })
    .await?;
    match last {
        Progress::Done { left: 0 } => println!("all pods are terminated"),
        Progress::Done { left } => {
            return Err(Failure::new(format!(
                "{left} pods did not terminate within their grace period"
            )));
        }
        Progress::Rejected { why } => return Err(Failure::new(why)),
        Progress::Cancelled if cancel => println!("the node accepts pods again"),
        Progress::Cancelled => return Err(Failure::new("the shutdown was cancelled")),
        Progress::Begun { .. } | Progress::Group { .. } => {}
    }
    Ok(())
}
