//! What containers are run with: settings of knarr that a benchmark passes on, and keeps with its results.

use std::fmt;

use clap::Args;
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerRuntime {
    /// The shim of the containers that `start` and `pods` measure, as knarr's flag: `auto`, `rust` or `runc-v2` [default: knarr's default].
    #[arg(long, value_name = "SHIM")]
    pub shim: Option<String>,
    /// Their OCI runtime, as knarr's flag, such as `crun` [default: knarr's default].
    #[arg(long, value_name = "PROGRAM")]
    pub oci_runtime: Option<String>,
}

impl ContainerRuntime {
    /// As flags of knarr.
    pub fn flags(&self) -> Vec<String> {
        let flags = [("--shim", &self.shim), ("--oci-runtime", &self.oci_runtime)];
        let set = flags
            .into_iter()
            .filter_map(|(flag, value)| Some([flag.to_owned(), value.clone()?]));
        set.flatten().collect()
    }
}

impl fmt::Display for ContainerRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.flags().as_slice() {
            [] => f.write_str("the default shim and OCI runtime"),
            flags => f.write_str(&flags.join(" ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_set_is_passed_on() {
        let default = ContainerRuntime::default();
        assert!(default.flags().is_empty());
        assert_eq!(default.to_string(), "the default shim and OCI runtime");
        let set = ContainerRuntime {
            shim: Some("rust".into()),
            oci_runtime: Some("crun".into()),
        };
        assert_eq!(set.flags(), ["--shim", "rust", "--oci-runtime", "crun"]);
        assert_eq!(set.to_string(), "--shim rust --oci-runtime crun");
    }
}
