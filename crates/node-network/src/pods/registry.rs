//! The pods of this node that have an address, for the other parts of the network.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use knarr_cni::sandbox::{PodName, SandboxId};
use parking_lot::RwLock;
use tokio::sync::watch;

use super::records::Record;

/// A pod's attachment to the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub sandbox: SandboxId,
    /// `None` if the runtime did not pass the sandbox's pod.
    pub pod: Option<PodName>,
    /// IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// The name of its interface on the host.
    pub host_interface: String,
}

impl From<&Record> for Attachment {
    fn from(record: &Record) -> Self {
        Attachment {
            sandbox: record.sandbox.clone(),
            pod: record.pod.clone(),
            addresses: record.addresses.clone(),
            host_interface: record.host_interface.clone(),
        }
    }
}

#[derive(Debug, Default)]
struct Index {
    by_sandbox: BTreeMap<SandboxId, Arc<Attachment>>,
    by_address: HashMap<IpAddr, Arc<Attachment>>,
}

/// All attachments of this node; clones share them. An attachment is in it from before its `before_up` hook until its
/// link is removed.
#[derive(Clone, Debug)]
pub struct Pods {
    index: Arc<RwLock<Index>>,
    changed: watch::Sender<u64>,
}

impl Default for Pods {
    fn default() -> Self {
        Pods {
            index: Arc::default(),
            changed: watch::Sender::new(0),
        }
    }
}

impl Pods {
    /// The namespace of the pod that has the address.
    pub fn namespace_of(&self, address: IpAddr) -> Option<Arc<str>> {
        let index = self.index.read();
        let pod = index.by_address.get(&address)?.pod.as_ref()?;
        Some(pod.namespace.clone())
    }

    pub fn get(&self, sandbox: &SandboxId) -> Option<Arc<Attachment>> {
        self.index.read().by_sandbox.get(sandbox).cloned()
    }

    /// All of them, by sandbox id.
    pub fn list(&self) -> Vec<Arc<Attachment>> {
        self.index.read().by_sandbox.values().cloned().collect()
    }

    /// Counts changes: when its value changes, [`Pods::list`] is different. The current value counts as seen.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn insert(&self, attachment: Attachment) -> Arc<Attachment> {
        let attachment = Arc::new(attachment);
        {
            let mut index = self.index.write();
            index.remove(&attachment.sandbox);
            for address in &attachment.addresses {
                index.by_address.insert(*address, attachment.clone());
            }
            index
                .by_sandbox
                .insert(attachment.sandbox.clone(), attachment.clone());
        }
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        attachment
    }

    pub(super) fn remove(&self, sandbox: &SandboxId) {
        if self.index.write().remove(sandbox) {
            self.changed.send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}

impl Index {
    fn remove(&mut self, sandbox: &SandboxId) -> bool {
        let Some(removed) = self.by_sandbox.remove(sandbox) else {
            return false;
        };
        for address in &removed.addresses {
            self.by_address.remove(address);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n5_the_namespace_of_an_address_is_known_while_its_pod_is() {
        let pods = Pods::default();
        let mut changes = pods.subscribe();
        let sandbox = SandboxId::try_from("s".to_string()).unwrap();
        let address: IpAddr = "10.0.0.2".parse().unwrap();
        pods.insert(Attachment {
            sandbox: sandbox.clone(),
            pod: Some(PodName {
                namespace: "ns".into(),
                name: "p".into(),
                uid: None,
            }),
            addresses: vec![address],
            host_interface: "knarr0".into(),
        });
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert_eq!(pods.namespace_of(address).as_deref(), Some("ns"));
        pods.remove(&sandbox);
        assert!(changes.has_changed().unwrap());
        assert_eq!(pods.namespace_of(address), None);
        assert!(pods.list().is_empty());
    }
}
