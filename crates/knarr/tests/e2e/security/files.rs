//! Pods that try to make the kubelet open files outside of their volumes: by links, FIFOs, forged records, subPaths (SPEC A3),
//! and what other users of the node can read of pods' files (SPEC A5).

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, same};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    ("a3_a_termination_message_reads_no_file_of_the_node", messages),
    (
        "a3_configmap_secret_downward_api_and_projected_volumes_are_read_only_in_containers",
        read_only,
    ),
    (
        "a3_a_forged_volume_record_has_no_effect_and_blocks_nothing",
        records,
    ),
    (
        "a3_a_sub_path_is_mounted_once_and_does_not_leave_the_volume",
        sub_paths,
    ),
    ("a5_pods_files_are_closed_to_other_users_of_the_node", closed),
];

const PHASE: &[&str] = &["get", "pod"];

/// Waits until the pod has succeeded.
fn succeeds(ns: &Namespace, pod: &str) -> Outcome {
    let phase = [PHASE, &[pod, "-o", "jsonpath={.status.phase}"]].concat();
    let phase = ns.eventually_run(&phase, |out| out == "Succeeded" || out == "Failed")?;
    same(&phase, "Succeeded")
}

fn message(ns: &Namespace, pod: &str) -> Result<String, libtest_mimic::Failed> {
    let of = "jsonpath={.status.containerStatuses[0].state.terminated.message}";
    ns.run(&["get", "pod", pod, "-o", of])
}

fn messages(ns: &Namespace) -> Outcome {
    let key = ns.cluster.data_dir().join("pki/ca.key");
    same(&format!("{}", key.exists()), "true")?;
    let hostile = [
        // The kernel does not allow a mounted file to be replaced; the attempts must not make the container fail.
        (
            "link",
            format!(
                "rm /all/f; ln -s {} /all/f; mv /all/g /all/f; true",
                key.display()
            ),
        ),
        ("fifo", "rm /all/f; mkfifo /all/f; true".to_string()),
        ("words", "printf words > /tm".to_string()),
    ];
    for (name, command) in &hostile {
        ns.apply(&format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{ name: {name} }}
spec:
  restartPolicy: Never
  volumes: [{{ name: v, emptyDir: {{}} }}]
  initContainers:
    - name: i
      image: localhost/knarr/busybox:1
      command: ["sh", "-c", "echo of the volume > /all/f"]
      volumeMounts: [{{ name: v, mountPath: /all }}]
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      terminationMessagePath: /tm
      command: ["sh", "-c", "{command}"]
      volumeMounts:
        - {{ name: v, mountPath: /all }}
        - {{ name: v, mountPath: /tm, subPath: f }}
"#
        ))?;
    }
    for (name, _) in &hostile {
        succeeds(ns, name)?;
    }
    same(&message(ns, "link")?, "")?;
    same(&message(ns, "fifo")?, "")?;
    // The termination log is mounted over the pod's own mount.
    same(&message(ns, "words")?, "words")?;
    // Where the pod mounts a directory there, the termination log cannot be mounted; in any case no link is followed.
    ns.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{ name: directory }}
spec:
  restartPolicy: Never
  volumes: [{{ name: v, emptyDir: {{}} }}]
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      terminationMessagePath: /tm
      command: ["sh", "-c", "rmdir /all/f; ln -s {} /all/f"]
      volumeMounts:
        - {{ name: v, mountPath: /all }}
        - {{ name: v, mountPath: /tm, subPath: f }}
"#,
        key.display()
    ))?;
    let state = "jsonpath={.status.containerStatuses[0].state}";
    let state = ns.eventually_run(&["get", "pod", "directory", "-o", state], |out| {
        out.contains("terminated") || out.contains("Error")
    })?;
    same(&format!("{}", state.contains("PRIVATE KEY")), "false")
}

fn read_only(ns: &Namespace) -> Outcome {
    ns.run(&["create", "configmap", "m", "--from-literal=a=1"])?;
    ns.run(&["create", "secret", "generic", "s", "--from-literal=a=1"])?;
    ns.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: { name: p }
spec:
  restartPolicy: Never
  volumes:
    - { name: m, configMap: { name: m } }
    - { name: s, secret: { secretName: s } }
    - { name: d, downwardAPI: { items: [{ path: a, fieldRef: { fieldPath: metadata.name } }] } }
    - { name: p, projected: { sources: [{ configMap: { name: m } }] } }
  initContainers:
    - name: i
      image: localhost/knarr/busybox:1
      command:
        - sh
        - -c
        - |
          for v in m s d p; do
            cat /$v/a > /dev/null || exit 1
            touch /$v/w 2>/dev/null && exit 2
            rm /$v/..data 2>/dev/null && exit 3
            mkfifo /$v/..data/x 2>/dev/null && exit 4
            ln -sfn /dev/zero /$v/a 2>/dev/null && exit 5
          done
          cat /sub > /dev/null || exit 6
          { echo x > /sub; } 2>/dev/null && exit 7
          exit 0
      volumeMounts: &mounts
        - { name: m, mountPath: /m }
        - { name: s, mountPath: /s }
        - { name: d, mountPath: /d }
        - { name: p, mountPath: /p }
        - { name: m, mountPath: /sub, subPath: a }
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command: ["sh", "-c", "touch /m/w && exit 1; touch /p/w && exit 2; exit 0"]
      volumeMounts: *mounts
"#,
    )?;
    succeeds(ns, "p")
}

fn records(ns: &Namespace) -> Outcome {
    let victim = ns.cluster.data_dir().join("victim");
    std::fs::create_dir_all(&victim)?;
    let forged = format!(
        r#"{{"source":{{"iscsi":{{"portals":[],"iqn":"iqn.2000-01.x:y","lun":0,"interface":"default","filesystem":"ext4","chap_discovery":false,"chap_session":false}}}},"staged":"{}"}}"#,
        victim.display()
    );
    for (name, record) in [("forged", forged.as_str()), ("garbage", "garbage")] {
        ns.run(&[
            "create",
            "configmap",
            name,
            &format!("--from-literal=vol_data.json={record}"),
        ])?;
        ns.apply(&format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{ name: {name} }}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{{ name: v, configMap: {{ name: {name} }} }}, {{ name: e, emptyDir: {{}} }}]
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command: ["sh", "-c", "cp /v/vol_data.json /e/; touch /e/ready; sleep 600"]
      readinessProbe: {{ exec: {{ command: [cat, /e/ready] }}, periodSeconds: 1 }}
      volumeMounts: [{{ name: v, mountPath: /v }}, {{ name: e, mountPath: /e }}]
"#
        ))?;
    }
    ns.run(&[
        "wait",
        "--for=condition=Ready",
        "pod/forged",
        "pod/garbage",
        "--timeout=60s",
    ])?;
    ns.run(&["delete", "pod", "forged", "garbage", "--timeout=30s"])?;
    same(&format!("{}", victim.exists()), "true")?;
    Ok(std::fs::remove_dir(&victim)?)
}

fn sub_paths(ns: &Namespace) -> Outcome {
    // The link exists before the other container starts: a subPath that leaves the volume is not mounted.
    ns.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: { name: out }
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{ name: v, emptyDir: {} }]
  initContainers:
    - name: i
      image: localhost/knarr/busybox:1
      command: ["sh", "-c", "ln -s / /all/f"]
      volumeMounts: [{ name: v, mountPath: /all }]
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command: ["sleep", "600"]
      volumeMounts: [{ name: v, mountPath: /x, subPath: f }]
---
apiVersion: v1
kind: Pod
metadata: { name: in }
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{ name: v, emptyDir: {} }]
  containers:
    - name: a
      image: localhost/knarr/busybox:1
      command: ["sh", "-c", "while [ ! -e /all/d/e/runs ]; do sleep 0.1; done; mv /all/d/e /all/d/g; ln -s / /all/d/e; sleep 600"]
      volumeMounts: [{ name: v, mountPath: /all }]
    - name: b
      image: localhost/knarr/busybox:1
      env: [{ name: NAME, value: e }]
      command: ["sh", "-c", "touch /x/runs; sleep 600"]
      volumeMounts: [{ name: v, mountPath: /x, subPathExpr: d/$(NAME) }]
"#,
    )?;
    let waiting = "jsonpath={.status.containerStatuses[0].state.waiting}";
    let why = ns.eventually_run(&["get", "pod", "out", "-o", waiting], |out| {
        out.contains("CreateContainerConfigError")
    })?;
    has(&why, "failed to prepare subPath for volumeMount")?;
    // After the directory is replaced the container still has the one that was mounted.
    ns.eventually_run(
        &[
            "exec",
            "in",
            "-c",
            "a",
            "--",
            "sh",
            "-c",
            "test -L /all/d/e && echo yes",
        ],
        |out| out.trim() == "yes",
    )?;
    same(
        ns.run(&["exec", "in", "-c", "b", "--", "ls", "/x"])?.trim(),
        "runs",
    )?;
    let uid = ns.run(&["get", "pod", "in", "-o", "jsonpath={.metadata.uid}"])?;
    let table = format!("/proc/{}/mountinfo", ns.cluster.pid()?);
    let mounts = || std::fs::read_to_string(&table);
    let own = format!("pods/{uid}/volume-subpaths/v/b/0");
    has(&mounts()?, &own)?;
    ns.run(&["delete", "pod", "in", "out", "--timeout=30s"])?;
    same(&format!("{}", mounts()?.contains(&own)), "false")
}

fn closed(ns: &Namespace) -> Outcome {
    ns.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: { name: p }
spec:
  restartPolicy: Never
  securityContext: { runAsUser: 1000 }
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command: ["sh", "-c", "t=/var/run/secrets/kubernetes.io/serviceaccount/token; cat $t > /dev/null && stat -L -c '%a %u' $t > /dev/termination-log"]
"#,
    )?;
    succeeds(ns, "p")?;
    same(message(ns, "p")?.trim(), "600 1000")?;
    let kubelet = ns.cluster.data_dir().join("kubelet");
    let uid = ns.run(&["get", "pod", "p", "-o", "jsonpath={.metadata.uid}"])?;
    for path in [
        kubelet.clone(),
        kubelet.join("pods"),
        kubelet.join("pods").join(uid),
    ] {
        same(&format!("{:o}", others_may(&path)?), "0")?;
    }
    Ok(())
}

/// The mode for users who are neither the owner nor of the group.
fn others_may(path: &Path) -> std::io::Result<u32> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(meta.permissions().mode() & 0o007),
        // A pod's directory is removed after the pod has terminated.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}
