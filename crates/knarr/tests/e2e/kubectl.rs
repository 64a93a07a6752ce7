//! What users do with kubectl all day: create, get, describe, change, scale, roll out, delete.

use std::time::Instant;

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, same};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    ("apply_shows_a_running_pod_in_every_output_form", apply_and_get),
    (
        "describe_and_events_show_the_lifecycle_of_a_pod",
        describe_and_events,
    ),
    ("deployment_scales_rolls_out_and_back", deployment),
    ("objects_are_labelled_annotated_edited_and_patched", change),
    ("t1_delete_is_graceful_now_or_forced", delete),
    ("create_generators_and_dry_runs", generators),
    ("explain_and_api_resources_know_the_kinds", explain),
    ("errors_of_manifests_name_the_field", bad_manifests),
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
    ("dependents_are_deleted_with_their_owners", propagation),
    ("endpoints_follow_readiness", endpoints),
];

/// A pod that runs until SIGTERM, and exits at once on it.
pub const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: { app: web }
spec:
  terminationGracePeriodSeconds: 20
  containers:
    - name: web
      image: localhost/knarr/busybox:1
      command: ["sh", "-c", "trap 'echo bye; exit 0' TERM; echo hello; echo oops >&2; while :; do sleep 0.1; done"]
"#;

pub fn running(ns: &Namespace, pod: &str) -> Outcome {
    ns.run(&[
        "wait",
        "--for=condition=Ready",
        &format!("pod/{pod}"),
        "--timeout=60s",
    ])
    .map(drop)
}

fn apply_and_get(ns: &Namespace) -> Outcome {
    same(&ns.apply(WEB)?, "pod/web created\n")?;
    running(ns, "web")?;
    same(&ns.apply(WEB)?, "pod/web unchanged\n")?;
    let table = ns.run(&["get", "pods"])?;
    let mut lines = table.lines();
    same(
        &lines
            .next()
            .unwrap_or("")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" "),
        "NAME READY STATUS RESTARTS AGE",
    )?;
    has(lines.next().unwrap_or(""), "web    1/1     Running   0")?;
    let wide = ns.run(&["get", "pods", "-o", "wide"])?;
    has(&wide, "NOMINATED NODE   READINESS GATES")?;
    has(&wide, "node1")?;
    has(&ns.run(&["get", "pod", "web", "-o", "yaml"])?, "phase: Running")?;
    has(
        &ns.run(&["get", "pod", "web", "-o", "json"])?,
        "\"phase\": \"Running\"",
    )?;
    let ip = ns.run(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"])?;
    ip.parse::<std::net::Ipv4Addr>()
        .map_err(|e| format!("podIP {ip:?}: {e}"))?;
    has(&ns.run(&["get", "pods", "-l", "app=web"])?, "web")?;
    same(
        ns.run(&["get", "pods", "-l", "app!=web"])?
            .lines()
            .next()
            .unwrap_or(""),
        &format!("No resources found in {} namespace.", ns.name),
    )?;
    has(
        &ns.run(&["get", "pods", "-A", "--field-selector", "status.phase=Running"])?,
        &ns.name,
    )?;
    has(&ns.run(&["get", "nodes"])?, "Ready")?;
    has(&ns.run(&["get", "all"])?, "pod/web")?;
    Ok(())
}

fn describe_and_events(ns: &Namespace) -> Outcome {
    ns.apply(WEB)?;
    running(ns, "web")?;
    let described = ns.eventually_run(&["describe", "pod", "web"], |t| t.contains("Started"))?;
    for part in [
        "Status:           Running",
        "Ready:          True",
        "PodScheduled",
        "Successfully assigned",
        "Pulled",
        "Created",
        "Started",
        "kube-api-access",
        "QoS Class:                   BestEffort",
    ] {
        has(&described, part)?;
    }
    let events = ns.run(&["events", "--for", "pod/web"])?;
    has(&events, "Scheduled")?;
    has(&ns.run(&["describe", "node", "node1"])?, "Allocated resources:")?;
    Ok(())
}

const DEPLOYMENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 2
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: web
          image: localhost/knarr/busybox:1
          command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
"#;

fn deployment(ns: &Namespace) -> Outcome {
    same(&ns.apply(DEPLOYMENT)?, "deployment.apps/web created\n")?;
    has(
        &ns.run(&["rollout", "status", "deployment/web", "--timeout=60s"])?,
        "successfully rolled out",
    )?;
    same(
        &ns.run(&["scale", "deployment/web", "--replicas=3"])?,
        "deployment.apps/web scaled\n",
    )?;
    ns.eventually_run(&["get", "deployment", "web"], |t| t.contains("3/3"))?;
    same(
        &ns.run(&["set", "image", "deployment/web", "web=localhost/knarr/web:1"])?,
        "deployment.apps/web image updated\n",
    )?;
    has(
        &ns.run(&["rollout", "status", "deployment/web", "--timeout=60s"])?,
        "successfully rolled out",
    )?;
    let images = "jsonpath={.items[*].spec.containers[0].image}";
    let now = ns.run(&[
        "get",
        "pods",
        "-l",
        "app=web",
        "--field-selector=status.phase=Running",
        "-o",
        images,
    ])?;
    has(&now, "localhost/knarr/web:1")?;
    let history = ns.run(&["rollout", "history", "deployment/web"])?;
    has(&history, "REVISION  CHANGE-CAUSE\n1")?;
    same(
        &ns.run(&["rollout", "undo", "deployment/web"])?,
        "deployment.apps/web rolled back\n",
    )?;
    has(
        &ns.run(&["rollout", "status", "deployment/web", "--timeout=60s"])?,
        "successfully rolled out",
    )?;
    same(
        &ns.run(&[
            "get",
            "deployment",
            "web",
            "-o",
            "jsonpath={.spec.template.spec.containers[0].image}",
        ])?,
        "localhost/knarr/busybox:1",
    )?;
    same(
        &ns.run(&["rollout", "pause", "deployment/web"])?,
        "deployment.apps/web paused\n",
    )?;
    ns.run(&["set", "env", "deployment/web", "A=b"])?;
    same(
        &ns.run(&["rollout", "resume", "deployment/web"])?,
        "deployment.apps/web resumed\n",
    )?;
    has(
        &ns.run(&["rollout", "status", "deployment/web", "--timeout=60s"])?,
        "successfully rolled out",
    )?;
    same(
        &ns.run(&["rollout", "restart", "deployment/web"])?,
        "deployment.apps/web restarted\n",
    )?;
    has(
        &ns.run(&["rollout", "status", "deployment/web", "--timeout=60s"])?,
        "successfully rolled out",
    )?;
    let sets = ns.run(&[
        "get",
        "replicasets",
        "-o",
        "jsonpath={range .items[*]}{.spec.replicas},{end}",
    ])?;
    same(&sets.split(',').filter(|n| *n == "3").count().to_string(), "1")
}

fn change(ns: &Namespace) -> Outcome {
    ns.run(&["create", "configmap", "c", "--from-literal=a=1"])?;
    same(
        &ns.run(&["label", "configmap", "c", "tier=db"])?,
        "configmap/c labeled\n",
    )?;
    has(
        &ns.run_failing(&["label", "configmap", "c", "tier=web"])?,
        "already has a value (db), and --overwrite is false",
    )?;
    same(
        &ns.run(&["label", "configmap", "c", "tier-"])?,
        "configmap/c unlabeled\n",
    )?;
    same(
        &ns.run(&["annotate", "configmap", "c", "note=x"])?,
        "configmap/c annotated\n",
    )?;
    same(
        &ns.run(&[
            "patch",
            "configmap",
            "c",
            "--type=merge",
            "-p",
            r#"{"data":{"b":"2"}}"#,
        ])?,
        "configmap/c patched\n",
    )?;
    same(
        &ns.run(&[
            "patch",
            "configmap",
            "c",
            "--type=json",
            "-p",
            r#"[{"op":"replace","path":"/data/a","value":"9"}]"#,
        ])?,
        "configmap/c patched\n",
    )?;
    same(
        &ns.run(&["patch", "configmap", "c", "-p", r#"{"data":{"d":"4"}}"#])?,
        "configmap/c patched\n",
    )?;
    same(
        &ns.run(&[
            "get",
            "configmap",
            "c",
            "-o",
            "jsonpath={.data.a}{.data.b}{.data.d}",
        ])?,
        "924",
    )?;
    let editor = ns.cluster.data_dir().with_file_name("editor");
    std::fs::write(&editor, "#!/bin/sh\nsed -i 's/a: \"9\"/a: \"8\"/' \"$1\"\n")?;
    std::fs::set_permissions(&editor, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let out = ns
        .kubectl(&["edit", "configmap", "c"])
        .env("EDITOR", &editor)
        .output()?;
    has(&crate::cluster::text(&out), "configmap/c edited")?;
    same(
        &ns.run(&["get", "configmap", "c", "-o", "jsonpath={.data.a}"])?,
        "8",
    )?;
    has(
        &ns.run_failing(&[
            "patch",
            "configmap",
            "c",
            "--type=json",
            "-p",
            r#"[{"op":"test","path":"/data/a","value":"1"}]"#,
        ])?,
        "the server rejected our request due to an error in our request",
    )?;
    Ok(())
}

fn delete(ns: &Namespace) -> Outcome {
    ns.apply(WEB)?;
    running(ns, "web")?;
    let begin = Instant::now();
    same(&ns.run(&["delete", "pod", "web"])?, "pod \"web\" deleted\n")?;
    // It exits on SIGTERM, so long before its grace period of 20 s is over.
    if begin.elapsed().as_secs() >= 10 {
        return Err(format!(
            "a pod that exits on SIGTERM took {:?} to be deleted",
            begin.elapsed()
        )
        .into());
    }
    // This one ignores SIGTERM: it is killed after its grace period, which the request shortens.
    let stubborn = WEB.replace("trap 'echo bye; exit 0' TERM", "trap '' TERM");
    ns.apply(&stubborn)?;
    running(ns, "web")?;
    let begin = Instant::now();
    ns.run(&["delete", "pod", "web", "--now"])?;
    if begin.elapsed().as_secs() >= 12 {
        return Err(format!("--now took {:?}", begin.elapsed()).into());
    }
    ns.apply(&stubborn)?;
    running(ns, "web")?;
    let output = ns.run(&["delete", "pod", "web", "--grace-period=0", "--force"])?;
    has(&output, "Immediate deletion does not wait for confirmation")?;
    has(&output, "pod \"web\" force deleted")?;
    has(&ns.run_failing(&["get", "pod", "web"])?, "pods \"web\" not found")?;
    Ok(())
}

fn generators(ns: &Namespace) -> Outcome {
    same(
        &ns.run(&["create", "secret", "generic", "s", "--from-literal=k=v"])?,
        "secret/s created\n",
    )?;
    same(
        &ns.run(&["get", "secret", "s", "-o", "jsonpath={.data.k}{.type}"])?,
        "dg==Opaque",
    )?;
    same(
        &ns.run(&["create", "serviceaccount", "robot"])?,
        "serviceaccount/robot created\n",
    )?;
    let token = ns.run(&["create", "token", "robot"])?;
    same(&token.trim().split('.').count().to_string(), "3")?;
    same(
        &ns.run(&[
            "create",
            "deployment",
            "d",
            "--image=localhost/knarr/busybox:1",
            "--replicas=0",
        ])?,
        "deployment.apps/d created\n",
    )?;
    same(
        &ns.run(&["create", "service", "clusterip", "svc", "--tcp=80:8080"])?,
        "service/svc created\n",
    )?;
    has(&ns.run(&["get", "service", "svc"])?, "ClusterIP   172.")?;
    same(
        &ns.run(&["create", "role", "reader", "--verb=get", "--resource=pods"])?,
        "role.rbac.authorization.k8s.io/reader created\n",
    )?;
    same(
        &ns.run(&[
            "create",
            "rolebinding",
            "rb",
            "--role=reader",
            &format!("--serviceaccount={}:robot", ns.name),
        ])?,
        "rolebinding.rbac.authorization.k8s.io/rb created\n",
    )?;
    same(
        &ns.run(&["create", "quota", "q", "--hard=pods=50"])?,
        "resourcequota/q created\n",
    )?;
    same(
        &ns.run(&[
            "create",
            "job",
            "j",
            "--image=localhost/knarr/busybox:1",
            "--dry-run=server",
            "--",
            "true",
        ])?,
        "job.batch/j created (server dry run)\n",
    )?;
    has(&ns.run_failing(&["get", "job", "j"])?, "NotFound")?;
    same(
        &ns.run(&[
            "create",
            "poddisruptionbudget",
            "p",
            "--selector=app=d",
            "--min-available=1",
        ])?,
        "poddisruptionbudget.policy/p created\n",
    )?;
    same(
        &ns.run(&["create", "ingress", "i", "--rule=a.example/=svc:80"])?,
        "ingress.networking.k8s.io/i created\n",
    )?;
    same(
        &ns.run(&[
            "run",
            "once",
            "--image=localhost/knarr/busybox:1",
            "--restart=Never",
            "--",
            "true",
        ])?,
        "pod/once created\n",
    )?;
    ns.eventually_run(&["get", "pod", "once"], |t| t.contains("Completed"))
        .map(drop)?;
    same(
        &ns.run(&["expose", "deployment", "d", "--port=80"])?,
        "service/d exposed\n",
    )?;
    Ok(())
}

fn explain(ns: &Namespace) -> Outcome {
    let pod = ns.run(&["explain", "pods.spec.containers"])?;
    has(&pod, "FIELD: containers <[]Container>")?;
    has(&pod, "imagePullPolicy\t<string>")?;
    has(&ns.run(&["explain", "deployment", "--recursive"])?, "maxSurge")?;
    let resources = ns.run(&["api-resources"])?;
    for part in [
        "pods                                po",
        "deployments                         deploy",
        "customresourcedefinitions",
    ] {
        has(&resources, part)?;
    }
    has(&ns.run(&["api-versions"])?, "apps/v1")?;
    has(&ns.run(&["version"])?, "Server Version: v1.36.2")?;
    Ok(())
}

fn bad_manifests(ns: &Namespace) -> Outcome {
    let wrong_type = WEB.replace(
        "terminationGracePeriodSeconds: 20",
        "terminationGracePeriodSeconds: soon",
    );
    has(&failing_apply(ns, &wrong_type)?, "terminationGracePeriodSeconds")?;
    let unknown = WEB.replace("      image:", "      imagee: x\n      image:");
    has(
        &failing_apply(ns, &unknown)?,
        "unknown field \"spec.containers[0].imagee\"",
    )?;
    let bad_name = WEB.replace("name: web\n  labels", "name: Web_1\n  labels");
    has(
        &failing_apply(ns, &bad_name)?,
        "metadata.name: Invalid value: \"Web_1\"",
    )?;
    let no_image = WEB.replace("      image: localhost/knarr/busybox:1\n", "");
    has(
        &failing_apply(ns, &no_image)?,
        "spec.containers[0].image: Required value",
    )?;
    has(
        &failing_apply(ns, "apiVersion: v9\nkind: Pod\nmetadata: {name: x}\n")?,
        "no matches for kind \"Pod\" in version \"v9\"",
    )?;
    has(&ns.run(&["get", "pods"])?, "No resources found")
}

fn failing_apply(ns: &Namespace, manifest: &str) -> Result<String, libtest_mimic::Failed> {
    match ns.apply(manifest) {
        Ok(out) => Err(format!("this manifest should have been rejected, but: {out}\n{manifest}").into()),
        Err(e) => Ok(e.message().unwrap_or("").to_string()),
    }
}

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

fn propagation(ns: &Namespace) -> Outcome {
    let zero = DEPLOYMENT.replace("replicas: 2", "replicas: 1");
    ns.apply(&zero)?;
    ns.run(&["rollout", "status", "deployment/web", "--timeout=60s"])?;
    ns.run(&["delete", "deployment", "web", "--cascade=orphan"])?;
    has(&ns.run(&["get", "replicasets"])?, "web-")?;
    let orphan = "jsonpath={.items[0].metadata.ownerReferences}";
    ns.eventually_run(&["get", "replicasets", "-o", orphan], |t| t.is_empty())?;
    ns.apply(&zero)?;
    ns.run(&["rollout", "status", "deployment/web", "--timeout=60s"])?;
    ns.run(&["delete", "deployment", "web", "--cascade=foreground"])?;
    has(&ns.run(&["get", "replicasets,pods"])?, "No resources found")?;
    ns.apply(&zero)?;
    ns.run(&["rollout", "status", "deployment/web", "--timeout=60s"])?;
    ns.run(&["delete", "deployment", "web"])?;
    ns.eventually_run(&["get", "replicasets,pods"], |t| t.contains("No resources found"))
        .map(drop)
}

fn endpoints(ns: &Namespace) -> Outcome {
    ns.apply(WEB)?;
    ns.run(&["expose", "pod", "web", "--port=80", "--target-port=8080"])?;
    running(ns, "web")?;
    let ip = ns.run(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"])?;
    ns.eventually_run(&["get", "endpoints", "web"], |t| {
        t.contains(&format!("{ip}:8080"))
    })?;
    let ready = "jsonpath={.items[0].endpoints[0].conditions.ready}";
    ns.eventually_run(
        &[
            "get",
            "endpointslices",
            "-l",
            "kubernetes.io/service-name=web",
            "-o",
            ready,
        ],
        |t| t == "true",
    )?;
    ns.run(&["delete", "pod", "web"])?;
    ns.eventually_run(&["get", "endpoints", "web"], |t| t.contains("<none>"))
        .map(drop)
}
