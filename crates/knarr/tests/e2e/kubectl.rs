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
