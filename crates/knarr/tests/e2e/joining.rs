//! Nodes that join by a bootstrap token, in networks of their own: who is let in, what their certificates are good for,
//! and that they are renewed under running pods.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use libtest_mimic::Failed;

use crate::cluster::{has, same, text};
use crate::{Alone, KNARR, Outcome};
use knarr_nemesis::fleet::{Fleet, Machine};

pub const SCENARIOS: &[Alone] = &[(
    "agents_join_by_token_and_renew_their_certificates_under_running_pods",
    agents_join,
)];

/// So short that certificates are renewed while one waits; nothing below depends on how soon.
const SIGNING: [&str; 2] = ["--cluster-signing-duration", "20s"];

fn agents_join() -> Outcome {
    let fleet = Fleet::start(KNARR, 2, &SIGNING)?;
    scenario(&fleet).map_err(|e| fleet.with_logs(e))?;
    fleet.end()
}

fn scenario(fleet: &Fleet) -> Outcome {
    let words = fleet.join_words()?;
    let join: Vec<&str> = words.iter().map(String::as_str).collect();
    let [a, b] = fleet.agents.as_slice() else {
        return Err("two agents were asked for".into());
    };
    strangers_are_refused(fleet, a, &join)?;

    for agent in [a, b] {
        agent.launch(fleet.agent(agent, &join))?;
    }
    for agent in [a, b] {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        fleet.eventually(&["get", "node", &agent.name, "-o", ready], |out| out == "True")?;
        fleet.apply(&POD.replace("NODE", &agent.name))?;
    }
    for agent in [a, b] {
        let pod = format!("on-{}", agent.name);
        fleet.eventually(&["get", "pod", &pod], |out| out.contains("Running"))?;
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
    let kept = [certificate(a, "client")?, certificate(a, "server")?];
    for (kind, first) in ["client", "server"].into_iter().zip(&kept) {
        fleet.waits(&format!("another {kind} certificate"), || {
            certificate(a, kind).is_ok_and(|now| now != *first)
        })?;
    }
    fleet.eventually(&["get", "csr"], |out| out.contains("system:node:node1"))?;
    through_the_port(fleet, "on-node1")?;
    same(&container(fleet, a)?, &before)?;

    // It dies and comes back with what it has kept; its pods never noticed.
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

/// Neither a wrong token nor a wrong pin lets a node in, and each is told in words.
fn strangers_are_refused(fleet: &Fleet, agent: &Machine, join: &[&str]) -> Outcome {
    let with = |flag: &str, value: &str| {
        let mut changed = join.to_vec();
        if let Some(place) = changed.iter().position(|w| *w == flag)
            && let Some(word) = changed.get_mut(place + 1)
        {
            *word = value;
        }
        let out = fleet.agent(agent, &changed).output()?;
        same(&format!("{:?}", out.status.code()), "Some(1)")?;
        Ok::<_, Failed>(text(&out))
    };
    let other_pin = format!("sha256:{}", "0".repeat(64));
    let said = with("--ca-cert-hash", &other_pin)?;
    has(&said, "the hash of its CA is sha256:")?;
    has(&said, "Nothing was sent")?;
    let said = with("--token", "abcdef.0123456789abcdef")?;
    has(&said, "does not accept the token abcdef.…")?;
    has(&said, "knarr token create")?;
    same(&fleet.run(&["get", "csr"])?, "No resources found\n")
}

/// exec and logs reach the pod through its node's port, which shows a certificate of the cluster's CA.
fn through_the_port(fleet: &Fleet, pod: &str) -> Outcome {
    fleet.eventually(&["exec", pod, "--", "echo", "within"], |out| out == "within\n")?;
    fleet.eventually(&["logs", pod], |out| out.starts_with("hello from"))?;
    Ok(())
}

fn container(fleet: &Fleet, agent: &Machine) -> Result<String, Failed> {
    let id =
        "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}";
    fleet.run(&["get", "pod", &format!("on-{}", agent.name), "-o", id])
}

/// What is in the file, which is for its owner only.
fn certificate(agent: &Machine, kind: &str) -> Result<String, Failed> {
    let file: PathBuf = agent.data_dir().join(format!("pki/kubelet-{kind}-current.pem"));
    let mode = std::fs::metadata(&file)?.permissions().mode();
    same(&format!("{:o}", mode & 0o777), "600")?;
    Ok(std::fs::read_to_string(file)?)
}
