//! Faults of a store beyond being slow or cut off, as etcd has them: it compacts its history while a server's watch
//! is behind, so that the watch cannot be resumed and the server has to list again; and it commits a transaction
//! whose answer never reaches the server.

use std::collections::VecDeque;
use std::time::Duration;

use knarr_store::{Error, Revision};
use tokio::time::sleep;

use crate::coverage::Scope;
use crate::faults::{Faults, later};
use crate::random::Stream;
use crate::store::StoreLink;
use crate::switches::Switch;

/// A server's faults of this kind, with their weights.
const FAULTS: [(Switch, u64); 2] = [(Switch::Compaction, 3), (Switch::LostCommits, 4)];
/// The most revisions that a compaction keeps.
const KEPT_REVISIONS: u64 = 200;
/// Compactions that keep only the newest revision, per mille.
const KEEPS_NOTHING_PER_MILLE: u32 = 600;
/// Watches that get the compaction error as their first item, per mille: etcd's do if the compaction happens between
/// the server's request and the watch.
const FIRST_ITEM_PER_MILLE: u32 = 300;
/// The most commits in a row whose answers are lost.
const LOST_IN_A_ROW: u64 = 3;
/// The longest time that a server waits for the answer before it takes the connection for lost.
const NOTICED_AFTER_MILLIS: u64 = 5_000;
/// Lost answers after which the server is cut off from the store as well, per mille.
const ALSO_CUT_PER_MILLE: u32 = 500;

tokio::task_local! {
    /// Set for the requests of components: the answers for users always say what the store did.
    pub(crate) static FROM_COMPONENT: ();
}

/// A future commit whose answer is lost.
#[derive(Clone, Copy, Debug)]
struct LostResponse {
    after: Duration,
    /// For so long no message passes between the server and the store, from the commit on.
    cut: Option<Duration>,
}

/// The state of these faults at one server's connection to the store.
#[derive(Default)]
pub(crate) struct StoreFaultState {
    /// Its watches report nothing until they break.
    pub is_behind: bool,
    lost: VecDeque<LostResponse>,
    /// The next watch that begins below the compacted revision gets the error as its first item.
    fails_by_first_item: bool,
}

impl StoreFaultState {
    /// Whether a watch that begins below the compacted revision fails with its first item. The next one fails at
    /// once.
    pub fn take_first_item(&mut self) -> bool {
        std::mem::take(&mut self.fails_by_first_item)
    }
}

impl StoreLink {
    /// Called with each commit: fails if the server does not get the answer.
    pub async fn lose_answer(&self, revision: Revision) -> Result<(), Error> {
        if FROM_COMPONENT.try_with(|()| ()).is_err() {
            return Ok(());
        }
        let Some(lost) = self.with_damage(|damage| damage.lost.pop_front()) else {
            return Ok(());
        };
        let observer = &self.inner.observer;
        observer.note(&format!("the answer to commit {revision} is lost"));
        if let Some(length) = lost.cut {
            self.cut_for(length);
        }
        sleep(lost.after).await;
        Err(Error::Unavailable(
            "the connection was lost before the store answered".into(),
        ))
    }

    /// From now on the store has none of these faults.
    pub fn mend(&self) {
        self.with_damage(|damage| *damage = StoreFaultState::default());
        self.notify_watches();
    }

    /// The store keeps only the newest `keeps` revisions, and the server's watches break.
    async fn compact_and_break(&self, keeps: u64, by_first_item: bool) -> Result<(), Error> {
        let store = &self.inner.inner;
        let oldest = store.revision().await?.saturating_sub(keeps).max(1);
        store.compact(oldest).await?;
        let note = format!("the store has compacted its history before revision {oldest}");
        self.inner.observer.note(&note);
        self.with_damage(|damage| {
            damage.is_behind = false;
            damage.fails_by_first_item = by_first_item;
        });
        self.break_watches();
        Ok(())
    }
}

impl Faults {
    /// One of the faults of this module that the history has.
    pub fn strike_store(&self, chance: &mut Stream) {
        let length = self.lengths.draw(chance);
        let Some(fault) = chance.weighted(&FAULTS, |fault| self.on.has(fault)) else {
            return;
        };
        let Some(server) = chance.pick(&self.servers).cloned() else {
            return;
        };
        // The users' own server is never cut off, and never behind for long.
        let is_users = self
            .servers
            .first()
            .is_some_and(|first| first.name == server.name);
        match fault {
            // A server that lists again answers writes with 503, and the result of users' writes must be known.
            Switch::Compaction if is_users => return,
            Switch::Compaction => {
                let keeps = match chance.per_mille(KEEPS_NOTHING_PER_MILLE) {
                    true => 0,
                    false => chance.between(1, KEPT_REVISIONS),
                };
                let by_first_item = chance.per_mille(FIRST_ITEM_PER_MILLE);
                self.observer.strikes(fault, Scope::Cluster);
                self.observer.note(&format!(
                    "fault: {} is behind for {} ms, then the store compacts",
                    server.name,
                    length.as_millis()
                ));
                server.link.set_watches_behind();
                tokio::spawn(async move {
                    sleep(length).await;
                    // The fault has ended in the meantime.
                    if server.link.with_damage(|damage| damage.is_behind) {
                        // The memory store fails only at revisions that it has not reached.
                        let _ = server.link.compact_and_break(keeps, by_first_item).await;
                    }
                });
            }
            _ => {
                let row = chance.between(1, LOST_IN_A_ROW);
                self.observer.strikes(fault, Scope::Cluster);
                self.observer.note(&format!(
                    "fault: the answers to the next {row} commits of {} are lost",
                    server.name
                ));
                for number in 1..=row {
                    let lost = LostResponse {
                        after: chance.millis(0, NOTICED_AFTER_MILLIS),
                        cut: (number == row && chance.per_mille(ALSO_CUT_PER_MILLE) && !is_users)
                            .then_some(length),
                    };
                    server.link.with_damage(|damage| damage.lost.push_back(lost));
                }
            }
        }
        self.report_health();
    }
}

impl StoreLink {
    /// Cuts the server off until then.
    fn cut_for(&self, length: Duration) {
        self.set_cut(true);
        let link = self.clone();
        later(length, move || link.set_cut(false));
    }
}
