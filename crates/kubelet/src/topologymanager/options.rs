//! The topology manager's policy options, with v1.36's messages.

use std::collections::BTreeMap;

const PREFER_CLOSEST_NUMA_NODES: &str = "prefer-closest-numa-nodes";
const MAX_ALLOWABLE_NUMA_NODES: &str = "max-allowable-numa-nodes";
/// More NUMA nodes than this make too many combinations of hints (`defaultMaxAllowableNUMANodes`).
pub const DEFAULT_MAX_NODES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub prefer_closest: bool,
    pub max_nodes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            prefer_closest: false,
            max_nodes: DEFAULT_MAX_NODES,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    #[error("unknown Topology Manager Policy option: {0:?}")]
    Unknown(String),
    #[error("bad value for option {option:?}: strconv.ParseBool: parsing {value:?}: invalid syntax")]
    NotABool { option: String, value: String },
    #[error(
        "unable to convert policy option to integer {option:?}: strconv.Atoi: parsing {value:?}: invalid syntax"
    )]
    NotAnInteger { option: String, value: String },
    #[error("the minimum value of {option:?} should not be less than {DEFAULT_MAX_NODES}")]
    TooFew { option: String },
}

impl Options {
    /// From `topologyManagerPolicyOptions`.
    pub fn parse(given: &BTreeMap<String, String>) -> Result<Options, OptionError> {
        let mut options = Options::default();
        for (name, value) in given {
            let (option, value) = (name.clone(), value.clone());
            match name.as_str() {
                PREFER_CLOSEST_NUMA_NODES => {
                    let parsed = parse_bool(&value);
                    options.prefer_closest = parsed.ok_or(OptionError::NotABool { option, value })?;
                }
                MAX_ALLOWABLE_NUMA_NODES => {
                    let parsed: Result<i64, _> = value.parse();
                    let count = parsed.map_err(|_| OptionError::NotAnInteger {
                        option: option.clone(),
                        value,
                    })?;
                    let enough = usize::try_from(count).ok().filter(|n| *n >= DEFAULT_MAX_NODES);
                    options.max_nodes = enough.ok_or(OptionError::TooFew { option })?;
                }
                _ => return Err(OptionError::Unknown(option)),
            }
        }
        Ok(options)
    }
}

/// The spellings that Go's `strconv.ParseBool` accepts.
pub(crate) fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
