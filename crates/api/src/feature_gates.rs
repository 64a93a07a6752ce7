//! The feature gates that an administrator may set (`--feature-gates`), named as Kubernetes names them
//! (<https://kubernetes.io/docs/reference/command-line-tools-reference/feature-gates/>).
//!
//! Features that are on by default in v1.36 are on here and have no gate. Validation depends on a gate as it does in
//! kube-apiserver, so that the gates are the process's: set once, before anything is served.

use std::str::FromStr;
use std::sync::OnceLock;

use thiserror::Error;

/// Features that are off by default in v1.36, and whether they are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    /// HorizontalPodAutoscalers with an Object or External metric may have minReplicas 0 (alpha).
    pub hpa_scale_to_zero: bool,
}

/// Why a value of `--feature-gates` is rejected.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Error {
    #[error("{0:?}: expected NAME=true or NAME=false")]
    Form(String),
    #[error("unrecognized feature gate {0:?} (there is HPAScaleToZero)")]
    Unknown(String),
}

impl FromStr for FeatureGates {
    type Err = Error;

    /// Reads `NAME=true,NAME=false`; the last of equal names counts, and an empty text sets no gate.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut gates = FeatureGates::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let form = || Error::Form(part.to_string());
            let (name, value) = part.split_once('=').ok_or_else(form)?;
            let enabled = value.trim().parse().map_err(|_| form())?;
            match name.trim() {
                "HPAScaleToZero" => gates.hpa_scale_to_zero = enabled,
                other => return Err(Error::Unknown(other.to_string())),
            }
        }
        Ok(gates)
    }
}

static CURRENT: OnceLock<FeatureGates> = OnceLock::new();

/// Sets the process's gates. False if they were set before, and are kept.
pub fn set(gates: FeatureGates) -> bool {
    CURRENT.set(gates).is_ok()
}

/// The process's gates; v1.36's defaults if none were set.
pub fn current() -> FeatureGates {
    CURRENT.get().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_read_by_name() {
        let on = FeatureGates {
            hpa_scale_to_zero: true,
        };
        for (text, expected) in [
            ("", Ok(FeatureGates::default())),
            ("HPAScaleToZero=true", Ok(on)),
            (" HPAScaleToZero=false, HPAScaleToZero=true ,", Ok(on)),
            (
                "HPAScaleToZero=true,HPAScaleToZero=false",
                Ok(FeatureGates::default()),
            ),
            ("HPAScaleToZero", Err(Error::Form("HPAScaleToZero".into()))),
            (
                "HPAScaleToZero=yes",
                Err(Error::Form("HPAScaleToZero=yes".into())),
            ),
            ("Nonsense=true", Err(Error::Unknown("Nonsense".into()))),
        ] {
            assert_eq!(text.parse::<FeatureGates>(), expected, "{text:?}");
        }
    }
}
