//! Commands of the test host, run to their end.

use std::process::{Command, Output, Stdio};

use libtest_mimic::Failed;

/// Standard output and error of a command.
pub fn text(out: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

/// Why a command has no output.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("{program}: {source}")]
    Start { program: String, source: std::io::Error },
    /// What it wrote to standard output and error.
    #[error("{0}")]
    Failed(String),
}

/// The output of a command if it succeeds.
pub fn output_of(command: &mut Command) -> Result<String, CommandError> {
    let out = command.output().map_err(|source| CommandError::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    match out.status.success() {
        true => Ok(text(&out)),
        false => Err(CommandError::Failed(text(&out))),
    }
}

/// Runs a command of the system, which must succeed.
pub fn system(argv: &[&str]) -> Result<String, Failed> {
    let (program, args) = argv.split_first().ok_or("no command")?;
    let out = Command::new(program).args(args).stdin(Stdio::null()).output()?;
    if out.status.success() {
        return Ok(text(&out));
    }
    Err(format!("{} failed:\n{}", argv.join(" "), text(&out)).into())
}
