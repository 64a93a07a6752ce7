//! What is to happen later.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Instant;

/// Timers of the loop, each with what it is for. There are few of them.
#[derive(Debug)]
pub struct Timers<T> {
    entries: BTreeMap<(Instant, u64), T>,
    sequence: u64,
}

impl<T: PartialEq> Timers<T> {
    pub fn new() -> Self {
        Timers {
            entries: BTreeMap::new(),
            sequence: 0,
        }
    }

    pub fn set(&mut self, at: Instant, timer: T) {
        self.sequence += 1;
        self.entries.insert((at, self.sequence), timer);
    }

    pub fn cancel(&mut self, timer: &T) {
        self.entries.retain(|_, entry| entry != timer);
    }

    /// How long until the next one is due.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        self.entries.keys().next().map(|(at, _)| at.until(now))
    }

    /// Removes the next one that is due.
    pub fn pop(&mut self, now: Instant) -> Option<T> {
        let entry = self.entries.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order_when_they_are_due_and_not_when_they_were_cancelled() {
        let now = Instant::now();
        let at = |millis| now.after(Duration::from_millis(millis));
        let mut timers = Timers::new();
        assert_eq!(timers.wait(now), None);
        timers.set(at(20), "b");
        timers.set(at(10), "a");
        timers.set(at(10), "c");
        timers.set(at(5), "d");
        timers.cancel(&"d");
        assert_eq!(timers.wait(now), Some(Duration::from_millis(10)));
        assert_eq!(timers.pop(now), None);
        assert_eq!(
            (timers.pop(at(10)), timers.pop(at(10)), timers.pop(at(10))),
            (Some("a"), Some("c"), None)
        );
        assert_eq!(timers.wait(at(30)), Some(Duration::ZERO));
        assert_eq!(timers.pop(at(30)), Some("b"));
    }
}
