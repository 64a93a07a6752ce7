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

/// The output of a command if it succeeds, else its output as the error.
pub fn output_of(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|e| format!("{program}: {e}"))?;
    match out.status.success() {
        true => Ok(text(&out)),
        false => Err(text(&out)),
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
