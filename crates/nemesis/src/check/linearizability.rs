//! Reads and writes of one register are linearizable: there is an order of them, each at a moment between its request and its
//! response, in which each has the response of a register. A write without a response may have happened at any time after its
//! request, or never. A history in which an acknowledged write is lost has no such order either.
//!
//! The search is Wing and Gong's with Lowe's cache of visited states ("Testing for linearizability", 2017). It stays short
//! because a version's resourceVersion only grows, writes are unique, and reads that match are ordered at once.

use std::collections::{BTreeMap, HashSet};

use super::Violation;
use crate::history::{Call, CallResult, Micros, Operation, Version};

const RULE: &str = "linearizability";
/// Orders that are tried for one register before its history counts as undecided. A register has some hundred calls, and a
/// history that is linearizable is found to be after about as many steps.
const STEPS: usize = 200_000;

/// What a check results in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    Violated(Violation),
    /// Too many orders: too many writes had no response.
    Undecided,
}

/// A register: absent, or a version, whose revision is not known if its write had no response and was never seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Register {
    /// The highest revision so far; those of a register only grow, also when it is deleted and created again.
    revision: u64,
    current: Option<Current>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Current {
    Known(Version),
    /// Of a write that was never seen; which one it was makes no difference.
    Unseen,
}

impl Register {
    const ABSENT: Register = Register {
        revision: 0,
        current: None,
    };

    /// The register after this call, if the result is possible for it.
    fn after(self, call: &Call) -> Option<Register> {
        let exists = self.current.is_some();
        let same = |holds: bool| holds.then_some(self);
        let absent = Register {
            current: None,
            ..self
        };
        let expected =
            |revision: u64| matches!(self.current, Some(Current::Known(v)) if v.revision == revision);
        let may_write = match call.operation {
            Operation::Create { .. } => !exists,
            Operation::Update { expected: e, .. } => expected(e),
            Operation::Patch { .. } | Operation::Delete => exists,
            Operation::Get => true,
        };
        match (&call.answer, call.operation) {
            (CallResult::Ok(Some(v)), Operation::Get) => same(self.current == Some(Current::Known(*v))),
            (CallResult::Ok(_), Operation::Delete) | (CallResult::Unknown(_), Operation::Delete) => {
                may_write.then_some(absent)
            }
            (CallResult::Ok(Some(v)), _) => (may_write && v.revision > self.revision).then_some(Register {
                revision: v.revision,
                current: Some(Current::Known(*v)),
            }),
            (
                CallResult::Unknown(_),
                Operation::Create { .. } | Operation::Update { .. } | Operation::Patch { .. },
            ) => may_write.then_some(Register {
                current: Some(Current::Unseen),
                ..self
            }),
            (CallResult::NotFound, _) => same(!exists),
            (CallResult::AlreadyExists, _) => same(exists),
            (CallResult::Conflict, Operation::Update { expected: e, .. }) => same(exists && !expected(e)),
            // Nothing follows from the other results; `is_relevant` leaves them out.
            _ => Some(self),
        }
    }
}

/// Whether something about the register follows from the call; [`Register::after`] is defined for these.
fn is_relevant(call: &Call) -> bool {
    match (&call.answer, call.operation) {
        (CallResult::Rejected(_), _) | (CallResult::Unknown(_), Operation::Get) => false,
        // A patch or a deletion without a resourceVersion gave up after repeated conflicts.
        (CallResult::Conflict, operation) => matches!(operation, Operation::Update { .. }),
        (CallResult::Ok(None), operation) => operation == Operation::Delete,
        _ => true,
    }
}

struct Entry {
    call: Call,
    /// It has a response, or its effect was seen: it must be in the order.
    is_required: bool,
    /// The latest time at which it happened; unlimited for a write without a response.
    until: Micros,
}

/// Checks the calls of one register. `seen` has the revisions of writes that a reader or watcher has seen: such a write has
/// happened, with or without a response.
pub fn check(key: &str, calls: &[Call], seen: &BTreeMap<u64, u64>) -> Verdict {
    let mut entries: Vec<Entry> = calls
        .iter()
        .filter(|call| is_relevant(call))
        .map(|call| {
            let mut call = call.clone();
            let until = match call.answer {
                CallResult::Unknown(_) => Micros::MAX,
                _ => call.end,
            };
            if let (CallResult::Unknown(_), Some(write)) = (&call.answer, call.operation.write())
                && let Some(revision) = seen.get(&write)
            {
                let version = Version {
                    revision: *revision,
                    write,
                };
                call.answer = CallResult::Ok(Some(version));
            }
            let is_required = !matches!(call.answer, CallResult::Unknown(_));
            Entry {
                call,
                is_required,
                until,
            }
        })
        .collect();
    entries.sort_by_key(|e| e.call.start);
    Search::new(&entries).run(key)
}

/// A state of the search: which calls are ordered already, and the register after them.
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    ordered: Vec<u64>,
    register: Register,
}

impl State {
    fn has(&self, n: usize) -> bool {
        self.ordered[n / 64] & (1 << (n % 64)) != 0
    }

    fn add(&mut self, n: usize) {
        self.ordered[n / 64] |= 1 << (n % 64);
    }

    fn count(&self) -> u32 {
        self.ordered.iter().map(|word| word.count_ones()).sum()
    }
}

struct Search<'a> {
    entries: &'a [Entry],
    tried: HashSet<State>,
    /// The state with the longest order, for the report.
    furthest: Option<State>,
}

impl<'a> Search<'a> {
    fn new(entries: &'a [Entry]) -> Search<'a> {
        Search {
            entries,
            tried: HashSet::new(),
            furthest: None,
        }
    }

    /// Calls that may come next: those that are not preceded by another call that is not ordered yet.
    fn next<'b>(&'b self, node: &'b State) -> impl Iterator<Item = usize> + 'b {
        let open = move |n: &usize| !node.has(*n);
        let bound = (0..self.entries.len())
            .filter(open)
            .filter(|n| self.entries[*n].is_required)
            .map(|n| self.entries[n].until)
            .min()
            .unwrap_or(Micros::MAX);
        (0..self.entries.len())
            .take_while(move |n| self.entries[*n].call.start <= bound)
            .filter(open)
    }

    /// Orders at once every call that can come next and changes nothing: if there is an order, there is one with it here.
    fn settle(&self, node: &mut State) {
        loop {
            let fits = self.next(node).find(|n| {
                let entry = &self.entries[*n];
                entry.is_required && node.register.after(&entry.call) == Some(node.register)
            });
            match fits {
                Some(n) => node.add(n),
                None => return,
            }
        }
    }

    fn is_done(&self, node: &State) -> bool {
        (0..self.entries.len()).all(|n| node.has(n) || !self.entries[n].is_required)
    }

    /// Calls that change the register and may come next, with the register after each; the most promising is the last.
    ///
    /// Of writes that were never seen one of each operation is enough: they may happen at any later time, and which of them it
    /// was makes no difference.
    fn branches(&self, node: &State) -> Vec<(usize, Register)> {
        let mut unseen: Vec<Operation> = Vec::new();
        let mut branches = Vec::new();
        for n in self.next(node) {
            let entry = &self.entries[n];
            let Some(register) = node.register.after(&entry.call) else {
                continue;
            };
            if !entry.is_required {
                let kind = match entry.call.operation {
                    Operation::Create { .. } => Operation::Create { write: 0 },
                    Operation::Update { .. } | Operation::Patch { .. } => Operation::Patch { write: 0 },
                    other => other,
                };
                if register == node.register || unseen.contains(&kind) {
                    continue;
                }
                unseen.push(kind);
            }
            branches.push((n, register));
        }
        // Required calls last, and last of those the one that must happen soonest.
        branches.sort_by_key(|(n, _)| {
            let entry = &self.entries[*n];
            (entry.is_required, std::cmp::Reverse(entry.until))
        });
        branches
    }

    fn run(mut self, key: &str) -> Verdict {
        let mut first = State {
            ordered: vec![0; self.entries.len().div_ceil(64)],
            register: Register::ABSENT,
        };
        self.settle(&mut first);
        let mut open = vec![first];
        let mut steps = 0;
        while let Some(node) = open.pop() {
            if self.is_done(&node) {
                return Verdict::Linearizable;
            }
            steps += 1;
            if steps > STEPS {
                return Verdict::Undecided;
            }
            if self.furthest.as_ref().is_none_or(|f| f.count() < node.count()) {
                self.furthest = Some(node.clone());
            }
            for (n, register) in self.branches(&node) {
                let mut after = node.clone();
                after.add(n);
                after.register = register;
                self.settle(&mut after);
                if self.tried.insert(after.clone()) {
                    open.push(after);
                }
            }
        }
        Verdict::Violated(Violation::new(RULE, key, self.report()))
    }

    /// The register after the longest order, and the calls of which none can come next.
    fn report(&self) -> String {
        let Some(node) = &self.furthest else {
            return "no order".into();
        };
        let register = match node.register.current {
            None => "absent".to_string(),
            Some(Current::Unseen) => "of a write that was never seen".to_string(),
            Some(Current::Known(v)) => format!("write {} at revision {}", v.write, v.revision),
        };
        let stuck: Vec<String> = self
            .next(node)
            .filter(|n| self.entries[*n].is_required)
            .map(|n| {
                let call = &self.entries[n].call;
                format!(
                    "{} at {}: {:?} -> {:?} ({}..{})",
                    call.client, call.server, call.operation, call.answer, call.start, call.end
                )
            })
            .collect();
        format!(
            "no order explains its {} calls: after {} of them the register is {register}, and none of these can be next: {}",
            self.entries.len(),
            node.count(),
            stuck.join("; ")
        )
    }
}

#[cfg(test)]
mod tests;
