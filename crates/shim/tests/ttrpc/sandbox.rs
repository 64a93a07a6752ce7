//! A sandbox that the shim makes itself: its process has what runc gives it, field by field, and nothing is left of it.

use std::collections::BTreeMap;
use std::process::{Child, Command};

use containerd_shim_protos::api::{
    PauseRequest, PidsRequest, ResumeRequest, StateRequest, StatsRequest, Status, UpdateTaskRequest,
};
use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::ttrpc::Code;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};

use crate::pod::{Container, Pod, eventually, message, shims_in, wait};

/// A network namespace; its process is in it.
struct Network(Child);

impl Network {
    fn new() -> Network {
        let child = Command::new("unshare")
            .args(["-n", "sleep", "1000"])
            .spawn()
            .unwrap();
        let network = Network(child);
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        eventually("a network namespace", || {
            std::fs::read_link(network.path()).is_ok_and(|other| other != own)
        });
        network
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What containerd's CRI plugin writes for a pod.
fn sandbox(spec: &mut Value, network: &Network, resolv: &str) {
    let capabilities = json!(["CAP_CHOWN", "CAP_KILL", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE"]);
    let mount = |kind: &str, at: &str, options: &[&str]| json!({"destination": at, "type": kind, "source": kind, "options": options});
    let calls = "execve brk arch_prctl nanosleep clock_nanosleep exit_group exit mmap munmap mprotect read write close fstat \
        newfstatat rt_sigaction rt_sigprocmask rt_sigreturn getuid geteuid getgid getegid prctl futex set_tid_address \
        set_robust_list rseq prlimit64 getrandom ioctl uname readlink readlinkat openat fcntl epoll_ctl epoll_pwait getpid \
        gettid sigaltstack madvise tgkill mremap setuid setgid lseek fchdir chdir getdents64 \
        fstatfs statfs getppid stat lstat open access faccessat faccessat2 sched_yield sched_getaffinity pipe2 dup3 close_range fchown statx \
        setgroups capset clone epoll_create1 eventfd2 poll ppoll getcwd kill keyctl setrlimit getrlimit pread64 openat2";
    let calls: Vec<&str> = calls.split_whitespace().collect();
    *spec = json!({
        "ociVersion": "1.0.2-dev",
        "process": {
            "user": {"uid": 0, "gid": 0, "additionalGids": [7]},
            "args": ["/bin/sleep", "1000"],
            "env": ["PATH=/bin", "A=b=c"],
            "cwd": "/",
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "noNewPrivileges": true,
            "oomScoreAdj": 17,
        },
        "root": {"path": "rootfs", "readonly": true},
        "hostname": "host0",
        "mounts": [
            mount("proc", "/proc", &["nosuid", "noexec", "nodev"]),
            mount("tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            mount("devpts", "/dev/pts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
            mount("tmpfs", "/dev/shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
            mount("mqueue", "/dev/mqueue", &["nosuid", "noexec", "nodev"]),
            mount("sysfs", "/sys", &["nosuid", "noexec", "nodev", "ro"]),
            {"destination": "/etc/resolv.conf", "type": "bind", "source": resolv, "options": ["rbind", "ro"]},
        ],
        "annotations": {"io.kubernetes.cri.container-type": "sandbox"},
        "linux": {
            "resources": {"devices": [{"allow": false, "access": "rwm"}], "cpu": {"shares": 77}},
            "sysctl": {"net.ipv4.ip_unprivileged_port_start": "99", "kernel.shm_rmid_forced": "1"},
            "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
                {"type": "network", "path": network.path()}],
            "seccomp": {"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"], "syscalls": [
                {"names": calls, "action": "SCMP_ACT_ALLOW"},
                {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]},
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/acpi", "/sys/firmware", "/proc/no-such"],
            "readonlyPaths": ["/proc/bus", "/proc/sys", "/proc/sysrq-trigger"],
        },
    });
}

fn read(pid: u32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap()
}

/// Everything that a process has, with the id of its container taken out.
fn seen(container: &Container, pid: u32) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let mut see = |name: &str, text: String| {
        seen.insert(name.to_owned(), text.replace(&container.id, "ID"));
    };
    let fields = "Umask Uid Gid Groups SigBlk SigCgt CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters";
    let status = read(pid, "status");
    for field in fields.split(' ') {
        let line = status.lines().find(|line| line.starts_with(&format!("{field}:")));
        see(field, line.unwrap_or_default().to_owned());
    }
    // Those of the C library's own, 32 and 33, are as they were.
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:\t"))
        .unwrap();
    let ignored = u64::from_str_radix(ignored, 16).unwrap() & 0x7fff_ffff;
    see("SigIgn", format!("{ignored:x}"));
    // Without the ids, the device and the name of the bundle's mount.
    let mounts = read(pid, "mountinfo");
    let mounts: Vec<String> = mounts
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let shared = |field: &&str| field.starts_with("shared:") || field.starts_with("master:");
            let rest: Vec<&str> = fields[5..]
                .iter()
                .filter(|field| !shared(field))
                .copied()
                .collect();
            let root = if fields[3].contains("/image") {
                "IMAGE"
            } else {
                fields[3]
            };
            let propagation = fields[5..].iter().filter(|field| shared(field)).count();
            format!("{root} {} {} {propagation}", fields[4], rest.join(" "))
        })
        .collect();
    see("mountinfo", mounts.join("\n"));
    let mut groups: Vec<String> = read(pid, "cgroup").lines().map(str::to_owned).collect();
    groups.sort();
    see("cgroup", groups.join("\n"));
    for file in ["oom_score_adj", "cmdline", "comm", "limits"] {
        see(file, read(pid, file));
    }
    let mut environment: Vec<String> = read(pid, "environ").split('\0').map(str::to_owned).collect();
    environment.sort();
    see("environ", environment.join("\n"));
    for name in ["ipc", "net", "uts", "pid", "mnt", "user", "cgroup"] {
        let link = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap();
        see(
            &format!("own {name}"),
            (link(&pid.to_string()) != link("self")).to_string(),
        );
    }
    let root = format!("/proc/{pid}/root");
    let list = Command::new("ls")
        .args(["-lAn", "--time-style=+", &format!("{root}/dev/")])
        .output()
        .unwrap();
    see("/dev", String::from_utf8(list.stdout).unwrap());
    for descriptor in ["0", "1", "2"] {
        let link = std::fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).unwrap();
        see(descriptor, link.display().to_string());
    }
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    see("open descriptors", open.to_string());
    let inside = |arguments: &[&str]| {
        let output = Command::new("nsenter")
            .args(["-t", &pid.to_string(), "-u", "-n", "-i"])
            .args(arguments)
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    see("hostname", inside(&["cat", "/proc/sys/kernel/hostname"]));
    see(
        "port",
        inside(&["cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start"]),
    );
    see("shm", inside(&["cat", "/proc/sys/kernel/shm_rmid_forced"]));
    for (file, name) in [
        ("devices", "devices.list"),
        ("cpu", "cpu.shares"),
        ("cpuset", "cpuset.cpus"),
    ] {
        let path = format!("/sys/fs/cgroup/{file}/{}/{name}", container.id);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        see(name, lines.join("\n"));
        let group = format!("/sys/fs/cgroup/{file}/{}", container.id);
        let mode = std::fs::metadata(group).unwrap().permissions();
        see(&format!("mode of the group of {file}"), format!("{mode:?}"));
    }
    seen
}

/// Whether the shim can make sandboxes on this host; only with cgroup v1.
fn is_made_by_the_shim(container: &Container) -> bool {
    container.bundle.join("sandbox").exists()
}

fn has_cgroup_v1() -> bool {
    let v1 = std::path::Path::new("/sys/fs/cgroup/devices").exists();
    if !v1 {
        eprintln!("not run: needs cgroup v1");
    }
    v1
}

#[test]
fn a_sandbox_by_the_shim_has_exactly_what_one_by_runc_has() {
    let Some(mut pod) = Pod::new() else { return };
    if !has_cgroup_v1() {
        return;
    }
    let network = Network::new();
    let resolv = pod.directory.path().join("resolv.conf");
    std::fs::write(&resolv, "nameserver 1.2.3.4\n").unwrap();
    let resolv = resolv.display().to_string();
    let own = pod.create("own", &[], |spec| sandbox(spec, &network, &resolv));
    assert!(
        is_made_by_the_shim(&own),
        "{}",
        std::fs::read_to_string(own.bundle.join("log")).unwrap()
    );
    // An empty list of devices changes nothing but who makes it.
    let runcs = pod.create("runcs", &[], |spec| {
        sandbox(spec, &network, &resolv);
        spec["linux"]["devices"] = json!([]);
    });
    assert!(!is_made_by_the_shim(&runcs));
    let pids = [own.start("").unwrap().pid, runcs.start("").unwrap().pid];
    for (pid, container) in pids.into_iter().zip([&own, &runcs]) {
        eventually("the program runs", || {
            if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
                panic!("{} {:?}", container.id, container.wait("").unwrap());
            }
            read(pid, "cmdline").starts_with("/bin/sleep")
        });
    }
    let (own_has, runcs_has) = (seen(&own, pids[0]), seen(&runcs, pids[1]));
    let differences: Vec<String> = own_has
        .iter()
        .filter(|(name, text)| runcs_has[*name] != **text)
        .map(|(name, text)| format!("{name}:\n{text}\n--- runc:\n{}", runcs_has[name]))
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    assert_eq!(own_has["Seccomp"], "Seccomp:\t2");
    assert_eq!(own_has["hostname"], "host0\n");
    own.end();
    runcs.end();
}

#[test]
fn a_sandbox_by_the_shim_lives_and_leaves_nothing() {
    let Some(mut pod) = Pod::new() else { return };
    if !has_cgroup_v1() {
        return;
    }
    let network = Network::new();
    let resolv = pod.directory.path().join("resolv.conf");
    std::fs::write(&resolv, "").unwrap();
    let resolv = resolv.display().to_string();
    let make = |pod: &mut Pod, name: &str| {
        let container = pod.create(name, &[], |spec| sandbox(spec, &network, &resolv));
        assert!(is_made_by_the_shim(&container));
        container
    };
    let group = |container: &Container| std::path::Path::new("/sys/fs/cgroup/pids").join(&container.id);
    let container = make(&mut pod, "a");
    let pid = container.start("").unwrap().pid;
    let id = || container.id.clone();
    let pids = PidsRequest {
        id: id(),
        ..PidsRequest::default()
    };
    let pids = container.task.pids(wait(), &pids).unwrap();
    assert_eq!(
        pids.processes
            .iter()
            .map(|process| process.pid)
            .collect::<Vec<_>>(),
        [pid]
    );
    let stats = StatsRequest {
        id: id(),
        ..StatsRequest::default()
    };
    assert!(
        !container
            .task
            .stats(wait(), &stats)
            .unwrap()
            .stats
            .value
            .is_empty()
    );
    assert_eq!(
        message(container.exec("e", &["true"], |_| {})).0,
        Code::UNIMPLEMENTED
    );
    assert_eq!(message(container.start("")).0, Code::UNKNOWN);
    container.kill("", 9).unwrap();
    assert_eq!(container.wait("").unwrap().exit_status, 137);
    assert_eq!(container.delete("").unwrap().exit_status, 137);
    assert!(!group(&container).exists());
    container.shutdown();
    eventually("the shim exits", || shims_in(&container.bundle).is_empty());
    // Deleted before its start.
    let container = make(&mut pod, "b");
    assert!(group(&container).exists());
    container.delete("").unwrap();
    assert!(!group(&container).exists());
    container.shutdown();
    // The shim is killed before the start.
    let container = make(&mut pod, "d");
    let pids = PidsRequest {
        id: container.id.clone(),
        ..PidsRequest::default()
    };
    let pid = container.task.pids(wait(), &pids).unwrap().processes[0].pid;
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    for shim in shims_in(&container.bundle) {
        kill_process(shim, Signal::KILL).unwrap();
    }
    eventually("its process ends", || test_kill_process(pid).is_err());
    assert!(
        pod.command(&container.id, &container.bundle, "delete")
            .status
            .success()
    );
    assert!(!group(&container).exists());
    // The shim is killed.
    let container = make(&mut pod, "c");
    let pid = Pid::from_raw(i32::try_from(container.start("").unwrap().pid).unwrap()).unwrap();
    for shim in shims_in(&container.bundle) {
        kill_process(shim, Signal::KILL).unwrap();
    }
    eventually("the shim is gone", || shims_in(&container.bundle).is_empty());
    assert!(test_kill_process(pid).is_ok(), "the sandbox lives on");
    assert!(
        pod.command(&container.id, &container.bundle, "delete")
            .status
            .success()
    );
    eventually("its process is gone", || test_kill_process(pid).is_err());
    assert!(!group(&container).exists());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(container.bundle.to_str().unwrap()));
}

#[test]
fn a_sandbox_by_the_shim_is_updated_paused_and_killed_while_it_is_paused() {
    let Some(mut pod) = Pod::new() else { return };
    if !has_cgroup_v1() {
        return;
    }
    let network = Network::new();
    let resolv = pod.directory.path().join("resolv.conf");
    std::fs::write(&resolv, "").unwrap();
    let resolv = resolv.display().to_string();
    let container = pod.create("a", &[], |spec| sandbox(spec, &network, &resolv));
    assert!(is_made_by_the_shim(&container));
    container.start("").unwrap();
    let id = || container.id.clone();
    let file = |controller: &str, name: &str| {
        let root = std::path::Path::new("/sys/fs/cgroup");
        let group = root.join(controller).join(&container.id);
        std::fs::read_to_string(group.join(name))
            .unwrap()
            .trim()
            .to_owned()
    };
    let update = |resources: Value| {
        let request = UpdateTaskRequest {
            id: id(),
            resources: MessageField::some(Any {
                type_url: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources".into(),
                value: resources.to_string().into_bytes(),
                ..Any::default()
            }),
            ..UpdateTaskRequest::default()
        };
        container.task.update(wait(), &request)
    };
    update(json!({"cpu": {"shares": 99}, "pids": {"limit": 9}})).unwrap();
    assert_eq!(
        (file("cpu", "cpu.shares"), file("pids", "pids.max")),
        ("99".into(), "9".into())
    );
    assert_eq!(
        message(update(json!({"blockIO": {"weight": 10}}))).0,
        Code::UNIMPLEMENTED
    );
    let status = || {
        let request = StateRequest {
            id: id(),
            ..StateRequest::default()
        };
        container
            .task
            .state(wait(), &request)
            .unwrap()
            .status
            .enum_value()
    };
    let pause = PauseRequest {
        id: id(),
        ..PauseRequest::default()
    };
    let resume = ResumeRequest {
        id: id(),
        ..ResumeRequest::default()
    };
    container.task.pause(wait(), &pause).unwrap();
    assert_eq!(status(), Ok(Status::PAUSED));
    assert_eq!(file("freezer", "freezer.state"), "FROZEN");
    container.task.resume(wait(), &resume).unwrap();
    assert_eq!(status(), Ok(Status::RUNNING));
    container.task.pause(wait(), &pause).unwrap();
    container.kill("", 9).unwrap();
    assert_eq!(container.wait("").unwrap().exit_status, 137);
    container.delete("").unwrap();
    container.shutdown();
    for topic in ["/tasks/paused", "/tasks/resumed"] {
        pod.await_topic(topic);
    }
}

#[test]
fn what_the_shim_cannot_make_is_made_by_runc_or_fails_as_with_it() {
    let Some(mut pod) = Pod::new() else { return };
    let network = Network::new();
    let resolv = pod.directory.path().join("resolv.conf");
    std::fs::write(&resolv, "").unwrap();
    let resolv = resolv.display().to_string();
    let (id, bundle) = pod.bundle("a", &[], |spec| {
        sandbox(spec, &network, &resolv);
        spec["process"]["args"] = json!(["/bin/no-such-program"]);
    });
    let container = pod.start_shim(id, bundle);
    let (code, text) = message(container.create(&pod, |_| {}));
    assert_eq!(code, Code::UNKNOWN);
    assert!(
        text.starts_with("OCI runtime create failed: runc create failed"),
        "{text}"
    );
    container.shutdown();
    eventually("the shim exits", || shims_in(&container.bundle).is_empty());
    // A link in place of a directory to mount on leads nowhere, least of all out of the root file system. (runc makes links
    // there: so another program is asked in its place.)
    let image = pod.directory.path().join("image");
    std::fs::remove_dir(image.join("dev")).unwrap();
    std::os::unix::fs::symlink(pod.directory.path(), image.join("dev")).unwrap();
    let program = pod.directory.path().join("runc.d/runc");
    std::fs::create_dir(program.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/bin/false", &program).unwrap();
    pod.options.binary_name = program.display().to_string();
    let (id, bundle) = pod.bundle("b", &[], |spec| sandbox(spec, &network, &resolv));
    let container = pod.start_shim(id, bundle);
    let names = |directory: &std::path::Path| {
        let entries = std::fs::read_dir(directory).unwrap().flatten();
        entries.map(|entry| entry.file_name()).collect::<Vec<_>>()
    };
    let before = names(pod.directory.path());
    assert!(container.create(&pod, |_| {}).is_err());
    assert!(!is_made_by_the_shim(&container));
    assert_eq!(before, names(pod.directory.path()));
    container.shutdown();
}
