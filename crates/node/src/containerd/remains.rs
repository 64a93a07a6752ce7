//! What a killed containerd leaves on the machine that no containerd finds again.
//!
//! A shim whose container was just being made is not in containerd's records: the next containerd deletes its folder
//! and forgets it. And a CNI plugin goes on when its containerd is killed, so that rules may be added for an address
//! that was given back meanwhile.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::ContainerdConfig;
use super::process::{children, proc_of, processes};
use crate::network;

/// Ends the shims and removes the rules that nobody will. What fails is said in the log; it may be tried again.
pub(super) async fn remove(config: &ContainerdConfig) {
    let ended = abandoned_shims(&config.socket()).and_then(|shims| shims.into_iter().try_for_each(end));
    if let Err(e) = ended {
        tracing::warn!(error = %e, "cannot end the shims that containerd has forgotten");
    }
    match network::remove_leaked_rules(&config.cni_conf).await {
        Ok(0) => {}
        Ok(rules) => tracing::info!(rules, "removed packet filter rules of pods that are gone"),
        Err(e) => tracing::warn!(error = %e, "cannot remove packet filter rules of pods that are gone"),
    }
}

/// The shims of this containerd whose folder, in which they run, is deleted. containerd deletes it after it has ended
/// the shim, or when it forgets it.
fn abandoned_shims(socket: &Path) -> std::io::Result<Vec<Pid>> {
    let mut shims = Vec::new();
    for (pid, cmdline) in processes()? {
        let deleted = || std::fs::metadata(proc_of(pid).join("cwd")).is_ok_and(|dir| dir.nlink() == 0);
        if is_shim_of(&cmdline, socket) && deleted() {
            shims.push(pid);
        }
    }
    Ok(shims)
}

/// With what it runs: its children are the first processes of containers, with which all others of theirs end.
fn end(shim: Pid) -> std::io::Result<()> {
    tracing::info!(
        pid = shim.as_raw_nonzero(),
        "ending a shim that containerd has forgotten"
    );
    for pid in children(shim)?.into_iter().chain([shim]) {
        // Gone already is as good as ended.
        let _ = kill_process(pid, Signal::KILL);
    }
    Ok(())
}

/// `cmdline` is as in /proc: each argument ends with a zero byte.
fn is_shim_of(cmdline: &[u8], socket: &Path) -> bool {
    let args: Vec<&[u8]> = cmdline.split(|b| *b == 0).collect();
    let program = args.first().is_some_and(|arg| {
        let name = arg.rsplit(|b| *b == b'/').next();
        name.is_some_and(|name| name.starts_with(b"containerd-shim"))
    });
    program
        && args
            .windows(2)
            .any(|pair| pair == [b"-address", socket.as_os_str().as_encoded_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_belongs_to_the_containerd_whose_socket_it_was_given() {
        let line = |args: &str| format!("{}\0", args.replace(' ', "\0"));
        let socket = Path::new("/d/run/containerd.sock");
        for (args, ours) in [
            (
                "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id a -address /d/run/containerd.sock",
                true,
            ),
            (
                "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id a -address /run/containerd/containerd.sock",
                false,
            ),
            ("ctr -address /d/run/containerd.sock", false),
            ("containerd-shim-runc-v2 -id /d/run/containerd.sock", false),
        ] {
            assert_eq!(is_shim_of(line(args).as_bytes(), socket), ours, "{args}");
        }
    }
}
