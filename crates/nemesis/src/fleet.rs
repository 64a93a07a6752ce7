//! A server and agents on machines of their own, as far as one machine can be several: each in its own network namespace
//! ([`crate::wire`]), with its own containerd, data and address; all of it is removed, also when a scenario fails.
//!
//! Links are cut by nftables in a machine's namespace. Mounts are the test machine's: only the network is several.
//! The end-to-end tests of `crates/knarr` and the nemesis both run on such machines.

use std::ffi::OsStr;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::wire::Wire;

/// What a scenario results in; the text says what was expected and what was found.
pub type Outcome = Result<(), Failed>;

/// The API server's port; every machine has its own addresses.
const PORT: u16 = 6443;
const KUBELET_PORT: u16 = 10250;
/// How long anything may take before it counts as never: a lost node takes 40 s of it.
const LIMIT: Duration = Duration::from_secs(180);
/// Between two polls of a condition.
const POLL: Duration = Duration::from_millis(100);

/// Standard output and error of a command.
pub fn text(out: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

/// What a command prints if it succeeds, else all it printed as the error.
pub fn output_of(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|e| format!("{program}: {e}"))?;
    match out.status.success() {
        true => Ok(text(&out)),
        false => Err(text(&out)),
    }
}

/// Runs a command of the system, which must succeed.
pub fn system(words: &[&str]) -> Result<String, Failed> {
    let (program, args) = words.split_first().ok_or("no command")?;
    let out = Command::new(program).args(args).stdin(Stdio::null()).output()?;
    if out.status.success() {
        return Ok(text(&out));
    }
    Err(format!("{} failed:\n{}", words.join(" "), text(&out)).into())
}

/// One machine's knarr.
pub struct Machine {
    pub name: String,
    pub address: Ipv4Addr,
    /// The program that runs here.
    program: PathBuf,
    netns: String,
    dir: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Machine {
    /// A command in this machine's network.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.netns))
            .arg(program);
        command.stdin(Stdio::null());
        command
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("d")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// `knarr` with what all its subcommands need here.
    pub fn knarr(&self, subcommand: &str) -> Command {
        let mut knarr = self.command(&self.program);
        knarr.arg(subcommand).arg("--data-dir").arg(self.data_dir());
        knarr.arg("--kubeconfig").arg(self.kubeconfig());
        knarr
    }

    /// Starts it and leaves it running.
    pub fn launch(&self, mut knarr: Command) -> Outcome {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())?;
        let child = knarr.stdout(Stdio::null()).stderr(log).spawn()?;
        *self.child.lock().map_err(|e| e.to_string())? = Some(child);
        Ok(())
    }

    /// The process that was launched here last, unless it was killed or has exited by itself ([`Machine::exited`]).
    pub fn pid(&self) -> Option<u32> {
        let child = self.child.lock().ok()?;
        child.as_ref().map(Child::id)
    }

    /// How the process exited, if it has by itself since this was asked last.
    pub fn exited(&self) -> Result<Option<ExitStatus>, Failed> {
        let mut child = self.child.lock().map_err(|e| e.to_string())?;
        let status = match child.as_mut() {
            Some(child) => child.try_wait()?,
            None => None,
        };
        if status.is_some() {
            *child = None;
        }
        Ok(status)
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: &str) -> Outcome {
        let pid = self.pid().ok_or("it does not run")?.to_string();
        system(&["kill", signal, &pid]).map(drop)
    }

    /// kill -9 of the process, and reaped.
    pub fn kill(&self) -> Outcome {
        let child = self.child.lock().map_err(|e| e.to_string())?.take();
        if let Some(mut child) = child {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Where its process logs to; not on its disk, which may be full.
    pub fn log(&self) -> PathBuf {
        self.dir.with_extension("log")
    }

    /// The directory of all that the machine keeps.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What a command prints in this machine's network; it must succeed.
    pub fn output(&self, words: &[&str]) -> Result<String, Failed> {
        let (program, args) = words.split_first().ok_or("no command")?;
        let out = self.command(program).args(args).output()?;
        match out.status.success() {
            true => Ok(text(&out)),
            false => Err(format!("{} on {}: {}", words.join(" "), self.name, text(&out)).into()),
        }
    }

    /// Tables, links, routes and addresses of knarr's that are still there.
    fn network_left(&self) -> Result<Vec<String>, Failed> {
        let mut left = Vec::new();
        for (words, is_ours) in [
            (&["nft", "list", "tables"][..], &["knarr"][..]),
            (&["ip", "-o", "link"], &["knarr"]),
            // Nothing but the machine's own link has routes or addresses; those of a pod's link are gone with it.
            (
                &["ip", "route", "show", "table", "main"],
                &["unreachable", "10.244.", "knarr"],
            ),
            (&["ip", "-o", "addr", "show", "dev", "lo"], &["10.96."]),
        ] {
            let found = self.output(words)?;
            let ours = found
                .lines()
                .filter(|l| is_ours.iter().any(|part| l.contains(part)));
            left.extend(ours.map(str::to_string));
        }
        Ok(left)
    }

    /// No packet passes between this machine and the others any more, in either direction.
    pub fn cut(&self, others: &[Ipv4Addr]) -> Outcome {
        self.drop_packets("cut", others, others)
    }

    /// Drops what arrives from and what is sent to these addresses, until [`Machine::pass_packets`] of the same table.
    pub fn drop_packets(&self, table: &str, from: &[Ipv4Addr], to: &[Ipv4Addr]) -> Outcome {
        let mut rules = format!(
            "add table inet {table}
add chain inet {table} in {{ type filter hook input priority 0; }}
add chain inet {table} out {{ type filter hook output priority 0; }}
"
        );
        for other in from {
            rules.push_str(&format!("add rule inet {table} in ip saddr {other} drop\n"));
        }
        for other in to {
            rules.push_str(&format!("add rule inet {table} out ip daddr {other} drop\n"));
        }
        // By standard input: the machine's disk may be full.
        let mut nft = self.command("nft");
        nft.args(["-f", "-"]).stdin(Stdio::piped());
        let mut nft = nft.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        nft.stdin
            .take()
            .ok_or("nft has no input")?
            .write_all(rules.as_bytes())?;
        succeeds(nft.wait_with_output()?)
    }

    /// All its links are whole again.
    pub fn heal(&self) -> Outcome {
        self.pass_packets("cut")
    }

    /// Undoes [`Machine::drop_packets`].
    pub fn pass_packets(&self, table: &str) -> Outcome {
        let mut nft = self.command("nft");
        succeeds(nft.args(["delete", "table", "inet", table]).output()?)
    }

    /// The process ids of the machine's containerd, found by its configuration; its containers' shims are not among them.
    pub fn containerds(&self) -> Result<Vec<u32>, Failed> {
        let data = self.data_dir().display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut words = cmdline.split(|b| *b == 0).map(String::from_utf8_lossy);
            let program = words.next().unwrap_or_default();
            let is_containerd = program.rsplit('/').next() == Some("containerd");
            if is_containerd && words.any(|w| w.starts_with(&data)) {
                found.push(pid);
            }
        }
        Ok(found)
    }

    /// kill -9 of the machine's containerd; its containers' shims live on.
    pub fn kill_containerd(&self) -> Outcome {
        let found = self.containerds()?;
        if found.is_empty() {
            return Err(format!("{} has no containerd", self.name).into());
        }
        for pid in found {
            system(&["kill", "-9", &pid.to_string()])?;
        }
        Ok(())
    }
}

fn succeeds(out: Output) -> Outcome {
    if out.status.success() {
        Ok(())
    } else {
        Err(text(&out).into())
    }
}

/// A server, agents, and machines for what else a scenario needs; see the module. Fields are dropped in order: processes
/// before their network and files.
pub struct Fleet {
    pub server: Machine,
    pub agents: Vec<Machine>,
    pub others: Vec<Machine>,
    disks: Vec<Disk>,
    wire: Wire,
    dir: tempfile::TempDir,
}

/// A machine's own file system, in memory.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf, mib: u32) -> Result<Disk, Failed> {
        let size = format!("size={mib}m,mode=0755");
        let path = at.display().to_string();
        system(&["mount", "-t", "tmpfs", "-o", &size, "knarr-test-disk", &path])?;
        Ok(Disk(at))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let path = self.0.display().to_string();
        if system(&["umount", &path]).is_err()
            && let Err(e) = system(&["umount", "--lazy", &path])
        {
            eprintln!(
                "the disk {path} of a test is still mounted: {}",
                e.message().unwrap_or("")
            );
        }
    }
}

impl Fleet {
    /// Starts the server of this `knarr`, with these flags too; agents are started by [`Fleet::agent`].
    pub fn start(knarr: &str, agents: u8, flags: &[&str]) -> Result<Fleet, Failed> {
        Fleet::start_apart(knarr, agents, 0, flags)
    }

    /// The same; so many agents, the last ones, are on another network, behind a router.
    pub fn start_apart(knarr: &str, agents: u8, far: u8, flags: &[&str]) -> Result<Fleet, Failed> {
        let fleet = Fleet::lay_apart(knarr, agents, far, &[])?;
        fleet.launch_server(&fleet.server, flags)?;
        fleet.ready(&fleet.server).map_err(|e| fleet.with_logs(e))?;
        Ok(fleet)
    }

    /// The machines, with nothing on them yet.
    pub fn lay(knarr: &str, agents: u8, others: &[&str]) -> Result<Fleet, Failed> {
        Fleet::lay_apart(knarr, agents, 0, others)
    }

    /// The same; each machine's directory is a disk of its own, of this size in MiB, that can be filled.
    pub fn lay_with_disks(knarr: &str, agents: u8, others: &[&str], mib: u32) -> Result<Fleet, Failed> {
        let mut fleet = Fleet::lay(knarr, agents, others)?;
        let directories: Vec<PathBuf> = fleet.machines().map(|m| m.dir.clone()).collect();
        for directory in directories {
            fleet.disks.push(Disk::mount(directory, mib)?);
        }
        fleet.configure_kubelets()?;
        Ok(fleet)
    }

    fn lay_apart(knarr: &str, agents: u8, far: u8, others: &[&str]) -> Result<Fleet, Failed> {
        // Short, because sockets live in it.
        let dir = tempfile::Builder::new().prefix("knarr-f-").tempdir_in("/tmp")?;
        let near = agents - far + 1;
        let machines = agents + 1 + u8::try_from(others.len())?;
        let wire = Wire::lay(machines, near + 1..=near + far)?;
        let machine = |n: u8, name: String| -> Result<Machine, Failed> {
            let own = dir.path().join(&name);
            std::fs::create_dir_all(&own)?;
            Ok(Machine {
                address: wire.address(n),
                program: knarr.into(),
                netns: wire.netns(n),
                dir: own,
                child: Mutex::new(None),
                name,
            })
        };
        let server = machine(1, "s".into())?;
        let agents = (1..=agents).map(|n| machine(n + 1, format!("node{n}")));
        let agents = agents.collect::<Result<Vec<_>, _>>()?;
        let from = agents.len() + 2;
        let others = (from..)
            .zip(others)
            .map(|(n, name)| machine(u8::try_from(n)?, name.to_string()));
        let others = others.collect::<Result<Vec<_>, _>>()?;
        let fleet = Fleet {
            server,
            agents,
            others,
            disks: Vec::new(),
            wire,
            dir,
        };
        fleet.configure_kubelets()?;
        Ok(fleet)
    }

    fn configure_kubelets(&self) -> Outcome {
        for agent in &self.agents {
            // How full this machine is must not decide how the tests end.
            let settings = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                evictionHard: {}\nimageGCHighThresholdPercent: 100\n";
            std::fs::write(agent.dir.join("kubelet.yaml"), settings)?;
        }
        Ok(())
    }

    pub fn launch_server(&self, machine: &Machine, flags: &[&str]) -> Outcome {
        machine.launch(self.server_command(machine, flags))
    }

    /// What a server is started by.
    pub fn server_command(&self, machine: &Machine, flags: &[&str]) -> Command {
        let mut knarr = machine.knarr("server");
        knarr.args(["--listen", &format!("{}:{PORT}", machine.address)]);
        knarr.args(flags);
        knarr
    }

    /// Waits until a server is ready.
    pub fn ready(&self, server: &Machine) -> Outcome {
        let what = format!("the API server {}", server.name);
        self.waits(&what, || self.ask(server, &["get", "--raw", "/readyz"]).is_ok())
    }

    /// What an agent is started by, with the join command's words (`--server …`).
    pub fn agent(&self, agent: &Machine, join: &[&str]) -> Command {
        let mut knarr = agent.knarr("agent");
        knarr.args(["--node-name", &agent.name]);
        knarr.args(["--kubelet-listen", &format!("{}:{KUBELET_PORT}", agent.address)]);
        knarr.arg("--kubelet-config").arg(agent.dir.join("kubelet.yaml"));
        knarr.args(join);
        knarr
    }

    /// The words after `knarr agent` of a fresh join command.
    pub fn join_words(&self) -> Result<Vec<String>, Failed> {
        let mut knarr = self.server.knarr("token");
        let out = knarr.args(["create", "--print-join-command"]).output()?;
        let said = text(&out);
        let words = said
            .trim()
            .strip_prefix("knarr agent ")
            .filter(|_| out.status.success());
        let words = words.ok_or_else(|| format!("knarr token create said:\n{said}"))?;
        Ok(words.split(' ').map(str::to_string).collect())
    }

    /// The directory that the machines' directories and logs are in.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where the test itself is in the network.
    pub fn test_address(&self) -> Ipv4Addr {
        self.wire.address(0)
    }

    /// kubectl from the test's own place in the network.
    pub fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        self.ask(&self.server, args)
    }

    /// kubectl, of one of several servers.
    pub fn ask(&self, server: &Machine, args: &[&str]) -> Result<String, String> {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(server.kubeconfig());
        kubectl.arg("--request-timeout=20s").stdin(Stdio::null());
        kubectl.env("KUBECACHEDIR", self.dir.path().join("kubecache"));
        output_of(kubectl.args(args))
    }

    /// Must succeed.
    pub fn run(&self, args: &[&str]) -> Result<String, Failed> {
        self.kubectl(args)
            .map_err(|e| format!("kubectl {} failed:\n{e}", args.join(" ")).into())
    }

    pub fn apply(&self, manifest: &str) -> Result<String, Failed> {
        let file = self.dir.path().join("manifest.yaml");
        std::fs::write(&file, manifest)?;
        self.run(&["apply", "-f", &file.display().to_string()])
    }

    /// Waits for a condition, at most [`LIMIT`].
    pub fn waits(&self, what: &str, mut holds: impl FnMut() -> bool) -> Outcome {
        let begin = Instant::now();
        while !holds() {
            if begin.elapsed() > LIMIT {
                return Err(format!("waited {} s in vain for {what}", LIMIT.as_secs()).into());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits until a command's output satisfies, and returns it.
    pub fn eventually(&self, args: &[&str], holds: impl Fn(&str) -> bool) -> Result<String, Failed> {
        let mut last = String::new();
        let reached = self.waits("", || {
            last = self.kubectl(args).unwrap_or_else(|e| e);
            holds(&last)
        });
        match reached {
            Ok(()) => Ok(last),
            Err(_) => Err(format!(
                "kubectl {} never said what was expected; at last:\n{last}",
                args.join(" ")
            )
            .into()),
        }
    }

    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        let servers = std::iter::once(&self.server).chain(&self.others);
        servers.chain(&self.agents)
    }

    /// The failure with the ends of all logs.
    pub fn with_logs(&self, failure: Failed) -> Failed {
        let mut text = failure.message().unwrap_or("failed").to_string();
        for machine in self.machines() {
            let log = std::fs::read_to_string(machine.log()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(25)..].join("\n");
            text.push_str(&format!("\n--- {}'s log ends\n{end}", machine.name));
        }
        text.into()
    }

    /// Stops everything, and checks that no process, mount or part of the network is left.
    pub fn end(self) -> Outcome {
        self.down()?;
        let path = self.dir.path().to_path_buf();
        drop(self);
        let left = left_behind(&path);
        if left.is_empty() {
            return Ok(());
        }
        Err(format!("left behind: {}", left.join(", ")).into())
    }

    /// Ends each machine's knarr and takes away what it left; nothing of it may be in the machine's network then.
    fn down(&self) -> Outcome {
        // Agents first, while there is a server.
        let all = self.machines().collect::<Vec<_>>();
        for machine in all.into_iter().rev() {
            machine.kill()?;
            if !machine.data_dir().exists() {
                continue;
            }
            let out = machine.knarr("down").arg("--wipe").output()?;
            if !out.status.success() {
                return Err(format!("{}: {}", machine.name, text(&out)).into());
            }
            let left = machine.network_left()?;
            if !left.is_empty() {
                return Err(format!("left in the network of {}: {}", machine.name, left.join(", ")).into());
            }
        }
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if self.dir.path().exists()
            && let Err(e) = self.down()
        {
            eprintln!("a test fleet did not end cleanly: {}", e.message().unwrap_or(""));
        }
    }
}

/// Mounts and processes that name the directory.
fn left_behind(directory: &Path) -> Vec<String> {
    let name = directory.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut left: Vec<String> = mounts
        .lines()
        .filter(|l| l.contains(&name))
        .map(str::to_string)
        .collect();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let cmdline = String::from_utf8_lossy(&cmdline).replace('\0', " ");
        if cmdline.contains(&name) {
            left.push(format!("process {cmdline}"));
        }
    }
    left
}
