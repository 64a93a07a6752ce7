//! The coverage of earlier runs, in a file to which each run adds its own.

use std::io;
use std::path::{Path, PathBuf};

use knarr_sim::Coverage;

/// A file of this kind has some tens of kilobytes.
const MOST_BYTES: u64 = 16 << 20;

fn of_file(path: &Path, what: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {what}", path.display()))
}

/// Nothing, if there is no such file yet.
pub fn read(path: &Path) -> io::Result<Coverage> {
    let size = match std::fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Coverage::default()),
        metadata => metadata.map_err(|e| of_file(path, e))?.len(),
    };
    if size > MOST_BYTES {
        return Err(of_file(
            path,
            format!("has {size} bytes, expected {MOST_BYTES} at most"),
        ));
    }
    let text = std::fs::read_to_string(path).map_err(|e| of_file(path, e))?;
    Coverage::read(&text).map_err(|e| of_file(path, format!("is no coverage: {e}")))
}

/// Whole, or not at all.
pub fn write(path: &Path, coverage: &Coverage) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    std::fs::write(&beside, coverage.to_json()? + "\n").map_err(|e| of_file(&beside, e))?;
    std::fs::rename(&beside, path).map_err(|e| of_file(path, e))
}
