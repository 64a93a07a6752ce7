//! `knarr net` on a running cluster, compared with the outcome of real connections.

use libtest_mimic::Failed;

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, has, same, text};

pub const SCENARIOS: &[(&str, Scenario)] =
    &[("n2_n6_net_predicts_what_then_happens_to_connections", connections)];

/// What `knarr net` prints, and its exit code.
fn net(ns: &Namespace, args: &[&str]) -> Result<(i32, String), Failed> {
    let mut knarr = ns.cluster.knarr("net");
    let out = knarr.args(args).args(["--namespace", &ns.name]).output()?;
    let code = out.status.code().ok_or("knarr net was killed")?;
    Ok((code, text(&out)))
}

/// Must exit with this code, and print these parts.
fn expect(ns: &Namespace, args: &[&str], code: i32, parts: &[&str]) -> Outcome {
    let (found, output) = net(ns, args)?;
    if found != code {
        return Err(format!("{args:?} exited with {found}, expected {code}:\n{output}").into());
    }
    parts.iter().try_for_each(|part| has(&output, part))
}

const SHOP: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: web, labels: { app: web } }
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: localhost/knarr/busybox:1
      command: ["sh", "-c", "mkdir -p /tmp/www; echo here > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"]
      ports: [{ name: http, containerPort: 8080 }]
      readinessProbe: { httpGet: { path: /, port: 8080 }, periodSeconds: 1 }
---
apiVersion: v1
kind: Pod
metadata: { name: client, labels: { app: client } }
spec:
  terminationGracePeriodSeconds: 1
  containers: [ { name: c, image: localhost/knarr/busybox:1, command: ["sleep", "1000"] } ]
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec:
  type: NodePort
  selector: { app: web }
  ports: [{ name: http, port: 80, targetPort: http }]
---
apiVersion: v1
kind: Service
metadata: { name: typo }
spec:
  selector: { app: wep }
  ports: [{ name: http, port: 80, targetPort: http }]
"#;

const ONLY_ADMINS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: only-admins }
spec:
  podSelector: { matchLabels: { app: web } }
  ingress:
    - from: [{ podSelector: { matchLabels: { app: admin } } }]
      ports: [{ port: 8080 }]
"#;

fn connections(ns: &Namespace) -> Outcome {
    ns.apply(SHOP)?;
    ns.run(&[
        "wait",
        "--for=condition=Ready",
        "pod/web",
        "pod/client",
        "--timeout=120s",
    ])?;
    let jsonpath = "jsonpath={.items[*].endpoints[*].conditions.ready}";
    let slices = [
        "get",
        "endpointslices",
        "-l",
        "kubernetes.io/service-name=web",
        "-o",
        jsonpath,
    ];
    ns.eventually_run(&slices, |ready| ready == "true")?;
    let fetch = |service: &str| {
        let url = format!("http://{service}.{}.svc.cluster.local", ns.name);
        let exec = ["exec", "client", "--", "timeout", "3", "wget", "-qO-"];
        ns.try_run(&[exec.as_slice(), &[&url]].concat())
    };
    let address = ns.run(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"])?;
    let endpoint = format!("are sent to {address}:8080");
    // The kernel's tables follow the API with a short delay.
    ns.eventually("the kernel's tables are up to date", || {
        net(ns, &["service", "web"]).is_ok_and(|(_, output)| output.contains(" are up to date ("))
    })?;
    let web = format!("web.{}.svc.cluster.local", ns.name);
    expect(ns, &["service", "svc/web"], 0, &[&endpoint, "NodePort", &web])?;
    expect(
        ns,
        &["connect", "client", "svc/web:http"],
        0,
        &["no policy isolates it", "\nAllowed.\n"],
    )?;
    has(&fetch("web").map_err(Failed::from)?, "here")?;
    // With a policy the report agrees with the connections, too.
    ns.apply(ONLY_ADMINS)?;
    let policy = format!("isolated by {}/only-admins", ns.name);
    let parts = [
        &*policy,
        "ingress[0] (from pods with app=admin, port 8080/TCP): no peer matches",
        "a rule would have to allow from pod",
        "labels app=client",
    ];
    expect(ns, &["connect", "client", "svc/web:80"], 1, &parts)?;
    ns.eventually("the policy in force", || fetch("web").is_err())?;
    expect(
        ns,
        &["connect", "node/node1", "pod/web:8080"],
        0,
        &["policies do not apply to connections of a node to its own pods"],
    )?;
    let (_, json) = net(ns, &["connect", "client", "svc/web:80", "-o", "json"])?;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    same(json["verdict"].as_str().unwrap_or_default(), "Denied")?;
    // What cannot work is reported before a client tries it.
    expect(
        ns,
        &["service", "typo"],
        1,
        &["matches the Service's selector app=wep", "are rejected"],
    )?;
    expect(ns, &["connect", "client", "svc/typo"], 1, &["rejects it"])?;
    if fetch("typo").is_ok() {
        return Err("a Service without endpoints answered".into());
    }
    expect(ns, &["service", "nothing"], 2, &["there is no Service"])?;
    expect(ns, &["nodes"], 0, &["node1", "this node", "ready"])
}
