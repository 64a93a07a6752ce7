//! Processes of containers, and the disks that they and the nodes open.

use knarr_kubelet::runtime::{Container, ContainerState};
use knarr_node::runtime::fake::{ContainerEvent, End};

use super::Observer;
use crate::world::{Disk, DiskUser, Holder, Observation, Process, Step};

impl Observer {
    /// Reported by the runtime of `node`.
    pub fn happened(&self, node: &str, container: &Container, happening: &ContainerEvent) {
        let mut inner = self.lock();
        let now = inner.world.now;
        let (id, pod) = (&container.id, &container.pod);
        let line = format!("{node} {id} {}/{} {happening:?}", pod.name, container.name);
        inner.history.add(now, &line, pod.uid.as_bytes());
        let key = (node.to_string(), id.to_string());
        match happening {
            ContainerEvent::Started => {
                let process = Process {
                    node: node.to_string(),
                    id: id.to_string(),
                    uid: pod.uid.to_string(),
                    namespace: pod.namespace.clone(),
                    name: pod.name.clone(),
                    container: container.name.clone(),
                    sandbox: container.sandbox_id.to_string(),
                    is_sandbox_broken: false,
                    stop_requested: None,
                };
                inner.world.processes.insert(key, process.clone());
                inner.ends.remove(&process.uid);
                if self.story {
                    let of = format!("{}/{}", process.name, process.container);
                    let line = format!("{node} {id} {of} runs in {}", process.sandbox);
                    inner.history.remark(now, &line);
                }
                inner.check_rules(&Observation::Started(&process));
            }
            ContainerEvent::TermSent => {
                let process = inner.world.processes.get_mut(&key);
                if let Some(process) = process.filter(|process| process.stop_requested.is_none()) {
                    process.stop_requested = Some(now);
                    let process = process.clone();
                    inner.check_rules(&Observation::Asked(&process));
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
                    let run = (container.name.clone(), container.sandbox_id.to_string());
                    life.completed.insert(run);
                }
                inner.ends.insert(process.uid.clone(), *end);
                inner.check_rules(&Observation::Ended(&process, *end));
            }
        }
    }

    /// A disk of this name exists from now on.
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
            .add(now, &format!("{} opens {disk}", describe_holder(by)), b"");
        if let Some(disk) = inner.world.disks.get_mut(disk) {
            disk.open.insert(by.clone(), now);
        }
        inner.check_rules(&Observation::Opened { disk, by });
    }

    /// A step of a volume.
    pub fn stored(&self, step: &Step) {
        let mut inner = self.lock();
        let now = inner.world.now;
        inner.history.add(now, &format!("{step:?}"), b"");
        inner.world.storage.take(step);
        inner.check_rules(&Observation::Stored(step));
    }

    pub fn closes(&self, disk: &str, by: &Holder) {
        let mut inner = self.lock();
        let now = inner.world.now;
        inner
            .history
            .add(now, &format!("{} closes {disk}", describe_holder(by)), b"");
        if let Some(disk) = inner.world.disks.get_mut(disk) {
            disk.open.remove(by);
        }
    }
}

/// Without paths, which differ in each run.
fn describe_holder(holder: &Holder) -> String {
    let uid = holder.uid.get(..8).unwrap_or(&holder.uid);
    match &holder.by {
        DiskUser::Mount(_) => format!("{} mounts for [{uid}] and", holder.node),
        DiskUser::Process(id) => format!("{} {id} [{uid}]", holder.node),
    }
}
