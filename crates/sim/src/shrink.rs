//! Reduces a broken history: fewer steps, nodes and features, in less time, with the same rule broken.
//!
//! Delta debugging (Zeller and Hildebrandt, 2002) over what is left out: halves first, then smaller parts. The result
//! depends on the order in which parts are tried, not on the number of threads.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use crate::script::{Reduction, Script};
use crate::simulation::{EPOCH, Report, Simulation};
use crate::switches::{Class, Switch, Switches};

/// The time limit.
pub struct Limits<'a> {
    /// The most histories that are run.
    pub runs: u32,
    pub threads: usize,
    /// Checked before each batch of runs.
    pub go_on: &'a dyn Fn() -> bool,
    /// Progress, a line at a time.
    pub report: &'a dyn Fn(&str),
}

/// The result.
pub struct Shrunk {
    pub reduction: Reduction,
    /// The report of the reduced history, with its story.
    pub report: Report,
    /// Steps before the rule was broken, in the original and in the reduced history.
    pub steps: (usize, usize),
    pub nodes: (usize, usize),
    pub runs: u32,
    /// Nothing more could be left out before a limit was reached.
    pub finished: bool,
}

/// The smallest history found that breaks the rule that `simulation` breaks first; none if it breaks none.
pub fn shrink(simulation: &Simulation, limits: &Limits<'_>) -> io::Result<Option<Shrunk>> {
    let first = simulation.clone().run()?;
    let Some(rule) = first.violation.as_ref().map(|v| v.rule) else {
        return Ok(None);
    };
    let mut search = Search {
        simulation,
        limits,
        rule,
        script: Arc::new(first.script.clone()),
        reduction: Reduction::default(),
        best: first,
        runs: 1,
        spent: false,
    };
    search.leave_out_what_came_later();
    let steps = search.kept().len();
    let nodes = search.best.nodes;
    (limits.report)(&format!("{rule} broken after {steps} steps on {nodes} nodes"));
    loop {
        let before = search.reduction.clone();
        search.fewer_nodes()?;
        search.fewer_switches()?;
        search.fewer_steps()?;
        search.end_sooner()?;
        // What one of them leaves out may let another one leave out more.
        if search.reduction == before || search.spent {
            break;
        }
    }
    let reduction = search.reduction.clone();
    let report = search.reduced(&reduction).story().run()?;
    if report.violation.as_ref().map(|v| v.rule) != Some(rule) {
        return Err(io::Error::other(
            "the same history was another when its story was recorded",
        ));
    }
    Ok(Some(Shrunk {
        steps: (steps, search.kept().len()),
        nodes: (nodes, report.nodes),
        reduction,
        report,
        runs: search.runs,
        finished: !search.spent,
    }))
}

struct Search<'a> {
    simulation: &'a Simulation,
    limits: &'a Limits<'a>,
    rule: &'static str,
    script: Arc<Script>,
    reduction: Reduction,
    /// The report of the reduced history.
    best: Report,
    runs: u32,
    spent: bool,
}

impl Search<'_> {
    fn reduced(&self, reduction: &Reduction) -> Simulation {
        self.simulation
            .clone()
            .replay(self.script.clone(), reduction.clone())
    }

    /// When the rule was broken, since the beginning of the history.
    fn broken_at(&self) -> Duration {
        let epoch: Timestamp = EPOCH.parse().unwrap_or_default();
        let at = self.best.violation.as_ref().map_or(epoch, |v| v.at);
        at.duration_since(epoch).unsigned_abs()
    }

    /// The numbers of the steps that are done.
    fn kept(&self) -> Vec<u32> {
        let until = self.reduction.until.unwrap_or(Duration::MAX);
        let numbered = (1..).zip(&self.script.steps);
        numbered
            .filter(|(number, step)| step.at <= until && !self.reduction.skip.has(*number))
            .map(|(number, _)| number)
            .collect()
    }

    /// None of them was done: the history stays the same.
    fn leave_out_what_came_later(&mut self) {
        let broken = Duration::from_secs(self.broken_at().as_secs() + 1);
        let until = self.reduction.until.unwrap_or(self.script.ended);
        if broken < until {
            self.reduction.until = Some(broken);
        }
    }

    /// The index of the first of these that breaks the rule.
    fn first_broken(&mut self, candidates: Vec<Reduction>) -> io::Result<Option<usize>> {
        let threads = self.limits.threads.max(1);
        for (batch, reductions) in candidates.chunks(threads).enumerate() {
            if self.runs >= self.limits.runs || !(self.limits.go_on)() {
                self.spent = true;
                return Ok(None);
            }
            let simulations: Vec<_> = reductions.iter().map(|r| self.reduced(r)).collect();
            let reports = std::thread::scope(|scope| {
                let runs: Vec<_> = simulations
                    .into_iter()
                    .map(|simulation| scope.spawn(move || simulation.run()))
                    .collect();
                let reports: Vec<_> = runs.into_iter().map(|run| run.join()).collect();
                reports
            });
            for (place, report) in reports.into_iter().enumerate() {
                self.runs += 1;
                let report = report.map_err(|_| io::Error::other("a history ended in a panic"))?;
                // A history in which a user is denied something because of what was left out does not count.
                let Ok(report) = report else { continue };
                let broken = report.violation.as_ref().map(|v| v.rule);
                if broken == Some(self.rule) {
                    self.reduction = reductions[place].clone();
                    self.best = report;
                    self.leave_out_what_came_later();
                    (self.limits.report)(&format!(
                        "{} steps on {} nodes, broken after {} s ({} runs)",
                        self.kept().len(),
                        self.best.nodes,
                        self.broken_at().as_secs(),
                        self.runs
                    ));
                    return Ok(Some(batch * threads + place));
                }
            }
        }
        Ok(None)
    }

    fn fewer_nodes(&mut self) -> io::Result<()> {
        let fewer = (1..self.best.nodes).map(|nodes| Reduction {
            nodes: Some(nodes),
            ..self.reduction.clone()
        });
        self.first_broken(fewer.collect()).map(drop)
    }

    /// Leaves out as many of these as possible: all, halves, quarters, down to single ones.
    fn fewer<T: Copy>(
        &mut self,
        mut kept: Vec<T>,
        leave_out: impl Fn(&Reduction, &[T]) -> Reduction,
    ) -> io::Result<()> {
        let mut size = kept.len();
        while size > 0 && !self.spent {
            let mut from = 0;
            while from < kept.len() {
                let parts = kept[from..].chunks(size);
                let candidates = parts.map(|part| leave_out(&self.reduction, part)).collect();
                let Some(place) = self.first_broken(candidates)? else {
                    break;
                };
                from += place * size;
                kept.drain(from..kept.len().min(from + size));
            }
            size /= 2;
        }
        Ok(())
    }

    fn fewer_switches(&mut self) -> io::Result<()> {
        let on = self.best.switches.iter();
        let states = |switch: &Switch| matches!(switch.class(), Class::Feature | Class::ErrorRate);
        let on: Vec<Switch> = on.filter(states).collect();
        self.fewer(on, |reduction, part| {
            let without: Switches = reduction.without.iter().chain(part.iter().copied()).collect();
            Reduction {
                without,
                ..reduction.clone()
            }
        })
    }

    fn fewer_steps(&mut self) -> io::Result<()> {
        let kept = self.kept();
        self.fewer(kept, |reduction, part| Reduction {
            skip: reduction.skip.iter().chain(part.iter().copied()).collect(),
            ..reduction.clone()
        })
    }

    /// What is broken after the faults may be broken as well if they end sooner.
    fn end_sooner(&mut self) -> io::Result<()> {
        let last = self.kept().last().copied().unwrap_or_default();
        let last = usize::try_from(last).unwrap_or_default().checked_sub(1);
        let last = last.and_then(|place| self.script.steps.get(place));
        let last = last.map_or(Duration::ZERO, |step| step.at);
        let until = Duration::from_secs(last.as_secs() + 1);
        if until >= self.reduction.until.unwrap_or(self.script.ended) {
            return Ok(());
        }
        let sooner = Reduction {
            until: Some(until),
            ..self.reduction.clone()
        };
        self.first_broken(vec![sooner]).map(drop)
    }
}
