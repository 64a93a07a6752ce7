//! The CNI plugins `knarr-cni` and `loopback` (CNI specification 1.0.0 and 1.1.0), as modes of whatever binary calls
//! [`run_if_called`] first: the small program of the shim, and knarr's own.
//!
//! `knarr-cni` does nothing itself: it reads its configuration, sends a request to the node's agent over the UNIX
//! socket that the configuration names, and prints the answer. containerd also runs `loopback` for every sandbox; it sets `lo`
//! up and needs no agent.
//!
//! Both run several times for every pod, and most of the time of a short process is its start and exit. They therefore start
//! nothing (no runtime, no logging), and the crate has few dependencies: the small program starts in a fraction of the time
//! that knarr's own needs.
//!
//! Modules: [`client`] and [`loopback`] are the plugins; [`protocol`] and [`sandbox`] are what plugin and agent say to each
//! other; [`kernel`] is what `loopback` and the agent share; [`install`] makes the directory of plugins and the configuration
//! list, and [`program_link`] its links to a program.

mod client;
mod install;
pub mod kernel;
mod loopback;
pub mod program_link;
pub mod protocol;
pub mod sandbox;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

pub use install::{Install, InstallError};
use protocol::{Code, Failure};

/// The type of the plugin, and the name of its program.
pub const PLUGIN: &str = "knarr-cni";
/// The program that containerd runs for `lo`.
pub const LOOPBACK: &str = "loopback";

/// A configuration is a few hundred bytes; one of `GC` has an id for each sandbox.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
const COMMAND: &str = "CNI_COMMAND";

/// A variable of the environment.
pub type Environment = BTreeMap<String, String>;

/// A plugin's result: its exit code, and its standard output.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub exit: u8,
    pub output: String,
}

/// Runs as a plugin if this process was started as one: under the name of a plugin and with `CNI_COMMAND` set.
///
/// The first thing that `main` does, before a runtime, logging or arguments:
///
/// ```no_run
/// # use std::process::ExitCode;
/// fn main() -> ExitCode {
///     if let Some(code) = knarr_cni::run_if_called() {
///         return code;
///     }
///     // …
/// #   ExitCode::SUCCESS
/// }
/// ```
pub fn run_if_called() -> Option<ExitCode> {
    let program = std::env::args_os().next()?;
    let name = Path::new(&program).file_name()?.to_str()?.to_owned();
    if name != PLUGIN && name != LOOPBACK {
        return None;
    }
    std::env::var_os(COMMAND)?;
    let text = |text: OsString| text.into_string().ok();
    let environment = std::env::vars_os()
        .filter(|(key, _)| key.to_str().is_some_and(|key| key.starts_with("CNI_")))
        .filter_map(|(key, value)| Some((text(key)?, text(value)?)))
        .collect();
    let outcome = run(&name, &environment, std::io::stdin().lock());
    let mut stdout = std::io::stdout().lock();
    let printed = stdout
        .write_all(outcome.output.as_bytes())
        .and_then(|()| stdout.flush());
    Some(match printed {
        Ok(()) => ExitCode::from(outcome.exit),
        Err(_) => ExitCode::FAILURE,
    })
}

/// Runs the plugin of this name.
pub fn run(plugin: &str, environment: &Environment, stdin: impl Read) -> Outcome {
    let mut config = Vec::new();
    let read = stdin.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut config);
    let version = protocol::version_of(&config);
    let result = match read {
        Err(error) => Err(Failure::new(Code::Io, "cannot read the configuration").because(&error)),
        Ok(bytes) if bytes as u64 > MAX_CONFIG_BYTES => Err(Failure::new(
            Code::Decode,
            format!("the configuration has more than {MAX_CONFIG_BYTES} bytes"),
        )),
        Ok(_) => match plugin {
            LOOPBACK => loopback::run(environment, &config),
            _ => client::run(environment, &config),
        },
    };
    match result {
        Ok(output) => Outcome { exit: 0, output },
        Err(failure) => Outcome {
            exit: 1,
            output: failure.to_json(&version),
        },
    }
}
