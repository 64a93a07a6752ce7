//! The upgrade of the processes of the previous version.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Faults;
use crate::coverage::Scope;
use crate::later::later;
use crate::random::Stream;
use crate::switches::Switch;
use crate::upgrade::Version;

/// The longest time that a process is stopped while it is replaced: an image has to be pulled, a node drained.
const AWAY_MILLIS: u64 = 20_000;

impl Faults {
    /// All processes but the users' own API server, in the order in which they are upgraded.
    fn versions(&self) -> Vec<Arc<Version>> {
        let servers = self.servers.iter().skip(1).map(|server| server.version.clone());
        let controls = self.controls.iter().map(|control| control.version.clone());
        let nodes = self.nodes.iter().map(|node| node.version.clone());
        servers.chain(controls).chain(nodes).collect()
    }

    /// Some of the last of them are of the previous version. Call it before they are started.
    pub fn begin_with_former(&self, chance: &mut Stream) {
        let versions = self.versions();
        let last = u64::try_from(versions.len()).unwrap_or_default();
        let upgraded = usize::try_from(chance.between(0, last / 2)).unwrap_or_default();
        for version in versions.iter().skip(upgraded) {
            version.set_former(true);
        }
        self.observer.note(&format!(
            "{} processes are of the version before",
            versions.len() - upgraded
        ));
    }

    /// Restarts the next one as this version.
    pub fn upgrade_next(&self, chance: &mut Stream) {
        let away = chance.millis(100, AWAY_MILLIS);
        if let Some(next) = self.versions().iter().position(|version| version.is_former()) {
            self.upgrade(next, away);
            self.report_health();
        }
    }

    /// Restarts all that are left.
    pub fn upgrade_all(&self) {
        for (number, version) in self.versions().iter().enumerate() {
            if version.is_former() {
                self.upgrade(number, Duration::ZERO);
            }
        }
    }

    fn upgrade(&self, number: usize, away: Duration) {
        let servers = self.servers.len().saturating_sub(1);
        let note = |name: &str| {
            self.observer
                .note(&format!("{name} is upgraded within {} ms", away.as_millis()));
        };
        if let Some(server) = self.servers.get(number + 1).cloned() {
            self.observer.strikes(Switch::Upgrade, Scope::Cluster);
            note(&server.name);
            server.crash();
            server.version.set_former(false);
            tokio::spawn(async move {
                sleep(away).await;
                server.revive().await;
            });
        } else if let Some(control) = self.controls.get(number - servers).cloned() {
            self.observer.strikes(Switch::Upgrade, Scope::Cluster);
            note(&control.network.name);
            control.crash();
            control.version.set_former(false);
            later(away, move || control.start());
        } else if let Some(node) = self.nodes.get(number - servers - self.controls.len()).cloned() {
            self.observer.strikes(Switch::Upgrade, Scope::Node(&node.name));
            note(&node.name);
            node.crash();
            node.version.set_former(false);
            later(away, move || node.start());
        }
    }
}
