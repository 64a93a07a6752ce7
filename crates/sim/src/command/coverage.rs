//! The coverage file, to which each run adds its own coverage.

use std::io;
use std::path::{Path, PathBuf};

use knarr_sim::Coverage;

/// A coverage file has some tens of kilobytes.
const MOST_BYTES: u64 = 16 << 20;

fn of_file(path: &Path, what: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {what}", path.display()))
}

/// Empty if the file does not exist yet.
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

/// Replaces the file atomically.
pub fn write(path: &Path, coverage: &Coverage) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    std::fs::write(&temporary, coverage.to_json()? + "\n").map_err(|e| of_file(&temporary, e))?;
    std::fs::rename(&temporary, path).map_err(|e| of_file(path, e))
}
