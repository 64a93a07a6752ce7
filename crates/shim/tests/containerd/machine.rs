//! A containerd of its own, with an image of busybox whose default runtime is the shim.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sha2::{Digest, Sha256};

const SHIM: &str = env!("CARGO_BIN_EXE_containerd-shim-knarr-v2");
const IMAGE: &str = "docker.io/library/busybox:shim";
const NAMES: &[&str] = &["sh", "sleep", "echo", "true", "cat"];

pub struct Machine {
    directory: tempfile::TempDir,
    containerd: Option<Child>,
}

/// `ctr events` under way.
pub struct Events(Child);

/// Polls until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    panic!("never: {what}");
}

fn what_is_missing() -> Option<&'static str> {
    let runs = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !rustix::process::geteuid().is_root() {
        return Some("root");
    }
    ["containerd", "ctr", "runc", "busybox"]
        .into_iter()
        .find(|program| !runs(program))
}

impl Machine {
    pub fn start() -> Option<Machine> {
        if let Some(missing) = what_is_missing() {
            eprintln!("not run: this machine has no {missing}");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("shimc").tempdir().unwrap();
        let mut machine = Machine {
            directory,
            containerd: None,
        };
        let at = |name: &str| machine.path(name).display().to_string();
        let config = format!(
            "version = 2\nroot = {root:?}\nstate = {state:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = {socket:?}\n[ttrpc]\naddress = {ttrpc:?}\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = {opt:?}\n",
            root = at("root"),
            state = at("state"),
            socket = at("c.sock"),
            ttrpc = at("c.sock.ttrpc"),
            opt = at("opt"),
        );
        std::fs::write(machine.path("config.toml"), config).unwrap();
        machine.start_containerd();
        machine.import();
        Some(machine)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn start_containerd(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        let child = Command::new("containerd")
            .arg("--config")
            .arg(self.path("config.toml"))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        self.containerd = Some(child);
        eventually("containerd serves", || self.ctr(&["version"]).status.success());
    }

    pub fn kill_containerd(&mut self) {
        let mut child = self.containerd.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The id of a container. runc's state is the host's: no other test may have the same.
    fn id(&self, name: &str) -> String {
        let unique = self.directory.path().file_name().unwrap_or_default();
        format!("{}-{name}", unique.to_string_lossy())
    }

    /// Runs ctr; `IMAGE` is the image, `@a` the container a, and what runs a container does so with the shim.
    pub fn ctr(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command.arg("-a").arg(self.path("c.sock")).stdin(Stdio::null());
        for argument in arguments {
            match *argument {
                "IMAGE" => command.arg(IMAGE),
                "run" => command
                    .args(["run", "--runtime", SHIM, "--fifo-dir"])
                    .arg(self.path("fifo")),
                argument => match argument.strip_prefix('@') {
                    Some(name) => command.arg(self.id(name)),
                    None => command.arg(argument),
                },
            };
        }
        command
    }

    /// A container in the background.
    pub fn run(&self, id: &str, program: &[&str]) {
        let output = self.ctr(&[&["run", "--detach", "IMAGE", id], program].concat());
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    pub fn end(&self, id: &str) {
        assert!(self.ctr(&["task", "kill", "-s", "9", id]).status.success());
        eventually("it has stopped", || self.tasks().contains("STOPPED"));
        self.ctr(&["task", "delete", id]);
        self.ctr(&["container", "delete", id]);
    }

    /// The table of tasks.
    pub fn tasks(&self) -> String {
        String::from_utf8(self.ctr(&["task", "list"]).stdout).unwrap()
    }

    /// The line of a container in the table of tasks.
    pub fn task(&self, id: &str) -> Option<String> {
        let id = self.id(id.trim_start_matches('@'));
        let tasks = self.tasks();
        tasks
            .lines()
            .find(|line| line.starts_with(&id))
            .map(str::to_owned)
    }

    pub fn pid(&self, id: &str) -> Pid {
        let line = self.task(id).unwrap();
        let pid = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        Pid::from_raw(pid).unwrap()
    }

    /// The events from now on.
    pub fn events(&self) -> Events {
        let child = self.command(&["events"]).stdout(Stdio::piped()).spawn().unwrap();
        // It has subscribed when it sees an event; there is none to see yet.
        std::thread::park_timeout(Duration::from_millis(500));
        Events(child)
    }

    /// The processes of shims of this containerd.
    pub fn shims(&self) -> Vec<Pid> {
        let here = self.directory.path().display().to_string();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let is_shim = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.starts_with(SHIM) && line.contains(&here)
        };
        processes
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(is_shim)
            .filter_map(Pid::from_raw)
            .collect()
    }

    /// What is mounted below the directory.
    pub fn mounts(&self) -> Vec<String> {
        self.mountinfo(|fields| fields.get(4).copied())
    }

    /// The options of the file systems that are mounted below the directory.
    pub fn mount_options(&self) -> Vec<String> {
        self.mountinfo(|fields| fields.last().copied())
    }

    /// A field of the lines of what is mounted below the directory.
    fn mountinfo(&self, field: impl for<'a> Fn(&[&'a str]) -> Option<&'a str>) -> Vec<String> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut found = Vec::new();
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            if fields
                .get(4)
                .is_some_and(|point| Path::new(point).starts_with(self.directory.path()))
            {
                found.extend(field(&fields).map(str::to_owned));
            }
        }
        found
    }

    pub fn bundles(&self) -> Vec<String> {
        let tasks = self.path("state/io.containerd.runtime.v2.task/default");
        let entries = std::fs::read_dir(tasks).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Imports an image (docker's format) with busybox in its only layer.
    fn import(&self) {
        let layer = self.path("layer.tar");
        let mut tar = tar::Builder::new(File::create(&layer).unwrap());
        let busybox = ["/usr/bin/busybox", "/bin/busybox"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        tar.append_path_with_name(busybox.unwrap(), "bin/busybox")
            .unwrap();
        for name in NAMES {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            header.set_mode(0o777);
            tar.append_link(&mut header, format!("bin/{name}"), "busybox")
                .unwrap();
        }
        tar.finish().unwrap();
        drop(tar);
        let digest: String = Sha256::digest(std::fs::read(&layer).unwrap())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        });
        let manifest = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
        std::fs::write(self.path("config.json"), config.to_string()).unwrap();
        std::fs::write(self.path("manifest.json"), manifest.to_string()).unwrap();
        let image = self.path("image.tar");
        let mut tar = tar::Builder::new(File::create(&image).unwrap());
        for name in ["config.json", "manifest.json", "layer.tar"] {
            tar.append_path_with_name(self.path(name), name).unwrap();
        }
        tar.finish().unwrap();
        drop(tar);
        let output = self.ctr(&["image", "import", &image.display().to_string()]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

impl Events {
    /// The events up to one of this topic.
    pub fn until(mut self, topic: &str) -> String {
        let mut seen = String::new();
        for line in BufReader::new(self.0.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            seen.push_str(&line);
            seen.push('\n');
            if line.contains(topic) {
                break;
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
        seen
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            let start = log.len().saturating_sub(4000);
            eprintln!("containerd's log:\n{}", log.get(start..).unwrap_or_default());
        }
        // containerd cleans up after its shims.
        for shim in self.shims() {
            let _ = kill_process(shim, Signal::KILL);
        }
        eventually("the mounts are gone", || self.mounts().is_empty());
        if let Some(mut child) = self.containerd.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
