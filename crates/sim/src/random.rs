//! Chance, all of it from one seed: one stream per entity, so that a new draw of one shifts no other's.

use knarr_apiserver::seams::Entropy;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

/// The stream of `entity` under `seed`.
pub(crate) fn stream(seed: u64, entity: &str) -> Stream {
    // FNV-1a over the name: stable between builds, which the standard library's hashers do not promise.
    let mut name = 0xcbf2_9ce4_8422_2325_u64;
    for byte in entity.bytes() {
        name = (name ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&name.to_le_bytes());
    Stream(StdRng::from_seed(key))
}

pub(crate) struct Stream(StdRng);

impl Stream {
    /// From `low` up to and including `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high.max(low))
    }

    pub fn millis(&mut self, low: u64, high: u64) -> std::time::Duration {
        std::time::Duration::from_millis(self.between(low, high))
    }

    /// True in so many of a thousand cases.
    pub fn per_mille(&mut self, chance: u32) -> bool {
        self.0.random_range(0..1000) < chance
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() {
            return None;
        }
        from.get(self.0.random_range(0..from.len()))
    }
}

/// An API server's.
pub(crate) struct SeededEntropy(Mutex<Stream>);

impl SeededEntropy {
    pub fn new(seed: u64, entity: &str) -> Self {
        SeededEntropy(Mutex::new(stream(seed, entity)))
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().0.fill_bytes(bytes);
    }
}
