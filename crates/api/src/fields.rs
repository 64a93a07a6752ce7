//! Field selectors: `metadata.name=a,spec.nodeName!=b`, for the fields a kind supports.

use knarr_apimachinery::error::Error;

use crate::kind::Kind;
use crate::object::Object;

const NAME: &str = "metadata.name";
const NAMESPACE: &str = "metadata.namespace";

/// One (in)equality.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    field: String,
    value: String,
    negated: bool,
}

/// A conjunction of (in)equalities. The default matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    terms: Vec<Term>,
}

impl Selector {
    /// Fails with 400 and Kubernetes' message where a field is not supported by the kind or the text does not parse.
    pub fn parse(kind: &Kind, text: &str) -> Result<Self, Error> {
        let mut terms = parse_terms(text).map_err(|e| Error::bad_request(e.to_string()))?;
        for term in &mut terms {
            // Early clients of v1 still send `spec.host`.
            if kind.kind() == "Pod" && term.field == "spec.host" {
                term.field = "spec.nodeName".to_string();
            }
            if !is_supported(kind, &term.field) {
                return Err(Error::bad_request(not_supported(kind, &term.field)));
            }
        }
        Ok(Selector { terms })
    }

    pub fn matches(&self, object: &Object) -> bool {
        self.terms.iter().all(|term| {
            let equal = match term.field.as_str() {
                NAME => object.name() == term.value,
                NAMESPACE => object.namespace() == term.value,
                // An object of another type than its kind's is selected by nothing.
                field => match object.field(field) {
                    Ok(found) => found == term.value,
                    Err(_) => return false,
                },
            };
            equal != term.negated
        })
    }

    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value that the selector requires of `field`, if it does (so that a lookup can skip other objects).
    pub fn required(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|term| !term.negated && term.field == field)
            .map(|term| term.value.as_str())
    }
}

/// The value that a selector's text requires of a field, for callers without the kind; `None` where any value matches, where
/// the text does not parse, and for values with escapes, which no object's name, node or namespace has.
pub fn required<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    parse_terms(text).ok()?;
    split_unescaped_commas(text)
        .into_iter()
        .filter_map(split_term)
        .find(|(name, operator, value)| *name == field && *operator != "!=" && !value.contains('\\'))
        .map(|(_, _, value)| value)
}

/// The value, escaped for a selector's text.
pub fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '\\' | ',' | '=') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Why a field selector does not parse, worded as apimachinery's errors.
#[derive(Debug, thiserror::Error)]
enum SyntaxError<'a> {
    #[error("invalid selector: '{text}'; can't understand '{term}'")]
    Term { text: &'a str, term: &'a str },
    #[error("invalid field selector: invalid escape sequence: \\{0}")]
    Escape(String),
    /// Go prints the character as a number.
    #[error("invalid field selector: unescaped character in value: {}", u32::from(*.0))]
    Unescaped(char),
}

/// The (in)equalities of `text`, sorted.
fn parse_terms(text: &str) -> Result<Vec<Term>, SyntaxError<'_>> {
    let mut parts = split_unescaped_commas(text);
    parts.sort_unstable();
    let mut terms = Vec::new();
    for term in parts.into_iter().filter(|term| !term.is_empty()) {
        let Some((field, operator, value)) = split_term(term) else {
            return Err(SyntaxError::Term { text, term });
        };
        let value = unescape(value)?;
        // `=` alone has no term.
        if !(field.is_empty() && value.is_empty()) {
            terms.push(Term {
                field: field.to_string(),
                value,
                negated: operator == "!=",
            });
        }
    }
    Ok(terms)
}

fn split_unescaped_commas(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Field, operator and (escaped) value, at the first operator.
fn split_term(part: &str) -> Option<(&str, &str, &str)> {
    let at = part
        .char_indices()
        .find(|(at, c)| *c == '=' || part[*at..].starts_with("!="))?
        .0;
    let operator = ["!=", "==", "="]
        .into_iter()
        .find(|o| part[at..].starts_with(o))?;
    Some((&part[..at], operator, &part[at + operator.len()..]))
}

/// Removes the backslashes from `\\`, `\,` and `\=`, which must not occur without one.
fn unescape(value: &str) -> Result<String, SyntaxError<'static>> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => return Err(SyntaxError::Escape(other.into_iter().collect())),
            },
            ',' | '=' => return Err(SyntaxError::Unescaped(c)),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// Kinds with selectable fields of their own; for these the list decides about `metadata.namespace` too.
/// The others have the two fields of every object, even where they have no namespace, and no more
/// (ReplicaSets index `status.replicas` and reject it in selectors).
fn has_own_fields(kind: &Kind) -> bool {
    matches!(
        (kind.group(), kind.kind()),
        (
            "",
            "Event" | "Namespace" | "Node" | "Pod" | "ReplicationController" | "Secret" | "Service"
        ) | ("batch", "Job")
            | ("certificates.k8s.io", "CertificateSigningRequest")
            | ("events.k8s.io", "Event")
            | ("resource.k8s.io", "ResourceSlice")
    )
}

/// VolumeAttachments: nodes select theirs by field, which Kubernetes does not allow; the message is otherwise Kubernetes' own.
fn is_attachment(kind: &Kind) -> bool {
    (kind.group(), kind.kind()) == ("storage.k8s.io", "VolumeAttachment")
}

fn is_supported(kind: &Kind, field: &str) -> bool {
    match field {
        NAME => true,
        NAMESPACE if kind.ops.custom().is_some() => kind.namespaced(),
        NAMESPACE => kind.namespaced() || !has_own_fields(kind),
        // The selector is allowed and its value always empty.
        "status.podIPs" if kind.group().is_empty() && kind.kind() == "Pod" => true,
        field => {
            let has_fields = has_own_fields(kind) || kind.ops.custom().is_some() || is_attachment(kind);
            has_fields && kind.ops.selectable_fields().contains(&field)
        }
    }
}

/// Kubernetes' kinds have different messages.
fn not_supported(kind: &Kind, field: &str) -> String {
    match (kind.group(), kind.kind()) {
        ("batch", "Job") => format!("field label {field:?} not supported for Job"),
        ("resource.k8s.io", "ResourceSlice") => format!(
            "field label not supported for {}, Kind=ResourceSlice: {field}",
            kind.api_version()
        ),
        _ if has_own_fields(kind) || kind.ops.custom().is_some() => {
            format!("field label not supported: {field}")
        }
        _ => format!("{field:?} is not a known field selector: only {NAME:?}, {NAMESPACE:?}"),
    }
}

#[cfg(test)]
mod tests;
