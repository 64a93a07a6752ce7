//! Answers of upstream servers, for their TTL. Bounded in bytes: the least recently used entry is evicted first.
//!
//! Nothing is served that is older than it may be.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use knarr_network::dns::cached::{Question, Reply};
use tokio::time::Instant;

/// The bytes of an entry in addition to its answer and its name (stored twice).
const ENTRY_BYTES: usize = 240;

struct Entry {
    reply: Arc<Reply>,
    since: Instant,
    used: u64,
    bytes: usize,
}

/// See the module.
pub struct Cache {
    entries: HashMap<Question, Entry>,
    /// By when they were last used.
    order: BTreeMap<u64, Question>,
    clock: u64,
    bytes: usize,
    bytes_max: usize,
}

impl Cache {
    pub fn new(bytes_max: usize) -> Self {
        Cache {
            entries: HashMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            bytes: 0,
            bytes_max,
        }
    }

    /// The answer and its age in seconds.
    pub fn get(&mut self, question: &Question, now: Instant) -> Option<(Arc<Reply>, u32)> {
        let entry = self.entries.get_mut(question)?;
        let age = now.saturating_duration_since(entry.since);
        if age >= Duration::from_secs(u64::from(entry.reply.lifetime_seconds)) {
            self.remove(question);
            return None;
        }
        if let Some(question) = self.order.remove(&entry.used) {
            self.clock += 1;
            entry.used = self.clock;
            self.order.insert(self.clock, question);
        }
        Some((
            entry.reply.clone(),
            u32::try_from(age.as_secs()).unwrap_or(u32::MAX),
        ))
    }

    pub fn insert(&mut self, question: Question, reply: Arc<Reply>, now: Instant) {
        self.remove(&question);
        let bytes = ENTRY_BYTES + 2 * question.name.wire_bytes() + reply.bytes();
        if reply.lifetime_seconds == 0 || bytes > self.bytes_max {
            return;
        }
        while self.bytes + bytes > self.bytes_max {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            self.remove(&oldest);
        }
        self.clock += 1;
        self.bytes += bytes;
        self.order.insert(self.clock, question.clone());
        let entry = Entry {
            reply,
            since: now,
            used: self.clock,
            bytes,
        };
        self.entries.insert(question, entry);
    }

    fn remove(&mut self, question: &Question) {
        if let Some(entry) = self.entries.remove(question) {
            self.order.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }

    pub fn clear(&mut self) {
        *self = Cache::new(self.bytes_max);
    }

    /// Entries with answers, and those without.
    pub fn counts(&self) -> (usize, usize) {
        let positive = self.entries.values().filter(|e| e.reply.has_answers()).count();
        (positive, self.entries.len() - positive)
    }
}

#[cfg(test)]
mod tests {
    use knarr_network::dns::name::Name;

    use super::*;

    fn question(n: u32) -> Question {
        Question {
            name: Name::parse(&format!("n{n}.example")).unwrap(),
            record_type: 1,
            dnssec_ok: false,
            checking_disabled: false,
        }
    }

    /// A denial that may be kept for this long.
    fn reply(question: &Question, seconds: u32) -> Arc<Reply> {
        let mut bytes = question.message(1);
        bytes[2] |= 0x80;
        bytes[3] = 3;
        bytes[9] = 1;
        bytes[11] = 0;
        bytes.truncate(bytes.len() - 11);
        bytes.extend([0, 0, 6, 0, 1]);
        bytes.extend(seconds.to_be_bytes());
        bytes.extend([0, 22, 0, 0]);
        bytes.extend([0; 16]);
        bytes.extend(seconds.to_be_bytes());
        Arc::new(Reply::read(&bytes, question, 1).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn n5_the_cache_keeps_recent_answers_within_its_bytes_and_none_too_long() {
        let mut cache = Cache::new(5000);
        for n in 0..100 {
            let q = question(n);
            cache.insert(q.clone(), reply(&q, 20), Instant::now());
            assert!(cache.get(&question(0), Instant::now()).is_some(), "in use");
            assert!(cache.bytes <= 5000);
        }
        assert!(cache.get(&question(1), Instant::now()).is_none());
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(
            cache.get(&question(0), Instant::now()).map(|(_, age)| age),
            Some(7)
        );
        tokio::time::advance(Duration::from_secs(13)).await;
        assert!(cache.get(&question(0), Instant::now()).is_none());
        let q = question(5);
        cache.insert(q.clone(), reply(&q, 0), Instant::now());
        assert!(cache.get(&q, Instant::now()).is_none());
        assert_eq!(cache.order.len(), cache.entries.len());
        cache.clear();
        assert_eq!((cache.bytes, cache.counts()), (0, (0, 0)));
    }
}
