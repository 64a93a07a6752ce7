//! Field selectors: the selectable fields of each kind, and the errors.

use k8s_openapi::api::core::v1::ConfigMap;
use proptest::prelude::*;

use super::*;
use crate::registry;

fn kind(api_version: &str, kind: &str) -> &'static Kind {
    registry::by_kind(api_version, kind).expect("a registered kind")
}

fn error_message(kind: &Kind, text: &str) -> String {
    let error = Selector::parse(kind, text).expect_err(text);
    assert_eq!(
        (error.code(), error.reason()),
        (400, "BadRequest"),
        "{text}: {error}"
    );
    error.message().to_string()
}

#[test]
fn names_and_namespaces_are_selected_for_every_kind() {
    let mut object = ConfigMap::default();
    object.metadata.name = Some("a".into());
    object.metadata.namespace = Some("ns,1".into());
    let kind = kind("v1", "ConfigMap");
    let object = Object::from_typed(kind, Box::new(object));
    for (text, matches) in [
        ("", true),
        ("=", true),
        (",,", true),
        ("metadata.name=a", true),
        ("metadata.name==a", true),
        ("metadata.name!=a", false),
        ("metadata.name=", false),
        ("metadata.name!=", true),
        (r"metadata.name=a,metadata.namespace=ns\,1", true),
        (r"metadata.name=a,metadata.namespace=ns\=1", false),
    ] {
        let selector = Selector::parse(kind, text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(selector.matches(&object), matches, "{text}");
    }
    let selector = Selector::parse(kind, "metadata.name=a,metadata.namespace!=b").unwrap();
    assert_eq!(selector.required("metadata.name"), Some("a"));
    assert_eq!(selector.required("metadata.namespace"), None);
    assert!(!selector.is_everything());
}

#[test]
fn each_kind_rejects_other_fields_with_its_own_message() {
    for (api_version, name, text, message) in [
        (
            "v1",
            "Pod",
            "spec.priority=0",
            "field label not supported: spec.priority",
        ),
        ("v1", "Namespace", "spec.x=y", "field label not supported: spec.x"),
        (
            "v1",
            "Node",
            "metadata.namespace=y",
            "field label not supported: metadata.namespace",
        ),
        ("v1", "Secret", "=x", "field label not supported: "),
        (
            "apps/v1",
            "ReplicaSet",
            "status.replicas=0",
            "\"status.replicas\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
        (
            "batch/v1",
            "Job",
            "status.foo=0",
            "field label \"status.foo\" not supported for Job",
        ),
        (
            "resource.k8s.io/v1",
            "ResourceSlice",
            "a=b",
            "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: a",
        ),
    ] {
        assert_eq!(error_message(kind(api_version, name), text), message);
    }
    assert!(Selector::parse(kind("storage.k8s.io/v1", "StorageClass"), "metadata.namespace=").is_ok());
}

#[test]
fn invalid_selectors_are_rejected() {
    let kind = kind("v1", "Secret");
    for (text, message) in [
        ("a>b", "invalid selector: 'a>b'; can't understand 'a>b'"),
        (
            "metadata.name=a=b",
            "invalid field selector: unescaped character in value: 61",
        ),
        (
            r"metadata.name=a\b",
            r"invalid field selector: invalid escape sequence: \b",
        ),
        (
            r"metadata.name=a\",
            r"invalid field selector: invalid escape sequence: \",
        ),
    ] {
        assert_eq!(error_message(kind, text), message);
    }
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "(\\PC|[=!,\\\\]){0,40}") {
        let _ = Selector::parse(kind("v1", "Pod"), &text);
    }

    #[test]
    fn an_escaped_value_comes_back_as_it_was(value in "(\\PC|[=!,\\\\]){1,20}") {
        let escaped = value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
        let selector = Selector::parse(kind("v1", "Pod"), &format!("metadata.name={escaped}")).unwrap();
        prop_assert_eq!(selector.required("metadata.name"), Some(value.as_str()));
    }
}
