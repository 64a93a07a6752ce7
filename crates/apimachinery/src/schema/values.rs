//! The enums of the published API.
//!
//! They are documentation (`kubectl explain`); the kinds' validation decides which values are rejected.

use crate::descriptors;

/// The values of a type's field, or of its items or values; `None` where it is not an enum.
pub fn of_field(name: &str, field: &str) -> Option<&'static [String]> {
    let of = descriptors::published(name)?.field(field)?.of.enumeration()?;
    Some(&of.values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_type_and_field() {
        let policy = of_field("io.k8s.api.core.v1.Container", "imagePullPolicy");
        assert_eq!(policy.unwrap(), ["Always", "IfNotPresent", "Never"]);
        assert_eq!(of_field("io.k8s.api.core.v1.Container", "image"), None);
        let scopes = of_field("io.k8s.api.admissionregistration.v1.RuleWithOperations", "scope");
        assert_eq!(scopes.unwrap(), ["*", "Cluster", "Namespaced"]);
    }
}
