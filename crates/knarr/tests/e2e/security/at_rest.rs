//! Files on a host as its other users see them; and a control plane that runs as an unprivileged user (SPEC A5).

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use libtest_mimic::Failed;

use crate::cluster::{Cluster, Namespace, Scenario, eventually, has, same, text};
use crate::{Outcome, StandaloneScenario};

pub const SCENARIOS: &[(&str, Scenario)] = &[(
    "a5_no_other_user_of_a_node_reads_knarrs_files",
    nothing_for_others,
)];

pub const STANDALONE: &[StandaloneScenario] = &[
    (
        "a5_a_server_runs_without_privileges_and_closes_open_files",
        unprivileged_server,
    ),
    ("a5_a_node_without_root_is_an_error", unprivileged_node),
];

/// The user and group without privileges on Debian.
const UNPRIVILEGED: u32 = 65534;

/// A program as that user, without any capability.
fn as_unprivileged(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]);
    command.arg(program);
    command
}

/// knarr as that user, who may have no access to the directory it was built in: the program is its standard input.
fn knarr_as_unprivileged() -> Result<Command, Failed> {
    let program = std::fs::File::open(env!("CARGO_BIN_EXE_knarr"))?;
    let mut command = as_unprivileged("sh");
    command.args([
        "-c",
        r#"exec 3<&0 </dev/null; exec /proc/self/fd/3 "$@""#,
        "knarr",
    ]);
    command.stdin(program);
    Ok(command)
}

fn mode(path: &Path) -> Result<u32, Failed> {
    let metadata = path
        .symlink_metadata()
        .map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(metadata.mode() & 0o7777)
}

/// Fails if other users have any permission on an entry of the directory.
fn closed_inside(directory: &Path) -> Outcome {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let found = mode(&path)?;
        if found & 0o077 != 0 && !path.is_symlink() {
            return Err(format!("{} has mode {found:04o}", path.display()).into());
        }
    }
    Ok(())
}

const POD: &str = "
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {password: not-for-others}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 1000}
  containers:
  - name: c
    image: localhost/knarr/busybox:1
    command: [sh, -c, 'cat /s/password /etc/resolv.conf /etc/hosts >/dev/null && echo mine > /e/f && sleep 600']
    volumeMounts: [{name: s, mountPath: /s}, {name: e, mountPath: /e}]
  volumes:
  - {name: s, secret: {secretName: s}}
  - {name: e, emptyDir: {}}
";

fn nothing_for_others(ns: &Namespace) -> Outcome {
    let cluster = ns.cluster;
    let data = cluster.data_dir();
    // The tests' own directory is closed as well, which would hide open files in it.
    let outer = data.parent().ok_or("no directory")?;
    std::fs::set_permissions(outer, std::fs::Permissions::from_mode(0o755))?;
    ns.apply(POD)?;
    // A container that does not run as root can read its files.
    ns.eventually_run(&["exec", "p", "--", "cat", "/e/f"], |output| output == "mine\n")?;

    same(&format!("{:o}", mode(&data)?), "700")?;
    closed_inside(&data)?;
    closed_inside(&data.join("pki"))?;
    closed_inside(&data.join("store"))?;
    same(&format!("{:o}", mode(&data.join("run/node.sock"))?), "600")?;
    same(&format!("{:o}", mode(&cluster.kubeconfig())?), "600")?;

    let uid = ns.run(&["get", "pod", "p", "-o", "jsonpath={.metadata.uid}"])?;
    let pod = data.join("kubelet/pods").join(&uid);
    if !pod.exists() {
        return Err(format!("there is no {}", pod.display()).into());
    }
    for path in [
        data.clone(),
        data.join("kubelet/pods"),
        pod.clone(),
        pod.join("volumes/kubernetes.io~secret/s/password"),
        pod.join("volumes/kubernetes.io~empty-dir/e/f"),
        data.join("pki/ca.key"),
        data.join("store"),
        cluster.kubeconfig(),
    ] {
        let found = as_unprivileged("cat").arg(&path).output()?;
        if found.status.success() {
            return Err(format!("an unprivileged user reads {}", path.display()).into());
        }
        has(&text(&found), "Permission denied")?;
    }
    let listed = as_unprivileged("find").arg(&data).output()?;
    same(
        String::from_utf8_lossy(&listed.stdout).trim(),
        &data.display().to_string(),
    )?;
    let images = as_unprivileged("ctr")
        .arg("--address")
        .arg(cluster.containerd_socket())
        .args(["-n", "k8s.io", "images", "ls"])
        .output()?;
    if images.status.success() {
        return Err("an unprivileged user can connect to containerd".into());
    }
    Ok(())
}

fn unprivileged_server() -> Outcome {
    let cluster = Cluster::prepare("user")?;
    let outer = cluster.data_dir();
    let outer = outer.parent().ok_or("no directory")?;
    std::os::unix::fs::chown(outer, Some(UNPRIVILEGED), Some(UNPRIVILEGED))?;
    let data = cluster.data_dir();
    let key = data.join("pki/ca.key");
    for round in ["one", "two"] {
        cluster.launch_server_by(knarr_as_unprivileged()?, &[])?;
        let outcome = round_trip(&cluster, round);
        let stopped = cluster.terminate();
        outcome.map_err(|e| format!("round {round}: {e:?}\n{}", cluster.log_tail()))?;
        stopped?;
        same(&format!("{:o}", mode(&data)?), "700")?;
        same(&format!("{:o}", mode(&data.join("pki"))?), "700")?;
        closed_inside(&data)?;
        closed_inside(&data.join("pki"))?;
        closed_inside(&data.join("store"))?;
        same(&format!("{:o}", mode(&cluster.kubeconfig())?), "600")?;
        // With the permissions of an earlier version.
        for (path, wide) in [(&data, 0o755), (&data.join("pki"), 0o777), (&key, 0o644)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(wide))?;
        }
    }
    Ok(())
}

fn round_trip(cluster: &Cluster, name: &str) -> Outcome {
    let ns = cluster.namespace("default");
    ns.eventually_run(&["get", "namespaces"], |found| found.contains("kube-system"))?;
    ns.run(&["create", "configmap", name, "--from-literal=a=1"])?;
    same(
        &ns.run(&["get", "configmap", name, "-o", "jsonpath={.data.a}"])?,
        "1",
    )?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", cluster.pid()?))?;
    for line in [
        "Uid:\t65534\t65534",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        has(&status, line)?;
    }
    // The controllers work, too: one of them creates the account.
    eventually("the default service account", || {
        ns.try_run(&["get", "serviceaccount", "default"]).is_ok()
    })
}

fn unprivileged_node() -> Outcome {
    let dir = tempfile::tempdir()?;
    std::os::unix::fs::chown(dir.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED))?;
    let mut knarr = knarr_as_unprivileged()?;
    knarr.arg("up").arg("--data-dir").arg(dir.path().join("d"));
    knarr.arg("--kubeconfig").arg(dir.path().join("k"));
    knarr.args(["--listen", "127.0.0.1:0"]);
    let out = knarr.output()?;
    same(&format!("{:?}", out.status.code()), "Some(1)")?;
    has(&text(&out), "knarr must be root; `knarr server` runs as any user")
}
