//! The outside world of the server: wall clock and randomness, passed to its constructor.
//!
//! A simulation passes its own; the server is then a function of its requests. Timers are `tokio::time`'s and need no seam.

use rand::TryRng;

pub use knarr_client::{Clock, SystemClock};

/// Random bytes.
pub trait Entropy: Send + Sync + 'static {
    fn fill(&self, bytes: &mut [u8]);
}

/// The operating system's generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        if let Err(e) = rand::rngs::SysRng.try_fill_bytes(bytes) {
            // Without it uids would repeat; on Linux it never fails after boot.
            unreachable!("the system's random generator failed: {e}");
        }
    }
}

/// A fresh uid (UUID version 4).
pub(crate) fn uid(entropy: &dyn Entropy) -> String {
    let mut bytes = [0; 16];
    entropy.fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

/// Longest prefix of a generated name: 63 less the suffix, as names may become labels.
const GENERATED_PREFIX_MAX: usize = 58;
/// No vowels and no characters that are easily confused, so that no words result.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A name from `generateName`: the prefix and five random characters.
pub(crate) fn generated_name(entropy: &dyn Entropy, prefix: &str) -> String {
    let mut end = prefix.len().min(GENERATED_PREFIX_MAX);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = [0; 5];
    entropy.fill(&mut bytes);
    let suffix = bytes
        .iter()
        .map(|b| char::from(SUFFIX_ALPHABET[usize::from(*b) % SUFFIX_ALPHABET.len()]));
    prefix[..end].chars().chain(suffix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Zeroes;
    impl Entropy for Zeroes {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(0);
        }
    }

    #[test]
    fn a_generated_name_keeps_58_bytes_of_its_prefix() {
        assert_eq!(generated_name(&Zeroes, "web-"), "web-bbbbb");
        assert_eq!(generated_name(&Zeroes, &"x".repeat(90)).len(), 63);
        assert_eq!(
            generated_name(&Zeroes, &"é".repeat(40)),
            format!("{}bbbbb", "é".repeat(29))
        );
    }
}
