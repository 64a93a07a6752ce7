//! The cluster in which faults are injected, and how each fault begins and ends. A process that exits by itself is started
//! again after a second, as an init system does.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::commands::system;
use crate::etcd;
use crate::fleet::{Fleet, Host};
use crate::schedule::{Fault, Size, Target};
use crate::wait::Outcome;

/// The size of a host's disk, in MiB. etcd allocates two segments of its log of 64 MiB each.
const DISK_MIB: u32 = 256;
/// The file that fills a disk.
const BALLAST: &str = "ballast";
/// Between the exit of a process and its next start.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// The path of the library of Debian's package `faketime`, below the library directory of the host's architecture.
const FAKETIME: &str = "faketime/libfaketimeMT.so.1";

/// The hosts, and the state of the processes and faults on them.
pub struct Cluster {
    pub fleet: Fleet,
    pub size: Size,
    /// The name of the program under test.
    program: OsString,
    server_flags: Vec<String>,
    /// The arguments of each agent, after `knarr agent`.
    join_args: Vec<Vec<String>>,
    /// The library that changes clocks, if there are clock faults.
    faketime: Option<PathBuf>,
    /// Killed by a fault that has not ended.
    down: BTreeSet<Target>,
    /// Exited by themselves, with the times at which they are started again.
    restarts: BTreeMap<Target, Instant>,
    /// Paused processes, by the number of the fault.
    paused: BTreeMap<usize, Vec<u32>>,
    /// Declared after the fleet, whose processes are stopped first.
    faketime_files: FaketimeFiles,
    /// Faults that have begun and not ended.
    active: BTreeMap<usize, Fault>,
}

impl Cluster {
    /// Creates the hosts and starts everything; returns when every server is ready. Nodes join meanwhile.
    pub fn start(knarr: &Path, size: Size, steps_clocks: bool) -> Result<Cluster, Failed> {
        let mut others: Vec<String> = (2..=size.servers).map(|n| format!("s{n}")).collect();
        others.extend((1..=size.members).map(|n| format!("e{n}")));
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        let program = knarr.file_name().unwrap_or_default().to_os_string();
        let knarr = knarr.to_str().ok_or("the path of knarr is not UTF-8")?;
        let fleet = Fleet::prepare_with_disks(knarr, u8::try_from(size.agents)?, &others, DISK_MIB)?;
        let faketime = if steps_clocks {
            Some(find_faketime()?)
        } else {
            None
        };
        let mut cluster = Cluster {
            fleet,
            size,
            program,
            server_flags: Vec::new(),
            join_args: Vec::new(),
            faketime,
            down: BTreeSet::new(),
            restarts: BTreeMap::new(),
            paused: BTreeMap::new(),
            faketime_files: FaketimeFiles::default(),
            active: BTreeMap::new(),
        };
        cluster.start_all().map_err(|e| cluster.fleet.with_logs(e))?;
        Ok(cluster)
    }

    fn start_all(&mut self) -> Outcome {
        if self.size.members > 0 {
            self.server_flags = etcd::server_flags(self.members());
            for n in 0..self.size.members {
                self.launch(Target::Member(n))?;
            }
            let members = self.members();
            self.fleet
                .eventually("a leader of etcd", || etcd::leader(members).is_some())?;
        }
        self.launch(Target::Server(0))?;
        self.fleet.wait_ready(&self.fleet.server)?;
        for n in 1..self.size.servers {
            etcd::share_keys(&self.fleet.server, self.host(Target::Server(n))?)?;
            self.launch(Target::Server(n))?;
        }
        for n in 1..self.size.servers {
            self.fleet.wait_ready(self.host(Target::Server(n))?)?;
        }
        let join = self.fleet.join_args()?;
        for n in 0..self.size.agents {
            let server = self.host(Target::Server(self.server_of(n)))?;
            let url = format!("https://{}:6443", server.address);
            let own = join
                .iter()
                .map(|argument| match argument.starts_with("https://") {
                    true => url.clone(),
                    false => argument.clone(),
                });
            self.join_args.push(own.collect());
            self.launch(Target::Agent(n))?;
        }
        Ok(())
    }

    /// The server that an agent is connected to.
    pub fn server_of(&self, agent: usize) -> usize {
        agent % self.size.servers
    }

    fn members(&self) -> &[Host] {
        &self.fleet.others[self.size.servers - 1..]
    }

    /// The host that a target is on.
    pub fn host(&self, target: Target) -> Result<&Host, Failed> {
        let host = match target {
            Target::Server(0) => Some(&self.fleet.server),
            Target::Server(n) => self.fleet.others.get(n - 1),
            Target::Member(n) => self.members().get(n),
            Target::Agent(n) | Target::Containerd(n) => self.fleet.agents.get(n),
            Target::Clients => None,
        };
        host.ok_or_else(|| format!("{target} is on no host").into())
    }

    /// Every server's host.
    pub fn servers(&self) -> Vec<&Host> {
        let all = (0..self.size.servers).map(|n| self.host(Target::Server(n)));
        all.filter_map(Result::ok).collect()
    }

    fn launch(&mut self, target: Target) -> Outcome {
        let host = self.host(target)?;
        let command = match target {
            Target::Member(_) => {
                etcd::start(host, self.members())?;
                None
            }
            Target::Server(_) => {
                let flags: Vec<&str> = self.server_flags.iter().map(String::as_str).collect();
                Some(self.fleet.server_command(host, &flags))
            }
            Target::Agent(n) => {
                let join = self
                    .join_args
                    .get(n)
                    .ok_or("the agent has no join arguments yet")?;
                let join: Vec<&str> = join.iter().map(String::as_str).collect();
                Some(self.fleet.agent(host, &join))
            }
            Target::Containerd(_) | Target::Clients => None,
        };
        if let Some(mut command) = command {
            if let Some(library) = &self.faketime {
                let clock = self.clock_of(host);
                if !clock.exists() {
                    std::fs::write(&clock, "+0\n")?;
                }
                with_clock(&mut command, library, &clock, &self.program);
            }
            host.launch(command)?;
        }
        let pid = host.pid();
        self.faketime_files.0.extend(pid);
        Ok(())
    }

    /// The file with the offset of a host's clock.
    fn clock_of(&self, host: &Host) -> PathBuf {
        self.fleet.dir().join(format!("{}.clock", host.name))
    }

    fn step_clock(&self, target: Target, seconds: i64) -> Outcome {
        let clock = self.clock_of(self.host(target)?);
        // Renamed into place, so that it is never read in part.
        let new = clock.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n"))?;
        Ok(std::fs::rename(&new, &clock)?)
    }

    /// Begins a fault; `number` is unique in the run.
    pub fn begin(&mut self, number: usize, fault: &Fault) -> Outcome {
        self.active.insert(number, fault.clone());
        match fault {
            Fault::Kill {
                target: target @ Target::Containerd(_),
            } => self.host(*target)?.kill_containerd(),
            Fault::Kill { target } => {
                self.down.insert(*target);
                self.restarts.remove(target);
                self.host(*target)?.kill()
            }
            Fault::Pause { target } => {
                let host = self.host(*target)?;
                let pids = match target {
                    Target::Containerd(_) => host.containerds()?,
                    _ => host.pid().into_iter().collect(),
                };
                if pids.is_empty() {
                    return Err(format!("{target} does not run").into());
                }
                signal("-STOP", &pids)?;
                self.paused.insert(number, pids);
                Ok(())
            }
            Fault::Cut {
                first,
                second,
                one_way,
            } => {
                let addresses: Vec<_> = second
                    .iter()
                    .filter_map(|target| match target {
                        Target::Clients => Some(self.fleet.test_address()),
                        target => self.host(*target).ok().map(|m| m.address),
                    })
                    .collect();
                let from = if *one_way { &[][..] } else { &addresses };
                for target in first {
                    self.host(*target)?
                        .drop_packets(&table(number), from, &addresses)?;
                }
                Ok(())
            }
            Fault::Clock { target, step_seconds } => self.step_clock(*target, *step_seconds),
            Fault::Disk { target } => fill(&self.host(*target)?.dir().join(BALLAST)),
        }
    }

    /// Ends a fault.
    pub fn end(&mut self, number: usize) -> Outcome {
        let Some(fault) = self.active.remove(&number) else {
            return Ok(());
        };
        match &fault {
            // Its agent starts it again.
            Fault::Kill {
                target: Target::Containerd(_),
            } => Ok(()),
            Fault::Kill { target } => {
                self.down.remove(target);
                self.launch(*target)
            }
            Fault::Pause { .. } => {
                let pids = self.paused.remove(&number).unwrap_or_default();
                let alive: Vec<u32> = pids
                    .into_iter()
                    .filter(|pid| Path::new(&format!("/proc/{pid}")).exists())
                    .collect();
                match alive.is_empty() {
                    true => Ok(()),
                    false => signal("-CONT", &alive),
                }
            }
            Fault::Cut { first, .. } => first.iter().try_for_each(|target| {
                let host = self.host(*target)?;
                host.pass_packets(&table(number))
            }),
            Fault::Clock { target, .. } => self.step_clock(*target, 0),
            Fault::Disk { target } => {
                let ballast = self.host(*target)?.dir().join(BALLAST);
                Ok(std::fs::remove_file(ballast)?)
            }
        }
    }

    /// Ends every active fault. The first error is returned after all have been attempted.
    pub fn heal(&mut self) -> Outcome {
        let active: Vec<usize> = self.active.keys().copied().collect();
        let outcomes: Vec<Outcome> = active.into_iter().map(|n| self.end(n)).collect();
        outcomes.into_iter().collect()
    }

    /// Starts processes that exited by themselves again, a second later. Returns the processes that have exited, with their status.
    pub fn supervise(&mut self) -> Result<Vec<String>, Failed> {
        let mut exits = Vec::new();
        for target in self.size.hosts() {
            if self.down.contains(&target) {
                continue;
            }
            if let Some(status) = self.host(target)?.exited()? {
                exits.push(format!("{target} exited by itself: {status}"));
                self.restarts.insert(target, Instant::now() + RESTART_AFTER);
            }
        }
        let due: Vec<Target> = self
            .restarts
            .iter()
            .filter(|(_, at)| **at <= Instant::now())
            .map(|(target, _)| *target)
            .collect();
        for target in due {
            self.restarts.remove(&target);
            self.launch(target)?;
        }
        Ok(exits)
    }

    /// Copies every log to a directory.
    pub fn copy_logs(&self, to: &Path) -> std::io::Result<()> {
        for host in self.fleet.hosts() {
            if host.log().exists() {
                std::fs::copy(host.log(), to.join(format!("{}.log", host.name)))?;
            }
        }
        Ok(())
    }

    /// Stops everything and removes it; the error names what could not be removed.
    pub fn tear_down(mut self) -> Outcome {
        let healed = self.heal();
        healed.and(self.fleet.tear_down())
    }
}

fn table(number: usize) -> String {
    format!("nemesis{number}")
}

fn signal(signal: &str, pids: &[u32]) -> Outcome {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let mut argv = vec!["kill", signal];
    argv.extend(pids.iter().map(String::as_str));
    system(&argv).map(drop)
}

/// Writes until the disk is full.
fn fill(ballast: &Path) -> Outcome {
    use std::io::Write;
    let mut file = std::fs::File::create(ballast)?;
    for chunk in [1 << 20, 1 << 12] {
        let zeros = vec![0_u8; chunk];
        loop {
            match file.write_all(&zeros) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::StorageFull => break,
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(())
}

fn find_faketime() -> Result<PathBuf, Failed> {
    for entry in std::fs::read_dir("/usr/lib")?.flatten() {
        let library = entry.path().join(FAKETIME);
        if library.exists() {
            return Ok(library);
        }
    }
    Err(format!("/usr/lib/*/{FAKETIME} is missing: clock faults need Debian's package faketime (--only without `clock` leaves them out)").into())
}

/// Has a command read the wall clock through the library, with the offset of the file; the monotonic clock is not changed.
fn with_clock(command: &mut Command, library: &Path, clock: &Path, program: &OsStr) {
    command
        .env("LD_PRELOAD", library)
        .env("FAKETIME_TIMESTAMP_FILE", clock)
        // The file is read once a second.
        .env("FAKETIME_CACHE_DURATION", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("NO_FAKE_STAT", "1")
        // Not in the programs that it runs.
        .env("FAKETIME_ONLY_CMDS", program);
}

/// Processes that loaded the library. It has shared memory for a process and its children, which stays when they are killed.
#[derive(Default)]
struct FaketimeFiles(Vec<u32>);

impl Drop for FaketimeFiles {
    fn drop(&mut self) {
        for pid in &self.0 {
            for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
                // Processes that were not killed have removed theirs.
                let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
            }
        }
    }
}
