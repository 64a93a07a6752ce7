//! Skeletons: tables, chains, rules and empty sets, as text for the command `nft`.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::error::Error;

/// The longest part of nft's output in an error.
const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// Has nft carry out a script, all of it or nothing (`nft -f -`), in the network namespace of the calling thread.
pub fn run(script: &str) -> Result<(), Error> {
    let mut nft = Command::new("nft");
    nft.args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = nft.spawn().map_err(Error::Nft)?;
    // nft reads all of its input before it writes output.
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(script.as_bytes()),
        None => Ok(()),
    };
    let output = child.wait_with_output().map_err(Error::Nft)?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let mut message: String = words.trim().chars().take(MAX_MESSAGE_BYTES).collect();
        if message.is_empty() {
            message = output.status.to_string();
        }
        return Err(Error::Script { message });
    }
    written.map_err(Error::Nft)
}
