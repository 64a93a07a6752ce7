//! `knarr down`: stops the process, then everything it ran on this host.

use std::time::Duration;

use clap::Args;
use knarr_node::containerd::{Containerd, stop_leftover};
use knarr_node::runtime::cri::Cri;
use knarr_node::teardown;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Failure, network, node_config};
use crate::config::Config;
use crate::lock::{self, DataDir};

/// How long the running knarr has to exit after SIGTERM, and after SIGKILL.
const EXIT_LIMIT: Duration = Duration::from_secs(30);
/// How often it is checked whether the process has exited.
const EXIT_POLL: Duration = Duration::from_millis(20);

#[derive(Args)]
pub struct DownArgs {
    /// Delete all state, too: objects, images, certificates and the kubeconfig.
    #[arg(long)]
    wipe: bool,
}

pub async fn run(config: Config, args: DownArgs) -> Result<(), Failure> {
    if !config.data_dir.exists() {
        println!(
            "knarr is not up: the data directory {} does not exist",
            config.data_dir.display()
        );
        return Ok(());
    }
    stop_process(&config).await?;
    let _held = DataDir::lock(&config.data_dir)?;
    let mut faults = Vec::new();
    let program = node_config::pod_program().await;
    // No container is created any more.
    let oci_runtime = config.oci_runtime.untried_program();
    let containerd = node_config::containerd_config(&config, &program, oci_runtime);
    if containerd.file().exists() {
        let cancel = CancellationToken::new();
        let failed =
            |e| Failure::new("cannot start containerd, which is needed to terminate the pods").because(e);
        let shim = |e| Failure::new("cannot prepare the shim of the running pods").because(e);
        node_config::refresh_shim(&containerd, &program).map_err(shim)?;
        let running = Containerd::start(containerd.clone(), cancel.clone())
            .await
            .map_err(failed)?;
        let runtime = Cri::new(&format!("unix://{}", running.socket().display()));
        running.serves(&runtime).await.map_err(failed)?;
        let agent = network::serve_teardown(&config, program).await?;
        println!("terminating the pods …");
        let torn = teardown::stop_pods(&runtime).await;
        println!("{} pods terminated", torn.pods);
        faults.extend(torn.faults);
        cancel.cancel();
        running.wait().await;
        stop_leftover(&containerd)
            .await
            .map_err(|e| Failure::new("containerd does not exit").because(e))?;
        // No other agent deletes what is left of the pods' links.
        if let Some(agent) = &agent {
            agent.finish_removals().await;
        }
    }
    faults.extend(network::remove(&config).await);
    faults.extend(teardown::clean_host(&config.data_dir).await);
    // The data directory is needed to remove what is left, so it is kept until nothing is.
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
            "some of it could not be removed:\n  {}\nrun `knarr down` again",
            faults.join("\n  ")
        )));
    }
    println!("knarr is down");
    Ok(())
}

/// SIGTERM, then SIGKILL if the process does not exit.
async fn stop_process(config: &Config) -> Result<(), Failure> {
    let Some(pid) = lock::holder(&config.data_dir) else {
        return Ok(());
    };
    println!("stopping knarr (process {pid}) …");
    for (signal, limit) in [(Signal::SIGTERM, EXIT_LIMIT), (Signal::SIGKILL, EXIT_LIMIT)] {
        // A process that has already exited is no error.
        let _ = kill(Pid::from_raw(pid), signal);
        let begin = Instant::now();
        while begin.elapsed() < limit {
            if lock::holder(&config.data_dir).is_none() {
                return Ok(());
            }
            tokio::time::sleep(EXIT_POLL).await;
        }
    }
    Err(Failure::new(format!("knarr (process {pid}) does not exit")))
}
