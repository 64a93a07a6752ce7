//! Field selectors: `metadata.name=a,spec.nodeName!=b`, for the fields a kind supports.

use crate::error::Error;
use crate::kind::Kind;
use crate::object::AnyObject;

/// A conjunction of (in)equalities. The default matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    terms: Vec<()>,
}

impl Selector {
    /// 400 with Kubernetes' words where a field is not supported by the kind or the text does not parse.
    pub fn parse(_kind: &Kind, _text: &str) -> Result<Self, Error> {
        Ok(Self::default())
    }

    pub fn matches(&self, _kind: &Kind, _object: &dyn AnyObject) -> bool {
        self.terms.is_empty()
    }

    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value `field` must equal, if the selector says so (lets a lookup skip what cannot match).
    pub fn required(&self, _field: &str) -> Option<&str> {
        None
    }
}
