//! The start: reads the machine and restores the checkpoint of an earlier kubelet. Writes the checkpoint.

use std::io::ErrorKind;
use std::sync::Arc;

use knarr_kubelet::cpumanager::{self, CpuManager, cpuset};
use knarr_kubelet::memorymanager::{self, MemoryManager};
use knarr_kubelet::topologymanager::{self, Distances, Policy, TopologyManager};
use tracing::{info, warn};

use super::{ContainerManager, Managers, machine};
use crate::untrusted_fs::{self, Dir, NewFile};

/// Some hundred bytes for each container with CPUs or memory of its own.
const CHECKPOINT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The pool's key for these file operations.
const FILES_KEY: &str = "resource managers";

/// Why the managers cannot start; the node is not ready until it is resolved.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot read the machine's topology")]
    Machine(#[source] untrusted_fs::Error),
    #[error("reserved-cpus: {0} is not a subset of online-cpus: {1}")]
    Reserved(String, String),
    #[error("cannot read {0}, please drain node and remove policy state file")]
    Read(&'static str, #[source] untrusted_fs::Error),
    #[error("could not restore state from checkpoint: {0}, please drain this node and delete the CPU manager checkpoint file {file:?} before restarting Kubelet", file = cpumanager::checkpoint::FILE)]
    CpuCheckpoint(#[source] cpumanager::checkpoint::Error),
    #[error("could not restore state from checkpoint: {0}, please drain this node and delete the memory manager checkpoint file {file:?} before restarting Kubelet", file = memorymanager::checkpoint::FILE)]
    MemoryCheckpoint(#[source] memorymanager::checkpoint::Error),
    #[error("new static policy error: {0}")]
    Cpu(#[source] cpumanager::PolicyError),
    #[error(transparent)]
    Memory(memorymanager::PolicyError),
    #[error(transparent)]
    Topology(topologymanager::Error),
    #[error(
        "the state of the {0} manager is of the policy {1:?}, please drain node and remove policy state file"
    )]
    Leftover(&'static str, &'static str),
    #[error(transparent)]
    Write(#[from] CheckpointError),
}

/// An error with those that caused it.
pub fn shown(error: &StartError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(why) = source {
        let why_text = why.to_string();
        if !text.contains(&why_text) {
            text = format!("{text}: {why_text}");
        }
        source = why.source();
    }
    text
}

/// Why what is allocated is not written down.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    Cpu(#[from] cpumanager::checkpoint::Error),
    #[error(transparent)]
    Memory(#[from] memorymanager::checkpoint::Error),
    #[error("failed to write checkpoint file {0:?}: {1}")]
    Write(&'static str, #[source] untrusted_fs::Error),
}

/// What was written last of each manager's state.
#[derive(Default)]
pub(super) struct StoredCheckpoints {
    cpu: Vec<u8>,
    memory: Vec<u8>,
}

impl ContainerManager {
    /// Reads the machine and restores the checkpoint of an earlier kubelet. No pod is admitted before.
    pub async fn start(&self) -> Result<(), StartError> {
        let started = self.try_start().await;
        *self.error.lock() = started.as_ref().err().map(shown);
        started
    }

    async fn try_start(&self) -> Result<(), StartError> {
        let of = &self.configuration;
        let cpu_file = self.read(cpumanager::checkpoint::FILE).await?;
        let memory_file = self.read(memorymanager::checkpoint::FILE).await?;
        // With another policy containers would keep their old allocations.
        for (is_static, file, manager, policy) in [
            (of.is_cpu_static, &cpu_file, "CPU", "static"),
            (of.is_memory_static, &memory_file, "memory", "Static"),
        ] {
            let is_of_policy = |bytes: &Vec<u8>| {
                let name = serde_json::from_slice::<serde_json::Value>(bytes).ok();
                name.is_some_and(|file| file["policyName"] == policy)
            };
            if !is_static && file.as_ref().is_some_and(is_of_policy) {
                return Err(StartError::Leftover(manager, policy));
            }
        }
        if !self.is_active() && of.reserved_cpus.is_empty() {
            return Ok(());
        }
        let root = self.machine.clone();
        let read = move || machine::read(&root);
        let machine = self
            .files
            .run(FILES_KEY, read)
            .await
            .map_err(StartError::Machine)?;
        let online = machine.cpus.cpus();
        if !of.reserved_cpus.is_subset(&online) {
            let reserved = cpuset::format(&of.reserved_cpus);
            return Err(StartError::Reserved(reserved, cpuset::format(&online)));
        }
        let mut managers = Managers {
            numa_nodes: machine.memory.keys().copied().collect(),
            ..Managers::default()
        };
        if of.is_cpu_static {
            managers.cpu = self.cpu_manager(machine.cpus, cpu_file)?;
        }
        if of.is_memory_static {
            let state = match memory_file {
                Some(bytes) => {
                    memorymanager::checkpoint::decode(&bytes).map_err(StartError::MemoryCheckpoint)?
                }
                None => memorymanager::State::default(),
            };
            let made = MemoryManager::new_static(&machine.memory, &self.withheld, &of.reserved_memory, state);
            managers.memory = made.map_err(StartError::Memory)?;
        }
        managers.topology = Some(self.topology_manager(machine.distances)?);
        info!(
            cpu = of.is_cpu_static,
            memory = of.is_memory_static,
            topology = of.topology_policy.name(),
            shared = cpuset::format(&managers.cpu.state().default),
            "the static policies of CPU and memory manager and the topology manager's policy"
        );
        *self.managers.lock() = managers;
        Ok(self.save().await?)
    }

    fn cpu_manager(
        &self,
        topology: cpumanager::CpuTopology,
        file: Option<Vec<u8>>,
    ) -> Result<CpuManager, StartError> {
        let state = match file {
            Some(bytes) => cpumanager::checkpoint::decode(&bytes).map_err(StartError::CpuCheckpoint)?,
            None => cpumanager::State::default(),
        };
        let settings = cpumanager::Settings {
            options: self.configuration.cpu_options,
            reserved_milli_cpus: self.reserved_milli_cpus,
            reserved: self.configuration.reserved_cpus.clone(),
            is_single_numa_node: self.configuration.topology_policy == Policy::SingleNumaNode,
        };
        CpuManager::new_static(topology, settings, state).map_err(StartError::Cpu)
    }

    fn topology_manager(&self, distances: Distances) -> Result<TopologyManager, StartError> {
        let of = &self.configuration;
        TopologyManager::new(of.topology_policy, of.topology_options, distances).map_err(StartError::Topology)
    }

    async fn read(&self, file: &'static str) -> Result<Option<Vec<u8>>, StartError> {
        let root = self.root.clone();
        let read = move || match Dir::open(&root).and_then(|dir| dir.read_whole(file, CHECKPOINT_BYTES_MAX)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let read = self.files.run(FILES_KEY, read).await;
        read.map_err(|error| StartError::Read(file, error))
    }

    pub(super) fn save_soon(self: Arc<Self>) {
        crate::task::spawn(async move {
            if let Err(error) = self.save().await {
                warn!(%error, "cannot store the state of the resource managers");
            }
        });
    }

    pub(super) async fn save(&self) -> Result<(), CheckpointError> {
        let mut written = self.written.lock().await;
        let (cpu, memory) = {
            let managers = self.managers.lock();
            let (cpu, memory) = (&managers.cpu, &managers.memory);
            let cpu = cpu
                .is_static()
                .then(|| cpumanager::checkpoint::encode(cpu.state()));
            let memory = memory
                .is_static()
                .then(|| memorymanager::checkpoint::encode(memory.state()));
            (cpu.transpose()?, memory.transpose()?)
        };
        let StoredCheckpoints {
            cpu: cpu_before,
            memory: memory_before,
        } = &mut *written;
        for (file, bytes, before) in [
            (cpumanager::checkpoint::FILE, cpu, cpu_before),
            (memorymanager::checkpoint::FILE, memory, memory_before),
        ] {
            let Some(bytes) = bytes.filter(|bytes| *bytes != *before) else {
                continue;
            };
            let (root, content) = (self.root.clone(), bytes.clone());
            let write = move || {
                let content = NewFile {
                    bytes: &content,
                    mode: 0o600,
                    ..NewFile::default()
                };
                Dir::open(&root)?.replace(file, content)
            };
            let done = self.files.run(FILES_KEY, write).await;
            done.map_err(|error| CheckpointError::Write(file, error))?;
            *before = bytes;
        }
        Ok(())
    }
}
