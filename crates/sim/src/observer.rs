//! Sees everything that happens, writes it down, and asks every rule about it.
//!
//! It is told within the same step in which a thing happens (a commit, a process's start or end), so no component
//! acts between a thing and its judgement.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_client::{Clock, DeleteOptions, Object, Term};
use knarr_control::fencing_kinds::{NodeFencing, Phase};
use knarr_kubelet::runtime::{Container, ContainerState};
use knarr_kubelet::self_fencing::SelfFencing;
use knarr_network::nft::Table;
use knarr_network::policy::{PodKey, Ruleset};
use knarr_node::runtime::fake::{ContainerEvent, End};
use parking_lot::Mutex;

use crate::clocks::Rate;
use crate::coverage::{Coverage, Ends, Scope};
use crate::disks::{By, Holder};
use crate::history::History;
use crate::rules::n5_names::Answered;
use crate::rules::s7_staging::Step;
use crate::rules::{self, n1_addresses, n6_policy, s9_watches};
use crate::stored;
use crate::story;
use crate::switches::Switch;
use crate::upgrade::started_by;
use crate::world::{
    Disk, Heard, Kubelet, Lease, Life, Missed, Process, Seen, World, is_out_of_service, is_ready, node_of,
    owner, phase_of,
};

/// The summary of the network agents' reports (SPEC B7).
const PROPAGATION: &str = "core/configmaps/knarr-network/endpoint-propagation";

/// What was broken, and when.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Its SPEC number.
    pub rule: &'static str,
    pub what: String,
    pub at: Timestamp,
    /// Names of what it is about: pods and the beginnings of their uids, what owns them, nodes, disks.
    pub about: BTreeSet<String>,
}

pub(crate) struct Observer {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

struct Inner {
    world: World,
    history: History,
    violation: Option<Violation>,
    coverage: Coverage,
    ends: Ends,
    /// Also who sees and asks what.
    story: bool,
}

impl Inner {
    fn check_rules(&mut self, seen: &Seen<'_>) {
        if self.violation.is_some() {
            return;
        }
        for (rule, check) in rules::ALL {
            if let Err(what) = check(seen, &self.world) {
                self.violate(rule, what, Some(seen));
                return;
            }
        }
    }

    fn violate(&mut self, rule: &'static str, what: String, seen: Option<&Seen<'_>>) {
        let about = story::concerned(seen, &what, &self.world);
        let at = self.world.now;
        self.history.add(at, &format!("VIOLATION {rule}: {what}"), b"");
        self.violation.get_or_insert(Violation {
            rule,
            what,
            at,
            about,
        });
    }
}

impl Observer {
    pub fn new(clock: Arc<dyn Clock>, whole: bool, story: bool, directory: &Path) -> Self {
        let world = World {
            now: clock.now(),
            ..World::default()
        };
        Observer {
            clock,
            inner: Mutex::new(Inner {
                world,
                history: History::new(whole, directory),
                violation: None,
                coverage: Coverage::default(),
                ends: Ends::new(),
                story,
            }),
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        inner.world.now = self.clock.now();
        inner
    }

    /// A line of the history that no rule judges.
    pub fn note(&self, line: &str) {
        let mut inner = self.lock();
        let now = inner.world.now;
        inner.history.add(now, line, b"");
    }

    /// A line about the history that is no part of it.
    pub fn remark(&self, line: &str) {
        let mut inner = self.lock();
        let now = inner.world.now;
        inner.history.remark(now, line);
    }

    /// A line of the story, where there is to be one.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        let mut inner = self.lock();
        if inner.story {
            let now = inner.world.now;
            inner.history.remark(now, &line());
        }
    }

    /// A fault strikes: whom it meets is counted.
    pub fn strikes(&self, fault: Switch, scope: Scope<'_>) {
        let inner = &mut *self.lock();
        inner.coverage.struck(fault, scope, &inner.world, &inner.ends);
    }

    /// What has been met so far.
    pub fn coverage(&self) -> Coverage {
        self.inner.lock().coverage.clone()
    }

    /// Which pods nodes end by themselves, in this history.
    pub fn set_self_fencing(&self, mode: SelfFencing) {
        self.lock().world.self_fencing = mode;
    }

    /// A kubelet begins.
    pub fn kubelet_starts(&self, node: &str, is_former: bool) {
        let mut inner = self.lock();
        let kubelet = Kubelet {
            began: inner.world.now,
            is_former,
        };
        inner.world.kubelets.insert(node.into(), kubelet);
    }

    /// A kubelet of the version before has made this container.
    pub fn made_by_former(&self, node: &str, container: &str) {
        let made = (node.to_string(), container.to_string());
        self.lock().world.made_by_former.insert(made);
    }

    /// A node's clock counts at this rate, in a history in which nodes' clocks count at different ones.
    pub fn set_rate(&self, node: &str, rate: Rate) {
        self.note(&format!("the clock of {node} counts {rate}"));
        self.lock().world.rates.insert(node.into(), rate);
    }

    /// A call of this node's runtime takes so long at most.
    pub fn set_slowest(&self, node: &str, millis: u64) {
        let slowest = SignedDuration::from_millis(i64::try_from(millis).unwrap_or(i64::MAX));
        self.lock().world.slowest.insert(node.into(), slowest);
    }

    pub fn violation(&self) -> Option<Violation> {
        self.inner.lock().violation.clone()
    }

    pub fn violate(&self, rule: &'static str, what: String) {
        self.lock().violate(rule, what, None);
    }

    pub fn digest(&self) -> (String, u64) {
        let inner = self.inner.lock();
        (inner.history.digest(), inner.history.lines())
    }

    pub fn told(&self) -> Vec<String> {
        self.inner.lock().history.told()
    }

    /// Reads from the world.
    pub fn world<T>(&self, read: impl FnOnce(&World) -> T) -> T {
        read(&self.lock().world)
    }

    /// From now on nobody waits for the word of this pod's node.
    pub fn release(&self, uid: &str) {
        if let Some(life) = self.lock().world.pods.get_mut(uid) {
            life.released = true;
        }
    }

    /// From now on the cluster is at rest.
    pub fn rest(&self) {
        self.note("nothing is left to be done");
        self.lock().world.resting = true;
    }

    /// One key as the store has it now; no value: it is gone.
    pub fn committed(&self, key: &[u8], revision: u64, value: Option<&[u8]>) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let text = String::from_utf8_lossy(key).into_owned();
        let path = text.trim_start_matches("/registry/");
        let content = value.unwrap_or_default();
        inner.world.commits.add(revision, path, value.is_none());
        inner.world.versions.add(path, revision, now, value);
        if inner.world.resting {
            inner.check_rules(&Seen::Written { key: path });
        }
        if inner.world.metering.take_in(path, value, now) {
            inner.check_rules(&Seen::Metered { key: path });
        }
        if inner.world.definitions.take_in(path, value) {
            inner.check_rules(&Seen::Defined { key: path });
        }
        if let Some(name) = path.strip_prefix("core/pods/") {
            let pod = value.and_then(stored::pod).map(Arc::new);
            let line = match &pod {
                Some(pod) => format!("{revision} pod {name} {}", summary(pod)),
                None => format!("{revision} pod {name} is gone"),
            };
            inner.history.add(now, &line, content);
            match pod {
                Some(pod) => pod_written(&mut inner, pod),
                None => pod_removed(&mut inner, name),
            }
            return;
        }
        let verb = if value.is_some() { "put" } else { "gone" };
        let node_name = path.strip_prefix("core/nodes/");
        let node = value.filter(|_| node_name.is_some()).and_then(stored::node);
        let more = if path.starts_with("apps/") || path.starts_with("batch/") {
            stored::told_of_workload(content)
        } else if path.starts_with("core/events/") {
            stored::told_of_event(content)
        } else if path.starts_with("discovery.k8s.io/endpointslices/") {
            stored::told_of_slice(content)
        } else if path == PROPAGATION {
            stored::told_of_propagation(content)
        } else {
            node.as_ref().map(told_of_node).unwrap_or_default()
        };
        inner
            .history
            .add(now, &format!("{revision} {verb} {path}{more}"), content);
        if let Some(node) = path.strip_prefix("coordination.k8s.io/leases/kube-node-lease/") {
            inner.world.renewed.insert(node.to_string(), now);
        }
        // Leaders' leases; nodes' say nothing that a rule asks for.
        let lease = path.strip_prefix("coordination.k8s.io/leases/");
        if let Some(name) = lease.filter(|name| !name.starts_with("kube-node-lease/")) {
            match value.and_then(stored::lease) {
                Some(lease) => drop(inner.world.terms.insert(name.to_string(), Term::of(&lease))),
                None => drop(inner.world.terms.remove(name)),
            }
        }
        network_written(&mut inner, path, value);
        if let Some(name) = path.strip_prefix("safety.knarr.io/nodefencings/") {
            fencing_written(&mut inner, name, content);
        }
        if let Some(name) = node_name {
            match node {
                Some(node) => {
                    if is_out_of_service(&node) {
                        inner.world.storage.give_up(name);
                        let lives = inner.world.pods.values_mut();
                        lives.filter(|life| life.node() == name).for_each(|life| {
                            (life.released, life.given_up, life.vouched) = (true, true, true);
                        });
                    }
                    let ranges = n1_addresses::ranges(&node);
                    inner.world.nodes.insert(name.to_string(), node);
                    if !ranges.is_empty() && inner.world.ranges.get(name) != Some(&ranges) {
                        inner.world.ranges.insert(name.to_string(), ranges);
                        inner.check_rules(&Seen::Ranges { node: name });
                    }
                    inner.world.node_written.insert(name.to_string(), now);
                    if let Some(missed) = inner.world.missed.get_mut(name) {
                        missed.until.get_or_insert(now);
                    }
                }
                None => {
                    inner.world.nodes.remove(name);
                    inner.world.storage.give_up(name);
                    let missed = Missed {
                        from: now,
                        until: None,
                    };
                    inner.world.missed.insert(name.to_string(), missed);
                    let of_node = |life: &&mut Life| life.node() == name;
                    inner
                        .world
                        .pods
                        .values_mut()
                        .filter(of_node)
                        .for_each(|life| (life.released, life.given_up) = (true, true));
                }
            }
        }
    }

    /// Keys that are written by a leader that was in this term when it decided.
    pub fn led<'a>(&self, term: &Term, keys: impl Iterator<Item = &'a [u8]>) {
        let mut inner = self.lock();
        for key in keys {
            let key = &String::from_utf8_lossy(key);
            inner.check_rules(&Seen::Led { term, key });
        }
    }

    /// From now on what is committed is compared with what clients see.
    pub fn keep_commits(&self) {
        self.lock().world.commits.keep();
    }

    /// A component is answered a write.
    pub fn answered(&self, who: &str, answer: &knarr_client::Result<Arc<Object>>) {
        let Ok(object) = answer else { return };
        let mut inner = self.lock();
        if let Err(what) = s9_watches::is_committed(object, &inner.world.commits) {
            inner.violate("S9", format!("{who}: {what}"), None);
        }
    }

    /// Who holds the controllers' lease.
    pub fn leader(&self) -> Option<String> {
        let (namespace, name) = knarr_control::LEASE;
        self.world(|world| {
            world
                .terms
                .get(&format!("{namespace}/{name}"))
                .map(|term| term.holder.clone())
        })
    }

    /// Whether all is well with a component from now on.
    pub fn set_well(&self, component: &str, well: bool) {
        let mut inner = self.lock();
        let world = &mut inner.world;
        let now = world.now;
        let since = world.well_since.entry(component.to_string()).or_default();
        match well {
            true => drop(since.get_or_insert(now)),
            false => {
                if let Some(began) = since.take() {
                    let spans = world.well_spans.entry(component.to_string()).or_default();
                    spans.push((began, now));
                }
            }
        }
    }

    /// A node hears that its lease is renewed, as it asked then.
    pub fn renewal_answered(&self, component: &str, sent: Timestamp) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let silent = inner
            .world
            .may_fence_itself_after(component.trim_start_matches("node/"));
        let heard = inner.world.heard.entry(component.into()).or_insert(Heard {
            sent,
            silent_until: None,
        });
        if now.duration_since(heard.sent) >= silent {
            heard.silent_until = Some(now);
        }
        heard.sent = heard.sent.max(sent);
    }

    /// What runs in it has lost its sandbox.
    pub fn sandbox_broke(&self, node: &str, sandbox: &str) {
        let mut inner = self.lock();
        let all = inner.world.processes.values_mut();
        all.filter(|p| p.node == node && p.sandbox == sandbox)
            .for_each(|p| p.homeless = true);
    }

    /// Time passes: what has gone on for too long is asked for.
    pub fn tick(&self) {
        self.lock().check_rules(&Seen::Tick);
    }

    /// Whether a pod of this name was sent away by somebody else than a user.
    pub fn was_sent_away(&self, namespace: &str, name: &str) -> bool {
        self.world(|world| {
            let named = |life: &&Life| {
                let meta = &life.pod.metadata;
                meta.namespace.as_deref() == Some(namespace) && meta.name.as_deref() == Some(name)
            };
            let newest = world
                .pods
                .values()
                .filter(named)
                // A user deletes and creates one of the same name in a single moment.
                .max_by_key(|life| (life.first_seen, life.removed_at.unwrap_or(Timestamp::MAX)));
            newest.is_some_and(|life| life.removed() && (life.released || life.asked_to_go))
        })
    }

    /// Whether this node is not ready, as the store has it.
    pub fn is_silent(&self, node: &str) -> bool {
        self.world(|world| world.nodes.get(node).is_some_and(|node| !is_ready(node)))
    }

    /// Whether this is a StatefulSet's pod on a node that is not ready, as the store has it.
    pub fn is_lost_set_pod(&self, namespace: &str, name: &str) -> bool {
        self.world(|world| {
            let mut lives = world.pods.values().filter(|life| !life.removed());
            lives.any(|life| {
                let meta = &life.pod.metadata;
                meta.namespace.as_deref() == Some(namespace)
                    && meta.name.as_deref() == Some(name)
                    && owner(&life.pod, "StatefulSet").is_some()
                    && world.nodes.get(life.node()).is_some_and(|node| !is_ready(node))
            })
        })
    }

    pub fn delete_asked(&self, by: &str, name: &str, options: &DeleteOptions) {
        let mut inner = self.lock();
        let uid = options.preconditions.uid.clone().unwrap_or_default();
        if let Some(life) = inner.world.pods.get_mut(&uid) {
            life.asked_to_go |= !by.starts_with("node/");
        }
        inner.check_rules(&Seen::DeleteAsked { by, name, options });
    }

    /// A node's kernel sends new connections to these addresses, and to no others.
    pub fn programmed(&self, node: &str, offered: BTreeSet<IpAddr>) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let line = format!("kernel of {node} offers {} addresses", offered.len());
        inner.history.add(now, &line, b"");
        inner.world.kernels.insert(node.into(), offered);
    }

    /// What a node's kernel has of Services.
    pub fn proxied(&self, node: &str, table: Table) {
        self.lock().world.proxy_tables.insert(node.into(), table);
    }

    /// From now on kernels are compared with Services and EndpointSlices of the revisions that their agents have reached.
    pub fn keep_network_versions(&self) {
        self.lock().world.versions.keep();
    }

    /// DNS on a node answers.
    pub fn resolved(&self, node: &str, question: &str, answer: &Answered) {
        let mut inner = self.lock();
        let key = (node.to_string(), question.to_string());
        inner.world.answers.insert(key, answer.clone());
        inner.check_rules(&Seen::Resolved {
            node,
            question,
            answer,
        });
        if *answer != Answered::NotReady {
            inner.world.has_answered.insert(node.into());
        }
    }

    /// The agent of a node has died: nothing answers there.
    pub fn forget_answers(&self, node: &str) {
        let world = &mut self.lock().world;
        world.has_answered.remove(node);
        world.answers.retain(|(of, _), _| of != node);
    }

    /// After [`Observer::proxied`]: the kernel follows these revisions of Services and EndpointSlices.
    pub fn reached(&self, node: &str, services: u64, slices: u64) {
        let mut inner = self.lock();
        inner.world.reached.insert(node.into(), (services, slices));
        inner.check_rules(&Seen::Programmed { node });
    }

    /// What is in force of policies in a node's kernel.
    pub fn policed(&self, node: &str, table: Ruleset) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let line = format!("kernel of {node} has {} chains of policies", table.chains.len());
        inner.history.add(now, &line, b"");
        inner.world.policy_tables.insert(node.into(), table);
        inner.check_rules(&Seen::Policed { node });
    }

    /// An agent gives a sandbox addresses.
    pub fn leased(&self, node: &str, sandbox: &str, uid: &str, addresses: &[IpAddr]) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let line = format!("{sandbox} on {node} gets {addresses:?}");
        inner.history.add(now, &line, uid.as_bytes());
        let lease = Lease {
            addresses: addresses.to_vec(),
            is_attached: false,
        };
        let key = (node.to_string(), sandbox.to_string());
        inner.world.leases.insert(key, lease);
        inner.check_rules(&Seen::Leased { node, sandbox });
    }

    /// An agent says that the policies of a sandbox's pod are in force.
    pub fn attached(&self, node: &str, sandbox: &str) {
        let key = (node.to_string(), sandbox.to_string());
        if let Some(lease) = self.lock().world.leases.get_mut(&key) {
            lease.is_attached = true;
        }
    }

    /// Nothing of a sandbox is left that could use its addresses.
    pub fn unleased(&self, node: &str, sandbox: &str) {
        let key = (node.to_string(), sandbox.to_string());
        self.lock().world.leases.remove(&key);
    }

    /// Nothing of any sandbox of this node.
    pub fn unleased_all(&self, node: &str) {
        self.lock().world.leases.retain(|(of, _), _| of != node);
    }

    /// Pods of a node in which something runs and whose policies are in force, with uid and address.
    pub fn settled_pods(&self, node: &str) -> Vec<(PodKey, String, IpAddr)> {
        self.world(|world| {
            let running = world.processes.values().filter(|p| p.node == node);
            let settled = running.filter_map(|p| {
                let lease = world.leases.get(&(p.node.clone(), p.sandbox.clone()))?;
                let address = *lease.addresses.first().filter(|_| lease.is_attached)?;
                Some((PodKey::new(&p.namespace, &p.name), p.uid.clone(), address))
            });
            settled.collect()
        })
    }

    /// All addresses of pods that something may use, and a stranger's.
    pub fn pod_addresses(&self) -> Vec<IpAddr> {
        let stranger = std::iter::once(n6_policy::STRANGER);
        let leased: Vec<IpAddr> = self.world(|world| {
            let leases = world.leases.values();
            leases.flat_map(|lease| lease.addresses.clone()).collect()
        });
        leased.into_iter().chain(stranger).collect()
    }

    /// A machine's power goes off or on.
    pub fn switched(&self, node: &str, off: bool) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let line = format!("{node} is switched {}", if off { "off" } else { "on" });
        inner.history.add(now, &line, b"");
        let switch = inner.world.switches.entry(node.into()).or_default();
        if off || switch.off {
            switch.last_off = Some(now);
        }
        switch.off = off;
    }

    /// There is a disk of this name from now on.
    pub fn add_disk(&self, name: &str, one_pod: bool) {
        let disk = Disk {
            one_pod,
            ..Disk::default()
        };
        self.lock().world.disks.insert(name.into(), disk);
    }

    pub fn opens(&self, disk: &str, by: &Holder) {
        let mut inner = self.lock();
        let now = inner.world.now;
        inner
            .history
            .add(now, &format!("{} opens {disk}", told_of(by)), b"");
        if let Some(disk) = inner.world.disks.get_mut(disk) {
            disk.open.insert(by.clone(), now);
        }
        inner.check_rules(&Seen::Opened { disk, by });
    }

    /// A volume takes a step.
    pub fn stored(&self, step: &Step) {
        let mut inner = self.lock();
        let now = inner.world.now;
        inner.history.add(now, &format!("{step:?}"), b"");
        inner.world.storage.take(step);
        inner.check_rules(&Seen::Stored(step));
    }

    pub fn closes(&self, disk: &str, by: &Holder) {
        let mut inner = self.lock();
        let now = inner.world.now;
        inner
            .history
            .add(now, &format!("{} closes {disk}", told_of(by)), b"");
        if let Some(disk) = inner.world.disks.get_mut(disk) {
            disk.open.remove(by);
        }
    }

    /// Told by the runtime of `node`.
    pub fn happened(&self, node: &str, container: &Container, happening: &ContainerEvent) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let (id, pod) = (&container.id, &container.pod);
        let line = format!("{node} {id} {}/{} {happening:?}", pod.name, container.name);
        inner.history.add(now, &line, pod.uid.as_bytes());
        let key = (node.to_string(), id.clone());
        match happening {
            ContainerEvent::Started => {
                let process = Process {
                    node: node.to_string(),
                    id: id.clone(),
                    uid: pod.uid.clone(),
                    namespace: pod.namespace.clone(),
                    name: pod.name.clone(),
                    container: container.name.clone(),
                    sandbox: container.sandbox_id.clone(),
                    homeless: false,
                    asked: None,
                };
                inner.world.processes.insert(key, process.clone());
                inner.ends.remove(&process.uid);
                if inner.story {
                    let of = format!("{}/{}", process.name, process.container);
                    let line = format!("{node} {id} {of} runs in {}", process.sandbox);
                    inner.history.remark(now, &line);
                }
                inner.check_rules(&Seen::Started(&process));
            }
            ContainerEvent::TermSent => {
                let process = inner.world.processes.get_mut(&key);
                if let Some(process) = process.filter(|process| process.asked.is_none()) {
                    process.asked = Some(now);
                    let process = process.clone();
                    inner.check_rules(&Seen::Asked(&process));
                }
            }
            ContainerEvent::Ended(end) => {
                let Some(process) = inner.world.processes.remove(&key) else {
                    return;
                };
                if *end == End::ByItself
                    && let ContainerState::Exited(exit) = &container.state
                    && exit.code == 0
                    && let Some(life) = inner.world.pods.get_mut(&process.uid)
                {
                    let run = (container.name.clone(), container.sandbox_id.clone());
                    life.completed.insert(run);
                }
                inner.ends.insert(process.uid.clone(), *end);
                inner.check_rules(&Seen::Ended(&process, *end));
            }
        }
    }
}

/// Without paths, which are others in each run.
fn told_of(holder: &Holder) -> String {
    let uid = holder.uid.get(..8).unwrap_or(&holder.uid);
    match &holder.by {
        By::Mount(_) => format!("{} mounts for [{uid}] and", holder.node),
        By::Process(id) => format!("{} {id} [{uid}]", holder.node),
    }
}

fn summary(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let mut text = format!("{} on {:?}", phase_of(pod), node_of(pod));
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    if let Some(ready) = conditions.into_iter().find(|c| c.type_ == "Ready") {
        text.push_str(&format!(", ready: {}", ready.status));
    }
    if let Some(at) = &meta.deletion_timestamp {
        let grace = meta.deletion_grace_period_seconds.unwrap_or_default();
        text.push_str(&format!(", to end by {} ({grace} s)", at.0));
    }
    let uid = meta.uid.as_deref().unwrap_or_default();
    text.push_str(&format!(" [{}]", uid.get(..8).unwrap_or(uid)));
    text
}

/// Whether it is ready, and what keeps pods away.
fn told_of_node(node: &Node) -> String {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|c| c.type_ == "Ready");
    let mut text = match ready {
        Some(ready) => format!(", ready: {}", ready.status),
        None => String::new(),
    };
    for taint in node.spec.iter().flat_map(|s| s.taints.iter().flatten()) {
        text.push_str(&format!(", {}:{}", taint.key, taint.effect));
    }
    text
}

/// What the rules of the network ask for.
fn network_written(inner: &mut Inner, path: &str, value: Option<&[u8]>) {
    fn kept<T: serde::de::DeserializeOwned>(
        all: &mut std::collections::BTreeMap<String, T>,
        key: &str,
        value: Option<&[u8]>,
    ) {
        match value.and_then(|json| serde_json::from_slice(json).ok()) {
            Some(object) => drop(all.insert(key.into(), object)),
            None => drop(all.remove(key)),
        }
    }
    let world = &mut inner.world;
    if let Some(key) = path.strip_prefix("core/services/") {
        kept(&mut world.services, key, value);
    } else if let Some(key) = path.strip_prefix("discovery.k8s.io/endpointslices/") {
        kept(&mut world.slices, key, value);
    } else if let Some(name) = path.strip_prefix("core/namespaces/") {
        let namespace = value.and_then(stored::node);
        let labels = namespace.map(|namespace| namespace.metadata.labels.unwrap_or_default());
        world.namespaces.insert(name.into(), labels.unwrap_or_default());
    } else if let Some(key) = path.strip_prefix("networking.k8s.io/networkpolicies/") {
        let policy: Option<NetworkPolicy> = value.and_then(|json| serde_json::from_slice(json).ok());
        let same = |of: &NetworkPolicy| {
            let meta = &of.metadata;
            key.split_once('/') == meta.namespace.as_deref().zip(meta.name.as_deref())
        };
        world.policies.retain(|_, of| !same(of));
        if let Some(policy) = policy {
            let uid = policy.metadata.uid.clone().unwrap_or_default();
            world.policies.insert(uid, policy);
        }
    } else if let Some(key) = path.strip_prefix("policy/poddisruptionbudgets/") {
        budget_written(inner, key, value);
    }
}

fn budget_written(inner: &mut Inner, key: &str, value: Option<&[u8]>) {
    let budget: Option<PodDisruptionBudget> = value.and_then(|json| serde_json::from_slice(json).ok());
    let before = inner.world.budgets.remove(key);
    let Some(after) = budget else { return };
    let first_seen = before
        .as_ref()
        .map_or(inner.world.now, |(_, first_seen)| *first_seen);
    inner
        .world
        .budgets
        .insert(key.into(), (after.clone(), first_seen));
    inner.check_rules(&Seen::BudgetWritten {
        before: before.as_ref().map(|(budget, _)| budget),
        after: &after,
    });
}

fn fencing_written(inner: &mut Inner, name: &str, content: &[u8]) {
    let Ok(fencing) = serde_json::from_slice::<NodeFencing>(content) else {
        inner.world.fencings.remove(name);
        return;
    };
    let (now, node) = (inner.world.now, &fencing.spec.node_name);
    let line = format!(
        "fencing of {node}: {:?}, {}",
        fencing.status.phase, fencing.status.message
    );
    inner.history.add(now, &line, b"");
    match fencing.status.phase {
        Phase::Fencing => drop(inner.world.fencings.entry(name.into()).or_insert(now)),
        // What follows from the evidence begins once; returning may fall back to it.
        Phase::Fenced => {
            if inner.world.fencings.contains_key(name) {
                inner.check_rules(&Seen::Fenced { fencing: name, node });
                inner.world.fencings.remove(name);
            }
        }
        _ => drop(inner.world.fencings.remove(name)),
    }
}

fn pod_written(inner: &mut Inner, pod: Arc<Pod>) {
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let before = match inner.world.pods.get_mut(&uid) {
        Some(life) => Some(std::mem::replace(&mut life.pod, pod.clone())),
        None => {
            let life = Life {
                pod: pod.clone(),
                first_seen: inner.world.now,
                bound_at: None,
                deleted_at: None,
                removed_at: None,
                released: false,
                given_up: false,
                vouched: false,
                asked_to_go: false,
                completed: BTreeSet::new(),
                announced: None,
                isolated_by: n6_policy::isolating(&inner.world, &pod),
            };
            inner.world.pods.insert(uid.clone(), life);
            None
        }
    };
    // Bound to a node that is not there: nobody answers for it.
    let orphan = !node_of(&pod).is_empty() && !inner.world.nodes.contains_key(node_of(&pod));
    let vouched = inner
        .world
        .nodes
        .get(node_of(&pod))
        .is_some_and(is_out_of_service);
    let isolating = match &before {
        Some(_) => n6_policy::isolating(&inner.world, &pod),
        None => BTreeSet::new(),
    };
    if let Some(life) = inner.world.pods.get_mut(&uid) {
        if before.is_some() {
            life.isolated_by.retain(|policy| isolating.contains(policy));
        }
        let announced = started_by(&pod);
        if announced != before.as_deref().and_then(started_by) {
            let node = announced.and_then(|id| id.split(' ').next()).map(String::from);
            life.announced = node.map(|node| (node, inner.world.now));
        }
        if pod.metadata.deletion_timestamp.is_some() {
            life.deleted_at.get_or_insert(inner.world.now);
        }
        if !node_of(&pod).is_empty() {
            life.bound_at.get_or_insert(inner.world.now);
        }
        life.released |= orphan || vouched;
        life.given_up |= orphan || vouched;
        life.vouched |= vouched;
    }
    inner.check_rules(&Seen::PodWritten {
        uid: &uid,
        before: before.as_deref(),
        after: &pod,
    });
}

fn pod_removed(inner: &mut Inner, name: &str) {
    let now = inner.world.now;
    let named = |life: &Life| {
        let meta = &life.pod.metadata;
        let full = name.split_once('/');
        full == Some((
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        ))
    };
    let mut there = inner.world.pods.iter_mut();
    let Some((uid, life)) = there.find(|(_, life)| !life.removed() && named(life)) else {
        return;
    };
    life.removed_at = Some(now);
    let (uid, last) = (uid.clone(), life.pod.clone());
    inner.check_rules(&Seen::PodRemoved {
        uid: &uid,
        last: &last,
    });
}
