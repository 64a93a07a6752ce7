//! A cluster of its own for tests: temporary directory, own ports, own pod network; stopped by process id.

use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use libtest_mimic::Failed;
use sha2::{Digest, Sha256};

pub use knarr_nemesis::commands::{output_of, text};
use knarr_nemesis::wait::Wait;

use crate::Outcome;

/// How long a condition of a scenario is waited for.
pub const LIMIT: Duration = Duration::from_secs(60);
const WAIT: Wait = Wait {
    limit: LIMIT,
    poll: Duration::from_millis(50),
};

pub type Scenario = fn(&Namespace) -> Outcome;

/// A process of this host.
pub struct Process {
    pub pid: i32,
    /// Its arguments, separated by spaces.
    pub command: String,
}

/// A running `knarr up`.
pub struct Cluster {
    dir: tempfile::TempDir,
    /// A range with one node's pod CIDR.
    cluster_cidr: String,
    service_cidr: String,
    port: u16,
    kubelet_port: u16,
    child: std::sync::Mutex<Option<Child>>,
    /// Flags of `knarr up` besides the usual ones.
    up_flags: &'static [&'static str],
}

impl Cluster {
    /// Starts one and waits until its node is Ready.
    pub fn start(name: &str) -> Result<Cluster, String> {
        Cluster::start_with(name, &[])
    }

    /// The same with more flags, at each start.
    pub fn start_with(name: &str, flags: &'static [&'static str]) -> Result<Cluster, String> {
        let mut cluster = Cluster::prepare(name)?;
        cluster.up_flags = flags;
        cluster.launch()?;
        cluster.wait_ready()?;
        // A second name for the demo image, so that a rollout has somewhere to go.
        let mut tag = Command::new("ctr");
        tag.arg("--address")
            .arg(cluster.containerd_socket())
            .args(["-n", "k8s.io", "images", "tag", "--force"]);
        let out = tag
            .args(["localhost/knarr/busybox:1", "localhost/knarr/web:1"])
            .output();
        match out {
            Ok(out) if out.status.success() => Ok(cluster),
            Ok(out) => Err(text(&out)),
            Err(e) => Err(format!("ctr: {e}")),
        }
    }

    /// The flags from its next start on.
    pub fn set_flags(&mut self, flags: &'static [&'static str]) {
        self.up_flags = flags;
    }

    /// Chooses directory, ports and network without starting anything.
    pub fn prepare(name: &str) -> Result<Cluster, String> {
        // Short, because sockets live in it.
        let dir = tempfile::Builder::new()
            .prefix(&format!("knarr-{name}-"))
            .tempdir_in("/tmp")
            .map_err(|e| e.to_string())?;
        let (port, kubelet_port) = free_ports()?;
        // Different clusters of one test run must not share a network.
        let unique = port % 250;
        let cluster = Cluster {
            dir,
            cluster_cidr: format!("10.{}.{unique}.0/24", 200 + port % 50),
            service_cidr: format!("172.{}.{unique}.0/24", 16 + port % 16),
            port,
            kubelet_port,
            child: std::sync::Mutex::new(None),
            up_flags: &[],
        };
        cluster.configure_kubelet().map_err(|e| e.to_string())?;
        Ok(cluster)
    }

    pub fn knarr(&self, command: &str) -> Command {
        let mut knarr = Command::new(env!("CARGO_BIN_EXE_knarr"));
        knarr
            .arg(command)
            .arg("--data-dir")
            .arg(self.data_dir())
            .arg("--kubeconfig")
            .arg(self.kubeconfig());
        knarr.args(["--listen", &format!("127.0.0.1:{}", self.port)]);
        knarr.args(["--kubelet-listen", &format!("127.0.0.1:{}", self.kubelet_port)]);
        knarr.args([
            "--cluster-cidr",
            &self.cluster_cidr,
            "--service-cidr",
            &self.service_cidr,
            "--node-name",
            "node1",
        ]);
        knarr.arg("--kubelet-config").arg(self.kubelet_config());
        knarr.arg("--fence-agents-dir").arg(self.agents_dir());
        knarr.args(["--fence-agents-allow", "fence_test"]);
        // Pods' usage counts soon after their start.
        knarr.args(["--horizontal-pod-autoscaler-sync-period", "2s"]);
        knarr.args(["--horizontal-pod-autoscaler-cpu-initialization-period", "1s"]);
        knarr.args(["--horizontal-pod-autoscaler-initial-readiness-delay", "1s"]);
        knarr.stdin(Stdio::null());
        knarr
    }

    /// The directory of the node's static pods.
    pub fn manifests(&self) -> PathBuf {
        self.dir.path().join("manifests")
    }

    fn kubelet_config(&self) -> PathBuf {
        self.dir.path().join("kubelet.yaml")
    }

    /// The free space of this host must not influence the tests: no pod is evicted and no image is deleted for it.
    fn configure_kubelet(&self) -> std::io::Result<()> {
        std::fs::create_dir_all(self.manifests())?;
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {{}}\n\
             imageGCHighThresholdPercent: 100\nstaticPodPath: {}\n\
             podPidsLimit: 200\nshutdownGracePeriod: 5s\nshutdownGracePeriodCriticalPods: 2s\n",
            self.manifests().display()
        );
        std::fs::write(self.kubelet_config(), text)
    }

    pub fn launch(&self) -> Result<(), String> {
        let mut up = self.knarr("up");
        up.args(self.up_flags);
        self.spawn(up)
    }

    /// The control plane alone, without a node.
    pub fn launch_server(&self) -> Result<(), String> {
        self.launch_server_with(&[])
    }

    /// The same with more flags.
    pub fn launch_server_with(&self, flags: &[&str]) -> Result<(), String> {
        let mut server = Command::new(env!("CARGO_BIN_EXE_knarr"));
        server.stdin(Stdio::null());
        self.launch_server_by(server, flags)
    }

    /// The same by a command that runs knarr with the arguments it is given.
    pub fn launch_server_by(&self, mut server: Command, flags: &[&str]) -> Result<(), String> {
        server.arg("server").arg("--data-dir").arg(self.data_dir());
        server.arg("--kubeconfig").arg(self.kubeconfig());
        server.args(["--listen", &format!("127.0.0.1:{}", self.port)]);
        server.args(flags);
        self.spawn(server)
    }

    fn spawn(&self, mut knarr: Command) -> Result<(), String> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .map_err(|e| e.to_string())?;
        let child = knarr
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|e| e.to_string())?;
        *self.child.lock().map_err(|e| e.to_string())? = Some(child);
        Ok(())
    }

    pub fn wait_ready(&self) -> Result<(), String> {
        let out = self
            .knarr("status")
            .args(["--wait", "60"])
            .output()
            .map_err(|e| e.to_string())?;
        if out.status.success() {
            return Ok(());
        }
        Err(format!("{}\n{}", text(&out), self.log_tail()))
    }

    /// The running knarr's process id.
    pub fn pid(&self) -> Result<u32, String> {
        let child = self.child.lock().map_err(|e| e.to_string())?;
        child.as_ref().map(Child::id).ok_or_else(|| "not running".into())
    }

    /// Stops it with SIGTERM, and waits for it.
    pub fn terminate(&self) -> Result<(), String> {
        let child = self.child.lock().map_err(|e| e.to_string())?.take();
        if let Some(mut child) = child {
            let pid = child.id().to_string();
            let out = Command::new("kill").args(["-TERM", &pid]).output();
            out.map_err(|e| e.to_string())?;
            child.wait().map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// kill -9, and reaped.
    pub fn kill(&self) -> Result<(), String> {
        let child = self.child.lock().map_err(|e| e.to_string())?.take();
        if let Some(mut child) = child {
            child.kill().map_err(|e| e.to_string())?;
            child.wait().map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// `knarr down --wipe`, and a check that nothing is left.
    pub fn end(&self) -> Result<(), String> {
        let out = self
            .knarr("down")
            .arg("--wipe")
            .output()
            .map_err(|e| e.to_string())?;
        let child = self.child.lock().map_err(|e| e.to_string())?.take();
        if let Some(mut child) = child {
            child.kill().map_err(|e| e.to_string())?;
            child.wait().map_err(|e| e.to_string())?;
        }
        if !out.status.success() {
            return Err(format!("{}\n{}", text(&out), self.log_tail()));
        }
        let left = self.leftovers();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("not removed: {}", left.join(", ")))
        }
    }

    /// Mounts, interfaces, processes and rules that name this cluster.
    fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let dir = self.data_dir().display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        left.extend(
            mounts
                .lines()
                .filter(|l| l.contains(&dir))
                .map(|l| format!("mount {l}")),
        );
        let processes = self.processes();
        left.extend(processes.into_iter().map(|p| format!("process {}", p.command)));
        left.extend(
            self.pod_routes()
                .into_iter()
                .map(|route| format!("route {route}")),
        );
        left.extend(
            self.nft_tables()
                .into_iter()
                .map(|table| format!("nftables {table}")),
        );
        left
    }

    /// The processes whose command line names this cluster's directory.
    pub fn processes(&self) -> Vec<Process> {
        let dir = self.data_dir().display().to_string();
        let mut processes = Vec::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            if command.contains(&dir) {
                processes.push(Process { pid, command });
            }
        }
        processes
    }

    /// Routes to this cluster's pods.
    pub fn pod_routes(&self) -> Vec<String> {
        let subnet = self.cluster_cidr.trim_end_matches("0/24");
        let routes = Command::new("ip").args(["-4", "route", "show"]).output();
        let routes = routes.map(|o| text(&o)).unwrap_or_default();
        let to_pods = routes.lines().filter(|route| {
            let destination = route.split(' ').find(|word| word.contains('.'));
            destination.is_some_and(|d| d.starts_with(subnet))
        });
        to_pods.map(str::to_string).collect()
    }

    /// The nftables tables of this cluster's node, by the suffix that its data directory gives them.
    pub fn nft_tables(&self) -> Vec<String> {
        let hash = Sha256::digest(self.data_dir().as_os_str().as_encoded_bytes());
        let suffix: String = hash.iter().take(2).map(|byte| format!("{byte:02x}")).collect();
        let tables = Command::new("nft").args(["list", "tables"]).output();
        let tables = tables.map(|o| text(&o)).unwrap_or_default();
        let own = tables
            .lines()
            .filter(|table| table.contains("knarr") && table.ends_with(&suffix));
        own.map(str::to_string).collect()
    }

    /// The API's address.
    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The kubelet's port.
    pub fn kubelet_address(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.kubelet_port).into()
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("d")
    }

    /// Where this cluster's fence agents are.
    pub fn agents_dir(&self) -> PathBuf {
        self.dir.path().join("agents")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    pub fn containerd_socket(&self) -> PathBuf {
        self.data_dir().join("run/containerd.sock")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("knarr.log")
    }

    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    pub fn kubectl(&self) -> Command {
        let mut kubectl = Command::new("kubectl");
        kubectl
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .stdin(Stdio::null());
        kubectl.env("KUBECACHEDIR", self.dir.path().join("kubecache"));
        kubectl
    }

    pub fn namespace(&self, name: &str) -> Namespace<'_> {
        Namespace {
            cluster: self,
            name: name.into(),
        }
    }

    /// Runs a scenario in a fresh namespace and removes that.
    pub fn in_namespace(&self, name: &str, run: Scenario) -> Outcome {
        // At most 63 bytes, and short enough to be read in a failure.
        let short: Vec<&str> = name.split('_').take(6).collect();
        let ns = self.namespace(&short.join("-"));
        ns.cluster_run(&["create", "namespace", &ns.name])?;
        ns.wait_for_service_account()?;
        let outcome = run(&ns);
        if outcome.is_err() {
            eprintln!("--- {name}: knarr's log ends\n{}\n---", self.log_tail());
        }
        ns.cluster_run(&["delete", "namespace", &ns.name, "--wait=false"])?;
        outcome
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.child.lock().is_ok_and(|c| c.is_some())
            && let Err(e) = self.end()
        {
            eprintln!("a test cluster was not stopped cleanly: {e}");
        }
    }
}

/// Two neighbouring ports that no process listens on. Below the ephemeral ports (a connection could take one between the
/// check and the start) and below node ports.
fn free_ports() -> Result<(u16, u16), String> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 9_000).unwrap_or(0);
    for _ in 0..500 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (2 * (first + step)) % 18_000;
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 1) {
            return Ok((port, port + 1));
        }
    }
    Err("no two free ports between 10000 and 28000".into())
}

/// A scenario's namespace, with kubectl pointed at it.
pub struct Namespace<'a> {
    pub cluster: &'a Cluster,
    pub name: String,
}

impl Namespace<'_> {
    pub fn kubectl(&self, args: &[&str]) -> Command {
        let mut kubectl = self.cluster.kubectl();
        kubectl.args(["--namespace", &self.name]).args(args);
        kubectl
    }

    /// Waits for the service account that pods need in a new namespace.
    pub fn wait_for_service_account(&self) -> Outcome {
        self.eventually("the default service account", || {
            self.try_run(&["get", "serviceaccount", "default"]).is_ok()
        })
    }

    /// Its output if it succeeds, else standard output and error.
    pub fn try_run(&self, args: &[&str]) -> Result<String, String> {
        output_of(&mut self.kubectl(args)).map_err(|e| e.to_string())
    }

    /// Must succeed.
    pub fn run(&self, args: &[&str]) -> Result<String, Failed> {
        self.try_run(args)
            .map_err(|e| format!("kubectl {} failed:\n{e}", args.join(" ")).into())
    }

    /// Must fail.
    pub fn run_failing(&self, args: &[&str]) -> Result<String, Failed> {
        match self.try_run(args) {
            Ok(out) => Err(format!(
                "kubectl {} should have failed, but succeeded:\n{out}",
                args.join(" ")
            )
            .into()),
            Err(out) => Ok(out),
        }
    }

    fn cluster_run(&self, args: &[&str]) -> Result<String, Failed> {
        Ok(output_of(self.cluster.kubectl().args(args))?)
    }

    /// Must succeed with this on standard input.
    pub fn run_with(&self, args: &[&str], input: &str) -> Result<String, Failed> {
        let mut child = self
            .kubectl(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let out = child.wait_with_output()?;
        if out.status.success() {
            return Ok(text(&out));
        }
        Err(format!("kubectl {} failed:\n{}", args.join(" "), text(&out)).into())
    }

    pub fn apply(&self, manifest: &str) -> Result<String, Failed> {
        self.run_with(&["apply", "-f", "-"], manifest)
    }

    /// Waits for a condition, at most [`LIMIT`].
    pub fn eventually(&self, what: &str, holds: impl FnMut() -> bool) -> Outcome {
        eventually(what, holds)
    }

    /// Waits until the output of kubectl satisfies the condition, and returns it.
    pub fn eventually_run(&self, args: &[&str], holds: impl Fn(&str) -> bool) -> Result<String, Failed> {
        WAIT.until_output(args, |args| self.try_run(args), holds)
    }
}

/// Waits for a condition, at most [`LIMIT`].
pub fn eventually(what: &str, holds: impl FnMut() -> bool) -> Outcome {
    WAIT.until(what, holds)
}

/// Fails unless `text` has `part`.
pub fn has(text: &str, part: &str) -> Outcome {
    if text.contains(part) {
        Ok(())
    } else {
        Err(format!("{part:?} is missing in:\n{text}").into())
    }
}

/// Fails unless the two are equal.
pub fn same(found: &str, expected: &str) -> Outcome {
    if found == expected {
        Ok(())
    } else {
        Err(format!("expected {expected:?}, found {found:?}").into())
    }
}
