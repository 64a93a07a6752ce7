//! What a killed containerd leaves on the host and no later containerd finds.
//!
//! A shim whose container was just being created is not in CRI's records: the next containerd deletes its directory and
//! forgets it, or keeps a sandbox that CRI does not list. And a CNI plugin keeps running when its containerd is killed,
//! so that rules may be added for an address that has been released meanwhile.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::ContainerdConfig;
use super::process::{children, proc_of, processes, start_ticks};
use crate::network;
use crate::runtime::{Runtime, RuntimeError};

/// Kills the leftover shims and removes the leftover rules. Failures are logged; the call may be repeated.
///
/// `runs` is the containerd that serves. If there is none, no shim of it is to live on either.
pub(super) async fn remove(config: &ContainerdConfig, runs: Option<(i32, &dyn Runtime)>) {
    if let Err(e) = end_shims(config, runs).await {
        tracing::warn!(error = %e, "cannot kill containerd's leftover shims");
    }
    match network::remove_leaked_rules(&config.cni_conf).await {
        Ok(0) => {}
        Ok(changes) => tracing::info!(changes, "removed packet filter rules of deleted pods"),
        Err(e) => tracing::warn!(error = %e, "cannot remove packet filter rules of deleted pods"),
    }
}

async fn end_shims(config: &ContainerdConfig, runs: Option<(i32, &dyn Runtime)>) -> io::Result<()> {
    let shims = processes()?
        .into_iter()
        .filter_map(|(pid, cmdline)| Some((pid, shim_of(&cmdline, &config.socket())?)));
    // The shims before the list: what is started meanwhile is of no concern.
    let shims: Vec<(Pid, String)> = shims.collect();
    let Some((pid, runtime)) = runs else {
        return shims.into_iter().try_for_each(|(shim, _)| end(shim));
    };
    let began = Pid::from_raw(pid).and_then(start_ticks);
    let known = known(runtime).await.map_err(io::Error::other)?;
    for (shim, id) in shims {
        // Deleted after the shim was killed, or when containerd forgot it.
        let directory_deleted =
            crate::host_fs::metadata(proc_of(shim).join("cwd")).is_ok_and(|dir| dir.nlink() == 0);
        // containerd loads what ran before it only when it starts. What it starts itself may not be listed yet.
        let leftover = began.is_some_and(|began| start_ticks(shim).is_some_and(|shim| shim < began));
        if directory_deleted || (leftover && !known.contains(&id)) {
            end(shim)?;
        }
    }
    Ok(())
}

/// Every sandbox and container of CRI's.
async fn known(runtime: &dyn Runtime) -> Result<BTreeSet<String>, RuntimeError> {
    let sandboxes = runtime.sandboxes().await?.into_iter().map(|s| s.id.into());
    let containers = runtime.containers().await?.into_iter().map(|c| c.id.into());
    Ok(sandboxes.chain(containers).collect())
}

/// Kills it with its children: these are the first processes of containers, and all other processes of a container
/// terminate with them.
fn end(shim: Pid) -> io::Result<()> {
    tracing::info!(
        pid = shim.as_raw_nonzero(),
        "ending a shim that containerd has forgotten"
    );
    for pid in children(shim)?.into_iter().chain([shim]) {
        // It may have exited already.
        let _ = kill_process(pid, Signal::KILL);
    }
    Ok(())
}

/// The id of a shim that was given this socket. `cmdline` is as in /proc: a zero byte behind each argument.
fn shim_of(cmdline: &[u8], socket: &Path) -> Option<String> {
    let args: Vec<&[u8]> = cmdline.split(|b| *b == 0).collect();
    let name = args.first()?.rsplit(|b| *b == b'/').next()?;
    if !name.starts_with(b"containerd-shim") {
        return None;
    }
    let after = |flag: &[u8]| args.windows(2).find(|pair| pair[0] == flag).map(|pair| pair[1]);
    if after(b"-address")? != socket.as_os_str().as_encoded_bytes() {
        return None;
    }
    String::from_utf8(after(b"-id")?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_belongs_to_the_containerd_whose_socket_it_was_started_with() {
        let line = |args: &str| format!("{}\0", args.replace(' ', "\0"));
        let socket = Path::new("/d/run/containerd.sock");
        for (args, id) in [
            (
                "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id a -address /d/run/containerd.sock",
                Some("a"),
            ),
            (
                "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id a -address /run/containerd.sock",
                None,
            ),
            ("ctr -id a -address /d/run/containerd.sock", None),
            ("containerd-shim-runc-v2 -id /d/run/containerd.sock", None),
        ] {
            assert_eq!(shim_of(line(args).as_bytes(), socket).as_deref(), id, "{args}");
        }
    }
}
