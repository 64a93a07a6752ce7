//! Label selectors: the query string's syntax and meta/v1 LabelSelector, one meaning.

mod syntax;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::field::{Cause, ErrorList, FieldError, Shown};
use crate::names;

/// Whether a meta/v1 LabelSelector has no requirement.
pub fn has_no_requirement(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `=`.
    Equals,
    /// `==`, the same.
    DoubleEquals,
    /// `!=`: also where the label is missing.
    NotEquals,
    In,
    /// Also where the label is missing.
    NotIn,
    Exists,
    DoesNotExist,
    /// `>`, for labels that are integers; others do not match.
    GreaterThan,
    /// `<`, likewise.
    LessThan,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
    /// The value of `>` and `<`, read once.
    bound: i64,
}

/// Why a label selector is invalid, worded as apimachinery's errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The errors of one requirement.
    #[error(transparent)]
    Requirement(ErrorList),
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
    #[error("found '{found}', expected: {expected}")]
    Unexpected { found: String, expected: &'static str },
    #[error("found '{0}' expected: '('")]
    NoValueList(String),
    #[error("unable to parse requirement: {0}")]
    Parse(#[source] Box<SelectorError>),
}

fn checked(errors: ErrorList) -> Result<(), SelectorError> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(SelectorError::Requirement(errors))
    }
}

fn invalid(field: &str, value: impl Shown, detail: impl Into<String>) -> FieldError {
    FieldError {
        cause: Cause::Invalid,
        field: field.to_string(),
        value: Some(value.shown()),
        detail: detail.into(),
    }
}

fn list(values: &[String]) -> serde_json::Value {
    values.into()
}

impl Requirement {
    /// A validated requirement.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, SelectorError> {
        use Operator::*;
        let mut errors = ErrorList::new();
        let mut bound = 0;
        let bad_key = names::qualified_name(key);
        if !bad_key.is_empty() {
            errors.push(invalid("key", key, bad_key.join("; ")));
        }
        let wrong_count = match operator {
            In | NotIn if values.is_empty() => Some("for 'in', 'notin' operators, values set can't be empty"),
            Equals | DoubleEquals | NotEquals if values.len() != 1 => {
                Some("exact-match compatibility requires one single value")
            }
            Exists | DoesNotExist if !values.is_empty() => {
                Some("values set must be empty for exists and does not exist")
            }
            GreaterThan | LessThan if values.len() != 1 => {
                Some("for 'Gt', 'Lt' operators, exactly one value is required")
            }
            _ => None,
        };
        if let Some(detail) = wrong_count {
            errors.push(invalid("values", list(&values), detail));
        }
        if matches!(operator, GreaterThan | LessThan) {
            for (i, value) in values.iter().enumerate() {
                match value.parse() {
                    Ok(n) => bound = n,
                    Err(_) => errors.push(invalid(
                        &format!("values[{i}]"),
                        value,
                        "for 'Gt', 'Lt' operators, the value must be an integer",
                    )),
                }
            }
        }
        for (i, value) in values.iter().enumerate() {
            let bad_value = names::label_value(value);
            if !bad_value.is_empty() {
                errors.push(invalid(
                    &format!("values[{i}][{key}]"),
                    value,
                    bad_value.join("; "),
                ));
            }
        }
        checked(errors)?;
        Ok(Requirement {
            key: key.to_string(),
            operator,
            values,
            bound,
        })
    }

    /// Rejects an invalid label key at `field`.
    pub(super) fn check_key(key: &str, field: &str) -> Result<(), SelectorError> {
        let mut errors = ErrorList::new();
        let bad_key = names::qualified_name(key);
        if !bad_key.is_empty() {
            errors.push(invalid(field, key, bad_key.join("; ")));
        }
        checked(errors)
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn operator(&self) -> Operator {
        self.operator
    }

    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Whether a label of this value (`None`: there is no such label) matches.
    pub fn admits(&self, value: Option<&str>) -> bool {
        use Operator::*;
        let listed = |v: &str| self.values.iter().any(|have| have == v);
        match (self.operator, value) {
            (Equals | DoubleEquals | In, value) => value.is_some_and(listed),
            (NotEquals | NotIn, value) => !value.is_some_and(listed),
            (Exists, value) => value.is_some(),
            (DoesNotExist, value) => value.is_none(),
            (GreaterThan, value) => value.and_then(integer).is_some_and(|n| n > self.bound),
            (LessThan, value) => value.and_then(integer).is_some_and(|n| n < self.bound),
        }
    }
}

fn integer(text: &str) -> Option<i64> {
    text.parse().ok()
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Operator::*;
        let key = &self.key;
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        match self.operator {
            Equals => write!(f, "{key}={values}"),
            DoubleEquals => write!(f, "{key}=={values}"),
            NotEquals => write!(f, "{key}!={values}"),
            In => write!(f, "{key} in ({values})"),
            NotIn => write!(f, "{key} notin ({values})"),
            Exists => write!(f, "{key}"),
            DoesNotExist => write!(f, "!{key}"),
            GreaterThan => write!(f, "{key}>{values}"),
            LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// A conjunction of requirements, ordered by key. The default matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

impl Selector {
    /// Parses `app=web,tier in (a,b),!legacy`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        syntax::parse(text).map(Self::of)
    }

    /// From an object's selector field. An empty selector matches everything, as in the API; callers for whom
    /// an absent one matches nothing check that themselves.
    pub fn from_label_selector(selector: &LabelSelector) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(Requirement::new(key, Operator::Equals, vec![value.clone()])?);
        }
        for expression in selector.match_expressions.iter().flatten() {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(SelectorError::Operator(other.to_string())),
            };
            let values = expression.values.clone().unwrap_or_default();
            requirements.push(Requirement::new(&expression.key, operator, values)?);
        }
        Ok(Self::of(requirements))
    }

    /// From a plain map (`spec.selector` of Services and ReplicationControllers), which the API does not check.
    /// An empty map matches everything; callers for whom it matches nothing check that themselves.
    pub fn from_map(labels: &BTreeMap<String, String>) -> Self {
        Self::of(
            labels
                .iter()
                .map(|(key, value)| Requirement {
                    key: key.clone(),
                    operator: Operator::Equals,
                    values: vec![value.clone()],
                    bound: 0,
                })
                .collect(),
        )
    }

    fn of(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Selector { requirements }
    }

    pub fn matches(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = labels.and_then(|l| l.get(&requirement.key));
            requirement.admits(value.map(String::as_str))
        })
    }

    /// With further requirements.
    pub fn and(mut self, more: Vec<Requirement>) -> Self {
        self.requirements.extend(more);
        Self::of(self.requirements)
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }
}

/// Canonical: ordered by key, values sorted. Parsing it gives an equal selector back.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{requirement}")?;
        }
        Ok(())
    }
}

/// A selector as the Go type's `String` writes it.
pub fn go_string(selector: &LabelSelector) -> String {
    let labels: String = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(key, value)| format!("{key}: {value},"))
        .collect();
    let expressions: String = selector
        .match_expressions
        .iter()
        .flatten()
        .map(|e| {
            let values = e.values.as_deref().unwrap_or_default().join(" ");
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},",
                e.key, e.operator
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:\
         []LabelSelectorRequirement{{{expressions}}},}}"
    )
}

#[cfg(test)]
mod tests;
