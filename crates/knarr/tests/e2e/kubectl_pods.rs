//! What users see of a pod's volumes, init containers, restarts and images with kubectl.

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, same};
use crate::kubectl::{WEB, running};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    (
        "volumes_bring_configuration_into_the_container_and_follow_its_changes",
        volumes,
    ),
    (
        "l10_init_containers_run_one_by_one_before_the_others",
        init_containers,
    ),
    ("l5_a_failing_container_is_restarted_with_back_off", restarts),
    ("l4_a_missing_image_shows_its_reason", missing_image),
];

fn volumes(ns: &Namespace) -> Outcome {
    ns.run(&["create", "configmap", "conf", "--from-literal=colour=blue"])?;
    ns.run(&["create", "secret", "generic", "keys", "--from-literal=door=42"])?;
    ns.apply(
        r#"
apiVersion: v1
kind: Pod
metadata:
  name: v
  labels: { app: v }
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command: ["sleep", "3600"]
      env:
        - { name: COLOUR, valueFrom: { configMapKeyRef: { name: conf, key: colour } } }
        - { name: DOOR, valueFrom: { secretKeyRef: { name: keys, key: door } } }
        - { name: IP, valueFrom: { fieldRef: { fieldPath: status.podIP } } }
      resources:
        limits: { memory: 32Mi }
      volumeMounts:
        - { name: conf, mountPath: /conf }
        - { name: all, mountPath: /all }
        - { name: scratch, mountPath: /scratch }
        - { name: mem, mountPath: /mem }
  volumes:
    - { name: conf, configMap: { name: conf } }
    - name: all
      projected:
        sources:
          - secret: { name: keys, items: [{ key: door, path: inner/door, mode: 0400 }] }
          - downwardAPI: { items: [{ path: labels, fieldRef: { fieldPath: metadata.labels } }] }
          - serviceAccountToken: { path: token, expirationSeconds: 3600 }
    - { name: scratch, emptyDir: {} }
    - { name: mem, emptyDir: { medium: Memory } }
"#,
    )?;
    running(ns, "v")?;
    let sh = |script: &str| ns.run(&["exec", "v", "--", "sh", "-c", script]);
    same(
        &sh("cat /conf/colour; echo; echo $COLOUR $DOOR; cat /all/inner/door")?,
        "blue\nblue 42\n42",
    )?;
    has(&sh("cat /all/labels")?, "app=\"v\"")?;
    same(&sh("tr -dc . < /all/token")?, "..")?;
    same(
        &sh("touch /scratch/x && mount | grep -c ' /mem type tmpfs'")?,
        "1\n",
    )?;
    same(&sh("[ \"$IP\" = \"$(hostname -i)\" ] && hostname")?, "v\n")?;
    has(&sh("ls /var/run/secrets/kubernetes.io/serviceaccount")?, "ca.crt")?;
    ns.run(&["patch", "configmap", "conf", "-p", r#"{"data":{"colour":"red"}}"#])?;
    ns.eventually_run(&["exec", "v", "--", "cat", "/conf/colour"], |t| t == "red")
        .map(drop)
}

fn init_containers(ns: &Namespace) -> Outcome {
    ns.apply(r#"
apiVersion: v1
kind: Pod
metadata: { name: i }
spec:
  restartPolicy: Never
  initContainers:
    - { name: a, image: "localhost/knarr/busybox:1", command: ["sh", "-c", "echo a >> /w/log"], volumeMounts: [{ name: w, mountPath: /w }] }
    - { name: b, image: "localhost/knarr/busybox:1", command: ["sh", "-c", "echo b >> /w/log"], volumeMounts: [{ name: w, mountPath: /w }] }
  containers:
    - { name: c, image: "localhost/knarr/busybox:1", command: ["cat", "/w/log"], volumeMounts: [{ name: w, mountPath: /w }] }
  volumes: [{ name: w, emptyDir: {} }]
"#)?;
    ns.eventually_run(&["get", "pod", "i", "-o", "jsonpath={.status.phase}"], |t| {
        t == "Succeeded"
    })?;
    same(&ns.run(&["logs", "i", "-c", "c"])?, "a\nb\n")
}

fn restarts(ns: &Namespace) -> Outcome {
    ns.run(&[
        "run",
        "crash",
        "--image=localhost/knarr/busybox:1",
        "--",
        "sh",
        "-c",
        "echo once; exit 3",
    ])?;
    ns.eventually_run(&["get", "pod", "crash"], |t| t.contains("CrashLoopBackOff"))?;
    let state = "jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}";
    same(&ns.run(&["get", "pod", "crash", "-o", state])?, "3")?;
    same(&ns.run(&["logs", "crash", "--previous"])?, "once\n")?;
    has(
        &ns.run(&["describe", "pod", "crash"])?,
        "Back-off restarting failed container",
    )
}

fn missing_image(ns: &Namespace) -> Outcome {
    ns.run(&[
        "run",
        "never",
        "--image=localhost/knarr/absent:1",
        "--image-pull-policy=Never",
    ])?;
    ns.eventually_run(&["get", "pod", "never"], |t| t.contains("ErrImageNeverPull"))?;
    has(
        &ns.run(&["describe", "pod", "never"])?,
        "is not present with pull policy of Never",
    )?;
    ns.apply(
        &WEB.replace("name: web\n  labels", "name: bad\n  labels")
            .replace("localhost/knarr/busybox:1", "case/UPPER"),
    )?;
    ns.eventually_run(&["get", "pod", "bad"], |t| t.contains("InvalidImageName"))
        .map(drop)
}
