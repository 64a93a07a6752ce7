//! `knarr down`: ends the process, then everything it ran on this machine.

use std::time::Duration;

use clap::Args;
use knarr_node::containerd::{Containerd, stop_leftover};
use knarr_node::runtime::cri::Cri;
use knarr_node::teardown;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Failure, cluster, network};
use crate::config::Config;
use crate::lock::{self, DataDir};

/// How long the running knarr gets to end on TERM.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at whether it has ended.
const END_POLL: Duration = Duration::from_millis(20);

#[derive(Args)]
pub struct DownArgs {
    /// Forget everything: objects, images, certificates and the kubeconfig.
    #[arg(long)]
    wipe: bool,
}

pub async fn run(config: Config, args: DownArgs) -> Result<(), Failure> {
    if !config.data_dir.exists() {
        println!("nothing is up: there is no {}", config.data_dir.display());
        return Ok(());
    }
    end_process(&config).await?;
    let _held = DataDir::lock(&config.data_dir)?;
    let mut faults = Vec::new();
    let containerd = cluster::containerd_config(&config);
    if containerd.file().exists() {
        let cancel = CancellationToken::new();
        let failed = |e| Failure::new("cannot start containerd, which is needed to end the pods").because(e);
        let running = Containerd::start(containerd.clone(), cancel.clone())
            .await
            .map_err(failed)?;
        let runtime = Cri::new(&format!("unix://{}", running.socket().display()));
        running.serves(&runtime).await.map_err(failed)?;
        let _agent = network::serve_departures(&config).await?;
        println!("ending the pods …");
        let torn = teardown::stop_pods(&runtime).await;
        println!("{} pods ended", torn.pods);
        faults.extend(torn.faults);
        cancel.cancel();
        running.wait().await;
        stop_leftover(&containerd)
            .await
            .map_err(|e| Failure::new("containerd does not end").because(e))?;
    }
    faults.extend(network::remove(&config).await);
    faults.extend(teardown::clean_host(&config.data_dir).await);
    // What is left can only be freed with what is known of it: it stays until all is.
    if args.wipe && faults.is_empty() {
        let remove = std::fs::remove_dir_all(&config.data_dir);
        remove
            .map_err(|e| Failure::new(format!("cannot remove {}", config.data_dir.display())).because(e))?;
        if let Err(e) = std::fs::remove_file(&config.kubeconfig)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            faults.push(format!("{}: {e}", config.kubeconfig.display()));
        }
    }
    if !faults.is_empty() {
        return Err(Failure::new(format!(
            "this is left behind:\n  {}\nrun `knarr down` again",
            faults.join("\n  ")
        )));
    }
    println!("knarr is down");
    Ok(())
}

/// TERM, and KILL if that is not enough.
async fn end_process(config: &Config) -> Result<(), Failure> {
    let Some(pid) = lock::holder(&config.data_dir) else {
        return Ok(());
    };
    println!("ending knarr (process {pid}) …");
    for (signal, limit) in [(Signal::SIGTERM, END_LIMIT), (Signal::SIGKILL, END_LIMIT)] {
        // Gone already is as good as ended.
        let _ = kill(Pid::from_raw(pid), signal);
        let begin = Instant::now();
        while begin.elapsed() < limit {
            if lock::holder(&config.data_dir).is_none() {
                return Ok(());
            }
            tokio::time::sleep(END_POLL).await;
        }
    }
    Err(Failure::new(format!("knarr (process {pid}) does not end")))
}
