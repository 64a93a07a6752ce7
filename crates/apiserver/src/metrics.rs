//! Counters for `/metrics`.

use std::collections::BTreeMap;

use parking_lot::Mutex;

#[derive(Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<&'static str, u64>>,
}

impl Metrics {
    /// One more request with this verb.
    pub fn count(&self, verb: &'static str) {
        *self.requests.lock().entry(verb).or_default() += 1;
    }

    pub fn requests(&self) -> BTreeMap<&'static str, u64> {
        self.requests.lock().clone()
    }
}
