//! What the shim cannot do without of the kernel, tried before a node uses it.

use std::io;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags, memfd_create, openat2};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

/// Why this host cannot run the shim: the kernel is older, or a filter of system calls denies it.
#[derive(Debug, thiserror::Error)]
#[error("the system call {call} fails: {source}")]
pub struct HostError {
    call: &'static str,
    source: io::Error,
}

/// Tries the system calls without which the shim serves no container: openat2 (Linux 5.6) for every file of a bundle,
/// pidfd_open (5.3) for signals, memfd_create for the output of the OCI runtime. What only a sandbox without the runtime
/// needs is not among them: where it fails, the runtime makes the sandbox.
pub fn check_host() -> Result<(), HostError> {
    let failed = |call| {
        move |error: Errno| HostError {
            call,
            source: error.into(),
        }
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::BENEATH).map_err(failed("openat2"))?;
    pidfd_open(getpid(), PidfdFlags::empty()).map_err(failed("pidfd_open"))?;
    memfd_create("check", MemfdFlags::CLOEXEC).map_err(failed("memfd_create"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_runs_these_tests_can_run_the_shim() {
        check_host().unwrap();
    }
}
