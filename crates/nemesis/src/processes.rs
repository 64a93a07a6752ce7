//! The processes of pods, sampled from `/proc`: when each container's first process was started, on which node, and until when
//! it ran. No API is read.
//!
//! A pod's command has its identity as arguments after [`marker`]: pod, UID, node, container, and the grace period if it
//! ignores SIGTERM.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::check::at_most_one::ContainerProcess;
use crate::history::{Micros, now};

/// Between two samples. Two processes of one name that overlap for a shorter time may be missed, but a name that is released
/// wrongly is released seconds too early.
const PERIOD: Duration = Duration::from_millis(100);
/// Ticks of a process's start in a second (`USER_HZ`, the same on all of Linux's platforms).
const TICKS_PER_SECOND: u64 = 100;

/// The argument that marks the pods of one run.
pub fn marker(run: &str) -> String {
    format!("knarr-nemesis-{run}")
}

/// Samples `/proc` in a thread until it is dropped.
pub struct Sampler {
    processes: Arc<Mutex<Vec<ContainerProcess>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    pub fn start(marker: String) -> Sampler {
        let processes: Arc<Mutex<Vec<ContainerProcess>>> = Arc::default();
        let stop: Arc<AtomicBool> = Arc::default();
        let (to, until) = (processes.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut running = HashMap::new();
            while !until.load(Ordering::Relaxed) {
                sample(&marker, &mut running, &to);
                std::thread::sleep(PERIOD);
            }
        });
        Sampler {
            processes,
            stop,
            thread: Some(thread),
        }
    }

    /// All processes seen so far.
    pub fn processes(&self) -> Vec<ContainerProcess> {
        self.processes.lock().clone()
    }

    /// How many are running.
    pub fn running(&self) -> usize {
        self.processes
            .lock()
            .iter()
            .filter(|process| process.gone.is_none())
            .count()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("nemesis: the sampler of processes has panicked");
        }
    }
}

/// One pass over `/proc`. `running` has the processes of the last pass, by pid and start.
fn sample(marker: &str, running: &mut HashMap<(u32, u64), usize>, processes: &Mutex<Vec<ContainerProcess>>) {
    let mut seen = HashMap::new();
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        let at = now();
        let file = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let cmdline = file("cmdline");
        let Some(mut process) = parse(&cmdline, marker) else {
            continue;
        };
        let status = String::from_utf8_lossy(&file("status")).into_owned();
        let stat = String::from_utf8_lossy(&file("stat")).into_owned();
        if !is_first(&status) {
            continue;
        }
        let Some(ticks) = start_ticks(&stat) else { continue };
        let mut all = processes.lock();
        let index = match running.get(&(pid, ticks)) {
            Some(index) => *index,
            None => {
                process.pid = pid;
                process.started = ticks * (1_000_000 / TICKS_PER_SECOND);
                all.push(process);
                all.len() - 1
            }
        };
        all[index].last_seen = at;
        seen.insert((pid, ticks), index);
    }
    let at = now();
    let mut all = processes.lock();
    for (id, index) in running.iter() {
        if !seen.contains_key(id) {
            all[*index].gone = Some(at);
        }
    }
    *running = seen;
}

/// The process of a command line, without pid and times.
fn parse(cmdline: &[u8], marker: &str) -> Option<ContainerProcess> {
    let args: Vec<&str> = std::str::from_utf8(cmdline).ok()?.split('\0').collect();
    let at = args.iter().position(|arg| *arg == marker)?;
    let [pod, uid, node, container, grace, ..] = args.get(at + 1..)? else {
        return None;
    };
    Some(ContainerProcess {
        pod: pod.to_string(),
        uid: uid.to_string(),
        container: container.to_string(),
        node: node.to_string(),
        pid: 0,
        stubborn_grace_seconds: grace.parse().ok(),
        started: Micros::default(),
        last_seen: Micros::default(),
        gone: None,
    })
}

/// Whether it is the first process of its pid namespace, and alive.
fn is_first(status: &str) -> bool {
    let line = |name: &str| status.lines().find_map(|l| l.strip_prefix(name));
    let innermost = line("NSpid:").and_then(|l| l.split_whitespace().next_back());
    let state = line("State:").map(str::trim_start);
    innermost == Some("1") && state.is_some_and(|s| !s.starts_with(['Z', 'X']))
}

/// Field 22 of `/proc/PID/stat`; the name of the program, field 2, may have spaces and parentheses.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_command_lines_with_the_runs_marker_are_pods() {
        let cmdline = b"sh\0-c\0script\0knarr-nemesis-7\0p/db-0\0uid\0node1\0db\0-\0";
        let process = parse(cmdline, &marker("7")).unwrap();
        assert_eq!(
            (&*process.pod, &*process.uid, &*process.node, &*process.container),
            ("p/db-0", "uid", "node1", "db")
        );
        assert_eq!(process.stubborn_grace_seconds, None);
        assert_eq!(parse(cmdline, &marker("8")), None);
        assert_eq!(parse(b"sh\0-c\0knarr-nemesis-7\0p/db-0\0", &marker("7")), None);
        let stubborn = b"sh\0knarr-nemesis-7\0p/a\0u\0n\0c\x006\0";
        assert_eq!(
            parse(stubborn, &marker("7")).unwrap().stubborn_grace_seconds,
            Some(6)
        );
    }

    #[test]
    fn a_containers_first_process_counts_and_its_children_and_zombies_do_not() {
        let status = |state: &str, nspid: &str| format!("Name:\tsh\nState:\t{state}\nNSpid:\t{nspid}\n");
        assert!(is_first(&status("S (sleeping)", "2301\t1")));
        assert!(!is_first(&status("S (sleeping)", "2302\t7")));
        assert!(!is_first(&status("Z (zombie)", "2301\t1")));
        assert!(!is_first(""));
    }

    #[test]
    fn the_start_is_read_past_names_with_parentheses() {
        let stat = "12 (a) b) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 2";
        assert_eq!(start_ticks(stat), Some(98765));
        assert_eq!(start_ticks("12"), None);
    }
}
