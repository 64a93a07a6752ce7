//! A server and agents on hosts of their own, simulated on one host: each in its own network namespace
//! ([`crate::test_network`]), with its own containerd, data and address; everything is removed, also when a scenario fails.
//!
//! Links are cut by nftables in a host's namespace. The hosts share the mount namespace of the test host: only their networks
//! are separate. The end-to-end tests of `crates/knarr` and the nemesis both run on such hosts.

use std::ffi::OsStr;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use libtest_mimic::Failed;

use crate::commands::{CommandError, output_of, system, text};
use crate::test_network::TestNetwork;
use crate::wait::{Outcome, Wait};

/// The API server's port; every host has its own addresses.
const PORT: u16 = 6443;
const KUBELET_PORT: u16 = 10250;
/// How long conditions are waited for: a lost node takes 40 s of it.
const WAIT: Wait = Wait {
    limit: Duration::from_secs(180),
    poll: Duration::from_millis(100),
};

/// A host with a knarr or etcd process.
pub struct Host {
    pub name: String,
    pub address: Ipv4Addr,
    /// The knarr program of this host.
    program: PathBuf,
    netns: String,
    dir: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Host {
    /// A command in this host's network.
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

    /// `knarr` with the flags that all its subcommands need on this host.
    pub fn knarr(&self, subcommand: &str) -> Command {
        let mut knarr = self.command(&self.program);
        knarr.arg(subcommand).arg("--data-dir").arg(self.data_dir());
        knarr.arg("--kubeconfig").arg(self.kubeconfig());
        knarr
    }

    /// Starts a process in the background.
    pub fn launch(&self, mut knarr: Command) -> Outcome {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())?;
        let child = knarr.stdout(Stdio::null()).stderr(log).spawn()?;
        *self.child.lock().map_err(|e| e.to_string())? = Some(child);
        Ok(())
    }

    /// The process that was launched here last, unless it was killed or has exited by itself ([`Host::exited`]).
    pub fn pid(&self) -> Option<u32> {
        let child = self.child.lock().ok()?;
        child.as_ref().map(Child::id)
    }

    /// The exit status, if the process has exited by itself since the last call.
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

    /// The log of its process; not on its disk, which may be full.
    pub fn log(&self) -> PathBuf {
        self.dir.with_extension("log")
    }

    /// The directory of all files of the host.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The output of a command in this host's network; it must succeed.
    pub fn output(&self, argv: &[&str]) -> Result<String, Failed> {
        let (program, args) = argv.split_first().ok_or("no command")?;
        let out = self.command(program).args(args).output()?;
        match out.status.success() {
            true => Ok(text(&out)),
            false => Err(format!("{} on {}: {}", argv.join(" "), self.name, text(&out)).into()),
        }
    }

    /// Tables, links, routes and addresses of knarr that still exist.
    fn network_leftovers(&self) -> Result<Vec<String>, Failed> {
        let mut left = Vec::new();
        for (argv, is_ours) in [
            (&["nft", "list", "tables"][..], &["knarr"][..]),
            (&["ip", "-o", "link"], &["knarr"]),
            // Only the host's own link has routes or addresses; those of a pod's link are removed with it.
            (
                &["ip", "route", "show", "table", "main"],
                &["unreachable", "10.244.", "knarr"],
            ),
            (&["ip", "-o", "addr", "show", "dev", "lo"], &["10.96."]),
        ] {
            let found = self.output(argv)?;
            let ours = found
                .lines()
                .filter(|l| is_ours.iter().any(|part| l.contains(part)));
            left.extend(ours.map(str::to_string));
        }
        Ok(left)
    }

    /// From now on no packet passes between this host and the others, in either direction.
    pub fn cut(&self, others: &[Ipv4Addr]) -> Outcome {
        self.drop_packets("cut", others, others)
    }

    /// Drops packets from and to these addresses, until [`Host::pass_packets`] of the same table.
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
        // On standard input: the host's disk may be full.
        let mut nft = self.command("nft");
        nft.args(["-f", "-"]).stdin(Stdio::piped());
        let mut nft = nft.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        nft.stdin
            .take()
            .ok_or("nft has no input")?
            .write_all(rules.as_bytes())?;
        expect_success(nft.wait_with_output()?)
    }

    /// Ends [`Host::cut`].
    pub fn heal(&self) -> Outcome {
        self.pass_packets("cut")
    }

    /// Ends [`Host::drop_packets`].
    pub fn pass_packets(&self, table: &str) -> Outcome {
        let mut nft = self.command("nft");
        expect_success(nft.args(["delete", "table", "inet", table]).output()?)
    }

    /// The process ids of the host's containerd, found by its configuration; its containers' shims are not among them.
    pub fn containerds(&self) -> Result<Vec<u32>, Failed> {
        let data = self.data_dir().display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut argv = cmdline.split(|b| *b == 0).map(String::from_utf8_lossy);
            let program = argv.next().unwrap_or_default();
            let is_containerd = program.rsplit('/').next() == Some("containerd");
            if is_containerd && argv.any(|w| w.starts_with(&data)) {
                found.push(pid);
            }
        }
        Ok(found)
    }

    /// kill -9 of the host's containerd; its containers' shims keep running.
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

fn expect_success(out: Output) -> Outcome {
    if out.status.success() {
        Ok(())
    } else {
        Err(text(&out).into())
    }
}

/// A server, agents, and other hosts that a scenario needs. Fields are dropped in order: processes before their network and
/// files.
pub struct Fleet {
    pub server: Host,
    pub agents: Vec<Host>,
    pub others: Vec<Host>,
    disks: Vec<Disk>,
    network: TestNetwork,
    dir: tempfile::TempDir,
}

/// A host's own file system, in memory.
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
    /// Starts the server with this `knarr` program and these additional flags; agents are started with [`Fleet::agent`].
    pub fn start(knarr: &str, agents: u8, flags: &[&str]) -> Result<Fleet, Failed> {
        Fleet::start_on_two_networks(knarr, agents, 0, flags)
    }

    /// The same; the last `far` agents are on another network, behind a router.
    pub fn start_on_two_networks(knarr: &str, agents: u8, far: u8, flags: &[&str]) -> Result<Fleet, Failed> {
        let fleet = Fleet::prepare_on_two_networks(knarr, agents, far, &[])?;
        fleet.launch_server(&fleet.server, flags)?;
        fleet.wait_ready(&fleet.server).map_err(|e| fleet.with_logs(e))?;
        Ok(fleet)
    }

    /// Creates the hosts without starting a process.
    pub fn prepare(knarr: &str, agents: u8, others: &[&str]) -> Result<Fleet, Failed> {
        Fleet::prepare_on_two_networks(knarr, agents, 0, others)
    }

    /// The same; each host's directory is a file system of its own, of this size in MiB, that can be filled.
    pub fn prepare_with_disks(knarr: &str, agents: u8, others: &[&str], mib: u32) -> Result<Fleet, Failed> {
        let mut fleet = Fleet::prepare(knarr, agents, others)?;
        let directories: Vec<PathBuf> = fleet.hosts().map(|m| m.dir.clone()).collect();
        for directory in directories {
            fleet.disks.push(Disk::mount(directory, mib)?);
        }
        fleet.configure_kubelets()?;
        Ok(fleet)
    }

    fn prepare_on_two_networks(knarr: &str, agents: u8, far: u8, others: &[&str]) -> Result<Fleet, Failed> {
        // Short, because paths of sockets are limited.
        let dir = tempfile::Builder::new().prefix("knarr-f-").tempdir_in("/tmp")?;
        let near = agents - far + 1;
        let hosts = agents + 1 + u8::try_from(others.len())?;
        let network = TestNetwork::create(hosts, near + 1..=near + far)?;
        let host = |n: u8, name: String| -> Result<Host, Failed> {
            let own = dir.path().join(&name);
            std::fs::create_dir_all(&own)?;
            Ok(Host {
                address: network.address(n),
                program: knarr.into(),
                netns: network.netns(n),
                dir: own,
                child: Mutex::new(None),
                name,
            })
        };
        let server = host(1, "s".into())?;
        let agents = (1..=agents).map(|n| host(n + 1, format!("node{n}")));
        let agents = agents.collect::<Result<Vec<_>, _>>()?;
        let from = agents.len() + 2;
        let others = (from..)
            .zip(others)
            .map(|(n, name)| host(u8::try_from(n)?, name.to_string()));
        let others = others.collect::<Result<Vec<_>, _>>()?;
        let fleet = Fleet {
            server,
            agents,
            others,
            disks: Vec::new(),
            network,
            dir,
        };
        fleet.configure_kubelets()?;
        Ok(fleet)
    }

    fn configure_kubelets(&self) -> Outcome {
        for agent in &self.agents {
            // The free space of the test host must not influence the tests.
            let settings = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                evictionHard: {}\nimageGCHighThresholdPercent: 100\n";
            std::fs::write(agent.dir.join("kubelet.yaml"), settings)?;
        }
        Ok(())
    }

    pub fn launch_server(&self, host: &Host, flags: &[&str]) -> Outcome {
        host.launch(self.server_command(host, flags))
    }

    /// The command of a server.
    pub fn server_command(&self, host: &Host, flags: &[&str]) -> Command {
        let mut knarr = host.knarr("server");
        knarr.args(["--listen", &format!("{}:{PORT}", host.address)]);
        knarr.args(flags);
        knarr
    }

    /// Waits until a server is ready.
    pub fn wait_ready(&self, server: &Host) -> Outcome {
        let what = format!("the API server {}", server.name);
        self.eventually(&what, || {
            self.kubectl_at(server, &["get", "--raw", "/readyz"]).is_ok()
        })
    }

    /// The command of an agent, with the arguments of a join command (`--server …`).
    pub fn agent(&self, agent: &Host, join: &[&str]) -> Command {
        let mut knarr = agent.knarr("agent");
        knarr.args(["--node-name", &agent.name]);
        knarr.args(["--kubelet-listen", &format!("{}:{KUBELET_PORT}", agent.address)]);
        knarr.arg("--kubelet-config").arg(agent.dir.join("kubelet.yaml"));
        knarr.args(join);
        knarr
    }

    /// The arguments after `knarr agent` of a new join command.
    pub fn join_args(&self) -> Result<Vec<String>, Failed> {
        let mut knarr = self.server.knarr("token");
        let out = knarr.args(["create", "--print-join-command"]).output()?;
        let output = text(&out);
        let argv = output
            .trim()
            .strip_prefix("knarr agent ")
            .filter(|_| out.status.success());
        let argv = argv.ok_or_else(|| format!("knarr token create failed:\n{output}"))?;
        Ok(argv.split(' ').map(str::to_string).collect())
    }

    /// The directory that the hosts' directories and logs are in.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The address of the test itself in the network.
    pub fn test_address(&self) -> Ipv4Addr {
        self.network.address(0)
    }

    /// kubectl, run from the test host.
    pub fn kubectl(&self, args: &[&str]) -> Result<String, CommandError> {
        self.kubectl_at(&self.server, args)
    }

    /// kubectl, with one of several servers.
    pub fn kubectl_at(&self, server: &Host, args: &[&str]) -> Result<String, CommandError> {
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

    /// Waits for a condition.
    pub fn eventually(&self, what: &str, holds: impl FnMut() -> bool) -> Outcome {
        WAIT.until(what, holds)
    }

    /// Waits until the output of kubectl satisfies the condition, and returns it.
    pub fn eventually_run(&self, args: &[&str], holds: impl Fn(&str) -> bool) -> Result<String, Failed> {
        self.eventually_run_at(&self.server, args, holds)
    }

    /// The same, with one of several servers.
    pub fn eventually_run_at(
        &self,
        server: &Host,
        args: &[&str],
        holds: impl Fn(&str) -> bool,
    ) -> Result<String, Failed> {
        WAIT.until_output(args, |args| self.kubectl_at(server, args), holds)
    }

    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        let servers = std::iter::once(&self.server).chain(&self.others);
        servers.chain(&self.agents)
    }

    /// The failure with the last lines of all logs.
    pub fn with_logs(&self, failure: Failed) -> Failed {
        let mut text = failure.message().unwrap_or("failed").to_string();
        for host in self.hosts() {
            let log = std::fs::read_to_string(host.log()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(25)..].join("\n");
            text.push_str(&format!("\n--- {}'s log ends\n{end}", host.name));
        }
        text.into()
    }

    /// Stops everything, and checks that no process, mount or network device is left.
    pub fn tear_down(self) -> Outcome {
        self.stop_all()?;
        let path = self.dir.path().to_path_buf();
        drop(self);
        let left = leftovers(&path);
        if left.is_empty() {
            return Ok(());
        }
        Err(format!("not removed: {}", left.join(", ")).into())
    }

    /// Stops each host's knarr and runs `knarr down --wipe`; it is an error if it leaves something in the host's network.
    fn stop_all(&self) -> Outcome {
        // Agents first, while there is a server.
        let all = self.hosts().collect::<Vec<_>>();
        for host in all.into_iter().rev() {
            host.kill()?;
            if !host.data_dir().exists() {
                continue;
            }
            let out = host.knarr("down").arg("--wipe").output()?;
            if !out.status.success() {
                return Err(format!("{}: {}", host.name, text(&out)).into());
            }
            let left = host.network_leftovers()?;
            if !left.is_empty() {
                return Err(format!(
                    "not removed from the network of {}: {}",
                    host.name,
                    left.join(", ")
                )
                .into());
            }
        }
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if self.dir.path().exists()
            && let Err(e) = self.stop_all()
        {
            eprintln!(
                "a test fleet was not stopped cleanly: {}",
                e.message().unwrap_or("")
            );
        }
    }
}

/// Mounts and processes that name the directory.
fn leftovers(directory: &Path) -> Vec<String> {
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
