//! Deletes the flows of earlier pods: one task, one dump of the conntrack table at a time, for all addresses that were
//! detached and all attachments that wait. What is needed is decided by [`CleanAddresses`].

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use knarr_client::workqueue::Backoff;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::clean_addresses::{CleanAddresses, Need};
use super::kernel::PolicyTable;
use crate::routes::Unreachable;
use crate::signal::Signal;

/// Between two dumps that no attachment waits for: pods that are deleted one after the other share one.
const PACE: Duration = Duration::from_secs(1);
/// Before what failed is tried again.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(60),
};

/// See the module.
#[derive(Default)]
pub(super) struct Flows {
    clean: Mutex<CleanAddresses>,
    wake: Notify,
    /// The number of the last dump that has ended.
    finished: Signal<u64>,
}

impl Flows {
    /// See [`CleanAddresses::set_unreachable`].
    pub fn set_unreachable(&self, unreachable: &Unreachable) {
        self.clean.lock().set_unreachable(unreachable);
        self.wake.notify_one();
    }

    /// Whether there are no flows of an earlier pod with these addresses. If there may be some, [`Flows::delete`] is called
    /// when the addresses are isolated.
    pub fn attach(&self, sandbox: &Arc<str>, addresses: &[IpAddr]) -> bool {
        self.clean.lock().attach(sandbox, addresses)
    }

    /// The sandbox, its link and its routes were removed. Its flows are deleted soon.
    pub fn detach(&self, sandbox: &str) {
        self.clean.lock().detach(sandbox);
        self.wake.notify_one();
    }

    /// Returns when a dump has ended that began after this call, with or without success.
    pub async fn delete(&self, addresses: &[IpAddr]) {
        let number = self.clean.lock().request(addresses);
        self.wake.notify_one();
        self.finished.wait_for(|finished| *finished >= number).await;
    }

    /// Does not end.
    pub async fn run(&self, table: &dyn PolicyTable) {
        let mut failures = 0;
        let mut not_before = Instant::now();
        loop {
            self.needed(not_before).await;
            let stale = self.clean.lock().begin();
            let deleted = table.delete_flows(stale).await;
            let number = self.clean.lock().finish(deleted.is_ok());
            self.finished.set(number);
            let pause = match deleted {
                Ok(()) => {
                    failures = 0;
                    PACE
                }
                Err(error) => {
                    warn!(%error, "cannot delete conntrack entries of pods' addresses, trying again");
                    let pause = RETRY.after(failures);
                    failures = (failures + 1).min(16);
                    pause
                }
            };
            not_before = Instant::now() + pause;
        }
    }

    /// Returns when a dump is needed; before `not_before` only for an attachment that waits.
    async fn needed(&self, not_before: Instant) {
        loop {
            let need = self.clean.lock().need();
            match need {
                Need::Waiting => return,
                Need::Later if Instant::now() >= not_before => return,
                Need::Later => {
                    // Either it is time, or something has changed.
                    let _ = timeout_at(not_before, self.wake.notified()).await;
                }
                Need::Nothing => self.wake.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use async_trait::async_trait;
    use k8s_openapi::jiff::Timestamp;
    use knarr_api::k8s_openapi;
    use knarr_client::TokioClock;
    use knarr_client::fake::FakeApi;
    use knarr_network::policy::Policies;
    use knarr_nftables::Family;
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;

    use super::*;
    use crate::policy::clean_addresses::StaleAddresses;
    use crate::policy::{Attachment, Config, NetworkPolicies, TABLE};
    use crate::table::TableError;

    type Answers = mpsc::UnboundedReceiver<bool>;

    /// Its dumps end when the test answers.
    struct FakeTable {
        begun: Signal<Vec<StaleAddresses>>,
        answers: tokio::sync::Mutex<Answers>,
    }

    #[async_trait]
    impl PolicyTable for FakeTable {
        async fn sync(&self, _: &Arc<Mutex<Policies>>) -> Result<bool, TableError> {
            Ok(true)
        }

        async fn is_intact(&self, _: &Arc<Mutex<Policies>>) -> Result<bool, TableError> {
            Ok(true)
        }

        fn forget(&self) {}

        async fn delete_flows(&self, stale: StaleAddresses) -> Result<(), TableError> {
            self.begun.update(|begun| begun.push(stale));
            match self.answers.lock().await.recv().await {
                Some(true) => Ok(()),
                _ => Err(TableError::NoSet {
                    family: Family::Inet,
                    table: "conntrack".into(),
                    set: "any".into(),
                }),
            }
        }
    }

    struct Node {
        flows: Arc<Flows>,
        table: Arc<FakeTable>,
        answer: mpsc::UnboundedSender<bool>,
        tasks: JoinSet<()>,
    }

    impl FakeTable {
        fn new() -> (Arc<Self>, mpsc::UnboundedSender<bool>) {
            let (answer, answers) = mpsc::unbounded_channel();
            let table = FakeTable {
                begun: Signal::default(),
                answers: tokio::sync::Mutex::new(answers),
            };
            (Arc::new(table), answer)
        }
    }

    fn pod_cidr() -> Unreachable {
        Unreachable {
            ranges: vec!["10.1.0.0/24".parse().unwrap()],
            set: 0,
        }
    }

    impl Node {
        fn new() -> Self {
            let (table, answer) = FakeTable::new();
            let flows = Arc::new(Flows::default());
            let mut tasks = JoinSet::new();
            let (running, of) = (flows.clone(), table.clone());
            tasks.spawn(async move { running.run(&*of).await });
            Node {
                flows,
                table,
                answer,
                tasks,
            }
        }

        /// One whose pod CIDR is clean.
        async fn clean() -> Self {
            let node = Node::new();
            node.flows.set_unreachable(&pod_cidr());
            node.end(1, true).await;
            node
        }

        /// Waits until the dump with this number has begun, and ends it.
        async fn end(&self, number: usize, succeeds: bool) {
            self.table.begun.wait_for(|begun| begun.len() == number).await;
            self.answer.send(succeeds).unwrap();
            let number = number as u64;
            self.flows.finished.wait_for(|finished| *finished == number).await;
        }

        fn attach(&self, sandbox: &str, address: &str) -> bool {
            self.flows.attach(&sandbox.into(), &[ip(address)])
        }

        /// An attachment that is not clean waits.
        async fn delete(&mut self, address: &'static str) {
            let flows = self.flows.clone();
            self.tasks
                .spawn(async move { flows.delete(&[ip(address)]).await });
            // It runs until it waits.
            tokio::task::yield_now().await;
        }

        fn addresses(&self, number: usize) -> BTreeSet<IpAddr> {
            self.table.begun.get()[number - 1].addresses.clone()
        }

        /// All but the task that deletes have ended.
        async fn attached(&mut self, count: usize) {
            for _ in 0..count {
                self.tasks.join_next().await.unwrap().unwrap();
            }
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn n6_detached_addresses_are_cleaned_without_an_attachment_that_waits() {
        let node = Node::clean().await;
        for (sandbox, address) in [("a", "10.1.0.2"), ("b", "10.1.0.3")] {
            assert!(node.attach(sandbox, address), "{address}");
        }
        node.flows.detach("a");
        node.flows.detach("b");
        node.end(2, true).await;
        assert_eq!(
            node.addresses(2),
            BTreeSet::from([ip("10.1.0.2"), ip("10.1.0.3")]),
            "one dump for both"
        );
        assert!(node.attach("c", "10.1.0.2"));
        assert_eq!(node.table.begun.get().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn n6_an_attachment_right_after_a_detach_waits_for_a_dump_that_begins_after_it() {
        let mut node = Node::clean().await;
        assert!(node.attach("a", "10.1.0.2"));
        node.flows.detach("a");
        node.table.begun.wait_for(|begun| begun.len() == 2).await;
        // While its flows are deleted.
        assert!(!node.attach("b", "10.1.0.2"));
        assert!(!node.attach("c", "10.2.0.2"));
        node.delete("10.1.0.2").await;
        node.delete("10.2.0.2").await;
        node.end(2, true).await;
        assert!(node.tasks.try_join_next().is_none(), "the dump began before them");
        node.end(3, true).await;
        node.attached(2).await;
        assert_eq!(
            node.addresses(3),
            BTreeSet::from([ip("10.1.0.2"), ip("10.2.0.2")]),
            "they share one"
        );
        assert_eq!(node.table.begun.get().len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn n6_addresses_of_a_failed_dump_are_not_clean_until_another_succeeds() {
        let mut node = Node::clean().await;
        assert!(node.attach("a", "10.1.0.2"));
        assert!(node.attach("b", "10.1.0.3"));
        node.flows.detach("a");
        node.flows.detach("b");
        node.end(2, false).await;
        assert!(!node.attach("c", "10.1.0.2"));
        // It waits for no back-off, and not for a success.
        let begun = Instant::now();
        node.delete("10.1.0.2").await;
        node.end(3, false).await;
        node.attached(1).await;
        assert!(begun.elapsed() < RETRY.base);
        node.end(4, true).await;
        assert!(node.attach("d", "10.1.0.3"));
        node.flows.detach("c");
        assert!(!node.attach("e", "10.1.0.2"));
    }

    #[tokio::test(start_paused = true)]
    async fn n6_a_pod_with_clean_addresses_is_attached_without_a_dump() {
        let (table, answer) = FakeTable::new();
        let config = Config {
            table: TABLE.into(),
            node_name: "node-1".into(),
            dns: Vec::new(),
            events: None,
        };
        let api = Arc::new(FakeApi::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH))));
        let policies = NetworkPolicies::start_with(api, config, [], table.clone(), 0);
        let attachment = |sandbox: &str| Attachment {
            sandbox: sandbox.into(),
            pod: None,
            uid: None,
            addresses: vec![ip("10.1.0.2")],
        };
        policies.set_unreachable(&pod_cidr());
        answer.send(true).unwrap();
        let finished = &policies.state.flows.finished;
        finished.wait_for(|finished| *finished == 1).await;
        policies.attach(attachment("a")).await.unwrap();
        assert_eq!(table.begun.get().len(), 1);
        // Right after the removal it waits for one, which may fail.
        policies.detach("a");
        answer.send(false).unwrap();
        policies.attach(attachment("b")).await.unwrap();
        assert_eq!(table.begun.get().len(), 2);
        policies.retain(|_| false);
        answer.send(true).unwrap();
        finished.wait_for(|finished| *finished == 3).await;
        policies.attach(attachment("c")).await.unwrap();
        assert_eq!(table.begun.get().len(), 3);
    }
}
