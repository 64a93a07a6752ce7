//! Two servers over an etcd of three members, each on a host of its own, and two agents. Servers are cut off from
//! members, members from each other, members are killed; meanwhile clients write to both servers, and a StatefulSet's pod is
//! deleted repeatedly through a server that is available.
//!
//! At the end every acknowledged object exists, read from both servers (SPEC S9); the volume of the StatefulSet never had
//! two pods writing to it (S1, S7), whichever server was the leader.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use knarr_nemesis::etcd;
use knarr_nemesis::fleet::{Fleet, Host};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use libtest_mimic::Failed;
use serde_json::json;

use crate::partitions::{Disk, STATEFUL, grows, holders};
use crate::{KNARR, Outcome, StandaloneScenario};

pub const SCENARIOS: &[StandaloneScenario] = &[(
    "s1_with_two_servers_over_three_etcd_members_no_write_is_lost_and_no_volume_has_two_holders",
    quorum,
)];

/// The timeout of a write. A server gives up on etcd after 10 s.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);
const MEMBERS: [&str; 3] = ["e1", "e2", "e3"];

fn quorum() -> Outcome {
    let disk = Disk::make()?;
    let fleet = Fleet::prepare(KNARR, 2, &["t", "e1", "e2", "e3"])?;
    run(&fleet, &disk).map_err(|e| fleet.with_logs(e))?;
    let held = holders(&disk.mount().join("record"))?;
    if held.len() < 4 {
        return Err(format!("expected four pods that wrote to the volume, found {held:?}").into());
    }
    fleet.tear_down()
}

/// The hosts of the scenario.
struct Topology<'a> {
    fleet: &'a Fleet,
    one: &'a Host,
    two: &'a Host,
    members: &'a [Host],
    flags: Vec<String>,
}

impl<'a> Topology<'a> {
    fn of(fleet: &'a Fleet) -> Result<Self, Failed> {
        let (two, members) = fleet.others.split_first().ok_or("no second server")?;
        Ok(Topology {
            fleet,
            one: &fleet.server,
            two,
            members,
            flags: etcd::server_flags(members),
        })
    }

    fn start_member(&self, member: &Host) -> Outcome {
        etcd::start(member, self.members)
    }

    fn start_server(&self, server: &Host) -> Outcome {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        self.fleet.launch_server(server, &flags)
    }

    fn wait_for_leader(&self, but: Option<&Host>) -> Result<&'a Host, Failed> {
        let mut found = None;
        self.fleet.eventually("a leader of etcd", || {
            found = etcd::leader(self.members).filter(|l| but.is_none_or(|b| b.name != l.name));
            found.is_some()
        })?;
        found.ok_or_else(|| "no leader".into())
    }

    /// The server that the pod's node is connected to, and the other server with its node.
    fn near_and_far(&self) -> Result<(&'a Host, &'a Host, &'a str), Failed> {
        let on = self
            .fleet
            .run(&["get", "pod", "db-0", "-o", "jsonpath={.spec.nodeName}"])?;
        let [first, second] = self.fleet.agents.as_slice() else {
            return Err("expected two agents".into());
        };
        Ok(match on == first.name {
            true => (self.one, self.two, second.name.as_str()),
            false => (self.two, self.one, first.name.as_str()),
        })
    }

    /// Replaces the pod while the other server, and with it its node, is unavailable.
    fn replace_without(&self, disk: &Disk, near: &Host, node: &str) -> Outcome {
        let ask = |args: &[&str]| {
            let mut done = false;
            self.fleet.eventually(&args.join(" "), || {
                done = self.fleet.kubectl_at(near, args).is_ok();
                done
            })
        };
        ask(&["cordon", node])?;
        self.replace(disk, near)?;
        ask(&["uncordon", node])
    }

    /// Replaces the pod through this server; returns when the replacement writes.
    fn replace(&self, disk: &Disk, at: &Host) -> Outcome {
        let uid = ["get", "pod", "db-0", "-o", "jsonpath={.metadata.uid}"];
        // An error of kubectl has several words.
        let is_uid = |out: &str| !out.is_empty() && !out.contains(char::is_whitespace);
        let first = self.fleet.eventually_run_at(at, &uid, is_uid)?;
        // Retried until it succeeds: the response may be lost with the server.
        let mut deleted = false;
        self.fleet.eventually("the pod to be deleted", || {
            deleted = deleted
                || self
                    .fleet
                    .kubectl_at(at, &["delete", "pod", "db-0", "--wait=false"])
                    .is_ok();
            deleted
        })?;
        let now = self
            .fleet
            .eventually_run_at(at, &uid, |out| is_uid(out) && out != first)?;
        self.fleet
            .eventually_run_at(at, &["get", "pod", "db-0"], |out| out.contains("Running"))?;
        grows(self.fleet, &disk.mount().join("record"), &now)
    }
}

fn run(fleet: &Fleet, disk: &Disk) -> Outcome {
    let topology = Topology::of(fleet)?;
    assert_eq!(
        topology.members.iter().map(|m| &*m.name).collect::<Vec<_>>(),
        MEMBERS
    );
    topology
        .members
        .iter()
        .try_for_each(|m| topology.start_member(m))?;
    topology.wait_for_leader(None)?;
    topology.start_server(topology.one)?;
    fleet.wait_ready(topology.one)?;
    etcd::share_keys(topology.one, topology.two)?;
    topology.start_server(topology.two)?;
    fleet.wait_ready(topology.two)?;
    let args = fleet.join_args()?;
    let mut join: Vec<String> = args;
    for (agent, server) in fleet.agents.iter().zip([topology.one, topology.two]) {
        let url = format!("https://{}:6443", server.address);
        for arg in &mut join {
            if arg.starts_with("https://") {
                arg.clone_from(&url);
            }
        }
        let args: Vec<&str> = join.iter().map(String::as_str).collect();
        agent.launch(fleet.agent(agent, &args))?;
    }
    for agent in &fleet.agents {
        fleet.eventually_run(&["get", "node", &agent.name], |out| out.contains(" Ready "))?;
    }
    fleet.apply(&STATEFUL.replace("PATH", &disk.mount().display().to_string()))?;
    fleet.eventually_run(&["get", "pod", "db-0"], |out| out.contains("Running"))?;
    let writers = [Writer::start(topology.one)?, Writer::start(topology.two)?];
    let outcome = run_faults(&topology, disk, &writers);
    let written = writers.map(Writer::stop);
    outcome?;
    for written in written {
        let written = written?;
        for server in [topology.one, topology.two] {
            fleet.wait_ready(server)?;
            let there = fleet.kubectl_at(server, &["get", "configmaps", "-o", "name"])?;
            let there: std::collections::HashSet<&str> = there.lines().collect();
            let lost: Vec<_> = written
                .iter()
                .filter(|n| !there.contains(&*format!("configmap/{n}")))
                .collect();
            if !lost.is_empty() {
                return Err(format!("{} does not have acknowledged objects: {lost:?}", server.name).into());
            }
        }
    }
    Ok(())
}

/// The faults, one after the other; after each, writes make progress or the pod is replaced.
fn run_faults(topology: &Topology<'_>, disk: &Disk, writers: &[Writer; 2]) -> Outcome {
    let (fleet, one, two) = (topology.fleet, topology.one, topology.two);
    let all: Vec<Ipv4Addr> = topology.members.iter().map(|m| m.address).collect();
    let leader = topology.wait_for_leader(None)?;
    let [first, second] = writers;

    // One server reaches no member: it does not respond from its cache, and the other one works.
    let (near, far, node) = topology.near_and_far()?;
    far.cut(&all)?;
    fleet.eventually("the server that is cut off to fail", || {
        fleet
            .kubectl_at(far, &["get", "pod", "db-0", "--request-timeout=3s"])
            .is_err()
    })?;
    topology.replace_without(disk, near, node)?;
    far.heal()?;
    first.makes_progress(fleet)?;
    second.makes_progress(fleet)?;

    // The other one reaches only one member, a follower.
    let most = all.iter().filter(|a| **a == leader.address);
    let follower = topology
        .members
        .iter()
        .find(|m| m.name != leader.name)
        .ok_or("one member only")?;
    let most: Vec<_> = most
        .chain(
            all.iter()
                .filter(|a| **a != leader.address && **a != follower.address),
        )
        .copied()
        .collect();
    two.cut(&most)?;
    second.makes_progress(fleet)?;
    two.heal()?;

    // The leader reaches no other member: the others elect a new one.
    let others: Vec<_> = all.iter().copied().filter(|a| *a != leader.address).collect();
    leader.cut(&others)?;
    let next = topology.wait_for_leader(Some(leader))?;
    first.makes_progress(fleet)?;
    second.makes_progress(fleet)?;
    leader.heal()?;
    topology.replace(disk, one)?;

    // kill -9 of the new leader, and of another member: there is no quorum.
    next.kill()?;
    first.makes_progress(fleet)?;
    let third = topology
        .members
        .iter()
        .find(|m| m.name != next.name)
        .ok_or("one member only")?;
    third.kill()?;
    let mut tried = 0;
    fleet.eventually("no server to write", || {
        tried += 1;
        let name = format!("alone-{tried}");
        let alone = |at| fleet.kubectl_at(at, &["create", "configmap", &name, "--request-timeout=2s"]);
        // If the first attempt was committed, the second would get AlreadyExists.
        alone(one).is_err_and(|e| !e.to_string().contains("AlreadyExists"))
            && alone(two).is_err_and(|e| !e.to_string().contains("AlreadyExists"))
    })?;
    topology.start_member(next)?;
    topology.start_member(third)?;
    second.makes_progress(fleet)?;

    // And of a server.
    fleet.wait_ready(one)?;
    let (near, far, node) = topology.near_and_far()?;
    far.kill()?;
    topology.replace_without(disk, near, node)?;
    topology.start_server(far)?;
    fleet.wait_ready(far)?;
    first.makes_progress(fleet)?;
    second.makes_progress(fleet)
}

/// Creates ConfigMaps through one server, one after the other, and records those that were acknowledged.
struct Writer {
    name: String,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    thread: JoinHandle<Result<Vec<String>, String>>,
}

impl Writer {
    fn start(server: &Host) -> Result<Writer, Failed> {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let kubeconfig = Kubeconfig::read_from(server.kubeconfig())?;
        let (name, halt, count) = (server.name.clone(), stop.clone(), acknowledged.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let config = Kubeconfig::clone(&kubeconfig);
                let config =
                    kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
                let client = kube::Client::try_from(config.map_err(|e| e.to_string())?);
                let maps: Api<ConfigMap> = Api::namespaced(client.map_err(|e| e.to_string())?, "default");
                let mut acknowledged = Vec::new();
                for number in 0.. {
                    if halt.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("w-{name}-{number}");
                    let map = json!({ "metadata": { "name": name } });
                    let map: ConfigMap = serde_json::from_value(map).map_err(|e| e.to_string())?;
                    let params = PostParams::default();
                    let made = tokio::time::timeout(WRITE_TIMEOUT, maps.create(&params, &map));
                    if let Ok(Ok(_)) = made.await {
                        acknowledged.push(name);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(acknowledged)
            })
        });
        Ok(Writer {
            name: server.name.clone(),
            stop,
            acknowledged,
            thread,
        })
    }

    /// Waits until more of its writes are acknowledged.
    fn makes_progress(&self, fleet: &Fleet) -> Outcome {
        let before = self.acknowledged.load(Ordering::Relaxed);
        fleet.eventually(&format!("{} to acknowledge writes", self.name), || {
            self.acknowledged.load(Ordering::Relaxed) > before + 3
        })
    }

    fn stop(self) -> Result<Vec<String>, Failed> {
        self.stop.store(true, Ordering::Relaxed);
        let acknowledged = self
            .thread
            .join()
            .map_err(|_| format!("the writer at {} panicked", self.name))?;
        Ok(acknowledged?)
    }
}
