//! The recorded responses of kube-apiserver v1.36.2, `tests/golden-api/*.jsonl.gz`.

use std::io::Read;

/// The namespace of the scenarios, which the recordings call `{ns}`.
pub const NAMESPACE: &str = "gold";

/// A recording: one scenario a line, in JSON.
pub fn read(topic: &str) -> String {
    let path = format!("{}/tests/golden-api/{topic}.jsonl.gz", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut text)
        .unwrap_or_else(|e| panic!("{path}: {e}"));
    text
}
