//! DeviceClass: a category of devices that claims can request.

use k8s_openapi::api::resource::v1::DeviceClass;
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::pod::resources::is_extended;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::update_generation;
use super::device_requests;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for DeviceClass {
    fn prepare_for_create(&mut self) {
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        let changed = self.spec != old.spec;
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        let selectors = self.spec.selectors.as_deref();
        device_requests::selectors(&mut errors, &path.child("selectors"), selectors);
        for (i, config) in self.spec.config.iter().flatten().enumerate() {
            let path = path.child("config").index(i);
            device_requests::configuration(&mut errors, &path, config.opaque.as_ref());
        }
        if let Some(name) = self
            .spec
            .extended_resource_name
            .as_ref()
            .filter(|name| !is_extended(name))
        {
            let path = path.child("extendedResourceName");
            errors.invalid(&path, name, "must be a valid extended resource name");
        }
        errors
    }

    fn columns() -> &'static [Column] {
        table::NAME_AND_AGE
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        table::name_and_age(&self.metadata, now)
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a1_an_extended_resource_has_a_domain_outside_of_kubernetes() {
        let errors = |name: &str| -> Vec<String> {
            let class = json!({"metadata": {"name": "c"}, "spec": {"extendedResourceName": name}});
            let class: DeviceClass = serde_json::from_value(class).unwrap();
            class.validate().iter().map(ToString::to_string).collect()
        };
        assert!(errors("example.com/gpu").is_empty());
        for name in [
            "gpu",
            "requests.example.com/gpu",
            "deviceclass.resource.kubernetes.io/c",
            "example.com/",
        ] {
            let expect = format!(
                "spec.extendedResourceName: Invalid value: {name:?}: must be a valid extended resource name"
            );
            assert_eq!(errors(name), [expect]);
        }
    }
}
