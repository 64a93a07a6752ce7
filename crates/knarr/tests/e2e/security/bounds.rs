//! Clients that use descriptors, memory and time without credentials, and an audit log that stalls: all other clients are
//! served.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::cluster::{Cluster, Namespace, Scenario, eventually, has, same, text};
use crate::kubectl::{WEB, running};
use crate::{Outcome, StandaloneScenario};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    (
        "a6_silent_connections_to_the_kubelets_port_are_bounded_and_dropped",
        silent_at_the_kubelet,
    ),
    ("a6_a_yaml_bomb_is_rejected_and_uses_no_memory", yaml_bomb),
    (
        "a1_a_user_name_that_is_not_ascii_is_impersonated_and_not_dropped",
        impersonated,
    ),
];

pub const STANDALONE: &[StandaloneScenario] =
    &[("a6_an_audit_log_that_stalls_blocks_no_request", stalled_audit_log)];

/// More than the kubelet's port accepts from one address where a process may open 20 000 files.
const SILENT: usize = 3_000;
/// The limit for one address there: an eighth of the descriptors is for the port, a quarter of these for one address.
const PER_PEER_PART: usize = 8 * 4;
/// Descriptors that knarr opens or closes meanwhile for other reasons.
const OTHERS: usize = 200;
/// The beginning of a TLS handshake.
const HALF_A_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";

fn descriptors(pid: u32) -> Result<usize, std::io::Error> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// The soft limit of open files.
fn descriptors_max(pid: u32) -> Result<usize, libtest_mimic::Failed> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find(|l| l.starts_with("Max open files"));
    let soft = line
        .and_then(|l| l.split_whitespace().nth(3))
        .ok_or("no limit of open files")?;
    Ok(soft.parse()?)
}

/// The administrator's certificate and key as files, for clients that read no kubeconfig.
fn credentials(cluster: &Cluster, directory: &Path) -> Result<(PathBuf, PathBuf), libtest_mimic::Failed> {
    let file = |field: &str, name: &str| -> Result<PathBuf, libtest_mimic::Failed> {
        let path = format!("jsonpath={{.users[0].user.{field}}}");
        let out = cluster
            .kubectl()
            .args(["config", "view", "--raw", "-o", &path])
            .output()?;
        let path = directory.join(name);
        std::fs::write(&path, BASE64_STANDARD.decode(text(&out).trim())?)?;
        Ok(path)
    };
    Ok((
        file("client-certificate-data", "client.crt")?,
        file("client-key-data", "client.key")?,
    ))
}

fn curl(args: &[&str]) -> Result<String, libtest_mimic::Failed> {
    let out = Command::new("curl")
        .args(["-sk", "--max-time", "20"])
        .args(args)
        .output()?;
    match out.status.success() {
        true => Ok(text(&out)),
        false => Err(format!("curl {} failed: {}", args.join(" "), text(&out)).into()),
    }
}

fn silent_at_the_kubelet(ns: &Namespace) -> Outcome {
    ns.apply(WEB)?;
    running(ns, "web")?;
    let (cluster, directory) = (ns.cluster, tempfile::tempdir()?);
    let (certificate, key) = credentials(cluster, directory.path())?;
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let pid = cluster.pid()?;
    let (before, limit) = (descriptors(pid)?, descriptors_max(pid)? / PER_PEER_PART);
    let mut open = Vec::new();
    for n in 0..SILENT.max(2 * limit) {
        let mut stream = TcpStream::connect(cluster.kubelet_address())?;
        if n % 2 == 1 {
            // The server may have closed it already.
            let _ = stream.write_all(HALF_A_HELLO);
        }
        open.push(stream);
    }
    // Other clients are served: from another address of this host, and through the API server.
    let url = format!("https://{}/pods", cluster.kubelet_address());
    let pods = curl(&[
        "--interface",
        "127.0.0.2",
        "--cert",
        &certificate,
        "--key",
        &key,
        &url,
    ])?;
    has(&pods, "\"web\"")?;
    same(&ns.run(&["exec", "web", "--", "echo", "here"])?, "here\n")?;
    has(&ns.run(&["logs", "web"])?, "hello")?;
    let taken = descriptors(pid)?.saturating_sub(before);
    if taken > limit + OTHERS {
        return Err(format!("{taken} descriptors are used, expected at most {limit} for one address").into());
    }
    // Connections without a handshake are closed after its timeout, although their clients keep them open.
    eventually("silent connections are closed", || {
        descriptors(pid).is_ok_and(|now| now < before + OTHERS)
    })?;
    drop(open);
    // A client with unknown tokens is rejected, and then rate-limited.
    let codes: Vec<String> = (0..40)
        .map(|n| {
            curl(&[
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "-H",
                &format!("Authorization: Bearer guess-{n}"),
                &url,
            ])
        })
        .collect::<Result<_, _>>()?;
    same(&codes[0], "401")?;
    same(codes.last().map_or("", String::as_str), "429")
}

/// The most memory that a process has had, in KiB.
fn peak_kib(pid: u32) -> Result<u64, libtest_mimic::Failed> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()).ok_or("no VmHWM")?;
    Ok(kib.parse()?)
}

fn yaml_bomb(ns: &Namespace) -> Outcome {
    let directory = tempfile::tempdir()?;
    let (certificate, key) = credentials(ns.cluster, directory.path())?;
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let bomb = directory.path().join("bomb.yaml");
    // 2000 copies of a megabyte.
    let text = format!("a: &a {}\nb:\n{}", "x".repeat(1_000_000), "- *a\n".repeat(2_000));
    std::fs::write(&bomb, text)?;
    let before = peak_kib(ns.cluster.pid()?)?;
    let answer = curl(&[
        "--cert",
        &certificate,
        "--key",
        &key,
        "-H",
        "Content-Type: application/yaml",
        "--data-binary",
        &format!("@{}", bomb.display()),
        &format!(
            "{}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            ns.cluster.server()
        ),
    ])?;
    has(&answer, "excessive aliasing")?;
    let grown = peak_kib(ns.cluster.pid()?)?.saturating_sub(before);
    if grown > 200 * 1024 {
        return Err(format!("it took {grown} KiB").into());
    }
    Ok(())
}

fn impersonated(ns: &Namespace) -> Outcome {
    let directory = tempfile::tempdir()?;
    let (certificate, key) = credentials(ns.cluster, directory.path())?;
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let who = |header: &str| {
        curl(&[
            "--cert",
            &certificate,
            "--key",
            &key,
            "-H",
            "Content-Type: application/json",
            "-H",
            header,
            "-d",
            r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#,
            &format!(
                "{}/apis/authentication.k8s.io/v1/selfsubjectreviews",
                ns.cluster.server()
            ),
        ])
    };
    let joerg = who("Impersonate-User: j\u{f6}rg")?;
    has(&joerg, "\"username\":\"j\u{f6}rg\"")?;
    if joerg.contains("system:masters") {
        return Err(format!("the user is the impersonator: {joerg}").into());
    }
    has(&who("Impersonate-Foo: x")?, "\"code\":400")
}

fn stalled_audit_log() -> Outcome {
    let cluster = Cluster::prepare("stalled")?;
    let directory = cluster.data_dir().with_file_name("settings");
    std::fs::create_dir_all(&directory)?;
    let (policy, log) = (directory.join("policy.yaml"), directory.join("log"));
    std::fs::write(
        &policy,
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- {level: RequestResponse}\n",
    )?;
    let made = Command::new("mkfifo").arg(&log).status()?;
    same(&made.success().to_string(), "true")?;
    // Held open, so that knarr can begin to write, and never read.
    let reader = std::fs::File::options()
        .read(true)
        .write(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(&log)?;
    let path = |path: &Path| path.display().to_string();
    cluster.launch_server_with(&[
        "--audit-policy-file",
        &path(&policy),
        "--audit-log-path",
        &path(&log),
    ])?;
    let ns = cluster.namespace("default");
    ns.eventually_run(&["get", "namespaces"], |found| found.contains("default"))?;
    // The audit events of these responses alone exceed the buffer of a pipe.
    for _ in 0..5 {
        ns.run(&["--request-timeout=1s", "get", "clusterroles", "-o", "json"])?;
        ns.run(&["--request-timeout=1s", "get", "--raw", "/healthz"])?;
        ns.run(&["--request-timeout=1s", "get", "pods"])?;
    }
    cluster.kill()?;
    drop(reader);
    Ok(())
}
