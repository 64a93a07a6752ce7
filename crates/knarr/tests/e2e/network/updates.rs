//! Updates, ends and losses while new connections are made (SPEC B7, N3, N4): none of them is refused, because TERM waits
//! for what every node's kernel has, and what the kernel has outlives knarr.

use std::path::Path;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use super::load::{every, under_load};
use super::two_networks::process_of;
use super::{NODE_PORT, get, start};
use crate::Outcome;
use crate::cluster::has;
use knarr_nemesis::fleet::{Fleet, Machine};

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
          command: ["sh", "-c", "mkdir -p /tmp/www; hostname > /tmp/www/index.html; trap 'exit 0' TERM; httpd -f -p 8080 -h /tmp/www & wait"]
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

/// How long an end waits for evidence, so long that it is told from the evidence itself.
const BARRIER: Duration = Duration::from_millis(4000);
const BARRIER_FLAG: &str = "--endpoint-barrier-millis=4000";
/// What this machine may take for all else when a process is to end.
const SLACK: Duration = Duration::from_millis(1500);
/// How long the agent of a node says nothing.
const SILENCE: Duration = Duration::from_millis(1500);

fn deployed() -> Result<Fleet, Failed> {
    let fleet = start(3, 0, &[BARRIER_FLAG])?;
    let deploy = || -> Outcome {
        fleet.apply(WEB)?;
        fleet.run(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
        fleet.waits("the node ports", || {
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
    let nodes: Vec<&Machine> = fleet.agents.iter().collect();
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
        ends_wait_for_evidence(&fleet),
    ];
    every(outcomes).map_err(|e| fleet.with_logs(e))?;
    fleet.end()
}

fn scale(fleet: &Fleet, replicas: usize) -> Outcome {
    fleet.run(&["scale", "deployment/web", &format!("--replicas={replicas}")])?;
    scaled(fleet, replicas)
}

/// Waits until there are so many pods, all ready.
fn scaled(fleet: &Fleet, replicas: usize) -> Outcome {
    let wanted = |pods: &str| {
        pods.lines().count() == replicas
            && pods
                .lines()
                .all(|l| l.contains(" 1/1 ") && l.contains(" Running "))
    };
    fleet
        .eventually(&["get", "pods", "-l", "app=web", "--no-headers"], wanted)
        .map(drop)
}

/// How long after its deletion a pod's process on this node ends.
fn ends_after(
    fleet: &Fleet,
    node: &Machine,
    meanwhile: impl FnOnce() -> Outcome,
) -> Result<Duration, Failed> {
    let on = format!("--field-selector=spec.nodeName={}", node.name);
    let columns = "jsonpath={.items[0].metadata.name} {.items[0].metadata.uid}";
    let found = fleet.run(&["get", "pods", "-l", "app=web", &on, "-o", columns])?;
    let (name, uid) = found.split_once(' ').ok_or("no pod is on the node")?;
    let server = server_of(uid)?;
    let begin = Instant::now();
    fleet.run(&["delete", "pod", name, "--wait=false"])?;
    let ended = std::thread::scope(|scope| {
        let ended = scope.spawn(|| {
            fleet.waits("the process to end", || !server.exists())?;
            Ok::<_, Failed>(begin.elapsed())
        });
        meanwhile()?;
        ended.join().map_err(|_| "the wait for a process failed")?
    })?;
    Ok(ended)
}

/// TERM is sent when every node has dropped the endpoint, not before; and without that when the bound is over, not later.
fn ends_wait_for_evidence(fleet: &Fleet) -> Outcome {
    let [here, silent, _] = fleet.agents.as_slice() else {
        return Err("too few nodes".into());
    };
    let quick = ends_after(fleet, here, || Ok(()))?;
    if quick > SLACK {
        return Err(format!("with all nodes there a process ended after {quick:?}").into());
    }
    scaled(fleet, 5)?;
    silent.signal("-STOP")?;
    let late = ends_after(fleet, here, || {
        std::thread::sleep(SILENCE);
        silent.signal("-CONT")
    });
    silent.signal("-CONT")?;
    let late = late?;
    if late < SILENCE || late > SILENCE + SLACK {
        return Err(format!("a node reported after {SILENCE:?}, a process ended after {late:?}").into());
    }
    scaled(fleet, 5)?;
    // Its kernel goes on, with an endpoint of which nobody can tell it that it has gone.
    silent.cut(&[fleet.server.address])?;
    let bounded = ends_after(fleet, here, || Ok(()));
    silent.heal()?;
    let bounded = bounded?;
    if bounded < BARRIER || bounded > BARRIER + SLACK {
        return Err(format!("with a node cut off a process ended after {bounded:?}, not {BARRIER:?}").into());
    }
    scaled(fleet, 5)
}

/// What knarr does not survive, its nodes' kernels do: agents and servers that are killed, and nodes that are deleted.
pub fn losses() -> Outcome {
    let fleet = deployed()?;
    let [first, second, third] = fleet.agents.as_slice() else {
        return Err("too few nodes".into());
    };
    let nodes = [first, second, third];
    let words = fleet.join_words()?;
    let mut join: Vec<&str> = words.iter().map(String::as_str).collect();
    join.push(BARRIER_FLAG);
    let outcomes = [
        under_load(&fleet, "an agent killed and started again", &nodes, || {
            second.kill()?;
            second.launch(fleet.agent(second, &join))?;
            serves_pods(&fleet, second)
        }),
        under_load(&fleet, "the server killed and started again", &nodes, || {
            fleet.server.kill()?;
            fleet.launch_server(&fleet.server, &[])?;
            fleet.ready(&fleet.server)?;
            fleet.run(&["rollout", "restart", "deployment/web"])?;
            fleet.run(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
            scaled(&fleet, 5)
        }),
        under_load(
            &fleet,
            "a node deleted whose agent lives",
            &[first, second],
            || {
                fleet.run(&["delete", "node", &third.name])?;
                fleet.eventually(&["get", "nodes"], |nodes| nodes.matches(" Ready ").count() == 3)?;
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
                // Its pods run on, without anybody who could say so: they are offered no more.
                let slices = "jsonpath={.items[*].endpoints[*].nodeName}";
                let of_web = "kubernetes.io/service-name=web";
                let offered = fleet
                    .eventually(&["get", "endpointslices", "-l", of_web, "-o", slices], |nodes| {
                        !nodes.contains("node3")
                    })?;
                has(&offered, "node1")
            },
        ),
    ];
    every(outcomes).map_err(|e| fleet.with_logs(e))?;
    fleet.end()
}

/// Waits until a node's agent has started a pod's successor: it watches, and the runtime answers it.
fn serves_pods(fleet: &Fleet, node: &Machine) -> Outcome {
    let ended = ends_after(fleet, node, || Ok(()))?;
    if ended > BARRIER + SLACK {
        return Err(format!(
            "after its agent's start a process on {} ended after {ended:?}",
            node.name
        )
        .into());
    }
    scaled(fleet, 5)
}

/// The directory of a pod's web server in /proc, which is there for as long as that runs.
fn server_of(uid: &str) -> Result<std::path::PathBuf, Failed> {
    Ok(Path::new("/proc").join(process_of(uid, "httpd")?))
}
