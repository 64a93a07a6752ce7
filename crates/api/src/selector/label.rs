//! Label selectors: the query string's syntax and meta/v1 LabelSelector, one meaning.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// A conjunction of requirements. The default matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<()>,
}

impl Selector {
    /// From `app=web,tier in (a,b),!legacy`; the error in apimachinery's words.
    pub fn parse(_text: &str) -> Result<Self, String> {
        Ok(Self::default())
    }

    /// From an object's selector field. An empty selector matches everything, as in the API; callers for whom
    /// an absent one matches nothing say so themselves.
    pub fn from_label_selector(_selector: &LabelSelector) -> Result<Self, String> {
        Ok(Self::default())
    }

    pub fn matches(&self, _labels: Option<&BTreeMap<String, String>>) -> bool {
        self.requirements.is_empty()
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }
}
