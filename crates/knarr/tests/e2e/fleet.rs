//! A server and agents on machines of their own, as far as one machine can be several: each in its own network namespace
//! ([`crate::wire`]), with its own containerd, data and address; whatever was made is removed, also when a scenario fails.
//!
//! Links are cut by nftables in a machine's namespace. Mounts are the test machine's: only the network is several.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::Outcome;
use crate::cluster::{said, text};
use crate::wire::Wire;

/// The API server's port; every machine has its own addresses.
const PORT: u16 = 6443;
const KUBELET_PORT: u16 = 10250;
/// How long anything may take before it counts as never: a lost node takes 40 s of it.
const LIMIT: Duration = Duration::from_secs(180);
/// Between two looks.
const POLL: Duration = Duration::from_millis(100);

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
    netns: String,
    dir: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Machine {
    /// A command in this machine's network.
    pub fn command(&self, program: &str) -> Command {
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
        let mut knarr = self.command(env!("CARGO_BIN_EXE_knarr"));
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

    /// Sends a signal to knarr.
    pub fn signal(&self, signal: &str) -> Outcome {
        let child = self.child.lock().map_err(|e| e.to_string())?;
        let pid = child.as_ref().ok_or("it does not run")?.id().to_string();
        system(&["kill", signal, &pid]).map(drop)
    }

    /// kill -9 of knarr, and reaped.
    pub fn kill(&self) -> Outcome {
        let child = self.child.lock().map_err(|e| e.to_string())?.take();
        if let Some(mut child) = child {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.dir.join("knarr.log")
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

    /// No packet comes or goes between this machine and the others any more.
    pub fn cut(&self, others: &[Ipv4Addr]) -> Outcome {
        let mut rules = String::from(
            "add table inet cut
add chain inet cut in { type filter hook input priority 0; }
add chain inet cut out { type filter hook output priority 0; }
",
        );
        for other in others {
            rules.push_str(&format!("add rule inet cut in ip saddr {other} drop\n"));
            rules.push_str(&format!("add rule inet cut out ip daddr {other} drop\n"));
        }
        let file = self.dir.join("cut.nft");
        std::fs::write(&file, rules)?;
        succeeds(self.command("nft").arg("-f").arg(&file).output()?)
    }

    /// All its links are whole again.
    pub fn heal(&self) -> Outcome {
        succeeds(
            self.command("nft")
                .args(["delete", "table", "inet", "cut"])
                .output()?,
        )
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
    wire: Wire,
    dir: tempfile::TempDir,
}

impl Fleet {
    /// Starts the server, with these flags too; agents are started by [`Fleet::agent`].
    pub fn start(agents: u8, flags: &[&str]) -> Result<Fleet, Failed> {
        Fleet::start_apart(agents, 0, flags)
    }

    /// The same; so many agents, the last ones, are on another network, behind a router.
    pub fn start_apart(agents: u8, far: u8, flags: &[&str]) -> Result<Fleet, Failed> {
        let fleet = Fleet::lay_apart(agents, far, &[])?;
        fleet.launch_server(&fleet.server, flags)?;
        fleet.ready(&fleet.server).map_err(|e| fleet.told(e))?;
        Ok(fleet)
    }

    /// The machines, with nothing on them yet.
    pub fn lay(agents: u8, others: &[&str]) -> Result<Fleet, Failed> {
        Fleet::lay_apart(agents, 0, others)
    }

    fn lay_apart(agents: u8, far: u8, others: &[&str]) -> Result<Fleet, Failed> {
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
            wire,
            dir,
        };
        for agent in &fleet.agents {
            // How full this machine is must not decide what the tests come to.
            let settings = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                evictionHard: {}\nimageGCHighThresholdPercent: 100\n";
            std::fs::write(agent.dir.join("kubelet.yaml"), settings)?;
        }
        Ok(fleet)
    }

    pub fn launch_server(&self, machine: &Machine, flags: &[&str]) -> Outcome {
        let mut knarr = machine.knarr("server");
        knarr
            .args(["--listen", &format!("{}:{PORT}", machine.address)])
            .args(flags);
        machine.launch(knarr)
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
        said(kubectl.args(args))
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

    fn machines(&self) -> impl Iterator<Item = &Machine> {
        let servers = std::iter::once(&self.server).chain(&self.others);
        servers.chain(&self.agents)
    }

    /// The failure with the ends of all logs.
    pub fn told(&self, failure: Failed) -> Failed {
        let mut text = failure.message().unwrap_or("failed").to_string();
        for machine in self.machines() {
            let log = std::fs::read_to_string(machine.log()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(25)..].join("\n");
            text.push_str(&format!("\n--- {}'s log ends\n{end}", machine.name));
        }
        text.into()
    }

    /// Ends everything, and looks that nothing is left.
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
