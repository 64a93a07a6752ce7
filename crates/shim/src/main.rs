//! The small program that containerd runs for each pod: a CNI plugin, if it was started as one, else the shim. See the libraries.

use std::process::ExitCode;

fn main() -> ExitCode {
    knarr_cni::run_if_called().unwrap_or_else(knarr_shim::run)
}
