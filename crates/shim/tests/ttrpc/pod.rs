//! What containerd does around a shim: bundles, FIFOs, `start` and `delete`, the task client, the events service.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use containerd_shim_protos::api::{
    CreateTaskRequest, DeleteRequest, DeleteResponse, Empty, ExecProcessRequest, ForwardRequest, KillRequest,
    ShutdownRequest, StartRequest, StartResponse, WaitRequest, WaitResponse,
};
use containerd_shim_protos::events::task::{TaskExit, TaskStart};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::ttrpc::context::{Context, with_duration};
use containerd_shim_protos::ttrpc::{self, Client, Server, TtrpcContext};
use containerd_shim_protos::types::mount::Mount;
use containerd_shim_protos::{Events, TaskClient, create_events};
use serde_json::{Value, json};

const SHIM: &str = env!("CARGO_BIN_EXE_containerd-shim-knarr-v2");
const NAMESPACE: &str = "shim-test";
/// Longer than anything takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(60);

/// An event as it arrived.
#[derive(Debug, Clone)]
pub struct Event {
    pub topic: String,
    pub kind: String,
    pub bytes: Vec<u8>,
}

/// containerd's events service.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Event>>>);

impl Events for Recorder {
    fn forward(&self, _: &TtrpcContext, request: ForwardRequest) -> ttrpc::Result<Empty> {
        let envelope = request.envelope.unwrap_or_default();
        assert_eq!(envelope.namespace, NAMESPACE);
        let event = envelope.event.unwrap_or_default();
        self.0.lock().unwrap().push(Event {
            topic: envelope.topic,
            kind: event.type_url,
            bytes: event.value,
        });
        Ok(Empty::new())
    }
}

/// One test's directory, containers and events.
pub struct Pod {
    pub directory: tempfile::TempDir,
    recorder: Recorder,
    server: Option<Server>,
    pub options: Options,
    containers: Vec<String>,
}

/// A container of a pod.
pub struct Container {
    pub id: String,
    pub bundle: PathBuf,
    pub task: TaskClient,
    pub address: String,
}

pub fn wait() -> Context {
    with_duration(LIMIT)
}

/// Polls until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    panic!("never: {what}");
}

fn busybox() -> Option<&'static Path> {
    ["/usr/bin/busybox", "/bin/busybox"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.exists())
}

impl Pod {
    /// None if this machine cannot run containers.
    pub fn new() -> Option<Pod> {
        let has_runc = || Command::new("runc").arg("--version").output().is_ok();
        if !rustix::process::geteuid().is_root() || !has_runc() {
            eprintln!("not run: needs root and runc");
            return None;
        }
        let Some(busybox) = busybox() else {
            eprintln!("not run: needs busybox");
            return None;
        };
        let directory = tempfile::Builder::new().prefix("shim").tempdir().unwrap();
        let rootfs = directory.path().join("image");
        for name in ["bin", "proc", "dev", "tmp"] {
            std::fs::create_dir_all(rootfs.join(name)).unwrap();
        }
        std::fs::copy(busybox, rootfs.join("bin/busybox")).unwrap();
        for name in [
            "sh", "cat", "sleep", "echo", "true", "head", "tail", "stty", "yes", "tty", "kill",
        ] {
            symlink("busybox", rootfs.join("bin").join(name)).unwrap();
        }
        let mut pod = Pod {
            options: Options {
                root: directory.path().join("runc").display().to_string(),
                ..Options::default()
            },
            directory,
            recorder: Recorder::default(),
            server: None,
            containers: Vec::new(),
        };
        pod.listen();
        Some(pod)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// containerd is there for events.
    pub fn listen(&mut self) {
        let address = self.path("containerd.sock.ttrpc");
        let _ = std::fs::remove_file(&address);
        let mut server = Server::new()
            .bind(&format!("unix://{}", address.display()))
            .unwrap()
            .register_service(create_events(Arc::new(self.recorder.clone())));
        server.start().unwrap();
        self.server = Some(server);
    }

    /// containerd is not there.
    pub fn deafen(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown();
        }
        let _ = std::fs::remove_file(self.path("containerd.sock.ttrpc"));
    }

    pub fn events(&self) -> Vec<Event> {
        self.recorder.0.lock().unwrap().clone()
    }

    pub fn topics(&self) -> Vec<String> {
        self.events().into_iter().map(|event| event.topic).collect()
    }

    pub fn await_topic(&self, topic: &str) {
        eventually(topic, || self.topics().iter().any(|seen| seen == topic));
    }

    /// The exit that was reported for a process.
    pub fn exit_event(&self, id: &str) -> TaskExit {
        let find = || {
            let events = self.events();
            let mut exits = events.iter().filter(|event| event.topic == "/tasks/exit");
            exits.find_map(|event| {
                TaskExit::parse_from_bytes(&event.bytes)
                    .ok()
                    .filter(|exit| exit.id == id)
            })
        };
        eventually("the exit's event", || find().is_some());
        find().unwrap()
    }

    /// Ids that no concurrent test has.
    pub fn id(&self, name: &str) -> String {
        let unique = self
            .directory
            .path()
            .file_name()
            .unwrap()
            .to_string_lossy()
            .replace('.', "");
        format!("{unique}-{name}")
    }

    fn spec(arguments: &[&str], change: impl FnOnce(&mut Value)) -> Value {
        let mount = |kind: &str, at: &str| json!({"destination": at, "type": kind, "source": kind});
        let mut spec = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": arguments,
                "env": ["PATH=/bin"],
                "cwd": "/",
            },
            "root": {"path": "rootfs"},
            "mounts": [mount("proc", "/proc"), mount("tmpfs", "/tmp"), mount("tmpfs", "/dev"), mount("devpts", "/dev/pts")],
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
            },
        });
        change(&mut spec);
        spec
    }

    /// A bundle as containerd makes it.
    pub fn bundle(
        &mut self,
        name: &str,
        arguments: &[&str],
        change: impl FnOnce(&mut Value),
    ) -> (String, PathBuf) {
        let id = self.id(name);
        let bundle = self.path("bundles").join(&id);
        std::fs::create_dir_all(bundle.join("rootfs")).unwrap();
        let mut spec = Pod::spec(arguments, change);
        spec["linux"]["cgroupsPath"] = format!("/{id}").into();
        std::fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        // A file in place of containerd's FIFO: a failed test prints it.
        std::fs::write(bundle.join("log"), "").unwrap();
        self.containers.push(id.clone());
        (id, bundle)
    }

    /// Runs the shim's program in a bundle, as containerd does.
    pub fn command(&self, id: &str, bundle: &Path, action: &str) -> Output {
        let options = Any {
            type_url: "containerd.runc.v1.Options".into(),
            value: self.options.write_to_bytes().unwrap(),
            ..Any::default()
        };
        let input = self.path("options");
        std::fs::write(&input, options.write_to_bytes().unwrap()).unwrap();
        Command::new(SHIM)
            .args(["-namespace", NAMESPACE, "-address"])
            .arg(self.path("containerd.sock"))
            .args(["-publish-binary", "/usr/bin/containerd", "-id", id])
            .args((action == "delete").then_some("-bundle"))
            .args((action == "delete").then_some(bundle))
            .arg(action)
            .env("TTRPC_ADDRESS", self.path("containerd.sock.ttrpc"))
            .current_dir(bundle)
            .stdin(File::open(&input).unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .unwrap()
    }

    /// Starts a shim for a bundle, or finds the one of its group.
    pub fn start_shim(&self, id: String, bundle: PathBuf) -> Container {
        let output = self.command(&id, &bundle, "start");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}");
        let address = String::from_utf8(output.stdout).unwrap();
        let task = TaskClient::new(Client::connect(&address).unwrap());
        Container {
            id,
            bundle,
            task,
            address,
        }
    }

    /// A container that has been created, without stdio.
    pub fn create(&mut self, name: &str, arguments: &[&str], change: impl FnOnce(&mut Value)) -> Container {
        let (id, bundle) = self.bundle(name, arguments, change);
        let container = self.start_shim(id, bundle);
        container.create(self, |_| {}).unwrap();
        container
    }

    pub fn fifo(&self, name: &str) -> PathBuf {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let path = self.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        for id in &self.containers {
            let bundle = self.path("bundles").join(id);
            if std::thread::panicking() {
                let log = std::fs::read_to_string(bundle.join("log")).unwrap_or_default();
                eprintln!("log of {id}:\n{log}");
            }
            // A shim that a failed test left behind: it has this directory as its working directory.
            for shim in shims_in(&bundle) {
                let _ = rustix::process::kill_process(shim, rustix::process::Signal::KILL);
            }
            if bundle.join("address").exists() {
                self.command(id, &bundle, "delete");
            }
        }
        self.deafen();
    }
}

/// The processes of shims that were started in a bundle.
pub fn shims_in(bundle: &Path) -> Vec<rustix::process::Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_shim = |pid: &i32| {
        let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).ok();
        link("cwd").is_some_and(|cwd| cwd == bundle) && link("exe").is_some_and(|exe| exe == Path::new(SHIM))
    };
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(is_shim)
        .filter_map(rustix::process::Pid::from_raw)
        .collect()
}

impl Container {
    /// Creates the container; its root file system is a bind mount.
    pub fn create(&self, pod: &Pod, change: impl FnOnce(&mut CreateTaskRequest)) -> ttrpc::Result<u32> {
        let mut request = CreateTaskRequest {
            id: self.id.clone(),
            bundle: self.bundle.display().to_string(),
            rootfs: vec![Mount {
                type_: "bind".into(),
                source: pod.path("image").display().to_string(),
                options: vec!["rbind".into(), "rw".into()],
                ..Mount::default()
            }],
            options: MessageField::some(Any {
                type_url: "containerd.runc.v1.Options".into(),
                value: pod.options.write_to_bytes().unwrap(),
                ..Any::default()
            }),
            ..CreateTaskRequest::default()
        };
        change(&mut request);
        self.task.create(wait(), &request).map(|response| response.pid)
    }

    pub fn start(&self, exec: &str) -> ttrpc::Result<StartResponse> {
        let request = StartRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            ..StartRequest::default()
        };
        self.task.start(wait(), &request)
    }

    pub fn wait(&self, exec: &str) -> ttrpc::Result<WaitResponse> {
        let request = WaitRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            ..WaitRequest::default()
        };
        self.task.wait(wait(), &request)
    }

    pub fn kill(&self, exec: &str, signal: u32) -> ttrpc::Result<Empty> {
        let request = KillRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            signal,
            ..KillRequest::default()
        };
        self.task.kill(wait(), &request)
    }

    pub fn delete(&self, exec: &str) -> ttrpc::Result<DeleteResponse> {
        let request = DeleteRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            ..DeleteRequest::default()
        };
        self.task.delete(wait(), &request)
    }

    pub fn shutdown(&self) {
        let request = ShutdownRequest {
            id: self.id.clone(),
            ..ShutdownRequest::default()
        };
        // It may exit before the answer is read.
        let _ = self.task.shutdown(wait(), &request);
    }

    pub fn exec(
        &self,
        exec: &str,
        arguments: &[&str],
        change: impl FnOnce(&mut ExecProcessRequest),
    ) -> ttrpc::Result<Empty> {
        let process =
            json!({"args": arguments, "env": ["PATH=/bin"], "cwd": "/", "user": {"uid": 0, "gid": 0}});
        let mut request = ExecProcessRequest {
            id: self.id.clone(),
            exec_id: exec.into(),
            spec: MessageField::some(Any {
                type_url: "types.containerd.io/opencontainers/runtime-spec/1/Process".into(),
                value: process.to_string().into_bytes(),
                ..Any::default()
            }),
            ..ExecProcessRequest::default()
        };
        change(&mut request);
        self.task.exec(wait(), &request)
    }

    /// Kills, deletes and shuts down.
    pub fn end(&self) {
        let _ = self.kill("", 9);
        self.wait("").unwrap();
        self.delete("").unwrap();
        self.shutdown();
    }
}

/// Reads a FIFO to its end, as containerd does.
pub fn read_fifo(path: &Path) -> JoinHandle<Vec<u8>> {
    let file = File::options().read(true).custom_flags(0).open(path);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        file.unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// The message with which a request failed.
pub fn message<T: std::fmt::Debug>(result: ttrpc::Result<T>) -> (ttrpc::Code, String) {
    match result.unwrap_err() {
        ttrpc::Error::RpcStatus(status) => (status.code.enum_value().unwrap(), status.message),
        error => panic!("{error}"),
    }
}

/// The process id in a start's event.
pub fn started_pid(event: &Event) -> u32 {
    TaskStart::parse_from_bytes(&event.bytes).unwrap().pid
}
