//! The sandbox's first process, from its clone to the program of the specification.
//!
//! Until it has nothing more than the specification gives, no other process can reach it: its namespaces are new, and
//! containerd learns of them when it waits for its start. What it still does then is to load the filter and to exec.

use std::convert::Infallible;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, Signal};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, major, minor, openat};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, clear_ambient_capability_set,
    move_into_link_name_space, remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities,
    set_no_new_privs,
};

use super::plan::Plan;
use super::{At, Error, READY, cgroups, program, rootfs};

/// The highest number that a set of capabilities can have.
const CAPABILITIES: u32 = 63;
/// Where runc reads a user's home and groups; a root file system with one is left to it.
const USERS: [&str; 2] = ["/etc/passwd", "/etc/group"];
const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;

/// What the process needs besides the plan.
pub struct Parts {
    pub rootfs: PathBuf,
    pub network: OwnedFd,
    /// It reports to the shim by this.
    pub socket: OwnedFd,
    /// The session keyring's name; none if it keeps the shim's.
    pub keyring: Option<std::ffi::CString>,
}

/// Starts the process in new namespaces.
#[expect(unsafe_code, reason = "clone3 has no safe wrapper")]
pub fn spawn(plan: &Plan, parts: &Parts) -> std::io::Result<Pid> {
    /// `struct clone_args` (linux/sched.h), its first version.
    #[repr(C)]
    #[derive(Default)]
    struct Arguments {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
    }
    let namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let arguments = Arguments {
        flags: u64::from(namespaces.unsigned_abs()),
        exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
        ..Arguments::default()
    };
    // SAFETY: without CLONE_VM this is a fork: the child has copies of everything. This process has one thread (see
    // `start`), so no lock is held by another. The child never returns from here.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<Arguments>()) };
    match pid {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            // A panic must not continue in the shim's code.
            let ended = std::panic::catch_unwind(|| match run(plan, parts) {
                Ok(never) => match never {},
                Err(failed) => failed.to_string(),
            });
            let text = ended.unwrap_or_else(|_| "panic".into());
            let _ = rustix::io::write(&parts.socket, text.as_bytes());
            // SAFETY: it ends the process at once; nothing of the shim's is dropped or flushed in it.
            unsafe { libc::_exit(1) }
        }
        pid => i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| std::io::ErrorKind::InvalidData.into()),
    }
}

fn run(plan: &Plan, parts: &Parts) -> Result<Infallible, Error> {
    prctl::set_dumpable(false).at("dumpable")?;
    close_others(parts)?;
    reset_signals()?;
    rustix::process::setsid().at("setsid")?;
    if let Some(keyring) = &parts.keyring {
        join_keyring(keyring)?;
    }
    cgroups::enter(&plan.cgroup, plan.cpu_shares).at("cgroups")?;
    if let Some(score) = plan.oom_score_adj {
        std::fs::write("/proc/self/oom_score_adj", score.to_string()).at("oom_score_adj")?;
    }
    move_into_link_name_space(parts.network.as_fd(), Some(LinkNameSpaceType::Network))
        .at("the network namespace")?;
    nix::unistd::sethostname(&plan.hostname).at("hostname")?;
    // Devices get exactly their modes.
    rustix::process::umask(Mode::empty());
    rootfs::enter(plan, &parts.rootfs)?;
    for (name, value) in &plan.sysctls {
        let path = Path::new("/proc/sys").join(name.replace('.', "/"));
        std::fs::write(path, value)
            .at("sysctl")
            .map_err(|e| e.with(name))?;
    }
    rootfs::protect(plan)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    use_null_device()?;
    if USERS.iter().any(|file| rootfs::exists(file)) {
        return Err(Errno::NOTSUP).at("a root file system with users");
    }
    let Some(path) = plan.arguments.first() else {
        return Err(Errno::INVAL).at("no program");
    };
    program::check(&path.to_string_lossy())?;
    drop_privileges(plan)?;
    rustix::process::chdir("/").at("the working directory")?;
    await_start(&parts.socket)?;
    if let Some(filter) = &plan.filter {
        load_filter(filter)?;
    }
    nix::unistd::execve(path, &plan.arguments, &plan.environment).at("exec")
}

/// The shim blocks signals that it reads, the standard library ignores SIGPIPE, and others may be ignored since before.
#[expect(unsafe_code, reason = "a handler could be unsafe; the default one is not")]
fn reset_signals() -> Result<(), Error> {
    for signal in Signal::iterator().filter(|signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: no handler is set.
        unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) }.at("signals")?;
    }
    SigSet::empty().thread_set_mask().at("signals")
}

/// Closes what the process has of the shim's: its end of the socket, by which the shim's death is seen, connections, pipes
/// of other containers, and whatever it was started with.
#[expect(unsafe_code, reason = "close_range has no safe wrapper")]
fn close_others(parts: &Parts) -> Result<(), Error> {
    let number = |descriptor: &OwnedFd| u64::try_from(descriptor.as_raw_fd()).unwrap_or(0);
    let mut kept = [number(&parts.network), number(&parts.socket)];
    kept.sort_unstable();
    let [first, second] = kept;
    for (from, to) in [
        (3, first.saturating_sub(1)),
        (first + 1, second.saturating_sub(1)),
        (second + 1, u64::from(libc::c_uint::MAX)),
    ] {
        if from > to {
            continue;
        }
        // SAFETY: the shim's values that own these descriptors are never used or dropped in this process: it execs or ends.
        if unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) } != 0 {
            return Err(std::io::Error::last_os_error()).at("close_range");
        }
    }
    Ok(())
}

/// A session keyring of its own: keys of the shim's are not its.
#[expect(unsafe_code, reason = "keyctl has no safe wrapper")]
fn join_keyring(name: &std::ffi::CStr) -> Result<(), Error> {
    // SAFETY: the kernel reads the name only.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, name.as_ptr()) };
    if joined >= 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match Errno::from_io_error(&error) {
        // A kernel without keyrings.
        Some(Errno::NOSYS) => Ok(()),
        _ => Err(error).at("the session keyring"),
    }
}

/// The container's own null device for all three streams: the host's file system stays unreachable through them.
fn use_null_device() -> Result<(), Error> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let null = openat(CWD, "/dev/null", flags, Mode::empty()).at("/dev/null")?;
    let stat = fstat(&null).at("/dev/null")?;
    let device = (major(stat.st_rdev), minor(stat.st_rdev));
    if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice || device != (1, 3) {
        return Err(Errno::NXIO).at("/dev/null is another file");
    }
    rustix::stdio::dup2_stdin(&null).at("standard input")?;
    rustix::stdio::dup2_stdout(&null).at("standard output")?;
    rustix::stdio::dup2_stderr(&null).at("standard error")
}

fn drop_privileges(plan: &Plan) -> Result<(), Error> {
    let sets = &plan.capabilities;
    for number in 0..=CAPABILITIES {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if sets.bounding.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // The kernel has no more.
            Err(Errno::INVAL) => break,
            Err(e) => return Err(e).at("the bounding set"),
        }
    }
    set_keep_capabilities(true).at("capabilities")?;
    let groups: Vec<nix::unistd::Gid> = plan
        .groups
        .iter()
        .map(|gid| nix::unistd::Gid::from_raw(*gid))
        .collect();
    nix::unistd::setgroups(&groups).at("groups")?;
    let gid = nix::unistd::Gid::from_raw(plan.gid);
    nix::unistd::setresgid(gid, gid, gid).at("group")?;
    let uid = nix::unistd::Uid::from_raw(plan.uid);
    nix::unistd::setresuid(uid, uid, uid).at("user")?;
    set_keep_capabilities(false).at("capabilities")?;
    clear_ambient_capability_set().at("ambient capabilities")?;
    let sets = CapabilitySets {
        effective: sets.effective,
        permitted: sets.permitted,
        inheritable: sets.inheritable,
    };
    set_capabilities(None, sets).at("capabilities")?;
    if plan.no_new_privileges {
        set_no_new_privs(true).at("no_new_privs")?;
    }
    Ok(())
}

/// Says that all is ready, and waits for the start. The shim's end is closed if the shim dies.
fn await_start(socket: &OwnedFd) -> Result<(), Error> {
    rustix::io::write(socket, READY).at("the shim")?;
    let mut bytes = [0; 1];
    loop {
        match rustix::io::read(socket, &mut bytes) {
            Ok(1) => return Ok(()),
            Ok(_) => return Err(Errno::PIPE).at("the shim"),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e).at("the shim"),
        }
    }
}

#[expect(unsafe_code, reason = "seccomp has no safe wrapper")]
fn load_filter(filter: &[libc::sock_filter]) -> Result<(), Error> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len())
            .map_err(|_| Errno::INVAL)
            .at("seccomp")?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the filter, whose length is given.
    let loaded = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    if loaded == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error()).at("seccomp")
    }
}
