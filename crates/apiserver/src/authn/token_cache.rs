//! A cache of verified tokens: a request with a known token costs a hash instead of a signature check.
//!
//! Only the claims are cached, not the decision: expiration, audiences and bound objects are checked for each request. A
//! cache belongs to one set of keys, which cannot change.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::RwLock;
use ring::digest::{SHA256, digest};

/// The size of the cache in bytes of tokens: some 7,000 pods' tokens.
const BYTES_MAX: usize = 8 << 20;
/// The size of an entry in addition to the token's length.
const ENTRY_BYTES: usize = 256;

type Key = [u8; 32];

/// Claims `T` by the SHA-256 of their token. The oldest entries are evicted first.
pub(super) struct TokenCache<T> {
    entries: RwLock<Entries<T>>,
    bytes_max: usize,
}

struct Entries<T> {
    by_key: HashMap<Key, Arc<T>>,
    /// The keys, oldest first, with the size of their entry in bytes.
    order: VecDeque<(Key, usize)>,
    bytes: usize,
}

impl<T> Default for TokenCache<T> {
    fn default() -> Self {
        Self::with_limit(BYTES_MAX)
    }
}

impl<T> TokenCache<T> {
    fn with_limit(bytes_max: usize) -> Self {
        TokenCache {
            entries: RwLock::new(Entries {
                by_key: HashMap::new(),
                order: VecDeque::new(),
                bytes: 0,
            }),
            bytes_max,
        }
    }

    /// The claims of a token; `verify` is called if they are not cached. Rejected tokens are not cached.
    pub(super) fn get_or_verify(&self, token: &str, verify: impl FnOnce() -> Option<T>) -> Option<Arc<T>> {
        let mut key = Key::default();
        key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        if let Some(known) = self.entries.read().by_key.get(&key) {
            return Some(known.clone());
        }
        let claims = Arc::new(verify()?);
        let bytes = token.len() + ENTRY_BYTES;
        let mut entries = self.entries.write();
        if entries.by_key.insert(key, claims.clone()).is_none() {
            entries.order.push_back((key, bytes));
            entries.bytes += bytes;
        }
        while entries.bytes > self.bytes_max
            && let Some((oldest, bytes)) = entries.order.pop_front()
        {
            entries.by_key.remove(&oldest);
            entries.bytes -= bytes;
        }
        Some(claims)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_token_is_verified_once_and_the_oldest_is_evicted_first() {
        let tokens = TokenCache::with_limit(3 * (ENTRY_BYTES + 1));
        let verified = Cell::new(0);
        let get = |token: &str| {
            let claims = tokens.get_or_verify(token, || {
                verified.set(verified.get() + 1);
                (token != "x").then(|| token.to_string())
            });
            claims.map(|claims| claims.to_string())
        };
        for _ in 0..2 {
            for token in ["a", "b", "c"] {
                assert_eq!(get(token).as_deref(), Some(token));
            }
        }
        assert_eq!(verified.get(), 3);
        assert_eq!((get("x"), get("x")), (None, None));
        assert_eq!(verified.get(), 5);
        // A fourth entry evicts the first.
        get("d");
        get("b");
        get("c");
        assert_eq!(verified.get(), 6);
        get("a");
        assert_eq!(verified.get(), 7);
        assert_eq!(tokens.entries.read().order.len(), 3);
        assert_eq!(tokens.entries.read().bytes, 3 * (ENTRY_BYTES + 1));
    }

    #[test]
    fn a_token_larger_than_the_cache_is_not_cached() {
        let tokens = TokenCache::with_limit(ENTRY_BYTES);
        assert!(tokens.get_or_verify("a", || Some(())).is_some());
        assert!(tokens.entries.read().by_key.is_empty());
    }
}
