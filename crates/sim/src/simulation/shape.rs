//! The cluster that a seed describes: its size, its pace and how long it is observed.

use std::time::Duration;

use super::Pace;
use crate::faults::FaultLengths;
use crate::random::{Stream, stream};
use crate::world::WITHOUT_LEASE;

/// Histories of [`Pace::Slow`] among those whose pace is drawn, per mille.
const SLOW_PER_MILLE: u32 = 300;

const HOUR_MILLIS: u64 = 3_600_000;

/// Histories with rare faults, unless an option says so, per mille.
const WITH_RARE_PER_MILLE: u32 = 300;

/// The cluster that a seed describes.
pub(super) struct ClusterShape {
    pub(super) nodes: usize,
    pub(super) servers: usize,
    pub(super) controls: Vec<(&'static str, bool)>,
    pub(super) troubled: Duration,
    /// The longest pause between two events of users or faults.
    pub(super) pause_millis: u64,
    pub(super) lengths: FaultLengths,
    /// Also rare faults.
    pub(super) rare: bool,
    /// How long it is observed after the desired state is reached.
    pub(super) rest: Duration,
}

impl ClusterShape {
    pub(super) fn draw_at(pace: Option<Pace>, seed: u64, chance: &mut Stream) -> Self {
        let mut shape = ClusterShape::draw(chance);
        shape.rare = stream(seed, "rare").per_mille(WITH_RARE_PER_MILLE);
        // A stream of its own, so that dense histories stay as they were.
        let mut chance = stream(seed, "pace");
        let drawn = match chance.per_mille(SLOW_PER_MILLE) {
            true => Pace::Slow,
            false => Pace::Dense,
        };
        match pace.unwrap_or(drawn) {
            Pace::Dense => shape,
            Pace::Slow => ClusterShape {
                troubled: chance.millis(HOUR_MILLIS / 2, 8 * HOUR_MILLIS),
                pause_millis: match chance.between(0, 2) {
                    0 => 60_000,
                    1 => 240_000,
                    _ => 900_000,
                },
                lengths: FaultLengths::Minutes,
                rest: chance.millis(HOUR_MILLIS / 6, HOUR_MILLIS),
                // Fifty nodes for hours would cost too much.
                nodes: shape.nodes.min(8),
                ..shape
            },
        }
    }

    fn draw(chance: &mut Stream) -> Self {
        let nodes = match chance.between(0, 99) {
            0..70 => 3,
            70..92 => chance.between(4, 8),
            92..99 => chance.between(9, 20),
            _ => chance.between(21, 50),
        };
        let servers = match chance.between(0, 9) {
            0..5 => 1,
            5..8 => 2,
            _ => 3,
        };
        let mut controls = vec![("control-a", true)];
        if chance.per_mille(600) {
            controls.push(("control-b", true));
        }
        if chance.per_mille(250) {
            controls.push((WITHOUT_LEASE, false));
        }
        ClusterShape {
            nodes: usize::try_from(nodes).unwrap_or(3),
            servers,
            controls,
            troubled: chance.millis(60_000, 240_000),
            pause_millis: match chance.between(0, 2) {
                0 => 1_500,
                1 => 4_000,
                _ => 12_000,
            },
            lengths: FaultLengths::Seconds,
            rare: false,
            rest: Duration::ZERO,
        }
    }
}
