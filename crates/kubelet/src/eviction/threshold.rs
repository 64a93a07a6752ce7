//! Signals and thresholds (`evictionHard`, `evictionSoft`, `evictionSoftGracePeriod`, `evictionMinimumReclaim`).

use std::collections::BTreeMap;

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_apimachinery::duration;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::quantity::{Notation, Quantity, QuantityError};

use super::{Observation, Observations, Pressure};

/// An eviction signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    MemoryAvailable,
    /// The available memory of the cgroup of all pods.
    AllocatableMemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    ContainerFsAvailable,
    ContainerFsInodesFree,
    PidAvailable,
}

impl Signal {
    pub const ALL: [Signal; 9] = [
        Signal::MemoryAvailable,
        Signal::AllocatableMemoryAvailable,
        Signal::NodeFsAvailable,
        Signal::NodeFsInodesFree,
        Signal::ImageFsAvailable,
        Signal::ImageFsInodesFree,
        Signal::ContainerFsAvailable,
        Signal::ContainerFsInodesFree,
        Signal::PidAvailable,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Signal::MemoryAvailable => "memory.available",
            Signal::AllocatableMemoryAvailable => "allocatableMemory.available",
            Signal::NodeFsAvailable => "nodefs.available",
            Signal::NodeFsInodesFree => "nodefs.inodesFree",
            Signal::ImageFsAvailable => "imagefs.available",
            Signal::ImageFsInodesFree => "imagefs.inodesFree",
            Signal::ContainerFsAvailable => "containerfs.available",
            Signal::ContainerFsInodesFree => "containerfs.inodesFree",
            Signal::PidAvailable => "pid.available",
        }
    }

    pub fn parse(name: &str) -> Option<Signal> {
        Signal::ALL.into_iter().find(|signal| signal.name() == name)
    }

    pub fn pressure(self) -> Pressure {
        match self {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => Pressure::Memory,
            Signal::PidAvailable => Pressure::Pid,
            _ => Pressure::Disk,
        }
    }

    /// The resource that is reclaimed, as in messages.
    pub fn resource(self) -> &'static str {
        match self {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => "memory",
            Signal::NodeFsAvailable | Signal::ImageFsAvailable | Signal::ContainerFsAvailable => {
                "ephemeral-storage"
            }
            Signal::NodeFsInodesFree | Signal::ImageFsInodesFree | Signal::ContainerFsInodesFree => "inodes",
            Signal::PidAvailable => "pids",
        }
    }

    /// The notation of its amounts.
    pub fn notation(self) -> Notation {
        match self.resource() {
            "memory" | "ephemeral-storage" => Notation::BinarySi,
            _ => Notation::DecimalSi,
        }
    }
}

/// A threshold's value: an amount, or a percentage of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Quantity(Quantity),
    /// From 0 to 1.
    Share(f32),
}

impl Value {
    pub fn of(&self, capacity: i64) -> Quantity {
        match self {
            Value::Quantity(quantity) => *quantity,
            Value::Share(share) => {
                let amount = capacity as f64 * f64::from(*share);
                Quantity::from_value(amount as i64, Notation::BinarySi)
            }
        }
    }
}

/// A threshold: it is met when less than `value` is available for `grace_period`.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub value: Value,
    /// Zero for hard thresholds.
    pub grace_period: SignedDuration,
    /// The amount above the threshold that has to be available again.
    pub min_reclaim: Option<Value>,
}

impl Threshold {
    pub fn is_hard(&self) -> bool {
        self.grace_period.is_zero()
    }

    /// The threshold as an amount.
    pub fn quantity(&self, seen: &Observation) -> Quantity {
        self.value.of(seen.capacity)
    }
}

/// The thresholds that are met.
pub fn crossed(thresholds: &[Threshold], seen: &Observations, enforce_min_reclaim: bool) -> Vec<Threshold> {
    let is_crossed = |threshold: &&Threshold| {
        let Some(seen) = seen.get(&threshold.signal) else {
            return false;
        };
        let mut required = threshold.quantity(seen);
        if let (true, Some(more)) = (enforce_min_reclaim, &threshold.min_reclaim) {
            required += more.of(seen.capacity);
        }
        required > Quantity::from_value(seen.available, Notation::BinarySi)
    };
    thresholds.iter().filter(is_crossed).cloned().collect()
}

/// The default of `evictionHard`.
pub const DEFAULT_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// The thresholds of a kubelet without a configuration file.
pub fn defaults() -> Vec<Threshold> {
    let hard = DEFAULT_HARD.map(|(signal, value)| (signal.to_string(), value.to_string()));
    let statements = ThresholdFields {
        hard: hard.into_iter().collect(),
        ..ThresholdFields::default()
    };
    parse(&statements, true, &mut ErrorList::new())
}

/// The four fields of the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThresholdFields {
    pub hard: BTreeMap<String, String>,
    pub soft: BTreeMap<String, String>,
    pub soft_grace_period: BTreeMap<String, String>,
    pub minimum_reclaim: BTreeMap<String, String>,
}

/// Reads the four fields; errors are reported with their field. With `allocatable` the memory of the cgroup of all pods has
/// the node's threshold, too.
pub fn parse(statements: &ThresholdFields, allocatable: bool, errors: &mut ErrorList) -> Vec<Threshold> {
    let at = |field: &str, key: &str| Path::new(field).key(key);
    let periods = each(
        "evictionSoftGracePeriod",
        &statements.soft_grace_period,
        errors,
        |text| {
            let period = duration::parse(text).ok_or(ThresholdError::NotADuration)?;
            if period.is_negative() {
                return Err(ThresholdError::Negative);
            }
            Ok(Some(period))
        },
    );
    let reclaims = each(
        "evictionMinimumReclaim",
        &statements.minimum_reclaim,
        errors,
        |text| match share(text)? {
            Some(share) if share <= 0.0 => Err(ThresholdError::PercentageNotPositive),
            Some(share) => Ok(Some(Value::Share(share))),
            None => {
                let quantity = Quantity::parse(text)?;
                if quantity.is_negative() {
                    return Err(ThresholdError::Negative);
                }
                Ok(Some(Value::Quantity(quantity)))
            }
        },
    );
    let hard = each("evictionHard", &statements.hard, errors, value);
    let soft = each("evictionSoft", &statements.soft, errors, value);
    let reclaim = |signal: Signal| reclaims.get(&signal).copied();
    let mut thresholds: Vec<Threshold> = hard
        .into_iter()
        .map(|(signal, value)| Threshold {
            signal,
            value,
            grace_period: SignedDuration::ZERO,
            min_reclaim: reclaim(signal),
        })
        .collect();
    for (signal, value) in soft {
        let Some(period) = periods.get(&signal) else {
            errors.required(
                &at("evictionSoftGracePeriod", signal.name()),
                "grace period must be specified for the soft eviction threshold",
            );
            continue;
        };
        thresholds.push(Threshold {
            signal,
            value,
            grace_period: *period,
            min_reclaim: reclaim(signal),
        });
    }
    let pods: Vec<Threshold> = thresholds
        .iter()
        .filter(|t| allocatable && t.is_hard() && t.signal == Signal::MemoryAvailable)
        .map(|t| Threshold {
            signal: Signal::AllocatableMemoryAvailable,
            ..t.clone()
        })
        .collect();
    thresholds.extend(pods);
    thresholds
}

/// Why the text of a field's entry is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum ThresholdError {
    #[error("expected a duration such as 1m30s")]
    NotADuration,
    #[error("expected a percentage such as 15%")]
    NotAPercentage,
    #[error("percentage must be positive")]
    PercentageNotPositive,
    #[error("percentage must be from 0% to 100%")]
    PercentageOutOfRange,
    #[error("must not be negative")]
    Negative,
    #[error("must be positive")]
    NotPositive,
    #[error(transparent)]
    Quantity(#[from] QuantityError),
}

fn each<T>(
    field: &str,
    statements: &BTreeMap<String, String>,
    errors: &mut ErrorList,
    read: impl Fn(&str) -> Result<Option<T>, ThresholdError>,
) -> BTreeMap<Signal, T> {
    let mut found = BTreeMap::new();
    for (name, text) in statements {
        let at = Path::new(field).key(name);
        let Some(signal) = Signal::parse(name) else {
            let names = Signal::ALL.map(Signal::name);
            errors.not_supported_in_order(&at, name.as_str(), &names);
            continue;
        };
        match read(text) {
            Ok(Some(value)) => drop(found.insert(signal, value)),
            Ok(None) => {}
            Err(why) => errors.invalid(&at, text.as_str(), why.to_string()),
        }
    }
    found
}

/// `15%` as 0.15; `None` if it is not a percentage.
fn share(text: &str) -> Result<Option<f32>, ThresholdError> {
    let Some(number) = text.strip_suffix('%') else {
        return Ok(None);
    };
    let number: f32 = number.parse().map_err(|_| ThresholdError::NotAPercentage)?;
    Ok(Some(number / 100.0))
}

/// `None` if the threshold is disabled.
fn value(text: &str) -> Result<Option<Value>, ThresholdError> {
    // These disable the threshold.
    if ["0%", "100%"].contains(&text) {
        return Ok(None);
    }
    match share(text)? {
        Some(share) if (0.0..=1.0).contains(&share) => Ok(Some(Value::Share(share))),
        Some(_) => Err(ThresholdError::PercentageOutOfRange),
        None => {
            let quantity = Quantity::parse(text)?;
            if quantity.is_negative() || quantity.is_zero() {
                return Err(ThresholdError::NotPositive);
            }
            Ok(Some(Value::Quantity(quantity)))
        }
    }
}

/// The container filesystem is always one of the two others: it has that one's thresholds, whatever the configuration
/// says.
pub fn with_container_fs(thresholds: &[Threshold], disks: super::Disks) -> Vec<Threshold> {
    let follows_images = disks.dedicated_image_fs && !disks.split_container_fs;
    let of = |signal| match (signal, follows_images) {
        (Signal::NodeFsAvailable, false) | (Signal::ImageFsAvailable, true) => {
            Some(Signal::ContainerFsAvailable)
        }
        (Signal::NodeFsInodesFree, false) | (Signal::ImageFsInodesFree, true) => {
            Some(Signal::ContainerFsInodesFree)
        }
        _ => None,
    };
    let own = [Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree];
    let mut all: Vec<Threshold> = thresholds
        .iter()
        .filter(|t| !own.contains(&t.signal))
        .cloned()
        .collect();
    let followed: Vec<Threshold> = all
        .iter()
        .filter_map(|t| {
            Some(Threshold {
                signal: of(t.signal)?,
                ..t.clone()
            })
        })
        .collect();
    all.extend(followed);
    all
}
