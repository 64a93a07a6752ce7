//! The removal of an attachment: what DEL does before its answer, and what is done after it.
//!
//! The kernel answers the deletion of a link only after its grace periods, in which others stop using it: 17 to 29 ms on Linux
//! 6.18. DEL does not wait for that. Before its answer the pod's host ports are removed, its link is set down, which removes its
//! routes, and its record says that it is being removed. From then on no packet passes, and the host ports are free.
//!
//! After the answer the link is deleted; several at once, each by a thread and a netlink socket of its own, which have no part in
//! the limit of other commands. Only then is the record removed, the sandbox leaves [`Pods`](super::registry::Pods), so that its
//! policies are detached, and its addresses are released. A link that the kernel has deleted with the pod's network
//! namespace counts as deleted.
//!
//! An agent that exits in between leaves the record. The next one deletes the link when it adopts the record, and finishes the rest.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use knarr_cni::kernel::links::{self, Link};
use knarr_cni::kernel::netlink::{self, Netlink};
use knarr_cni::protocol::{Code, Failure};
use knarr_cni::sandbox::SandboxId;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::attach::io;
use super::bandwidth;
use super::host_ports;
use super::records::Record;
use super::server::{Inner, Server};

/// Links that are deleted at once: their threads wait for the kernel, whose grace periods then serve all of them.
const MAX_DELETIONS: usize = 16;
/// After the kernel has rejected a deletion.
const RETRY: Duration = Duration::from_secs(5);
/// How long the end of a server waits for deletions: a node's 110 pods, one after the other, in 30 ms each, three times over.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

fn failed(error: &dyn Error) -> Failure {
    Failure::new(Code::Kernel, "cannot remove the pod's network").because(error)
}

/// When an attachment is removed.
#[derive(Debug, PartialEq, Eq)]
enum Removal<'a> {
    /// All of it before the answer: there is no link that takes time, or an `ADD` or a `DEL` was broken off.
    AtOnce,
    /// The link is set down before the answer, and deleted after it.
    Deferred(&'a Record, &'a Link),
    /// An earlier DEL has answered.
    UnderWay,
}

/// What DEL does about a sandbox with this record and link.
fn removal<'a>(record: Option<&'a Record>, link: Option<&'a Link>) -> Removal<'a> {
    match (record, link) {
        (Some(record), _) if record.is_removing => Removal::UnderWay,
        (Some(record), Some(link)) if record.is_ready => Removal::Deferred(record, link),
        _ => Removal::AtOnce,
    }
}

impl Server {
    /// Returns when the links of all sandboxes whose DEL was answered are deleted, or after 10 seconds. For the end of
    /// a server: there may be no next one that deletes them.
    pub async fn finish_removals(&self) {
        let mut removed = self.inner.removed.subscribe();
        let finished = async {
            while self.inner.state.lock().has_removals() {
                if removed.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(FINISH_TIMEOUT, finished).await.is_err() {
            tracing::warn!("links of removed pods are not deleted after {FINISH_TIMEOUT:?}");
        }
    }
}

impl Inner {
    /// `DEL`, with the sandbox's lock held: also when there is nothing, or its namespace was removed.
    pub async fn detach(self: &Arc<Self>, sandbox: SandboxId) -> Result<(), Failure> {
        self.blocking(move |inner| inner.detach_now(&sandbox)).await
    }

    /// Removes whatever exists of a sandbox, and returns when nothing does. With the sandbox's lock held.
    pub async fn delete(self: Arc<Self>, sandbox: SandboxId) -> Result<(), Failure> {
        self.blocking(move |inner| inner.delete_now(&sandbox)).await
    }

    /// The record says that the sandbox is being removed; the rest is done in the background.
    pub fn finish_later(&self, sandbox: SandboxId) {
        // A server that was dropped does not receive it; the next one adopts the record.
        let _ = self.deletions.send(sandbox);
    }

    fn detach_now(&self, sandbox: &SandboxId) -> Result<(), Failure> {
        let record = self.state.lock().records.get(sandbox).cloned();
        let mut netlink = Netlink::open().map_err(|error| failed(&error))?;
        let link = self.link_of(&mut netlink, sandbox, record.is_some());
        let link = link.map_err(|error| failed(&error))?;
        match removal(record.as_ref(), link.as_ref()) {
            Removal::AtOnce => self.delete_now(sandbox),
            Removal::Deferred(record, link) => self.close(&mut netlink, record.clone(), link.index),
            Removal::UnderWay => Ok(()),
        }
    }

    /// The part of a deferred removal that DEL waits for.
    fn close(&self, netlink: &mut Netlink, mut record: Record, link: u32) -> Result<(), Failure> {
        self.free_host_ports(&record.sandbox, || {
            links::set_down(netlink, link).map_err(|error| failed(&error))
        })?;
        // Others may have them.
        record.host_ports.clear();
        record.is_ready = false;
        record.is_removing = true;
        if let Err(error) = self.records.write(&record) {
            // A full disk must not delay the end of pods: a record can be removed nevertheless.
            tracing::warn!(
                sandbox = %record.sandbox,
                error = &error as &dyn Error,
                "cannot record that a pod's network is being removed"
            );
            return self.delete_now(&record.sandbox);
        }
        let sandbox = record.sandbox.clone();
        self.state.lock().records.insert(sandbox.clone(), record);
        self.finish_later(sandbox);
        Ok(())
    }

    /// Removes the host ports of a sandbox, if it has any, then does `cut_off`, after which no packet passes, and then
    /// deletes their flows.
    fn free_host_ports(
        &self,
        sandbox: &SandboxId,
        cut_off: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let with_ports = {
            let mut state = self.state.lock();
            let record = state.records.get_mut(sandbox);
            record.and_then(|record| {
                // From here on its host ports are not programmed, and its routes are not restored.
                record.is_ready = false;
                (!record.host_ports.is_empty()).then(|| record.clone())
            })
        };
        let Some(record) = with_ports else {
            return cut_off();
        };
        self.program_ports().map_err(|error| failed(&error))?;
        cut_off()?;
        host_ports::delete_stale_flows(&record, true).map_err(|error| failed(&error))
    }

    /// The sandbox's link on the host.
    fn link_of(
        &self,
        netlink: &mut Netlink,
        sandbox: &SandboxId,
        is_recorded: bool,
    ) -> Result<Option<Link>, netlink::Error> {
        let alias = self.alias(sandbox);
        let link = links::find(netlink, &sandbox.host_interface())?;
        // One without an alias is of an ADD that was broken off between two messages; its name is ours.
        Ok(link.filter(|link| link.alias == alias || link.alias.is_empty() && is_recorded))
    }

    fn delete_now(&self, sandbox: &SandboxId) -> Result<(), Failure> {
        let is_recorded = self.state.lock().records.contains_key(sandbox);
        self.free_host_ports(sandbox, || {
            let mut netlink = Netlink::open().map_err(|error| failed(&error))?;
            let link = self.link_of(&mut netlink, sandbox, is_recorded);
            if let Some(link) = link.map_err(|error| failed(&error))? {
                links::delete(&mut netlink, link.index).map_err(|error| failed(&error))?;
            }
            bandwidth::remove(&mut netlink, sandbox, &self.alias(sandbox)).map_err(|error| failed(&error))
        })?;
        self.release_earlier(sandbox);
        self.records.remove(sandbox).map_err(|error| io(&error))?;
        self.pods.remove(sandbox);
        {
            let mut state = self.state.lock();
            state.records.remove(sandbox);
            state.since.remove(sandbox);
            state.addresses.release(sandbox);
        }
        self.removed.send_modify(|count| *count = count.wrapping_add(1));
        Ok(())
    }

    /// The part of a deferred removal that DEL does not wait for. An `ADD` of the same sandbox may have done it meanwhile.
    async fn finish(self: &Arc<Self>, sandbox: &SandboxId) -> Result<(), Failure> {
        if !self.state.lock().is_removing(sandbox) {
            return Ok(());
        }
        let lock = self.lock_of(sandbox);
        let held = lock.lock().await;
        let (inner, of) = (self.clone(), sandbox.clone());
        let work = move || {
            let is_pending = inner.state.lock().is_removing(&of);
            match is_pending {
                true => inner.delete_now(&of),
                false => Ok(()),
            }
        };
        let done = tokio::task::spawn_blocking(work).await;
        drop(held);
        drop(lock);
        self.forget_lock(sandbox);
        done.unwrap_or_else(|error| Err(failed(&error)))
    }

    /// Finishes the removals of the queue; for as long as there is a server.
    pub async fn delete_links(self: Arc<Self>, mut queue: mpsc::UnboundedReceiver<SandboxId>) {
        let permits = Arc::new(Semaphore::new(MAX_DELETIONS));
        let mut deletions = JoinSet::new();
        loop {
            let sandbox = tokio::select! {
                received = queue.recv() => received,
                Some(_) = deletions.join_next(), if !deletions.is_empty() => continue,
            };
            // This has a sender, too: the queue is never closed.
            let Some(sandbox) = sandbox else { return };
            deletions.spawn(delete_link(self.clone(), sandbox, permits.clone()));
        }
    }
}

async fn delete_link(inner: Arc<Inner>, sandbox: SandboxId, permits: Arc<Semaphore>) {
    loop {
        // The semaphore is never closed.
        let permit = permits.acquire().await;
        let result = inner.finish(&sandbox).await;
        drop(permit);
        let Err(failure) = result else { return };
        // The addresses stay allocated until it succeeds.
        tracing::error!(%sandbox, details = failure.details, "{}", failure.message);
        tokio::time::sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use knarr_cni::sandbox::Bandwidth;

    use super::*;

    fn record(is_ready: bool, is_removing: bool) -> Record {
        Record {
            boot: String::new(),
            sandbox: SandboxId::try_from("a".to_string()).unwrap(),
            pod: None,
            interface: "eth0".into(),
            host_interface: "knarra".into(),
            addresses: vec!["10.0.0.2".parse().unwrap()],
            host_ports: Vec::new(),
            bandwidth: Bandwidth::default(),
            is_ready,
            is_removing,
        }
    }

    #[test]
    fn n1_del_defers_the_link_of_a_ready_attachment_only() {
        let (ready, broken_off, removing) = (record(true, false), record(false, false), record(false, true));
        let link = Link {
            index: 7,
            name: "knarra".into(),
            alias: "knarr-pods a".into(),
            is_up: true,
        };
        for (case, record, link, expected) in [
            (
                "ready",
                Some(&ready),
                Some(&link),
                Removal::Deferred(&ready, &link),
            ),
            (
                "its namespace was removed, and the link with it",
                Some(&ready),
                None,
                Removal::AtOnce,
            ),
            (
                "an ADD or a DEL was broken off",
                Some(&broken_off),
                Some(&link),
                Removal::AtOnce,
            ),
            ("a link without a record", None, Some(&link), Removal::AtOnce),
            ("nothing", None, None, Removal::AtOnce),
            ("DEL is repeated", Some(&removing), Some(&link), Removal::UnderWay),
            (
                "DEL is repeated after the link was deleted",
                Some(&removing),
                None,
                Removal::UnderWay,
            ),
        ] {
            assert_eq!(removal(record, link), expected, "{case}");
        }
    }
}
