//! Encryption at rest and the audit log of a server, configured by flags.

use std::os::unix::fs::PermissionsExt;

use crate::cluster::{Cluster, eventually, has};
use crate::{Outcome, StandaloneScenario};

pub const SCENARIOS: &[StandaloneScenario] =
    &[("secrets_are_encrypted_and_requests_audited_as_configured", files)];

fn files() -> Outcome {
    let cluster = Cluster::prepare("access")?;
    let directory = cluster.data_dir().with_file_name("settings");
    std::fs::create_dir_all(&directory)?;
    let (keys, policy, log) = (
        directory.join("keys.yaml"),
        directory.join("policy.yaml"),
        directory.join("log"),
    );
    std::fs::write(
        &keys,
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets]\n  providers:\n  - secretbox:\n      keys:\n\
         \x20     - {name: one, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}\n  - identity: {}\n",
    )?;
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600))?;
    std::fs::write(
        &policy,
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n\
         - {level: Metadata, resources: [{group: '', resources: [secrets]}]}\n- {level: None}\n",
    )?;
    let path = |path: &std::path::Path| path.display().to_string();
    let flags = [
        ("--encryption-provider-config", path(&keys)),
        ("--audit-policy-file", path(&policy)),
        ("--audit-log-path", path(&log)),
        ("--max-requests-inflight", "50".into()),
        ("--max-mutating-requests-inflight", "20".into()),
    ];
    let flags: Vec<&str> = flags.iter().flat_map(|(flag, value)| [*flag, value]).collect();
    cluster.launch_server_with(&flags)?;
    let ns = cluster.namespace("default");
    ns.eventually_run(&["get", "namespaces"], |found| found.contains("default"))?;
    let create = [
        "create",
        "secret",
        "generic",
        "s",
        "--from-literal=k=unmistakable",
        "--from-literal=n=v",
    ];
    ns.run(&create)?;
    has(
        &ns.run(&["get", "secret", "s", "-o", "jsonpath={.data.k}"])?,
        "dW5taXN0YWthYmxl",
    )?;
    eventually("the request is in the audit log", || {
        let written = std::fs::read_to_string(&log).unwrap_or_default();
        written
            .lines()
            .any(|l| l.contains("\"verb\":\"create\"") && l.contains("\"name\":\"s\""))
    })?;
    has(&ns.run(&["get", "--raw", "/metrics"])?, "apiserver_request_total")?;
    cluster.kill()?;
    // The acknowledged Secret is in the store's files, and not in plaintext.
    let (mut seen, mut directories) = (false, vec![cluster.data_dir()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
                continue;
            }
            let bytes = std::fs::read(entry.path())?;
            let holds = |text: &[u8]| bytes.windows(text.len()).any(|w| w == text);
            if holds(b"dW5taXN0YWthYmxl") || holds(b"unmistakable") {
                return Err(format!("{} has the secret in plaintext", entry.path().display()).into());
            }
            seen |= holds(b"k8s:enc:secretbox:v1:one:");
        }
    }
    match seen {
        true => Ok(()),
        false => Err("no file has an encrypted value".into()),
    }
}
