//! Why an at-most-one pod never runs twice (SPEC S1, S2, S5, S6): a model of everything that can remove it and start
//! it, checked in every order of its steps.
//!
//! The model has one pod's name, of which a second pod is created as soon as the first is removed from the API; a
//! host that is switched off and on at any time, is cut off and reachable again, and whose kubelet dies and restarts
//! without state; another host, without faults, to which the second pod may be bound; a user who deletes the Node of
//! a host that is off, or sets the out-of-service taint; fence agents that switch it off, and a controller that
//! writes their evidence at any later time; pod garbage collection, which reads, checks and deletes in three steps.
//! Requests are answered from one state (the store is linearizable), and may be arbitrarily late.
//!
//! Clocks are left out: nothing here happens "in time". Self-fencing (B4) is not a part of the argument.
//!
//! With [`Rules::Kept`] there are never two; without any one of its three rules there are, and the shortest history
//! that leads there is in the comment of the rule.

#![allow(clippy::unwrap_used)]

use stateright::{Checker, Model, Property};

/// The host with the faults, and the other one.
const FAULTY: usize = 0;
const HEALTHY: usize = 1;
const HOSTS: usize = 2;
/// The first pod and the one that is created in its place.
const PODS: usize = 2;

/// The rules that keep a pod from running twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    Kept,
    /// A kubelet starts the pod before its node is seen to be ready and without the taint: a host whose Node was
    /// deleted starts it before it has registered again, and garbage collection, which has seen no node, removes it.
    StartsUnannounced,
    /// A kubelet does not write to the pod before it starts it: garbage collection has seen no node; then the host
    /// registers and starts the pod, and it is removed.
    StartsUnwritten,
    /// Evidence counts, however old it is: the agents have reported that the host is off; it is switched on, starts
    /// the pod, is cut off; now the evidence is written, and the pod removed.
    TrustsOldEvidence,
}

/// The pod in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pod {
    uid: usize,
    node: Option<usize>,
    is_deleting: bool,
}

/// A Node in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    exists: bool,
    is_ready: bool,
    is_out_of_service: bool,
}

/// A host and its kubelet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Host {
    is_off: bool,
    is_cut_off: bool,
    /// The pod as the kubelet has read it: whether it is terminating. `None` before the first read.
    known: Option<Option<(usize, bool)>>,
    /// The write of its Ready status has been answered since the kubelet started, by a node without the taint.
    has_announced_node: bool,
    /// So has a write to the pod.
    has_announced_pod: bool,
    runs: [bool; PODS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fencing {
    None,
    /// Agents have reported that the host is off; whether its Node was written since.
    IsOff {
        is_written: bool,
    },
    Done,
}

/// The state of garbage collection, and whether the pod was written since it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Collection {
    Idle,
    Read { uid: usize, is_written: bool },
    Checked { uid: usize, is_written: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cluster {
    pod: Option<Pod>,
    created: usize,
    nodes: [Node; HOSTS],
    hosts: [Host; HOSTS],
    fencing: Fencing,
    collection: Collection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    CutOff,
    Heal,
    SwitchOff,
    SwitchOn,
    RestartKubelet,
    /// The node controller has seen no heartbeat of it for 40 s.
    Lose,
    DeleteNode,
    VouchFor,
    TakeOffTaint,
    AgentsSwitchOff,
    WriteEvidence,
    CreatePod,
    Bind(usize),
    DeletePod,
    AnnounceNode(usize),
    ReadPod(usize),
    AnnouncePod(usize),
    Start(usize),
    End(usize),
    FinishDeletion(usize),
    CollectionReads,
    CollectionChecks,
    CollectionDeletes,
}

struct AtMostOne(Rules);

impl Host {
    fn speaks(&self) -> bool {
        !self.is_off && !self.is_cut_off
    }

    /// As it is when it is switched on, with the same network as before.
    fn emptied(self, is_off: bool) -> Self {
        Host {
            is_off,
            is_cut_off: self.is_cut_off,
            ..Host::default()
        }
    }

    /// The pod that it knows and may start.
    fn expected_pod(&self) -> Option<usize> {
        let (uid, is_deleting) = self.known??;
        (!is_deleting).then_some(uid)
    }

    fn runs_unexpected(&self) -> bool {
        let expected_pod = self.expected_pod();
        let runs = self.runs.iter().enumerate();
        self.known.is_some()
            && runs
                .filter(|(_, runs)| **runs)
                .any(|(uid, _)| Some(uid) != expected_pod)
    }
}

impl Cluster {
    /// The sets of processes of the pod's name.
    fn running(&self) -> usize {
        let all = self.hosts.iter().flat_map(|m| m.runs);
        all.filter(|runs| *runs).count()
    }

    /// The pod has another version now.
    fn pod_written(&mut self, of: usize) {
        if let Collection::Read { uid, is_written } | Collection::Checked { uid, is_written } =
            &mut self.collection
            && *uid == of
        {
            *is_written = true;
        }
    }

    fn node_written(&mut self) {
        if let Fencing::IsOff { is_written } = &mut self.fencing {
            *is_written = true;
        }
    }
}

impl AtMostOne {
    fn may_start(&self, host: &Host) -> bool {
        let (node, pod) = (host.has_announced_node, host.has_announced_pod);
        match self.0 {
            Rules::Kept | Rules::TrustsOldEvidence => node && pod,
            Rules::StartsUnannounced => pod,
            Rules::StartsUnwritten => node,
        }
    }

    fn machine_steps(&self, of: &Cluster, i: usize, steps: &mut Vec<Step>) {
        let host = &of.hosts[i];
        if host.speaks() {
            steps.extend([Step::AnnounceNode(i), Step::ReadPod(i)]);
        }
        if let Some(uid) = host.expected_pod().filter(|_| !host.is_off) {
            if !host.runs[uid] && self.may_start(host) {
                steps.push(Step::Start(i));
            }
            let is_announced = host.has_announced_node || self.0 == Rules::StartsUnannounced;
            if host.speaks() && is_announced && !host.has_announced_pod {
                steps.push(Step::AnnouncePod(i));
            }
        }
        if !host.is_off && host.runs_unexpected() {
            steps.push(Step::End(i));
        }
        if let Some(pod) = of.pod {
            let knows = host.known == Some(Some((pod.uid, true)));
            if pod.node == Some(i) && host.speaks() && knows && !host.runs[pod.uid] {
                steps.push(Step::FinishDeletion(i));
            }
            if pod.node.is_none() && of.nodes[i].exists {
                steps.push(Step::Bind(i));
            }
        }
    }

    fn step(&self, of: &mut Cluster, step: Step) -> Option<()> {
        let faulty = of.hosts[FAULTY];
        match step {
            Step::CutOff => of.hosts[FAULTY].is_cut_off = true,
            Step::Heal => of.hosts[FAULTY].is_cut_off = false,
            Step::SwitchOff => of.hosts[FAULTY] = faulty.emptied(true),
            Step::SwitchOn => of.hosts[FAULTY] = faulty.emptied(false),
            Step::RestartKubelet => {
                of.hosts[FAULTY] = Host {
                    runs: faulty.runs,
                    ..faulty.emptied(false)
                };
            }
            Step::Lose => {
                of.nodes[FAULTY].is_ready = false;
                of.node_written();
            }
            Step::DeleteNode => {
                of.nodes[FAULTY].exists = false;
                of.nodes[FAULTY].is_ready = false;
                of.nodes[FAULTY].is_out_of_service = false;
                of.node_written();
            }
            Step::VouchFor => of.nodes[FAULTY].is_out_of_service = true,
            Step::TakeOffTaint => {
                of.nodes[FAULTY].is_out_of_service = false;
                of.fencing = Fencing::None;
            }
            Step::AgentsSwitchOff => {
                of.hosts[FAULTY] = faulty.emptied(true);
                of.fencing = Fencing::IsOff { is_written: false };
            }
            Step::WriteEvidence => {
                let Fencing::IsOff { is_written } = of.fencing else {
                    return None;
                };
                if is_written && self.0 != Rules::TrustsOldEvidence {
                    of.fencing = Fencing::None;
                } else {
                    of.fencing = Fencing::Done;
                    of.nodes[FAULTY].is_out_of_service = of.nodes[FAULTY].exists;
                }
            }
            Step::CreatePod => {
                of.pod = Some(Pod {
                    uid: of.created,
                    node: None,
                    is_deleting: false,
                });
                of.created += 1;
            }
            Step::Bind(node) => {
                let pod = of.pod.as_mut()?;
                pod.node = Some(node);
            }
            Step::DeletePod => {
                let pod = of.pod.as_mut()?;
                pod.is_deleting = true;
                let (uid, is_bound) = (pod.uid, pod.node.is_some());
                of.pod_written(uid);
                if !is_bound {
                    of.pod = None;
                }
            }
            Step::AnnounceNode(i) => {
                let node = &mut of.nodes[i];
                node.exists = true;
                node.is_ready = true;
                of.hosts[i].has_announced_node = !node.is_out_of_service;
                if i == FAULTY {
                    of.node_written();
                }
            }
            Step::ReadPod(i) => {
                let read = of
                    .pod
                    .filter(|p| p.node == Some(i))
                    .map(|p| (p.uid, p.is_deleting));
                let host = &mut of.hosts[i];
                if host.known.flatten().map(|(uid, _)| uid) != read.map(|(uid, _)| uid) {
                    host.has_announced_pod = false;
                }
                host.known = Some(read);
            }
            Step::AnnouncePod(i) => {
                let uid = of.hosts[i].expected_pod()?;
                let there = of.pod.filter(|p| p.uid == uid && p.node == Some(i));
                of.hosts[i].known = Some(there.map(|p| (p.uid, p.is_deleting)));
                if there.is_some_and(|p| !p.is_deleting) {
                    of.hosts[i].has_announced_pod = true;
                    of.pod_written(uid);
                }
            }
            Step::Start(i) => {
                let uid = of.hosts[i].expected_pod()?;
                of.hosts[i].runs[uid] = true;
            }
            Step::End(i) => {
                let expected_pod = of.hosts[i].expected_pod();
                for uid in 0..PODS {
                    of.hosts[i].runs[uid] &= Some(uid) == expected_pod;
                }
            }
            Step::FinishDeletion(_) => of.pod = None,
            Step::CollectionReads => {
                let uid = of.pod?.uid;
                of.collection = Collection::Read {
                    uid,
                    is_written: false,
                };
            }
            Step::CollectionChecks => {
                let Collection::Read { uid, is_written } = of.collection else {
                    return None;
                };
                let pod = of.pod.filter(|p| p.uid == uid);
                let is_released = pod.is_some_and(|pod| {
                    pod.node.map(|i| of.nodes[i]).is_some_and(|node| {
                        !node.exists || pod.is_deleting && node.is_out_of_service && !node.is_ready
                    })
                });
                of.collection = match is_released {
                    true => Collection::Checked { uid, is_written },
                    false => Collection::Idle,
                };
            }
            Step::CollectionDeletes => {
                let Collection::Checked { uid, is_written } = of.collection else {
                    return None;
                };
                of.collection = Collection::Idle;
                // With the version that was read as a precondition: the pod's last status is written before it is
                // deleted.
                let holds = !is_written || self.0 == Rules::StartsUnwritten;
                of.pod = of.pod.filter(|p| !(p.uid == uid && holds));
            }
        }
        Some(())
    }
}

impl Model for AtMostOne {
    type State = Cluster;
    type Action = Step;

    fn init_states(&self) -> Vec<Cluster> {
        let node = Node {
            exists: true,
            is_ready: true,
            is_out_of_service: false,
        };
        vec![Cluster {
            pod: None,
            created: 0,
            nodes: [node; HOSTS],
            hosts: [Host::default(); HOSTS],
            fencing: Fencing::None,
            collection: Collection::Idle,
        }]
    }

    fn actions(&self, of: &Cluster, steps: &mut Vec<Step>) {
        let (node, host) = (&of.nodes[FAULTY], &of.hosts[FAULTY]);
        steps.push(if host.is_cut_off { Step::Heal } else { Step::CutOff });
        if host.is_off {
            steps.push(Step::SwitchOn);
            if node.exists {
                steps.extend([Step::DeleteNode, Step::VouchFor]);
            }
        } else {
            steps.extend([Step::SwitchOff, Step::RestartKubelet]);
        }
        if node.is_ready && !(host.speaks() && host.known.is_some()) {
            steps.push(Step::Lose);
        }
        if node.is_out_of_service && node.is_ready {
            steps.push(Step::TakeOffTaint);
        }
        match of.fencing {
            Fencing::None if node.exists && !node.is_ready => steps.push(Step::AgentsSwitchOff),
            Fencing::IsOff { .. } => steps.push(Step::WriteEvidence),
            Fencing::None | Fencing::Done => {}
        }
        match &of.pod {
            None if of.created < PODS => steps.push(Step::CreatePod),
            Some(pod) if !pod.is_deleting => steps.push(Step::DeletePod),
            None | Some(_) => {}
        }
        self.machine_steps(of, FAULTY, steps);
        self.machine_steps(of, HEALTHY, steps);
        match of.collection {
            Collection::Idle if of.pod.is_some_and(|p| p.node.is_some()) => steps.push(Step::CollectionReads),
            Collection::Idle => {}
            Collection::Read { .. } => steps.push(Step::CollectionChecks),
            Collection::Checked { .. } => steps.push(Step::CollectionDeletes),
        }
    }

    fn next_state(&self, last: &Cluster, step: Step) -> Option<Cluster> {
        let mut next = *last;
        self.step(&mut next, step)?;
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one", |_, of: &Cluster| of.running() <= 1),
            // Checks that the rule does not hold merely because no pod is ever replaced.
            Property::sometimes("replaced", |_, of: &Cluster| of.hosts[HEALTHY].runs[1]),
        ]
    }
}

#[test]
fn s1_s2_s5_s6_in_no_order_of_events_do_two_run() {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let checked = AtMostOne(Rules::Kept)
        .checker()
        .threads(threads)
        .spawn_bfs()
        .join();
    eprintln!("{} states, each once", checked.unique_state_count());
    assert!(checked.unique_state_count() > 10_000);
    checked.assert_properties();
}

#[test]
fn s1_without_any_one_of_the_rules_two_run() {
    for rules in [
        Rules::StartsUnannounced,
        Rules::StartsUnwritten,
        Rules::TrustsOldEvidence,
    ] {
        let checked = AtMostOne(rules).checker().spawn_bfs().join();
        let found = checked.discovery("at most one");
        let found = found.unwrap_or_else(|| panic!("{rules:?} is needed for nothing"));
        eprintln!("{rules:?}: {:?}", found.into_actions());
    }
}
