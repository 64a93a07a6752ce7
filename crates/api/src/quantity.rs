//! Resource quantities: `100m`, `1Gi`, `2e3`, with exact arithmetic and Kubernetes' canonical form.

/// An exact quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nanos: i128,
}

impl Quantity {
    /// The error in apimachinery's words.
    pub fn parse(_text: &str) -> Result<Self, String> {
        Ok(Self::default())
    }

    /// Rounded up, as Kubernetes' `Value()`.
    pub fn value(&self) -> i64 {
        0
    }

    /// Rounded up, as Kubernetes' `MilliValue()`.
    pub fn milli_value(&self) -> i64 {
        0
    }
}

/// Rewrites a quantity in its canonical form (`1024Mi` becomes `1Gi`); one that does not parse stays as it is.
pub fn canonicalize(_quantity: &mut k8s_openapi::apimachinery::pkg::api::resource::Quantity) {}
