//! Results as a file.

use std::path::{Path, PathBuf};

use super::{Results, VERSION};

/// Why a file is not compared with.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: not JSON")]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "{path}: it has no version and no calibration: it is from a knarr that did not calibrate, or of `--trace`; expected version {VERSION} of `./dev bench --json`"
    )]
    Unversioned { path: PathBuf },
    #[error("{path}: version: found {found}, expected {VERSION}; measure it again with this knarr")]
    OtherVersion { path: PathBuf, found: u64 },
    #[error("{path}: not the results of `./dev bench --json`")]
    Invalid {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{path}: calibrations: found none, expected one for each round")]
    NoCalibration { path: PathBuf },
}

/// Reads what [`write()`] wrote.
pub fn read(path: &Path) -> Result<Results, ReadError> {
    let text = std::fs::read(path).map_err(|source| ReadError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    parse(path, &text)
}

fn parse(path: &Path, text: &[u8]) -> Result<Results, ReadError> {
    let path = path.to_path_buf();
    let value: serde_json::Value = match serde_json::from_slice(text) {
        Ok(value) => value,
        Err(source) => return Err(ReadError::Json { path, source }),
    };
    match value.get("version").and_then(|version| version.as_u64()) {
        None => return Err(ReadError::Unversioned { path }),
        Some(found) if found != u64::from(VERSION) => return Err(ReadError::OtherVersion { path, found }),
        Some(_) => {}
    }
    let results: Results = match serde_json::from_value(value) {
        Ok(results) => results,
        Err(source) => return Err(ReadError::Invalid { path, source }),
    };
    match results.calibrations.is_empty() {
        true => Err(ReadError::NoCalibration { path }),
        false => Ok(results),
    }
}

/// Writes them for a later comparison.
pub fn write(path: &Path, results: &Results) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::write(path, serde_json::to_vec_pretty(results)?)
        .map_err(|e| format!("{}: {e}", path.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    #[test]
    fn what_is_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.json");
        let results = example(&[(1.0, 200.0), (1.0, 290.0)]);
        write(&path, &results).unwrap();
        assert_eq!(read(&path).unwrap(), results);
    }

    #[test]
    fn what_cannot_be_compared_with_is_an_error_that_says_why() {
        for (text, expected) in [
            (
                "[{\"name\": \"pod\", \"workload\": \"w\"}]",
                "no version and no calibration",
            ),
            ("{\"reports\": []}", "no version and no calibration"),
            ("{\"version\": 1}", "found 1, expected 2"),
            ("{\"version\": 3, \"anything\": 0}", "found 3, expected 2"),
            ("{\"version\": 2}", "not the results of"),
            (
                "{\"version\": 2, \"containers\": {}, \"calibrations\": [], \"reports\": []}",
                "calibrations: found none",
            ),
            ("{", "not JSON"),
        ] {
            let error = parse(Path::new("old.json"), text.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("old.json: "), "{error}");
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = read(Path::new("/nonexistent/old.json")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/old.json"), "{error}");
    }
}
