//! Nodes that join with a bootstrap token, in networks of their own: which nodes are accepted, what their certificates are
//! valid for, and that they are renewed under running pods.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use knarr_nemesis::fleet::{Fleet, Host};
use libtest_mimic::Failed;

use crate::cluster::{has, same, text};
use crate::{KNARR, Outcome, StandaloneScenario};

pub const SCENARIOS: &[StandaloneScenario] = &[(
    "agents_join_by_token_and_renew_their_certificates_under_running_pods",
    agents_join,
)];

/// So short that certificates are renewed during the test; nothing below depends on how soon.
const SIGNING: [&str; 2] = ["--cluster-signing-duration", "20s"];

fn agents_join() -> Outcome {
    let fleet = Fleet::start(KNARR, 2, &SIGNING)?;
    scenario(&fleet).map_err(|e| fleet.with_logs(e))?;
    fleet.tear_down()
}

fn scenario(fleet: &Fleet) -> Outcome {
    let args = fleet.join_args()?;
    let join: Vec<&str> = args.iter().map(String::as_str).collect();
    let [a, b] = fleet.agents.as_slice() else {
        return Err("expected two agents".into());
    };
    wrong_credentials_are_rejected(fleet, a, &join)?;

    for agent in [a, b] {
        agent.launch(fleet.agent(agent, &join))?;
    }
    for agent in [a, b] {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        fleet.eventually_run(&["get", "node", &agent.name, "-o", ready], |out| out == "True")?;
        fleet.apply(&POD.replace("NODE", &agent.name))?;
    }
    for agent in [a, b] {
        let pod = format!("on-{}", agent.name);
        fleet.eventually_run(&["get", "pod", &pod], |out| out.contains("Running"))?;
        through_the_port(fleet, &pod)?;
    }
    let requests = fleet.run(&["get", "csr"])?;
    for part in [
        "kubernetes.io/kube-apiserver-client-kubelet",
        "kubernetes.io/kubelet-serving",
        "system:bootstrap:",
        "system:node:node2",
        "Approved,Issued",
    ] {
        has(&requests, part)?;
    }

    let before = container(fleet, a)?;
    let first_ones = [certificate(a, "client")?, certificate(a, "server")?];
    for (kind, first) in ["client", "server"].into_iter().zip(&first_ones) {
        fleet.eventually(&format!("another {kind} certificate"), || {
            certificate(a, kind).is_ok_and(|now| now != *first)
        })?;
    }
    fleet.eventually_run(&["get", "csr"], |out| out.contains("system:node:node1"))?;
    through_the_port(fleet, "on-node1")?;
    same(&container(fleet, a)?, &before)?;

    // It is killed and starts again with its stored credentials; its pods are not affected.
    a.kill()?;
    a.launch(fleet.agent(a, &join))?;
    through_the_port(fleet, "on-node1")?;
    same(&container(fleet, a)?, &before)
}

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: on-NODE }
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command: ["sh", "-c", "echo hello from NODE; trap 'exit 0' TERM; while :; do sleep 0.1; done"]
"#;

/// A node with a wrong token or a wrong pin cannot join, and the error says why.
fn wrong_credentials_are_rejected(fleet: &Fleet, agent: &Host, join: &[&str]) -> Outcome {
    let with = |flag: &str, value: &str| {
        let mut changed = join.to_vec();
        if let Some(position) = changed.iter().position(|arg| *arg == flag)
            && let Some(arg) = changed.get_mut(position + 1)
        {
            *arg = value;
        }
        let out = fleet.agent(agent, &changed).output()?;
        same(&format!("{:?}", out.status.code()), "Some(1)")?;
        Ok::<_, Failed>(text(&out))
    };
    let other_pin = format!("sha256:{}", "0".repeat(64));
    let output = with("--ca-cert-hash", &other_pin)?;
    has(&output, "the hash of its CA is sha256:")?;
    has(&output, "Nothing was sent")?;
    let output = with("--token", "abcdef.0123456789abcdef")?;
    has(&output, "does not accept the token abcdef.…")?;
    has(&output, "knarr token create")?;
    same(&fleet.run(&["get", "csr"])?, "No resources found\n")
}

/// exec and logs reach the pod through its node's kubelet port, whose certificate the cluster signed.
fn through_the_port(fleet: &Fleet, pod: &str) -> Outcome {
    fleet.eventually_run(&["exec", pod, "--", "echo", "within"], |out| out == "within\n")?;
    fleet.eventually_run(&["logs", pod], |out| out.starts_with("hello from"))?;
    Ok(())
}

fn container(fleet: &Fleet, agent: &Host) -> Result<String, Failed> {
    let id =
        "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}";
    fleet.run(&["get", "pod", &format!("on-{}", agent.name), "-o", id])
}

/// The content of the file, which only its owner can read.
fn certificate(agent: &Host, kind: &str) -> Result<String, Failed> {
    let file: PathBuf = agent.data_dir().join(format!("pki/kubelet-{kind}-current.pem"));
    let mode = std::fs::metadata(&file)?.permissions().mode();
    same(&format!("{:o}", mode & 0o777), "600")?;
    Ok(std::fs::read_to_string(file)?)
}
