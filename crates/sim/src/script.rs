//! What users and faults did in a history, step by step, so that it can be replayed with some of it left out.
//!
//! A script holds no effects: for each step it has its time, its kind and the position of each random stream. A step
//! that is left out therefore shifts no other step's draws, though their effects may differ.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::switches::Switches;

/// The most steps that a list on the command line may name: more than any history has.
const MOST_STEPS: u32 = 1_000_000;

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Users,
    Fault,
    RareFault,
    /// Users do something with a node.
    NodeUsers,
    /// Administrators try to create their FencingPolicy.
    FencingPolicy,
    LostNode,
    Fencing,
    Disks,
    Policies,
    Room,
    Store,
    Volumes,
    StagingCrash,
    EndpointEnds,
    Quotas,
    CustomResources,
    /// Users do something in the namespace of knarr's own placement.
    Placement,
    /// A zone loses all its nodes.
    Zone,
    /// One more process is replaced by one of this version.
    Upgrade,
    /// The next preemption across nodes is interrupted.
    PreemptionCrash,
}

/// The position of each stream that a step may draw from, when the step began.
pub(crate) type Positions = [u64; 16];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Since the beginning of the history.
    pub at: Duration,
    pub turn: Turn,
    pub positions: Positions,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub(crate) steps: Vec<Step>,
    /// When the faults ended, or the first rule was broken.
    pub(crate) ended: Duration,
}

impl Script {
    /// The number of steps. The first is number 1.
    pub fn len(&self) -> u32 {
        u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

/// Some steps by their numbers: `3,7-20`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps(BTreeSet<u32>);

impl Steps {
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    pub fn has(&self, step: u32) -> bool {
        self.0.contains(&step)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<u32> for Steps {
    fn from_iter<I: IntoIterator<Item = u32>>(steps: I) -> Self {
        Steps(steps.into_iter().collect())
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for step in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *step => *last = *step,
                _ => ranges.push((*step, *step)),
            }
        }
        let shown = ranges.iter().map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        f.write_str(&shown.collect::<Vec<_>>().join(","))
    }
}

/// The part of a list that is no number and no range of numbers.
#[derive(Debug, thiserror::Error)]
#[error("expected numbers of steps such as 3,7-20; found {0:?}")]
pub struct InvalidSteps(String);

impl FromStr for Steps {
    type Err = InvalidSteps;

    fn from_str(text: &str) -> Result<Self, InvalidSteps> {
        let bad = |part: &str| InvalidSteps(part.to_string());
        let mut steps = BTreeSet::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<u32>().map_err(|_| bad(part));
            let (first, last) = (number(first)?, number(last)?);
            if first == 0 || first > last || last > MOST_STEPS {
                return Err(bad(part));
            }
            steps.extend(first..=last);
        }
        Ok(Steps(steps))
    }
}

/// What is left out of a history that is replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reduction {
    pub skip: Steps,
    /// Switches that are suppressed although the history has them.
    pub without: Switches,
    /// At most so many nodes: the others do not exist.
    pub nodes: Option<usize>,
    /// When the faults end at the latest, since the beginning of the history.
    pub until: Option<Duration>,
}

impl Reduction {
    pub fn is_empty(&self) -> bool {
        *self == Reduction::default()
    }
}

/// As flags of `knarr-sim`, each with a leading space.
impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.skip.is_empty() {
            write!(f, " --skip {}", self.skip)?;
        }
        if !self.without.is_empty() {
            write!(f, " --without {}", self.without)?;
        }
        if let Some(nodes) = self.nodes {
            write!(f, " --keep-nodes {nodes}")?;
        }
        if let Some(until) = self.until {
            write!(f, " --until {}", until.as_secs())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn steps_are_read_and_written_as_ranges() {
        for (text, written) in [
            ("", ""),
            ("3", "3"),
            ("3,7-20", "3,7-20"),
            ("9, 7,8,3", "3,7-9"),
            ("1-2,2-3", "1-3"),
        ] {
            assert_eq!(text.parse::<Steps>().unwrap().to_string(), written, "{text:?}");
        }
        for text in ["0", "x", "3-", "-3", "20-7", "1-4000000000", "1.5"] {
            assert!(text.parse::<Steps>().is_err(), "{text:?}");
        }
    }
}
