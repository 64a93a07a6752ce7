//! A server and agents on machines of their own, as far as one machine can be several: each in its own network namespace
//! on a bridge, with its own containerd, data and address; whatever was made is removed, also when a scenario fails.
//!
//! Links are cut by nftables in a machine's namespace. Mounts are the test machine's: only the network is several.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::Outcome;
use crate::cluster::{said, text};

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

/// A bridge with the machines' namespaces on it.
struct Wire {
    /// What all names begin with; unique among test runs.
    prefix: String,
    subnet: [u8; 3],
    machines: u8,
}

impl Wire {
    fn lay(machines: u8) -> Result<Wire, Failed> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = std::process::id() * 8 + NEXT.fetch_add(1, Ordering::Relaxed) % 8;
        let [.., high, low] = unique.to_be_bytes();
        let wire = Wire {
            prefix: format!("kn{:x}", unique & 0xff_ffff),
            // Of the addresses for tests of networks (198.18.0.0/15), which nobody has.
            subnet: [198, 18 + (high & 1), low],
            machines,
        };
        let bridge = wire.bridge();
        system(&["ip", "link", "add", &bridge, "type", "bridge"])?;
        system(&[
            "ip",
            "addr",
            "add",
            &format!("{}/24", wire.address(0)),
            "dev",
            &bridge,
        ])?;
        system(&["ip", "link", "set", &bridge, "up"])?;
        for machine in 1..=machines {
            let (netns, link) = (wire.netns(machine), format!("{}v{machine}", wire.prefix));
            system(&["ip", "netns", "add", &netns])?;
            system(&[
                "ip", "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &netns,
            ])?;
            system(&["ip", "link", "set", &link, "master", &bridge, "up"])?;
            let address = format!("{}/24", wire.address(machine));
            system(&["ip", "-n", &netns, "addr", "add", &address, "dev", "eth0"])?;
            system(&["ip", "-n", &netns, "link", "set", "eth0", "up"])?;
            system(&["ip", "-n", &netns, "link", "set", "lo", "up"])?;
        }
        Ok(wire)
    }

    fn bridge(&self) -> String {
        format!("{}b", self.prefix)
    }

    fn netns(&self, machine: u8) -> String {
        format!("{}n{machine}", self.prefix)
    }

    /// 0 is the bridge's, where the test itself is.
    fn address(&self, machine: u8) -> Ipv4Addr {
        let [a, b, c] = self.subnet;
        Ipv4Addr::new(a, b, c, machine + 1)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for machine in 1..=self.machines {
            // The link first: a namespace may outlive its name for as long as another process's mounts know it. What was
            // never made is no fault.
            drop(system(&[
                "ip",
                "link",
                "del",
                &format!("{}v{machine}", self.prefix),
            ]));
            drop(system(&["ip", "netns", "del", &self.netns(machine)]));
        }
        drop(system(&["ip", "link", "del", &self.bridge()]));
    }
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
    _wire: Wire,
    dir: tempfile::TempDir,
}

impl Fleet {
    /// Starts the server, with these flags too; agents are started by [`Fleet::agent`].
    pub fn start(agents: u8, flags: &[&str]) -> Result<Fleet, Failed> {
        let fleet = Fleet::lay(agents, &[])?;
        fleet.launch_server(&fleet.server, flags)?;
        fleet.ready(&fleet.server).map_err(|e| fleet.told(e))?;
        Ok(fleet)
    }

    /// The machines, with nothing on them yet.
    pub fn lay(agents: u8, others: &[&str]) -> Result<Fleet, Failed> {
        // Short, because sockets live in it.
        let dir = tempfile::Builder::new().prefix("knarr-f-").tempdir_in("/tmp")?;
        let wire = Wire::lay(agents + 1 + u8::try_from(others.len())?)?;
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
            _wire: wire,
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
