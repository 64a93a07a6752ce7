//! The network of several hosts as users see it: Services, DNS names, policies, and updates under load.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use knarr_nemesis::fleet::Fleet;
use libtest_mimic::Failed;

use crate::{KNARR, Outcome, StandaloneScenario};

pub mod bad_input;
mod load;
mod surge_eviction;
mod two_networks;
mod updates;

pub const SCENARIOS: &[StandaloneScenario] = &[
    ("n1_n2_n5_n6_n7_five_nodes_on_two_networks", five_nodes),
    ("b7_n4_updates_under_load_fail_no_connection", updates::planned),
    ("b7_n3_n4_losses_under_load_fail_no_connection", updates::losses),
    (
        "b6_b7_a_drain_of_the_only_pod_fails_no_connection",
        surge_eviction::drain,
    ),
];

const NODE_PORT: u16 = 30080;
const HOST_PORT: u16 = 8088;
/// How long one connection may take; a proxy that drops packets exceeds it.
const CONNECTION: Duration = Duration::from_secs(2);

/// A web tier on every node, which connects to an API tier, which alone may connect to the store.
const TIERS: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: { name: web }
spec:
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: web
          image: localhost/knarr/busybox:1
          ports: [{ containerPort: 8080, hostPort: 8088 }]
          env: [{ name: NODE, valueFrom: { fieldRef: { fieldPath: spec.nodeName } } }]
          command: ["sh", "-c", "mkdir -p /tmp/www; echo web on $NODE > /tmp/www/index.html; trap 'exit 0' TERM; httpd -f -p 8080 -h /tmp/www & wait"]
          readinessProbe: { httpGet: { path: /, port: 8080 }, periodSeconds: 1 }
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec:
  type: NodePort
  selector: { app: web }
  ports: [{ name: http, port: 80, targetPort: 8080, nodePort: 30080 }]
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: api }
spec:
  replicas: 2
  selector: { matchLabels: { app: api } }
  template:
    metadata: { labels: { app: api } }
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: api
          image: localhost/knarr/busybox:1
          command: ["sh", "-c", "mkdir -p /tmp/www; echo api > /tmp/www/index.html; trap 'exit 0' TERM; httpd -f -p 9000 -h /tmp/www & wait"]
          ports: [{ name: rest, containerPort: 9000 }]
---
apiVersion: v1
kind: Service
metadata: { name: api }
spec:
  selector: { app: api }
  ports: [{ name: rest, port: 80, targetPort: rest }]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: { name: store }
spec:
  serviceName: store
  replicas: 2
  podManagementPolicy: Parallel
  selector: { matchLabels: { app: store } }
  template:
    metadata: { labels: { app: store } }
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: store
          image: localhost/knarr/busybox:1
          command: ["sh", "-c", "mkdir -p /tmp/www; hostname > /tmp/www/index.html; trap 'exit 0' TERM; httpd -f -p 7000 -h /tmp/www & wait"]
---
apiVersion: v1
kind: Service
metadata: { name: store }
spec:
  clusterIP: None
  selector: { app: store }
  ports: [{ name: data, port: 7000 }]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: store }
spec:
  podSelector: { matchLabels: { app: store } }
  ingress:
    - from: [{ podSelector: { matchLabels: { app: api } } }]
      ports: [{ port: 7000 }]
---
apiVersion: v1
kind: Service
metadata: { name: nothing }
spec:
  selector: { app: nothing }
  ports: [{ port: 80 }]
"#;

/// A fleet whose agents are Ready; so many, the last ones, behind a router.
fn start(agents: u8, far: u8, agent_flags: &[&str]) -> Result<Fleet, Failed> {
    let fleet = Fleet::start_on_two_networks(KNARR, agents, far, &[])?;
    let joined = || -> Outcome {
        let args = fleet.join_args()?;
        let mut join: Vec<&str> = args.iter().map(String::as_str).collect();
        join.extend(agent_flags);
        for agent in &fleet.agents {
            agent.launch(fleet.agent(agent, &join))?;
        }
        let ready = usize::from(agents);
        fleet.eventually_run(&["get", "nodes"], |nodes| {
            nodes.matches(" Ready ").count() == ready
        })?;
        Ok(())
    };
    match joined() {
        Ok(()) => Ok(fleet),
        Err(e) => Err(fleet.with_logs(e)),
    }
}

/// How often kubectl's exec is tried if it loses output.
const FETCH_ATTEMPTS: usize = 4;

fn five_nodes() -> Outcome {
    let fleet = start(5, u8::try_from(two_networks::FAR)?, &[])?;
    let check = || -> Outcome {
        use_tiers(&fleet)?;
        two_networks::check(&fleet)
    };
    check().map_err(|e| fleet.with_logs(e))?;
    fleet.tear_down()
}

fn use_tiers(fleet: &Fleet) -> Outcome {
    fleet.apply(TIERS)?;
    for workload in ["daemonset/web", "deployment/api", "statefulset/store"] {
        fleet.run(&["rollout", "status", workload, "--timeout=120s"])?;
    }
    // What a pod of an app gets from a URL. kubectl 1.32 may lose output that arrives before it expects any, and says so.
    let fetch = |from: &str, url: &str| {
        let once = || fleet.kubectl(&["exec", from, "--", "wget", "-qO-", url]);
        (1..FETCH_ATTEMPTS)
            .map(|_| once())
            .find(|got| !got.as_ref().is_ok_and(|text| text.contains("discarding message")))
            .unwrap_or_else(once)
    };
    for (from, url, expected) in [
        ("daemonset/web", "http://api", "api"),
        ("daemonset/web", "http://api.default.svc.cluster.local", "api"),
        ("daemonset/web", "http://web", "web on node"),
        ("deployment/api", "http://store-0.store:7000", "store-0"),
        (
            "deployment/api",
            "http://store-1.store.default.svc.cluster.local:7000",
            "store-1",
        ),
    ] {
        let got = fetch(from, url).map_err(|e| format!("{from} cannot fetch {url}: {e}"))?;
        if !got.contains(expected) {
            return Err(format!("{from} got {got:?} from {url}, expected {expected:?}").into());
        }
    }
    // Every node answers on the node port, with pods of every node.
    for agent in &fleet.agents {
        let mut seen = std::collections::BTreeSet::new();
        fleet.eventually(
            &format!("all pods behind the node port of {}", agent.name),
            || {
                seen.extend(get(agent.address, NODE_PORT).ok());
                seen.len() == fleet.agents.len()
            },
        )?;
    }
    // A host port leads to the pod of its own node alone.
    for agent in &fleet.agents {
        let got = get(agent.address, HOST_PORT)?;
        if got.trim() != format!("web on {}", agent.name) {
            return Err(format!("the host port of {} responds {got:?}", agent.name).into());
        }
    }
    let begin = Instant::now();
    if fetch("daemonset/web", "http://nothing").is_ok() || begin.elapsed() > Duration::from_secs(5) {
        return Err(format!(
            "a Service without endpoints took {:?} to reject a connection",
            begin.elapsed()
        )
        .into());
    }
    let store = fleet.run(&["get", "pod", "store-0", "-o", "jsonpath={.status.podIP}"])?;
    let denied = fleet.kubectl(&[
        "exec",
        "daemonset/web",
        "--",
        "timeout",
        "3",
        "wget",
        "-qO-",
        &format!("http://{store}:7000"),
    ]);
    if let Ok(got) = denied {
        return Err(format!(
            "the policy should deny connections of web to the store, which responded {got:?}"
        )
        .into());
    }
    // Without the policy it is allowed.
    fleet.run(&["delete", "networkpolicy", "store"])?;
    fleet.eventually("the store without a policy", || {
        fetch("daemonset/web", &format!("http://{store}:7000")).is_ok()
    })
}

/// What a pod gets from a URL.
fn fetch_from(fleet: &Fleet, pod: &str, url: &str) -> Result<String, String> {
    fleet
        .kubectl(&["exec", pod, "--", "wget", "-T", "1", "-qO-", url])
        .map_err(|e| e.to_string())
}

fn get(address: Ipv4Addr, port: u16) -> Result<String, String> {
    body(address, port, "/")
}

/// The body of a GET over a new connection.
fn body(address: Ipv4Addr, port: u16, path: &str) -> Result<String, String> {
    let text = |e: std::io::Error| e.to_string();
    let mut stream =
        TcpStream::connect_timeout(&SocketAddr::from((address, port)), CONNECTION).map_err(text)?;
    stream.set_read_timeout(Some(CONNECTION)).map_err(text)?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nHost: test\r\n\r\n").as_bytes())
        .map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(text)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or("a response without an end of its headers")?;
    if !head.contains(" 200 ") {
        return Err(format!("responded {head:?}"));
    }
    Ok(body.trim().to_string())
}
