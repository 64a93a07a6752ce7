//! The `scale` subresource (autoscaling/v1 Scale): one number of a Deployment, ReplicaSet, StatefulSet or
//! ReplicationController, read and written without the rest.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::field::{ErrorList, Path};

use crate::any_object::AnyObject;
use crate::api_type::TypedOps;
use crate::custom::CustomObject;
use crate::kind::{DecodedAgain, Kind, KindInfo, KindNames, KindOps, NameList, Scope};
use crate::kinds::scale::new_scale;
use crate::object::Object;

/// The kind Scale. It is not stored, so it is not in the registry.
pub static SCALE: Kind = {
    static INFO: KindInfo = KindInfo {
        names: KindNames {
            group: Cow::Borrowed("autoscaling"),
            version: Cow::Borrowed("v1"),
            kind: Cow::Borrowed("Scale"),
            plural: Cow::Borrowed("scales"),
            singular: Cow::Borrowed("scale"),
        },
        scope: Scope::Namespaced,
        short_names: NameList::BuiltIn(&[]),
        categories: NameList::BuiltIn(&[]),
        verbs: &[],
        subresources: &[],
        stored_as: None,
        ops: KindOps::BuiltIn(&TypedOps::<Scale>::new()),
        decoded_again: DecodedAgain::new(),
    };
    Kind::built_in(&INFO)
};

/// The object's scale; `None` for kinds that have none.
pub fn get(kind: &Kind, object: &Object) -> Option<Scale> {
    kind.subresource("scale")?;
    if let Some(custom) = object.get::<CustomObject>() {
        return custom.scale();
    }
    let (replicas, current, selector) = if let Some(d) = object.get::<Deployment>() {
        let spec = d.spec.as_ref();
        let status = d.status.as_ref();
        (
            spec.and_then(|s| s.replicas),
            status.and_then(|s| s.replicas),
            selected(spec.map(|s| &s.selector)),
        )
    } else if let Some(r) = object.get::<ReplicaSet>() {
        let spec = r.spec.as_ref();
        (
            spec.and_then(|s| s.replicas),
            r.status.as_ref().map(|s| s.replicas),
            selected(spec.map(|s| &s.selector)),
        )
    } else if let Some(s) = object.get::<StatefulSet>() {
        let spec = s.spec.as_ref();
        (
            spec.and_then(|s| s.replicas),
            s.status.as_ref().map(|s| s.replicas),
            selected(spec.map(|s| &s.selector)),
        )
    } else if let Some(r) = object.get::<ReplicationController>() {
        let spec = r.spec.as_ref();
        let selector = spec.and_then(|s| s.selector.clone()).unwrap_or_default();
        (
            spec.and_then(|s| s.replicas),
            r.status.as_ref().map(|s| s.replicas),
            of_map(&selector),
        )
    } else {
        return None;
    };
    Some(new_scale(object.metadata(), replicas, current, &selector))
}

fn selected(selector: Option<&LabelSelector>) -> String {
    selector.map(text).unwrap_or_default()
}

fn of_map(selector: &BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
    pairs.join(",")
}

/// A selector in the query string's syntax, its requirements sorted by key.
pub fn text(selector: &LabelSelector) -> String {
    let mut terms: Vec<(String, String)> = Vec::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        terms.push((key.clone(), format!("{key}={value}")));
    }
    for e in selector.match_expressions.iter().flatten() {
        let mut values = e.values.clone().unwrap_or_default();
        values.sort();
        let key = &e.key;
        let term = match e.operator.as_str() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.clone(),
            "DoesNotExist" => format!("!{key}"),
            _ => continue,
        };
        terms.push((key.clone(), term));
    }
    terms.sort();
    terms.into_iter().map(|(_, t)| t).collect::<Vec<_>>().join(",")
}

/// Writes the number of replicas; false for kinds that have no scale. The write is then an update of the object
/// itself: generation counts up, status stays.
pub fn set(kind: &Kind, object: &mut dyn AnyObject, replicas: i32) -> bool {
    if kind.subresource("scale").is_none() {
        return false;
    }
    let object = object.as_any_mut();
    if let Some(custom) = object.downcast_mut::<CustomObject>() {
        return custom.set_replicas(replicas);
    }
    let field = if let Some(d) = object.downcast_mut::<Deployment>() {
        &mut d.spec.get_or_insert_default().replicas
    } else if let Some(r) = object.downcast_mut::<ReplicaSet>() {
        &mut r.spec.get_or_insert_default().replicas
    } else if let Some(s) = object.downcast_mut::<StatefulSet>() {
        &mut s.spec.get_or_insert_default().replicas
    } else if let Some(r) = object.downcast_mut::<ReplicationController>() {
        &mut r.spec.get_or_insert_default().replicas
    } else {
        return false;
    };
    *field = Some(replicas);
    true
}

/// Validates a Scale from a client.
pub fn validate(scale: &Scale) -> ErrorList {
    let mut errors = ErrorList::new();
    let replicas = scale.spec.as_ref().and_then(|s| s.replicas).unwrap_or(0);
    if replicas < 0 {
        errors.invalid(
            &Path::new("spec").child("replicas"),
            replicas,
            "must be greater than or equal to 0",
        );
    }
    errors
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

    use super::*;
    use crate::registry;

    fn object(kind: &Kind, selector: &str) -> Object {
        let json = format!(
            r#"{{"metadata":{{"name":"x","resourceVersion":"7"}},"spec":{{"replicas":3,"selector":{selector}}},
               "status":{{"replicas":2}}}}"#
        );
        Object::from_typed(kind, kind.ops.decode(json.as_bytes()).expect("an object").object)
    }

    #[test]
    fn every_kind_with_a_scale_can_be_read_and_written() {
        for kind in registry::ALL.iter().filter(|k| k.subresource("scale").is_some()) {
            let selector = match kind.kind() {
                "ReplicationController" => r#"{"a":"b"}"#,
                _ => r#"{"matchLabels":{"a":"b"}}"#,
            };
            let object = object(kind, selector);
            let scale = get(kind, &object).expect("a scale");
            assert_eq!(scale.spec.and_then(|s| s.replicas), Some(3), "{kind:?}");
            let status = scale.status.expect("a status");
            assert_eq!((status.replicas, status.selector.as_deref()), (2, Some("a=b")));
            assert_eq!(scale.metadata.resource_version.as_deref(), Some("7"));

            let mut typed = object.typed().clone_box();
            assert!(set(kind, &mut *typed, 5));
            let scaled = Object::from_typed(kind, typed);
            let replicas = get(kind, &scaled).and_then(|s| s.spec?.replicas);
            assert_eq!(replicas, Some(5), "{kind:?}");
        }
    }

    #[test]
    fn other_kinds_have_none() {
        let kind = &registry::CONFIG_MAP;
        let mut typed = kind
            .ops
            .decode(br#"{"metadata":{"name":"x"}}"#)
            .expect("an object")
            .object;
        assert!(!set(kind, &mut *typed, 1));
        assert!(get(kind, &Object::from_typed(kind, typed)).is_none());
    }

    #[test]
    fn a_selector_is_written_as_the_query_string_has_it() {
        let expression = |key: &str, operator: &str, values: &[&str]| LabelSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: Some(values.iter().map(ToString::to_string).collect()),
        };
        let selector = LabelSelector {
            match_labels: Some([("b".to_string(), "1".to_string())].into()),
            match_expressions: Some(vec![
                expression("a", "In", &["y", "x"]),
                expression("c", "DoesNotExist", &[]),
            ]),
        };
        assert_eq!(text(&selector), "a in (x,y),b=1,!c");
    }
}
