//! Two servers over an etcd of three members, each on a machine of its own, and two agents. Servers are cut off from
//! members, members from each other, members are killed; meanwhile both servers are written to, and a StatefulSet's pod is
//! deleted again and again at whichever server there is.
//!
//! What was acknowledged is there at the end, at both servers (SPEC S9); the volume of the StatefulSet never had two
//! holders (S1, S7), whichever of the two servers led.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use knarr_nemesis::etcd;
use knarr_nemesis::fleet::{Fleet, Machine};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use libtest_mimic::Failed;
use serde_json::json;

use crate::partitions::{Disk, STATEFUL, grows, holders};
use crate::{Alone, KNARR, Outcome};

pub const SCENARIOS: &[Alone] = &[(
    "s1_with_two_servers_over_three_etcd_members_no_write_is_lost_and_no_volume_has_two_holders",
    quorum,
)];

/// How long a write may take before its answer is no longer waited for. etcd is given up after 10 s.
const PATIENCE: Duration = Duration::from_secs(15);
const MEMBERS: [&str; 3] = ["e1", "e2", "e3"];

fn quorum() -> Outcome {
    let disk = Disk::make()?;
    let fleet = Fleet::lay(KNARR, 2, &["t", "e1", "e2", "e3"])?;
    run(&fleet, &disk).map_err(|e| fleet.with_logs(e))?;
    let held = holders(&disk.mount().join("record"))?;
    if held.len() < 4 {
        return Err(format!("the volume should have had four holders, they were {held:?}").into());
    }
    fleet.end()
}

/// Who plays.
struct Cast<'a> {
    fleet: &'a Fleet,
    one: &'a Machine,
    two: &'a Machine,
    members: &'a [Machine],
    flags: Vec<String>,
}

impl<'a> Cast<'a> {
    fn of(fleet: &'a Fleet) -> Result<Self, Failed> {
        let (two, members) = fleet.others.split_first().ok_or("no second server")?;
        Ok(Cast {
            fleet,
            one: &fleet.server,
            two,
            members,
            flags: etcd::server_flags(members),
        })
    }

    fn start_member(&self, member: &Machine) -> Outcome {
        etcd::start(member, self.members)
    }

    fn start_server(&self, server: &Machine) -> Outcome {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        self.fleet.launch_server(server, &flags)
    }

    fn wait_for_leader(&self, but: Option<&Machine>) -> Result<&'a Machine, Failed> {
        let mut found = None;
        self.fleet.waits("a leader of etcd", || {
            found = etcd::leader(self.members).filter(|l| but.is_none_or(|b| b.name != l.name));
            found.is_some()
        })?;
        found.ok_or_else(|| "no leader".into())
    }

    /// The server that the node of the pod speaks to, and the other with its node.
    fn near_and_far(&self) -> Result<(&'a Machine, &'a Machine, &'a str), Failed> {
        let on = self
            .fleet
            .run(&["get", "pod", "db-0", "-o", "jsonpath={.spec.nodeName}"])?;
        let [first, second] = self.fleet.agents.as_slice() else {
            return Err("there should be two agents".into());
        };
        Ok(match on == first.name {
            true => (self.one, self.two, second.name.as_str()),
            false => (self.two, self.one, first.name.as_str()),
        })
    }

    /// Has the pod replaced while the other server, and with it its node, is of no use.
    fn replace_without(&self, disk: &Disk, near: &Machine, node: &str) -> Outcome {
        let ask = |args: &[&str]| {
            let mut done = false;
            self.fleet.waits(&args.join(" "), || {
                done = self.fleet.ask(near, args).is_ok();
                done
            })
        };
        ask(&["cordon", node])?;
        self.replace(disk, near)?;
        ask(&["uncordon", node])
    }

    /// Has the pod replaced, at this server; all that takes is done when this returns.
    fn replace(&self, disk: &Disk, at: &Machine) -> Outcome {
        let uid = ["get", "pod", "db-0", "-o", "jsonpath={.metadata.uid}"];
        let eventually = |args: &[&str], holds: &dyn Fn(&str) -> bool| {
            let mut last = String::new();
            let reached = self.fleet.waits("", || {
                last = self.fleet.ask(at, args).unwrap_or_default();
                holds(&last)
            });
            reached.map(|()| last.clone()).map_err(|_| {
                Failed::from(format!(
                    "{}: {} came to nothing; at last: {last}",
                    at.name,
                    args.join(" ")
                ))
            })
        };
        let first = eventually(&uid, &|out| !out.is_empty())?;
        // Asked until it is answered: an answer may be lost with who gave it.
        let mut deleted = false;
        self.fleet.waits("the pod to be deleted", || {
            deleted = deleted
                || self
                    .fleet
                    .ask(at, &["delete", "pod", "db-0", "--wait=false"])
                    .is_ok();
            deleted
        })?;
        let now = eventually(&uid, &|out| !out.is_empty() && out != first)?;
        eventually(&["get", "pod", "db-0"], &|out| out.contains("Running"))?;
        grows(self.fleet, &disk.mount().join("record"), &now)
    }
}

fn run(fleet: &Fleet, disk: &Disk) -> Outcome {
    let cast = Cast::of(fleet)?;
    assert_eq!(cast.members.iter().map(|m| &*m.name).collect::<Vec<_>>(), MEMBERS);
    cast.members.iter().try_for_each(|m| cast.start_member(m))?;
    cast.wait_for_leader(None)?;
    cast.start_server(cast.one)?;
    fleet.ready(cast.one)?;
    etcd::share_keys(cast.one, cast.two)?;
    cast.start_server(cast.two)?;
    fleet.ready(cast.two)?;
    let words = fleet.join_words()?;
    let mut join: Vec<String> = words;
    for (agent, server) in fleet.agents.iter().zip([cast.one, cast.two]) {
        let url = format!("https://{}:6443", server.address);
        for word in &mut join {
            if word.starts_with("https://") {
                word.clone_from(&url);
            }
        }
        let words: Vec<&str> = join.iter().map(String::as_str).collect();
        agent.launch(fleet.agent(agent, &words))?;
    }
    for agent in &fleet.agents {
        fleet.eventually(&["get", "node", &agent.name], |out| out.contains(" Ready "))?;
    }
    fleet.apply(&STATEFUL.replace("PATH", &disk.mount().display().to_string()))?;
    fleet.eventually(&["get", "pod", "db-0"], |out| out.contains("Running"))?;
    let writers = [Writer::start(cast.one)?, Writer::start(cast.two)?];
    let troubled = trouble(&cast, disk, &writers);
    let written = writers.map(Writer::stop);
    troubled?;
    for written in written {
        let written = written?;
        for server in [cast.one, cast.two] {
            fleet.ready(server)?;
            let there = fleet.ask(server, &["get", "configmaps", "-o", "name"])?;
            let there: std::collections::HashSet<&str> = there.lines().collect();
            let lost: Vec<_> = written
                .iter()
                .filter(|n| !there.contains(&*format!("configmap/{n}")))
                .collect();
            if !lost.is_empty() {
                return Err(format!("{} does not have what was acknowledged: {lost:?}", server.name).into());
            }
        }
    }
    Ok(())
}

/// What goes wrong, one after the other; after each, something gets done.
fn trouble(cast: &Cast<'_>, disk: &Disk, writers: &[Writer; 2]) -> Outcome {
    let (fleet, one, two) = (cast.fleet, cast.one, cast.two);
    let all: Vec<Ipv4Addr> = cast.members.iter().map(|m| m.address).collect();
    let leader = cast.wait_for_leader(None)?;
    let [first, second] = writers;

    // One server reaches none of the members: it does not answer from memory, the other one works.
    let (near, far, node) = cast.near_and_far()?;
    far.cut(&all)?;
    fleet.waits("the server that is cut off to refuse", || {
        fleet
            .ask(far, &["get", "pod", "db-0", "--request-timeout=3s"])
            .is_err()
    })?;
    cast.replace_without(disk, near, node)?;
    far.heal()?;
    first.goes_on(fleet)?;
    second.goes_on(fleet)?;

    // The other one reaches but one, which does not lead.
    let most = all.iter().filter(|a| **a == leader.address);
    let follower = cast
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
    second.goes_on(fleet)?;
    two.heal()?;

    // The member that leads hears of nobody: the others choose another.
    let others: Vec<_> = all.iter().copied().filter(|a| *a != leader.address).collect();
    leader.cut(&others)?;
    let next = cast.wait_for_leader(Some(leader))?;
    first.goes_on(fleet)?;
    second.goes_on(fleet)?;
    leader.heal()?;
    cast.replace(disk, one)?;

    // kill -9 of the one that leads now, and of another: none is left to agree.
    next.kill()?;
    first.goes_on(fleet)?;
    let third = cast
        .members
        .iter()
        .find(|m| m.name != next.name)
        .ok_or("one member only")?;
    third.kill()?;
    let mut tried = 0;
    fleet.waits("no server to write", || {
        tried += 1;
        let name = format!("alone-{tried}");
        let alone = |at| fleet.ask(at, &["create", "configmap", &name, "--request-timeout=2s"]);
        // The second would be told that it exists.
        alone(one).is_err_and(|e| !e.contains("AlreadyExists"))
            && alone(two).is_err_and(|e| !e.contains("AlreadyExists"))
    })?;
    cast.start_member(next)?;
    cast.start_member(third)?;
    second.goes_on(fleet)?;

    // And of a server.
    fleet.ready(one)?;
    let (near, far, node) = cast.near_and_far()?;
    far.kill()?;
    cast.replace_without(disk, near, node)?;
    cast.start_server(far)?;
    fleet.ready(far)?;
    first.goes_on(fleet)?;
    second.goes_on(fleet)
}

/// Makes ConfigMaps at one server, one after the other, and remembers those that were acknowledged.
struct Writer {
    name: String,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    thread: JoinHandle<Result<Vec<String>, String>>,
}

impl Writer {
    fn start(server: &Machine) -> Result<Writer, Failed> {
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
                    let made = tokio::time::timeout(PATIENCE, maps.create(&params, &map));
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

    /// Waits until more of its writes are acknowledged that were begun from now on.
    fn goes_on(&self, fleet: &Fleet) -> Outcome {
        let before = self.acknowledged.load(Ordering::Relaxed);
        fleet.waits(&format!("{} to take writes", self.name), || {
            self.acknowledged.load(Ordering::Relaxed) > before + 3
        })
    }

    fn stop(self) -> Result<Vec<String>, Failed> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self
            .thread
            .join()
            .map_err(|_| format!("the writer at {} panicked", self.name))?;
        Ok(ended?)
    }
}
