//! Faults of the store beyond being slow or cut off ([`store_faults`](crate::store_faults)).

use tokio::time::sleep;

use super::Faults;
use crate::coverage::Scope;
use crate::random::Stream;
use crate::store_faults::LostResponse;
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

impl Faults {
    /// One of these faults that the history has.
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
