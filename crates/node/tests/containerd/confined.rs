//! What confines a container, seen from within, and what a user sees where the node cannot have it.

use knarr_node::images;
use serde_json::{Value, json};

use super::machine::{Machine, first, phase};

fn pod_writing(of_pod: Value, own: Value, script: &str) -> Value {
    json!({
        "restartPolicy": "Never", "securityContext": of_pod,
        "containers": [{
            "name": "c", "image": images::BUSYBOX, "command": ["sh", "-c", format!("({script}) >/dev/termination-log 2>&1")],
            "securityContext": own,
        }],
    })
}

const NO_MKDIR: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls":
    [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_l4_a_container_is_confined_as_it_asks_or_does_not_run() {
    let Some(machine) = Machine::start(10).await else {
        return;
    };
    // Before the node is registered no pod is rejected.
    machine.ready().await;
    let profiles = machine.dir.path().join("kubelet/seccomp/strict");
    std::fs::create_dir_all(&profiles).unwrap();
    std::fs::write(profiles.join("no-mkdir.json"), NO_MKDIR).unwrap();
    let local = |file: &str| json!({"type": "Localhost", "localhostProfile": file});
    let script = "mkdir /dev/shm/d || echo no-mkdir; touch /f || echo read-only; id -u; id -g; id -G; \
                  cat /proc/sys/net/ipv4/ip_unprivileged_port_start; grep -E 'NoNewPrivs|CapEff' /proc/self/status";
    let of_pod = json!({
        "runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000],
        "sysctls": [{"name": "net/ipv4/ip_unprivileged_port_start", "value": "77"}],
    });
    let own = json!({
        "seccompProfile": local("strict/no-mkdir.json"), "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
    });
    machine.create("confined", pod_writing(of_pod, own, script)).await;
    // With root's own image, and with what no node has.
    for (name, of_pod, own) in [
        (
            "no-profile",
            json!({}),
            json!({"seccompProfile": local("absent.json")}),
        ),
        ("root", json!({"runAsNonRoot": true}), json!({})),
        (
            "unsafe",
            json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
            json!({}),
        ),
        ("strict", json!({"supplementalGroupsPolicy": "Strict"}), json!({})),
        (
            "armored",
            json!({"appArmorProfile": {"type": "RuntimeDefault"}}),
            json!({}),
        ),
    ] {
        machine.create(name, pod_writing(of_pod, own, "exit 0")).await;
    }
    let mut users = pod_writing(json!({}), json!({}), "exit 0");
    users["hostUsers"] = json!(false);
    machine.create("users", users).await;

    machine
        .wait("confined", "done", |p| phase(p) == "Succeeded")
        .await;
    let said = first(&machine.get("confined").await.unwrap())["state"]["terminated"]["message"].clone();
    assert_eq!(
        said,
        "mkdir: can't create directory '/dev/shm/d': Operation not permitted\nno-mkdir\n\
         touch: /f: Read-only file system\nread-only\n1000\n2000\n2000 3000 4000\n77\n\
         CapEff:\t0000000000000000\nNoNewPrivs:\t1\n"
    );
    let app_armor = std::path::Path::new("/sys/kernel/security/apparmor").exists();
    let rejections = [
        (
            "unsafe",
            "SysctlForbidden",
            "Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        ),
        (
            "strict",
            "SupplementalGroupsPolicyNotSupported",
            "Pod was rejected: SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        (
            "armored",
            "AppArmor",
            "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ),
    ];
    for (name, reason, message) in rejections
        .into_iter()
        .filter(|r| !(app_armor && r.0 == "armored"))
    {
        machine.wait(name, "rejected", |p| phase(p) == "Failed").await;
        let status = machine.get(name).await.unwrap().status.clone().unwrap();
        let got = (status.reason.as_deref(), status.message.as_deref());
        assert_eq!(got, (Some(reason), Some(message)), "{name}");
        assert!(status.container_statuses.is_none(), "{name} has containers");
    }
    for (name, reason, message) in [
        (
            "no-profile",
            "CreateContainerError",
            "kubelet/seccomp/absent.json",
        ),
        (
            "root",
            "CreateContainerConfigError",
            "container has runAsNonRoot and image will run as root (pod: \"root_default(",
        ),
    ] {
        let waits = |p: Option<&_>| p.is_some_and(|p| first(p)["state"]["waiting"]["reason"] == reason);
        machine.wait(name, reason, waits).await;
        let waiting = first(&machine.get(name).await.unwrap())["state"]["waiting"]["message"].to_string();
        let plain = waiting.replace("\\\"", "\"");
        assert!(plain.contains(message), "{plain}");
    }
    let message = "FailedCreatePodSandBox Failed to create pod sandbox: can't set `spec.hostUsers: false`, \
                   runtime does not support user namespaces";
    let began = tokio::time::Instant::now();
    loop {
        let events = machine.events("users").await;
        if events.iter().any(|e| e.starts_with(message)) {
            break;
        }
        assert!(began.elapsed().as_secs() < 90, "{events:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    machine.end().await;
}
