//! S1, concurrent controllers: what a leader decided is written only while it leads. Nothing of it is written once
//! another replica has taken the lease, however long the request was in progress.

use crate::finding::Finding;
use crate::world::{Observation, World};

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Led { term, key } = seen else {
        return Ok(());
    };
    match world.terms.get(&format!("{}/{}", term.namespace, term.name)) {
        Some(now) if now == *term => Ok(()),
        now => Err(Finding(format!(
            "{key} is written for {:?} (transition {}) when the lease is {}",
            term.holder,
            term.transitions,
            now.map_or("gone".into(), |now| format!(
                "{:?}'s (transition {})",
                now.holder, now.transitions
            )),
        ))),
    }
}
