//! Updates, terminations and losses while new connections are made (SPEC B7, N3, N4): no connection fails, because SIGTERM is
//! delayed until every node's kernel has removed the endpoint, and the kernel's tables outlive knarr.

use std::path::Path;
use std::time::{Duration, Instant};

use knarr_nemesis::fleet::{Fleet, Host};
use libtest_mimic::Failed;

use super::load::{every, under_load};
use super::two_networks::process_of;
use super::{NODE_PORT, get, start};
use crate::Outcome;
use crate::cluster::has;

/// A server that closes its socket at SIGTERM, and exits when the requests that it had accepted are answered.
const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 5
  strategy: { rollingUpdate: { maxSurge: 1, maxUnavailable: 1 } }
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      terminationGracePeriodSeconds: 10
      containers:
        - name: web
          image: localhost/knarr/busybox:1
          command: ["sh", "-c", "mkdir -p /tmp/www; hostname > /tmp/www/index.html; trap 'kill $!; wait $!; while pidof httpd >/dev/null; do sleep 0.05; done; exit 0' TERM; httpd -f -p 8080 -h /tmp/www & wait"]
          readinessProbe: { httpGet: { path: /, port: 8080 }, periodSeconds: 1 }
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec:
  type: NodePort
  selector: { app: web }
  ports: [{ port: 80, targetPort: 8080, nodePort: 30080 }]
"#;

/// The endpoint barrier's limit, long enough to be distinguished from a termination that waited for the nodes' reports.
const BARRIER: Duration = Duration::from_millis(4000);
const BARRIER_FLAG: &str = "--endpoint-barrier-millis=4000";
/// What the termination of a process may take in addition on this host.
const SLACK: Duration = Duration::from_millis(1500);
/// How long the agent of a node is paused.
const AGENT_PAUSE: Duration = Duration::from_millis(1500);

fn deployed() -> Result<Fleet, Failed> {
    let fleet = start(3, 0, &[BARRIER_FLAG])?;
    let deploy = || -> Outcome {
        fleet.apply(WEB)?;
        fleet.run(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
        fleet.eventually("the node ports", || {
            fleet.agents.iter().all(|a| get(a.address, NODE_PORT).is_ok())
        })
    };
    match deploy() {
        Ok(()) => Ok(fleet),
        Err(e) => Err(fleet.with_logs(e)),
    }
}

/// Rolling update, scale-down and drain.
pub fn planned() -> Outcome {
    let fleet = deployed()?;
    let nodes: Vec<&Host> = fleet.agents.iter().collect();
    let outcomes = [
        under_load(&fleet, "a rolling update", &nodes, || {
            fleet.run(&["rollout", "restart", "deployment/web"])?;
            fleet.run(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
            scaled(&fleet, 5)
        }),
        under_load(&fleet, "scaled from 5 to 1", &nodes, || scale(&fleet, 1)),
        under_load(&fleet, "scaled from 1 to 5", &nodes, || scale(&fleet, 5)),
        under_load(&fleet, "a drain", &nodes, || {
            fleet.run(&["drain", "node3", "--ignore-daemonsets", "--timeout=90s"])?;
            scaled(&fleet, 5)
        }),
        terminations_wait_for_reports(&fleet),
    ];
    every(outcomes).map_err(|e| fleet.with_logs(e))?;
    fleet.tear_down()
}

fn scale(fleet: &Fleet, replicas: usize) -> Outcome {
    fleet.run(&["scale", "deployment/web", &format!("--replicas={replicas}")])?;
    scaled(fleet, replicas)
}

/// Waits until there are this many pods, all ready.
fn scaled(fleet: &Fleet, replicas: usize) -> Outcome {
    let is_scaled = |pods: &str| {
        pods.lines().count() == replicas
            && pods
                .lines()
                .all(|l| l.contains(" 1/1 ") && l.contains(" Running "))
    };
    fleet
        .eventually_run(&["get", "pods", "-l", "app=web", "--no-headers"], is_scaled)
        .map(drop)
}

/// How long after the pod's deletion a process on this node exits.
fn exits_after(fleet: &Fleet, node: &Host, meanwhile: impl FnOnce() -> Outcome) -> Result<Duration, Failed> {
    let on = format!("--field-selector=spec.nodeName={}", node.name);
    let columns = "jsonpath={.items[0].metadata.name} {.items[0].metadata.uid}";
    let found = fleet.run(&["get", "pods", "-l", "app=web", &on, "-o", columns])?;
    let (name, uid) = found.split_once(' ').ok_or("no pod is on the node")?;
    let server = server_of(uid)?;
    let begin = Instant::now();
    fleet.run(&["delete", "pod", name, "--wait=false"])?;
    let exited = std::thread::scope(|scope| {
        let exited = scope.spawn(|| {
            fleet.eventually("the process to exit", || !server.exists())?;
            Ok::<_, Failed>(begin.elapsed())
        });
        meanwhile()?;
        exited.join().map_err(|_| "the wait for a process failed")?
    })?;
    Ok(exited)
}

/// SIGTERM is sent when every node has removed the endpoint, not before; and without these reports at the limit, not later.
fn terminations_wait_for_reports(fleet: &Fleet) -> Outcome {
    let [here, paused, _] = fleet.agents.as_slice() else {
        return Err("too few nodes".into());
    };
    let quick = exits_after(fleet, here, || Ok(()))?;
    if quick > SLACK {
        return Err(format!("with all nodes there a process exited after {quick:?}").into());
    }
    scaled(fleet, 5)?;
    paused.signal("-STOP")?;
    let late = exits_after(fleet, here, || {
        std::thread::sleep(AGENT_PAUSE);
        paused.signal("-CONT")
    });
    paused.signal("-CONT")?;
    let late = late?;
    if late < AGENT_PAUSE || late > AGENT_PAUSE + SLACK {
        return Err(format!("a node reported after {AGENT_PAUSE:?}, a process exited after {late:?}").into());
    }
    scaled(fleet, 5)?;
    // Its kernel keeps forwarding, with an endpoint whose removal the node cannot receive.
    paused.cut(&[fleet.server.address])?;
    let bounded = exits_after(fleet, here, || Ok(()));
    paused.heal()?;
    let bounded = bounded?;
    if bounded < BARRIER || bounded > BARRIER + SLACK {
        return Err(
            format!("with an unreachable node a process exited after {bounded:?}, not {BARRIER:?}").into(),
        );
    }
    scaled(fleet, 5)
}

/// The nodes' kernels keep forwarding when agents and servers are killed, and when nodes are deleted.
pub fn losses() -> Outcome {
    let fleet = deployed()?;
    let [first, second, third] = fleet.agents.as_slice() else {
        return Err("too few nodes".into());
    };
    let nodes = [first, second, third];
    let args = fleet.join_args()?;
    let mut join: Vec<&str> = args.iter().map(String::as_str).collect();
    join.push(BARRIER_FLAG);
    let outcomes = [
        under_load(&fleet, "an agent killed and started again", &nodes, || {
            second.kill()?;
            let before = renewal(&fleet, second)?;
            second.launch(fleet.agent(second, &join))?;
            fleet.eventually("the node's lease to be renewed", || {
                renewal(&fleet, second).is_ok_and(|renewed| renewed != before)
            })?;
            serves_pods(&fleet, second)
        }),
        under_load(&fleet, "the server killed and started again", &nodes, || {
            fleet.server.kill()?;
            fleet.launch_server(&fleet.server, &[])?;
            fleet.wait_ready(&fleet.server)?;
            fleet.run(&["rollout", "restart", "deployment/web"])?;
            fleet.run(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
            scaled(&fleet, 5)
        }),
        under_load(
            &fleet,
            "a node deleted whose agent runs",
            &[first, second],
            || {
                fleet.run(&["delete", "node", &third.name])?;
                fleet.eventually_run(&["get", "nodes"], |nodes| nodes.matches(" Ready ").count() == 3)?;
                scaled(&fleet, 5)
            },
        ),
        under_load(
            &fleet,
            "a node deleted whose agent was killed",
            &[first, second],
            || {
                third.kill()?;
                fleet.run(&["delete", "node", &third.name])?;
                // Its pods keep running, but no kubelet reports them: they are no endpoints any more.
                let slices = "jsonpath={.items[*].endpoints[*].nodeName}";
                let of_web = "kubernetes.io/service-name=web";
                let endpoints = fleet
                    .eventually_run(&["get", "endpointslices", "-l", of_web, "-o", slices], |nodes| {
                        !nodes.contains("node3")
                    })?;
                has(&endpoints, "node1")
            },
        ),
    ];
    every(outcomes).map_err(|e| fleet.with_logs(e))?;
    fleet.tear_down()
}

/// When the node's lease was last renewed.
fn renewal(fleet: &Fleet, node: &Host) -> Result<String, Failed> {
    let renew_time = "jsonpath={.spec.renewTime}";
    fleet.run(&[
        "get",
        "lease",
        "-n",
        "kube-node-lease",
        &node.name,
        "-o",
        renew_time,
    ])
}

/// Waits until a node's agent has started a replacement pod: its watches and its runtime work.
fn serves_pods(fleet: &Fleet, node: &Host) -> Outcome {
    let exited = exits_after(fleet, node, || Ok(()))?;
    if exited > BARRIER + SLACK {
        return Err(format!(
            "after its agent's start a process on {} exited after {exited:?}",
            node.name
        )
        .into());
    }
    scaled(fleet, 5)
}

/// The directory of a pod's web server in /proc, which exists for as long as that runs.
fn server_of(uid: &str) -> Result<std::path::PathBuf, Failed> {
    Ok(Path::new("/proc").join(process_of(uid, "httpd")?))
}
