//! The committed text is whole: every line is read, and what it says is of a form that the users of the table know.

use std::collections::HashSet;

use super::*;

#[test]
fn every_line_is_a_package_a_type_or_a_field() {
    let text = include_str!("kubernetes.txt");
    let count = |indented: bool| {
        let lines = text
            .lines()
            .filter(|l| !l.starts_with('#') && !l.starts_with("package "));
        lines.filter(|l| l.starts_with(' ') == indented).count()
    };
    assert_eq!(all().len(), count(false));
    assert_eq!(
        all().iter().map(|of| of.declared.len()).sum::<usize>(),
        count(true)
    );
}

#[test]
fn types_and_fields_are_unique_and_types_are_known() {
    let mut names = HashSet::new();
    for of in all() {
        let name = format!("{}.{}", of.package, of.name);
        assert!(names.insert(name.clone()), "{name} twice");
        if of.package.starts_with(INTERNAL) {
            assert_eq!(internal(of.name).map(|of| of.package), Some(of.package), "{name}");
        }
        let mut fields = HashSet::new();
        let mut numbers = HashSet::new();
        for field in of.fields() {
            assert!(fields.insert(field.name), "{name}.{} twice", field.name);
            assert!(
                !matches!(field.of.element(), Go::Other(_)),
                "{name}.{}: {:?}",
                field.name,
                field.of
            );
        }
        for number in of.declared.iter().filter_map(|f| f.number) {
            assert!(numbers.insert(number), "{name} has {number} twice");
        }
        // A struct is found below another by its name alone.
        for child in of.fields().iter().filter_map(|f| f.of.element().named()) {
            if child.definition == Definition::Struct && !child.is_either {
                let found = of.child(child.name).map(TypeDescriptor::published_name);
                assert_eq!(found, Some(child.published_name()), "{name}");
            }
        }
        assert!(of.nulls().len() <= 64, "{name}");
        assert!(of.values.is_sorted_by(|a, b| a < b), "{name}");
    }
}

#[test]
fn a_field_has_what_go_openapi_and_protobuf_say() {
    let container = published("io.k8s.api.core.v1.Container").unwrap();
    let ports = container.field("ports").unwrap();
    assert_eq!(
        (ports.number, ports.of.text().as_str()),
        (Some(6), "[]v1.ContainerPort")
    );
    assert!(ports.omit_empty && !ports.is_required);
    let volume = named("core/v1", "Volume").unwrap();
    assert_eq!(
        volume.field("csi").unwrap().embedded.as_deref(),
        Some("VolumeSource")
    );
    let spec = named("core/v1", "PodSpec").unwrap();
    assert_eq!(spec.field("overhead").unwrap().of.text(), "v1.ResourceList");
    assert_eq!(spec.field("dnsPolicy").unwrap().go_name, "DNSPolicy");
}

/// Zero values are dropped where Go's tag says so, and not where the field is a pointer.
#[test]
fn a_zero_value_is_dropped_as_in_go() {
    let zero = |package, name, field| named(package, name).unwrap().field(field).unwrap().zero;
    assert_eq!(zero("core/v1", "PodSpec", "hostNetwork"), Some(Zero::False));
    assert_eq!(zero("core/v1", "SecurityContext", "privileged"), None);
    assert_eq!(zero("rbac/v1", "Role", "rules"), Some(Zero::List));
    assert_eq!(
        zero("flowcontrol/v1", "FlowSchemaSpec", "matchingPrecedence"),
        Some(Zero::Number)
    );
    assert_eq!(zero("core/v1", "NodeRuntimeHandler", "name"), None);
    assert_eq!(zero("core/v1", "PodSpec", "overhead"), Some(Zero::Map));
    assert_eq!(zero("meta/v1", "ObjectMeta", "managedFields"), None);
}

#[test]
fn types_of_one_name_differ_in_place_and_fields() {
    let event = of_struct("Event", &["apiVersion", "kind", "note"]).unwrap();
    assert_eq!(event.package, "events/v1");
    assert_eq!(event.child("EventSeries").unwrap().package, "events/v1");
    let same_fields = ["apiVersion", "kind", "metadata", "spec", "status"];
    assert!(of_struct("HorizontalPodAutoscaler", &same_fields).is_none());
    assert_eq!(Place::Unknown.of_struct("Event").map(|of| of.package), None);
    assert_eq!(of_kind("v1", "Event").unwrap().package, "core/v1");
    assert_eq!(
        of_kind("flowcontrol.apiserver.k8s.io/v1", "FlowSchema")
            .unwrap()
            .package,
        "flowcontrol/v1"
    );
}

#[test]
fn facts_are_of_values_that_have_them() {
    for of in all() {
        for field in of.fields() {
            let name = format!("{}.{}.{}", of.package, of.name, field.name);
            let Some(facts) = &field.facts else {
                assert!(field.supported().is_empty(), "{name}");
                continue;
            };
            match field.of.element() {
                Go::String => {
                    assert!(facts.minimum.is_none(), "{name}");
                    assert!(facts.is_required || !field.supported().is_empty(), "{name}");
                }
                Go::Integer(_) => {
                    assert!(facts.minimum.is_some(), "{name}");
                    assert!(!facts.is_required && facts.values.is_none(), "{name}");
                }
                nested => {
                    assert_eq!(*facts, Facts::default(), "{name}");
                    let below = nested.named().map(TypeDescriptor::with_facts).unwrap_or_default();
                    assert!(!below.is_empty(), "{name}");
                }
            }
            // Validation supports no value that is not published.
            if let Some(published) = field.of.enumeration() {
                let mut supported = field.supported().iter();
                assert!(supported.all(|value| published.values.contains(value)), "{name}");
            }
        }
    }
    let mode = published("io.k8s.api.core.v1.PodSpec").and_then(|of| of.field("dnsPolicy"));
    let supported = mode.map(FieldDescriptor::supported).unwrap_or_default();
    assert_eq!(
        supported,
        ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]
    );
}
