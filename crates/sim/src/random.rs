//! Randomness, all of it from one seed: one stream per entity, so that a new draw of one shifts no other's.

use std::convert::Infallible;

use knarr_apiserver::seams::Entropy;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng, TryRng};

/// The stream of `entity` under `seed`.
pub(crate) fn stream(seed: u64, entity: &str) -> Stream {
    // FNV-1a over the name: stable between builds, which the standard library's hashers are not.
    let mut name = 0xcbf2_9ce4_8422_2325_u64;
    for byte in entity.bytes() {
        name = (name ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&name.to_le_bytes());
    Stream(Counted {
        inner: StdRng::from_seed(key),
        key,
        words: 0,
    })
}

pub(crate) struct Stream(Counted);

/// A generator that counts its output.
struct Counted {
    inner: StdRng,
    key: [u8; 32],
    /// How many 32-bit words were taken so far.
    words: u64,
}

impl TryRng for Counted {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.words += 1;
        self.inner.try_next_u32()
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.words += 2;
        self.inner.try_next_u64()
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.words += u64::try_from(bytes.len().div_ceil(4)).unwrap_or_default();
        self.inner.try_fill_bytes(bytes)
    }
}

impl Stream {
    /// The position, for [`Stream::go_to`].
    pub fn position(&self) -> u64 {
        self.0.words
    }

    /// From now on draws what was drawn after this position.
    pub fn go_to(&mut self, position: u64) {
        let counted = &mut self.0;
        if counted.words > position {
            (counted.inner, counted.words) = (StdRng::from_seed(counted.key), 0);
        }
        while counted.words < position {
            counted.words += 1;
            counted.inner.next_u32();
        }
    }

    /// One of these by their weights, among those that `can` allows.
    pub fn weighted<T: Copy>(&mut self, from: &[(T, u64)], can: impl Fn(T) -> bool) -> Option<T> {
        let open: Vec<_> = from.iter().filter(|(one, _)| can(*one)).collect();
        let all: u64 = open.iter().map(|(_, weight)| weight).sum();
        if all == 0 {
            return None;
        }
        let mut left = self.between(0, all - 1);
        for (one, weight) in open {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return Some(*one),
            }
        }
        None
    }

    /// Between `low` and `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high.max(low))
    }

    pub fn millis(&mut self, low: u64, high: u64) -> std::time::Duration {
        std::time::Duration::from_millis(self.between(low, high))
    }

    /// True with this probability, per mille.
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

/// The random source of an API server.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_is_put_back_draws_the_same_again() {
        let mut chance = stream(7, "test");
        let mut drawn = Vec::new();
        for n in 0..500_u64 {
            let position = chance.position();
            // Of both widths, so that some straddle a block of the generator.
            let (small, one) = (chance.per_mille(500), chance.between(0, n));
            let picked = chance.pick(&[1, 2, 3]).copied();
            drawn.push((position, n, small, one, picked));
        }
        for (position, n, small, one, picked) in drawn.into_iter().rev() {
            chance.go_to(position);
            let again = (
                chance.per_mille(500),
                chance.between(0, n),
                chance.pick(&[1, 2, 3]).copied(),
            );
            assert_eq!(again, (small, one, picked), "at {position}");
        }
    }

    #[test]
    fn what_cannot_be_drawn_leaves_its_weight_to_the_others() {
        let mut chance = stream(7, "test");
        let table = [("a", 10), ("b", 1), ("c", 5)];
        let drawn: Vec<_> = (0..200)
            .map(|_| chance.weighted(&table, |one| one != "a"))
            .collect();
        assert!(drawn.contains(&Some("b")) && drawn.contains(&Some("c")));
        assert!(!drawn.contains(&Some("a")) && !drawn.contains(&None));
        assert_eq!(chance.weighted(&table, |_| false), None);
    }
}
