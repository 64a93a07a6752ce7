//! Counters for `/metrics`.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// What else in the process has something to show, in Prometheus' text form.
type Source = Box<dyn Fn() -> String + Send + Sync>;

#[derive(Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<&'static str, u64>>,
    others: Mutex<Vec<Source>>,
}

impl Metrics {
    /// One more request with this verb.
    pub fn count(&self, verb: &'static str) {
        *self.requests.lock().entry(verb).or_default() += 1;
    }

    pub fn show(&self, source: Source) {
        self.others.lock().push(source);
    }

    pub fn others(&self) -> String {
        self.others.lock().iter().map(|source| source()).collect()
    }

    pub fn requests(&self) -> BTreeMap<&'static str, u64> {
        self.requests.lock().clone()
    }
}
