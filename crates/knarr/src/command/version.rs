//! `knarr version`

use clap::{Args, ValueEnum};

use super::{Failure, KUBERNETES, VERSION};

#[derive(Args)]
pub struct VersionArgs {
    /// Print as `text` or `json`.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// The output format of a command.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

pub fn run(args: &VersionArgs) -> Result<(), Failure> {
    match args.output {
        Output::Text => println!("knarr {VERSION} (Kubernetes {KUBERNETES})"),
        Output::Json => println!(
            "{}",
            serde_json::json!({ "knarr": VERSION, "kubernetes": KUBERNETES })
        ),
    }
    Ok(())
}
