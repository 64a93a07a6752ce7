//! Terminates this node's at-most-one pods when its lease cannot be renewed, and starts none until it can (SPEC B4):
//! the doing half of [`knarr_kubelet::self_fencing`], where the times are.
//!
//! Time since the last renewal is measured by a clock that includes suspend, and the last renewal is stored, so that a
//! restarted kubelet continues from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_client::TypedApi;
use knarr_kubelet::admission::is_static;
use knarr_kubelet::runtime::{Container, ContainerState};
use knarr_kubelet::self_fencing::{Ending, SelfFencing, Verdict, decide, may_start as may_start_by};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::Shared;
use crate::runtime::{Runtime, RuntimeError};
use crate::volumes::Host;

/// The file in the kubelet's directory with the time of the last renewal.
pub(super) const RENEWALS: &str = "lease-renewed";
/// Poll interval of whether everything has terminated.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// What a node knows of its own lease.
pub(crate) struct LeaseTrust {
    mode: SelfFencing,
    host: Arc<dyn Host>,
    start: Instant,
    /// Where the last renewal is written down; a hollow node's is not.
    file: Option<PathBuf>,
    /// When the last answered renewal was sent, by [`LeaseTrust::now`]: this kubelet's, or one before it, or its start.
    renewed: Mutex<Option<Duration>>,
    /// The same of this kubelet alone.
    own: Mutex<Option<Duration>>,
    changed: Notify,
    confirmed: Mutex<Confirmed>,
}

/// Which pods are this node's for sure. While it is cut off, any may be given to another node.
#[derive(Default)]
struct Confirmed {
    /// How often the node was cut off; while it is 0, all pods are this node's.
    round: u64,
    /// By uid: pods that the API has confirmed since then to be still this node's.
    pods: BTreeSet<String>,
}

impl LeaseTrust {
    pub fn new(mode: SelfFencing, host: Arc<dyn Host>, file: Option<PathBuf>) -> Self {
        let trust = LeaseTrust {
            mode,
            host,
            start: Instant::now(),
            file,
            renewed: Mutex::new(None),
            own: Mutex::new(None),
            changed: Notify::new(),
            confirmed: Mutex::default(),
        };
        // What was written before this boot is later than now: nothing of then runs any more.
        let before = trust
            .file
            .as_deref()
            .and_then(written)
            .filter(|at| *at <= trust.now());
        *trust.renewed.lock() = Some(before.unwrap_or_else(|| trust.now()));
        trust
    }

    /// A clock that only moves forward.
    pub fn now(&self) -> Duration {
        // Every real host has this clock; elsewhere the time since the start is used.
        self.host.since_boot().unwrap_or_else(|| self.start.elapsed())
    }

    /// A renewal that was sent at this time has been answered.
    pub fn renewed(&self, sent: Duration) {
        *self.renewed.lock() = Some(sent);
        *self.own.lock() = Some(sent);
        if let Some(file) = &self.file
            && let Err(error) = note(file, sent)
        {
            warn!(%error, "cannot store the time of the lease's renewal");
        }
        self.changed.notify_waiters();
    }

    /// How long ago this was, by [`LeaseTrust::now`].
    pub fn since(&self, at: Duration) -> Duration {
        self.now().saturating_sub(at)
    }

    /// How long ago the last answered renewal was sent.
    pub fn since_renewal(&self) -> Option<Duration> {
        let renewed = *self.renewed.lock();
        renewed.map(|at| self.since(at))
    }

    fn verdict(&self) -> Verdict {
        decide(self.since_renewal())
    }

    fn may_start(&self) -> bool {
        let own = *self.own.lock();
        may_start_by(own.map(|at| self.since(at)))
    }

    /// This node is cut off: from now on every pod has to be confirmed by the API.
    fn cut_off(&self) {
        let mut confirmed = self.confirmed.lock();
        confirmed.round += 1;
        confirmed.pods.clear();
    }

    /// The round in which the pod has to be confirmed; `None` if it need not be.
    fn to_confirm(&self, uid: &str) -> Option<u64> {
        let confirmed = self.confirmed.lock();
        (confirmed.round > 0 && !confirmed.pods.contains(uid)).then_some(confirmed.round)
    }

    /// The API confirmed the pod as this node's. An answer requested in an earlier round does not count in this one.
    fn confirm(&self, uid: &str, round: u64) {
        let mut confirmed = self.confirmed.lock();
        if confirmed.round == round {
            confirmed.pods.insert(uid.into());
        }
    }
}

fn written(file: &Path) -> Option<Duration> {
    let text = crate::host_fs::read_to_string(file).ok()?;
    text.trim().parse().ok().map(Duration::from_millis)
}

/// Atomic without a rename: the same number of bytes is overwritten in one write. The value is meaningless after a
/// reboot, so it need not be synced to disk.
fn note(file: &Path, at: Duration) -> std::io::Result<()> {
    let open =
        || crate::host_fs::open_with(OpenOptions::new().write(true).create(true).truncate(false), file);
    let open = match open() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            crate::host_fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
            open()?
        }
        other => other?,
    };
    open.write_all_at(format!("{:020}\n", at.as_millis()).as_bytes(), 0)
}

/// Whether this node terminates the pod when it is cut off.
pub(super) fn is_concerned(shared: &Shared, pod: &core::Pod) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    // Static pods are never moved to another node.
    !is_static(pod) && shared.trust.mode.ends(pod, shared.volumes.uses_exclusive(uid))
}

/// Waits until a process of this pod may be started. The error is why it may not be at all: the pod was given away while
/// this node could not know.
pub(super) async fn may_start(shared: &Shared, pod: &core::Pod) -> Result<(), String> {
    if !is_concerned(shared, pod) {
        return Ok(());
    }
    let trust = &shared.trust;
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    loop {
        let changed = trust.changed.notified();
        if !trust.may_start() {
            changed.await;
            continue;
        }
        // The cached pod may be outdated: the API confirms whose it is now. The node may be cut off meanwhile.
        match trust.to_confirm(uid) {
            None => return Ok(()),
            Some(round) => {
                check_owner(shared, pod).await?;
                trust.confirm(uid, round);
            }
        }
    }
}

/// Whether a process of this pod may be started at this moment, without a request.
pub(super) fn may_start_now(shared: &Shared, pod: &core::Pod) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    !is_concerned(shared, pod) || (shared.trust.may_start() && shared.trust.to_confirm(uid).is_none())
}

/// The error: the API does not confirm that this pod exists.
async fn check_owner(shared: &Shared, pod: &core::Pod) -> Result<(), String> {
    let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
    let live = shared
        .api
        .get_as::<core::Pod>(namespace.unwrap_or(""), name.unwrap_or(""))
        .await;
    match live {
        Ok(live) if live.metadata.uid == pod.metadata.uid => Ok(()),
        Ok(_) => Err("another pod has its name by now".into()),
        Err(error) => Err(format!(
            "cannot see whether the pod is still this node's: {error}"
        )),
    }
}

/// Watches the lease, until dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut cut_off = false;
    loop {
        match shared.trust.verdict() {
            Verdict::Run {
                look_after: check_after,
            } => {
                if std::mem::take(&mut cut_off) {
                    info!("the lease is renewed again: at-most-one pods may run");
                }
                sleep(check_after).await;
            }
            Verdict::End { .. } => {
                shared.trust.cut_off();
                if !std::mem::replace(&mut cut_off, true) {
                    warn!("the lease cannot be renewed: terminating the pods that must not run twice");
                }
                end_all(&shared).await;
                // Renewed in between or not: the verdict is computed again.
                let _ = timeout(CHECK_PERIOD, shared.trust.changed.notified()).await;
            }
        }
    }
}

/// The running containers of the pods concerned, and how each is terminated. Where the pod is not known, because the
/// API was not reachable since this kubelet started or has deleted it, the container's annotations decide.
async fn running(shared: &Shared) -> Result<Vec<(Container, Ending)>, RuntimeError> {
    let pods = shared.pods.list("");
    let pods = pods.iter().filter_map(|o| o.get::<core::Pod>());
    let known: BTreeMap<&str, &core::Pod> = pods
        .map(|pod| (pod.metadata.uid.as_deref().unwrap_or_default(), pod))
        .collect();
    let mut running = Vec::new();
    for container in shared.runtime.containers().await? {
        if !matches!(container.state, ContainerState::Running { .. }) {
            continue;
        }
        let ending = match known.get(container.pod.uid.as_str()) {
            Some(pod) => is_concerned(shared, pod).then(|| Ending::of(pod, &container.name)),
            None => container.self_fenced,
        };
        running.extend(ending.map(|ending| (container, ending)));
    }
    Ok(running)
}

/// Whether no process of a pod concerned is left, as far as can be seen.
pub(super) async fn all_ended(shared: &Shared) -> bool {
    running(shared)
        .await
        .is_ok_and(|containers| containers.is_empty())
}

/// Terminates the containers of all pods concerned, concurrently.
async fn end_all(shared: &Shared) {
    let running = match running(shared).await {
        Ok(running) => running,
        Err(error) => return warn!(%error, "cannot list the runtime's containers"),
    };
    let ends = running.iter().map(|(c, ending)| async move {
        warn!(
            container = c.id,
            pod = c.pod.name,
            "ending what must not run twice"
        );
        end(shared.runtime.as_ref(), &shared.trust, &c.id, *ending).await;
    });
    futures::future::join_all(ends).await;
}

/// Terminates a container within the time left, computed at the call and not at the decision: a runtime that is slow or
/// fails shortens the grace period, and KILL comes in time.
async fn end(runtime: &dyn Runtime, trust: &LeaseTrust, id: &str, ending: Ending) {
    while let Verdict::End { grace } = trust.verdict() {
        let grace = match ending {
            Ending::Terminate => grace,
            Ending::Kill => Duration::ZERO,
        };
        let stopped = match timeout(grace, runtime.stop_container(id, grace)).await {
            Ok(stopped) => stopped,
            Err(_) => runtime.stop_container(id, Duration::ZERO).await,
        };
        let Err(error) = stopped else { return };
        warn!(container = id, %error, "cannot end a container");
        if grace.is_zero() {
            // The next check shows whether it runs.
            return;
        }
        sleep(CHECK_PERIOD.min(grace)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::Machine;
    use crate::volumes::host_of;

    #[test]
    fn b4_an_answer_requested_before_the_node_was_cut_off_again_confirms_no_pod() {
        let machine = Machine::Hollow {
            cpus: 1,
            memory_bytes: 1,
        };
        let trust = LeaseTrust::new(SelfFencing::Annotated, host_of(machine), None);
        assert_eq!(trust.to_confirm("a"), None, "never cut off");
        trust.cut_off();
        let first = trust.to_confirm("a").expect("any pod may be another node's now");
        trust.cut_off();
        trust.confirm("a", first);
        let second = trust.to_confirm("a").expect("the answer is from before");
        trust.confirm("a", second);
        assert_eq!(trust.to_confirm("a"), None);
        assert!(trust.to_confirm("b").is_some());
    }
}
