//! Invalid or conflicting network objects: the error, event or condition says why, and everything else keeps working.

use std::net::{Ipv4Addr, TcpListener};

use knarr_nemesis::fleet::Fleet;

use super::body;
use crate::cluster::{Cluster, Namespace, Scenario, eventually, has, output_of, same};
use crate::kubectl::running;
use crate::{KNARR, Outcome, StandaloneScenario};

pub const SCENARIOS: &[(&str, Scenario)] = &[(
    "n2_n6_services_and_policies_that_cannot_work_are_reported_and_affect_no_other",
    invalid_objects,
)];

pub const STANDALONE: &[StandaloneScenario] = &[
    ("n1_n2_exhausted_ranges_are_reported", exhausted),
    ("n7_pods_never_take_the_network_of_their_node", overlapping),
];

/// The limit of an EndpointSlice.
const MAX_ENDPOINTS: usize = 1000;

const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: web, labels: { app: web } }
spec:
  terminationGracePeriodSeconds: 2
  containers:
    - name: web
      image: localhost/knarr/busybox:1
      command: ["sh", "-c", "mkdir -p /tmp/www; echo web > /tmp/www/index.html; trap 'exit 0' TERM; httpd -f -p 8080 -h /tmp/www & wait"]
      readinessProbe: { httpGet: { path: /, port: 8080 }, periodSeconds: 1 }
---
apiVersion: v1
kind: Pod
metadata: { name: client }
spec:
  terminationGracePeriodSeconds: 1
  containers: [{ name: client, image: "localhost/knarr/busybox:1", command: ["sleep", "1000"] }]
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec:
  type: NodePort
  selector: { app: web }
  ports: [{ port: 80, targetPort: 8080 }]
"#;

/// One allows from everywhere what the other denies, and a third names a port that the pod does not have.
const POLICIES: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: deny-all }
spec: { podSelector: {}, policyTypes: [Ingress, Egress], egress: [{}] }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: allow-web }
spec: { podSelector: { matchLabels: { app: web } }, ingress: [{ ports: [{ port: 8080 }] }] }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: no-such-port }
spec: { podSelector: { matchLabels: { app: web } }, ingress: [{ ports: [{ port: nothing }] }] }
"#;

fn service(name: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata: {{ name: {name} }}\nspec: {{ {spec} }}\n---\n")
}

/// The error of a manifest that must be rejected.
fn rejected(ns: &Namespace, manifest: &str) -> Result<String, libtest_mimic::Failed> {
    match ns.apply(manifest) {
        Ok(out) => Err(format!("this should have been rejected, but: {out}\n{manifest}").into()),
        Err(e) => Ok(e.message().unwrap_or("").to_string()),
    }
}

fn invalid_objects(ns: &Namespace) -> Outcome {
    ns.apply(WEB)?;
    running(ns, "web")?;
    let of_web = |path: &str| ns.run(&["get", "service", "web", "-o", &format!("jsonpath={{{path}}}")]);
    let (ip, port) = (of_web(".spec.clusterIP")?, of_web(".spec.ports[0].nodePort")?);
    let taken = service("second", &format!("clusterIP: {ip}, ports: [{{ port: 80 }}]"));
    has(
        &rejected(ns, &taken)?,
        &format!("failed to allocate IP {ip}: provided IP is already allocated"),
    )?;
    let taken = service(
        "second",
        &format!("type: NodePort, ports: [{{ port: 80, nodePort: {port} }}]"),
    );
    has(
        &rejected(ns, &taken)?,
        &format!("spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated"),
    )?;
    let outside = service("second", "type: NodePort, ports: [{ port: 80, nodePort: 80 }]");
    has(
        &rejected(ns, &outside)?,
        "The range of valid ports is 30000-32767",
    )?;
    large_slice(ns)?;

    // A process of the host that listens on the port is not reached by it any more; the Service is.
    let number: u16 = port.parse()?;
    let answers = || body(Ipv4Addr::LOCALHOST, number, "/");
    ns.eventually("the node port", || answers().is_ok())?;
    let held = TcpListener::bind((Ipv4Addr::UNSPECIFIED, number))?;
    same(&answers()?, "web")?;
    drop(held);

    let backwards = POLICIES.replace("port: 8080", "port: 8080, endPort: 80");
    has(
        &rejected(ns, &backwards)?,
        "must be greater than or equal to `port`",
    )?;
    let nothing_left = POLICIES.replace(
        "ports: [{ port: 8080 }]",
        "from: [{ ipBlock: { cidr: 10.0.0.0/8, except: [192.0.2.0/24] } }]",
    );
    has(&rejected(ns, &nothing_left)?, "must be a strict subset of `cidr`")?;
    ns.run(&["delete", "networkpolicy", "--all"])?;
    ns.apply(POLICIES)?;
    let about = "involvedObject.name=no-such-port";
    let message = "jsonpath={.items[*].message}";
    let event = ns.eventually_run(
        &["get", "events", "--field-selector", about, "-o", message],
        |t| !t.is_empty(),
    )?;
    has(&event, "nothing")?;
    // A connection that one policy allows is allowed.
    running(ns, "client")?;
    let url = ["exec", "client", "--", "wget", "-T", "3", "-qO-", "http://web"];
    same(&ns.eventually_run(&url, |t| t == "web\n")?, "web\n")?;
    ns.run(&["delete", "networkpolicy", "allow-web"])?;
    ns.eventually("the remaining policies", || ns.try_run(&url).is_err())?;
    ns.run(&["delete", "networkpolicy", "--all"])?;
    ns.eventually_run(&url, |t| t == "web\n").map(drop)
}

/// The most endpoints that a slice may have are in the kernel, one more is rejected.
fn large_slice(ns: &Namespace) -> Outcome {
    let slice = |endpoints: usize| {
        let addresses =
            (0..endpoints).map(|i| format!("{{ addresses: [198.19.{}.{}] }}", i / 250, i % 250 + 1));
        let addresses: Vec<String> = addresses.collect();
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
             metadata: {{ name: large, labels: {{ kubernetes.io/service-name: large }} }}\n\
             ports: [{{ port: 80, protocol: TCP }}]\nendpoints: [{}]\n",
            addresses.join(", ")
        )
    };
    let large = service("large", "ports: [{ port: 80, protocol: TCP }]");
    has(
        &rejected(ns, &slice(MAX_ENDPOINTS + 1))?,
        &format!("must have at most {MAX_ENDPOINTS} items"),
    )?;
    ns.apply(&(large + &slice(MAX_ENDPOINTS)))?;
    let in_kernel = || {
        let tables = ns.cluster.nft_tables().into_iter();
        let listed = tables.filter(|t| t.starts_with("table ip ")).map(|table| {
            let args: Vec<&str> = table.split(' ').collect();
            knarr_nemesis::commands::system(&[&["nft", "list"][..], &args].concat()).unwrap_or_default()
        });
        listed.collect::<String>().matches("198.19.").count() >= MAX_ENDPOINTS
    };
    ns.eventually("a thousand endpoints in the kernel", in_kernel)?;
    ns.run(&["delete", "service/large", "endpointslice/large"])
        .map(drop)
}

fn exhausted() -> Outcome {
    let cluster = Cluster::prepare("ranges")?;
    let flags = [
        "--service-cidr=172.31.255.0/28",
        "--cluster-cidr=10.254.0.0/24",
        "--node-cidr-mask-size-ipv4=25",
    ];
    cluster.launch_server_with(&flags)?;
    eventually("the API", || {
        output_of(cluster.kubectl().args(["get", "--raw", "/readyz"])).is_ok()
    })?;
    let ns = cluster.namespace("default");
    let node = |n: u8| format!("apiVersion: v1\nkind: Node\nmetadata: {{ name: n{n} }}\n---\n");
    ns.apply(&(1..=3).map(node).collect::<String>())?;
    let message = "jsonpath={.items[?(@.reason==\"CIDRNotAvailable\")].message}";
    let event = ns.eventually_run(&["get", "events", "-A", "-o", message], |t| !t.is_empty())?;
    has(&event, "no /25 of the cluster CIDR 10.254.0.0/24 is left")?;
    let ranges = ns.run(&["get", "nodes", "-o", "jsonpath={.items[*].spec.podCIDR}"])?;
    let mut ranges: Vec<&str> = ranges.split_whitespace().collect();
    ranges.sort_unstable();
    same(&ranges.join(" "), "10.254.0.0/25 10.254.0.128/25")?;

    let many: String = (0..20)
        .map(|i| service(&format!("s{i}"), "ports: [{ port: 80 }]"))
        .collect();
    let full = "failed to allocate a serviceIP: range is full";
    has(&rejected(&ns, &many)?, full)?;
    let headless = service("headless", "clusterIP: None, ports: [{ port: 80 }]");
    ns.apply(&headless)?;
    ns.run(&["delete", "service", "s0"])?;
    ns.apply(&service("again", "ports: [{ port: 80 }]"))?;
    has(&rejected(&ns, &service("more", "ports: [{ port: 80 }]"))?, full)?;

    ns.run(&["delete", "service", "s1", "s2"])?;
    // Together more than the 2768 node ports.
    let ports = |from: u16| {
        (from..from + 1400)
            .map(|p| format!("{{ name: p{p}, port: {p} }}"))
            .collect::<Vec<_>>()
    };
    let half = |name: &str, from| {
        service(
            name,
            &format!("type: NodePort, ports: [{}]", ports(from).join(", ")),
        )
    };
    ns.apply(&half("first", 1))?;
    has(
        &rejected(&ns, &half("second", 2000))?,
        "failed to allocate a nodePort: range is full",
    )?;
    ns.run(&["delete", "service", "first"])?;
    ns.apply(&half("second", 2000))?;
    Ok(cluster.end()?)
}

/// A pod CIDR that contains the node's own network is not routed: the node stays reachable, and reports why it accepts no
/// pods.
fn overlapping() -> Outcome {
    let fleet = Fleet::prepare(KNARR, 1, &[])?;
    let checked = || -> Outcome {
        let [a, b, c, _] = fleet.server.address.octets();
        let flag = format!("--cluster-cidr={a}.{b}.{c}.0/24");
        fleet.launch_server(&fleet.server, &[&flag])?;
        fleet.wait_ready(&fleet.server)?;
        let args = fleet.join_args()?;
        let mut join: Vec<&str> = args.iter().map(String::as_str).collect();
        join.push(&flag);
        let [agent] = fleet.agents.as_slice() else {
            return Err("no agent".into());
        };
        agent.launch(fleet.agent(agent, &join))?;
        let condition = "jsonpath={.status.conditions[?(@.type==\"NetworkUnavailable\")]}";
        let output = fleet.eventually_run(&["get", "node", "node1", "-o", condition], |t| {
            t.contains("PodCIDRConflict")
        })?;
        has(&output, "it contains the address")?;
        has(&output, "\"status\":\"True\"")?;
        // It continues to report, and its own network is not affected by routes.
        has(
            &fleet.run(&["describe", "node", "node1"])?,
            "node.kubernetes.io/network-unavailable:NoSchedule",
        )?;
        let routes = agent.output(&["ip", "-4", "route", "show"])?;
        match routes.contains("unreachable") {
            true => Err(format!("the node's own network is not reachable any more:\n{routes}").into()),
            false => Ok(()),
        }
    };
    checked().map_err(|e| fleet.with_logs(e))?;
    fleet.tear_down()
}
