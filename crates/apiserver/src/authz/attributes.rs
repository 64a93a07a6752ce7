//! The attributes that an authorizer decides on, built in one place for requests over HTTP and for components in this
//! process (SPEC A2).
//!
//! They are kube-apiserver's (authorizer.Attributes): verb, group, resource, subresource, namespace and name. A request for
//! a Namespace has its name as namespace; a list or watch whose field selector requires one name has that name.

use knarr_api::fields;
use knarr_api::registry;
use knarr_apimachinery::labels;

use crate::request::{RequestInfo, Target};

/// The attributes of one request. With a `path` it is a non-resource request, and the fields but the verb are empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: Option<&'a str>,
    /// The selectors of a list, watch or deletecollection, in the query string's syntax.
    pub field_selector: &'a str,
    pub label_selector: &'a str,
}

/// The selectors of a list, watch or deletecollection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Selectors<'a> {
    pub fields: &'a str,
    pub labels: &'a str,
}

impl<'a> Attributes<'a> {
    /// The attributes of a request over HTTP. Selectors are used only for the verbs that have them, and not with the legacy
    /// `/watch/` prefix (KEP-4601).
    pub fn of(info: &'a RequestInfo, selectors: Selectors<'a>) -> Self {
        if !info.is_resource {
            return Attributes {
                verb: info.verb,
                path: Some(&info.path),
                ..Attributes::default()
            };
        }
        let selects = matches!(info.verb, "list" | "watch" | "deletecollection") && !info.legacy_watch;
        let selectors = if selects { selectors } else { Selectors::default() };
        Attributes {
            verb: info.verb,
            group: &info.group,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            path: None,
            field_selector: selectors.fields,
            label_selector: selectors.labels,
        }
        .with_name_from_selector()
    }

    /// The attributes of a verb on a target, the same as [`Attributes::of`] for the target's URL.
    pub(crate) fn of_target(verb: &'a str, target: &Target<'a>, selectors: Selectors<'a>) -> Self {
        let namespace = match *target.kind == registry::NAMESPACE {
            true => target.name,
            false => target.namespace,
        };
        Attributes {
            verb,
            group: target.kind.group(),
            resource: target.kind.plural(),
            subresource: target.subresource,
            namespace,
            name: target.name,
            path: None,
            field_selector: selectors.fields,
            label_selector: selectors.labels,
        }
        .with_name_from_selector()
    }

    fn with_name_from_selector(mut self) -> Self {
        let selects = !self.field_selector.is_empty() && matches!(self.verb, "list" | "watch");
        if self.name.is_empty() && selects {
            let name = self.required_field("metadata.name").unwrap_or_default();
            if is_path_segment(name) {
                self.name = name;
            }
        }
        self
    }

    /// The value that the field selector requires of a field; `None` if it requires none.
    pub fn required_field(&self, field: &str) -> Option<&'a str> {
        fields::required(self.field_selector, field)
    }

    /// Whether the label selector requires this one value of a label. A selector that does not parse requires nothing.
    pub fn requires_label(&self, key: &str, value: &str) -> bool {
        use labels::Operator::{DoubleEquals, Equals, In};
        labels::Selector::parse(self.label_selector).is_ok_and(|selector| {
            selector.requirements().iter().any(|r| {
                r.key() == key && matches!(r.operator(), Equals | DoubleEquals | In) && *r.values() == [value]
            })
        })
    }

    pub(super) fn qualified_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.to_string()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// Whether a name is a valid path segment name, as every object's is (IsValidPathSegmentName).
fn is_path_segment(name: &str) -> bool {
    !matches!(name, "." | "..") && !name.contains(['/', '%'])
}
