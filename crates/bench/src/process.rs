//! A separate knarr for a benchmark: the release build next to this program, stopped by process id.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::container_runtime::ContainerRuntime;
use crate::interruption::Started;

/// How long each step may take before a benchmark fails.
pub const LIMIT: Duration = Duration::from_secs(120);

pub type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// How often spans are exported, in milliseconds: a traced pod waits for its last ones. The exporter's own default is 5 s.
const EXPORT_PERIOD_MILLIS: &str = "100";

/// A new process group: a Ctrl-C at the terminal is the benchmark's to handle.
const OWN_GROUP: i32 = 0;

/// What a benchmark's knarr is started with.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub containers: ContainerRuntime,
    /// All spans are exported to this OpenTelemetry collector.
    pub collector: Option<SocketAddr>,
}

/// A running knarr in a temporary directory.
pub struct Knarr {
    dir: tempfile::TempDir,
    child: Child,
    role: Vec<String>,
    args: Vec<String>,
    knarr: PathBuf,
    port: u16,
    /// The last one that is dropped.
    _started: Started,
}

impl Knarr {
    /// `role` is `up` (with a node) or `server`.
    pub fn start(role: &str) -> Result<Knarr> {
        Self::start_with(role, &Setup::default())
    }

    /// The same with more settings.
    pub fn start_with(role: &str, setup: &Setup) -> Result<Knarr> {
        Self::start_as(vec![role.to_string()], setup)
    }

    /// A node in a process of its own, which joins that server's cluster.
    pub fn agent(server: &Knarr, setup: &Setup) -> Result<Knarr> {
        let kubeconfig = server.kubeconfig().display().to_string();
        let role = vec!["agent".into(), "--bootstrap-kubeconfig".into(), kubeconfig];
        Self::start_as(role, setup)
    }

    /// `role`: the subcommand, and what only it takes.
    fn start_as(mut role: Vec<String>, setup: &Setup) -> Result<Knarr> {
        let started = Started::begin();
        let knarr = std::env::current_exe()?.with_file_name("knarr");
        let dir = tempfile::Builder::new()
            .prefix("knarr-bench-")
            .tempdir_in("/tmp")?;
        let (port, kubelet) = two_free_ports()?;
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(
            path("kubelet.yaml"),
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {}\n",
        )?;
        role.extend(setup.containers.flags());
        if let Some(collector) = setup.collector {
            let file = path("tracing.yaml");
            std::fs::write(&file, tracing_configuration(collector))?;
            role.extend(["--tracing-config-file".into(), file]);
        }
        let args = [
            "--data-dir",
            &path("d"),
            "--kubeconfig",
            &path("kubeconfig"),
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--kubelet-listen",
            &format!("127.0.0.1:{kubelet}"),
            "--cluster-cidr",
            "10.199.0.0/24",
            "--service-cidr",
            "10.198.0.0/16",
            "--node-name",
            "bench",
            // The disk usage of this host must not affect it.
            "--kubelet-config",
            &path("kubelet.yaml"),
        ]
        .map(str::to_string)
        .to_vec();
        let log = std::fs::File::create(dir.path().join("log"))?;
        let child = Command::new(&knarr)
            .args(&role)
            .args(&args)
            .env("OTEL_BSP_SCHEDULE_DELAY", EXPORT_PERIOD_MILLIS)
            .process_group(OWN_GROUP)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(Knarr {
            dir,
            child,
            role,
            args,
            knarr,
            port,
            _started: started,
        })
    }

    /// A directory of this run's own.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// The socket of its containerd.
    pub fn containerd(&self) -> PathBuf {
        self.dir.path().join("d/run/containerd.sock")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// kill -9, and the same again: for a start with everything in place.
    pub fn restart(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        let log = std::fs::File::options()
            .append(true)
            .open(self.dir.path().join("log"))?;
        self.child = Command::new(&self.knarr)
            .args(&self.role)
            .args(&self.args)
            .process_group(OWN_GROUP)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(())
    }

    /// Waits until the API server is ready; returns a client for it.
    pub async fn ready(&mut self, since: Instant) -> Result<kube::Client> {
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            self.check_running(since)?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        loop {
            if let Ok(client) = kube_client(&self.kubeconfig()).await
                && client
                    .request_text(http::Request::get("/readyz").body(Vec::new())?)
                    .await
                    .is_ok_and(|t| t == "ok")
            {
                return Ok(client);
            }
            self.check_running(since)?;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// An error if the process exited or `since` is too long ago.
    pub fn check_running(&mut self, since: Instant) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            return Err(format!("knarr exited ({status}):\n{}", self.log()).into());
        }
        if since.elapsed() > LIMIT {
            return Err(format!("not ready within {} s:\n{}", LIMIT.as_secs(), self.log()).into());
        }
        Ok(())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Resident memory of knarr itself (without containerd), MB.
    pub fn memory_mb(&self) -> Result<f64> {
        memory_mb(self.child.id())
    }

    /// The part of it that is not pages of its program, MB.
    pub fn anonymous_mb(&self) -> Result<f64> {
        anonymous_mb(self.child.id())
    }

    /// Begins a new measurement of [`Knarr::peak_memory_mb`].
    pub fn forget_peak(&self) -> Result<()> {
        forget_peak(self.child.id())
    }

    /// The most that was resident since then, MB.
    pub fn peak_memory_mb(&self) -> Result<f64> {
        memory(self.child.id(), "VmHWM:")
    }

    /// CPU time used so far by knarr itself, seconds.
    pub fn cpu_seconds(&self) -> Result<f64> {
        cpu_seconds(self.child.id())
    }
}

impl Drop for Knarr {
    fn drop(&mut self) {
        let down = Command::new(&self.knarr)
            .arg("down")
            .args(&self.args)
            .arg("--wipe")
            .process_group(OWN_GROUP)
            .output();
        if !down.is_ok_and(|out| out.status.success()) {
            eprintln!("the benchmark's cluster did not stop cleanly");
        }
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time that a process has used so far, seconds.
pub fn cpu_seconds(process: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    // utime and stime, in ticks of 1/100 s (USER_HZ).
    let ticks = |i: usize| {
        fields
            .get(i)
            .and_then(|f| f.parse::<f64>().ok())
            .ok_or("no CPU time")
    };
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}

/// Begins a new measurement of [`own_peak_memory_mb`].
pub fn forget_own_peak() -> Result<()> {
    forget_peak(std::process::id())
}

/// The most that was resident of this process since then, MB.
pub fn own_peak_memory_mb() -> Result<f64> {
    memory(std::process::id(), "VmHWM:")
}

fn forget_peak(process: u32) -> Result<()> {
    // proc(5): 5 resets the peak resident set size to the current one.
    Ok(std::fs::write(format!("/proc/{process}/clear_refs"), "5")?)
}

/// Resident memory of a process, MB.
pub fn memory_mb(process: u32) -> Result<f64> {
    memory(process, "VmRSS:")
}

/// The part of it that is the process's own and not pages of its program, MB.
pub fn anonymous_mb(process: u32) -> Result<f64> {
    memory(process, "RssAnon:")
}

fn memory(process: u32, name: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let kib = status
        .lines()
        .find_map(|l| l.strip_prefix(name))
        .and_then(|v| v.trim().trim_end_matches(" kB").parse::<f64>().ok());
    Ok(kib.ok_or_else(|| format!("/proc shows no {name}"))? * 1024.0 / 1e6)
}

pub async fn kube_client(kubeconfig: &Path) -> Result<kube::Client> {
    let config = kube::Config::from_custom_kubeconfig(
        Kubeconfig::read_from(kubeconfig)?,
        &KubeConfigOptions::default(),
    )
    .await?;
    Ok(kube::Client::try_from(config)?)
}

/// Every trace is exported.
fn tracing_configuration(collector: SocketAddr) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: {collector}\nsamplingRatePerMillion: 1000000\n"
    )
}

/// Held both at once, or the second could be the first again.
fn two_free_ports() -> Result<(u16, u16)> {
    let one = std::net::TcpListener::bind("127.0.0.1:0")?;
    let other = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok((one.local_addr()?.port(), other.local_addr()?.port()))
}
