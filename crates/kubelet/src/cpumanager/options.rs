//! The options of the static policy (`cpuManagerPolicyOptions`), with v1.36's messages.

use std::collections::BTreeMap;

use super::{CpuTopology, Level};

const FULL_PCPUS_ONLY: &str = "full-pcpus-only";
const DISTRIBUTE_ACROSS_NUMA: &str = "distribute-cpus-across-numa";
const ALIGN_BY_SOCKET: &str = "align-by-socket";
const DISTRIBUTE_ACROSS_CORES: &str = "distribute-cpus-across-cores";
const STRICT_RESERVATION: &str = "strict-cpu-reservation";
const ALIGN_BY_UNCORE_CACHE: &str = "prefer-align-cpus-by-uncorecache";

/// Which options may be used: the feature gates `CPUManagerPolicyAlphaOptions` and `CPUManagerPolicyBetaOptions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    pub alpha: bool,
    pub beta: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Gates {
            alpha: false,
            beta: true,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Only whole cores are allocated.
    pub full_pcpus_only: bool,
    /// CPUs that do not fit on one NUMA node are taken evenly from several.
    pub distribute_across_numa: bool,
    /// Hints are preferred, and CPUs aligned, by socket instead of NUMA node.
    pub align_by_socket: bool,
    /// One thread of each core is taken first.
    pub distribute_across_cores: bool,
    /// Reserved CPUs are not in the shared pool either.
    pub strict_reservation: bool,
    /// As few last-level caches as possible are shared.
    pub align_by_uncore_cache: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    #[error("unknown CPU Manager Policy option: {0:?}")]
    Unknown(String),
    #[error("CPU Manager Policy {level}-level Options not enabled, but option {option:?} provided")]
    NotEnabled { level: &'static str, option: String },
    #[error("bad value for option {option:?}: strconv.ParseBool: parsing {value:?}: invalid syntax")]
    NotABool { option: String, value: String },
    #[error("static policy options {0} and {1} can not be used at the same time")]
    Exclusive(&'static str, &'static str),
    #[error("None policy: received unsupported options=map[{0}]")]
    OfNonePolicy(String),
    #[error(
        "Topolgy manager single-numa-node policy is incompatible with CPUManager {ALIGN_BY_SOCKET} policy option"
    )]
    SingleNumaNode,
    #[error(
        "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
    )]
    MoreSockets,
}

impl Options {
    pub fn parse(given: &BTreeMap<String, String>, gates: Gates) -> Result<Options, OptionError> {
        let mut options = Options::default();
        for (name, value) in given {
            let (to, enabled, level) = match name.as_str() {
                FULL_PCPUS_ONLY => (&mut options.full_pcpus_only, true, ""),
                STRICT_RESERVATION => (&mut options.strict_reservation, true, ""),
                ALIGN_BY_UNCORE_CACHE => (&mut options.align_by_uncore_cache, true, ""),
                DISTRIBUTE_ACROSS_NUMA => (&mut options.distribute_across_numa, gates.beta, "Beta"),
                ALIGN_BY_SOCKET => (&mut options.align_by_socket, gates.alpha, "Alpha"),
                DISTRIBUTE_ACROSS_CORES => (&mut options.distribute_across_cores, gates.alpha, "Alpha"),
                _ => return Err(OptionError::Unknown(name.clone())),
            };
            let option = name.clone();
            if !enabled {
                return Err(OptionError::NotEnabled { level, option });
            }
            let value = value.clone();
            *to =
                crate::topologymanager::parse_bool(&value).ok_or(OptionError::NotABool { option, value })?;
        }
        options.check_combination()?;
        Ok(options)
    }

    /// The policy `none` has no options.
    pub fn none(given: &BTreeMap<String, String>) -> Result<(), OptionError> {
        let given: Vec<String> = given
            .iter()
            .map(|(name, value)| format!("{name}:{value}"))
            .collect();
        match given.is_empty() {
            true => Ok(()),
            false => Err(OptionError::OfNonePolicy(given.join(" "))),
        }
    }

    fn check_combination(&self) -> Result<(), OptionError> {
        for (first, second, both) in [
            (
                FULL_PCPUS_ONLY,
                DISTRIBUTE_ACROSS_CORES,
                self.full_pcpus_only && self.distribute_across_cores,
            ),
            (
                DISTRIBUTE_ACROSS_NUMA,
                DISTRIBUTE_ACROSS_CORES,
                self.distribute_across_numa && self.distribute_across_cores,
            ),
            (
                ALIGN_BY_UNCORE_CACHE,
                DISTRIBUTE_ACROSS_CORES,
                self.align_by_uncore_cache && self.distribute_across_cores,
            ),
            (
                ALIGN_BY_UNCORE_CACHE,
                DISTRIBUTE_ACROSS_NUMA,
                self.align_by_uncore_cache && self.distribute_across_numa,
            ),
        ] {
            if both {
                return Err(OptionError::Exclusive(first, second));
            }
        }
        Ok(())
    }

    /// Whether the options are possible with the node's topology and the topology manager's policy.
    pub fn validate(&self, topology: &CpuTopology, is_single_numa_node: bool) -> Result<(), OptionError> {
        if self.align_by_socket && is_single_numa_node {
            return Err(OptionError::SingleNumaNode);
        }
        if self.align_by_socket && topology.count(Level::Socket) > topology.count(Level::NumaNode) {
            return Err(OptionError::MoreSockets);
        }
        Ok(())
    }
}
