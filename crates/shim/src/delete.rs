//! `delete`: what containerd runs when its connection for a container was closed.
//!
//! containerd 1.6 and 1.7 run it after every orderly deletion, too. The shim has then left a file that says so, which is
//! printed, and that is all. Otherwise the shim is gone.
//!
//! It kills the container and removes its state, mounts and address, and prints how the container ended: killed, as no
//! process saw it. containerd publishes that as the container's exit.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use containerd_shim_protos::api::DeleteResponse;
use containerd_shim_protos::protobuf::Message;
use rustix::event::Timespec;

use crate::address::Address;
use crate::arguments::Arguments;
use crate::bundle::{ADDRESS, Bundle, DELETED, INIT_PID, MAX_SMALL_BYTES, ROOTFS};
use crate::clock::WallTime;
use crate::error::CommandError;
use crate::mounts;
use crate::options::Options;
use crate::runtime::Runtime;
use crate::sandbox;

/// A process that SIGKILL ended.
const KILLED: u32 = 128 + 9;
const LOG: &str = "oci-delete.json";
/// How long a process may take to close what it has open when it is killed.
const EXIT_POLLS: u32 = 5;
const EXIT_POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let directory = directory(arguments).map_err(|source| CommandError::Bundle {
        file: "directory",
        source,
    })?;
    let bundle = Bundle::open(&directory).map_err(|source| CommandError::Bundle {
        file: "directory",
        source,
    })?;
    let address = bundle.read_string(ADDRESS).ok();
    let address = address.and_then(|text| Address::parse(&text));
    if let Ok(bytes) = bundle.read(DELETED, MAX_SMALL_BYTES) {
        // Served as long as the group has other containers.
        if let Some(address) = address {
            let _ = address.remove_if_abandoned();
        }
        return print(&bytes);
    }
    // Everything is tried: what is left behind would stay for ever.
    if let Err(e) = sandbox::clean(&bundle) {
        warn(format_args!("cannot remove the sandbox: {e}"));
    }
    remove_container(arguments, &bundle);
    let rootfs = bundle.join(ROOTFS);
    if mounts::unmount_all(&rootfs).is_err()
        && let Err(e) = mounts::detach(&rootfs)
    {
        warn(format_args!("cannot unmount the root file system: {e}"));
    }
    if let Some(address) = address {
        remove_address(&address);
    }
    let pid = bundle
        .read_pid(INIT_PID)
        .map_or(0, |pid| pid.as_raw_nonzero().get());
    let response = DeleteResponse {
        pid: u32::try_from(pid).unwrap_or(0),
        exit_status: KILLED,
        exited_at: WallTime::now().to_message(),
        ..DeleteResponse::default()
    };
    let bytes = response
        .write_to_bytes()
        .map_err(|e| CommandError::Output { source: e.into() })?;
    print(&bytes)
}

fn print(bytes: &[u8]) -> Result<(), CommandError> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|source| CommandError::Output { source })
}

/// Removes the address of a killed shim. On its death containerd's connection was closed, and calls this; its listener may
/// be closed a moment later.
fn remove_address(address: &Address) {
    for _ in 0..EXIT_POLLS {
        if !matches!(address.remove_if_abandoned(), Ok(true)) {
            return;
        }
        let _ = rustix::event::poll(&mut [], Some(&EXIT_POLL));
    }
}

/// The bundle: next to the working directory if that is another container's (a group's shim was started in it).
fn directory(arguments: &Arguments) -> io::Result<PathBuf> {
    if let Some(bundle) = &arguments.bundle {
        return Ok(bundle.clone());
    }
    let here = std::env::current_dir()?;
    let parent = here.parent().unwrap_or(Path::new("/"));
    Ok(parent.join(&arguments.id))
}

fn remove_container(arguments: &Arguments, bundle: &Bundle) {
    let options = Options::read(bundle).unwrap_or_else(|e| {
        warn(format_args!("cannot read the runtime's options: {e}"));
        Options::default()
    });
    let removed = Runtime::new(&options, &arguments.namespace)
        .command(bundle, LOG)
        .args(["delete", "--force", &arguments.id])
        .stdin(Stdio::null())
        .output();
    match removed {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            warn(format_args!(
                "cannot delete the container: {} {}",
                output.status,
                text.trim()
            ));
        }
        Err(e) => warn(format_args!("cannot run the OCI runtime: {e}")),
    }
}

/// containerd logs what is printed on standard error.
fn warn(what: std::fmt::Arguments) {
    eprintln!("{what}");
}
