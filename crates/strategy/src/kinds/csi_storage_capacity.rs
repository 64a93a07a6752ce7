//! CSIStorageCapacity: the free capacity of a StorageClass in one topology segment.

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::quantity;

use super::checks::{
    IMMUTABLE, Json, dns_subdomain, immutable, json_selector, label_selector, not_negative_quantity,
};
use super::warnings::deprecated_label;
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for CSIStorageCapacity {
    fn set_defaults(&mut self) {
        let amounts = [&mut self.capacity, &mut self.maximum_volume_size];
        amounts.into_iter().flatten().for_each(quantity::canonicalize);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        dns_subdomain(
            &mut errors,
            &Path::new("storageClassName"),
            &self.storage_class_name,
        );
        if let Some(topology) = &self.node_topology {
            label_selector(&mut errors, &Path::new("nodeTopology"), topology);
        }
        if let Some(amount) = &self.capacity {
            not_negative_quantity(&mut errors, &Path::new("capacity"), amount);
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = self.validate();
        if self.node_topology != old.node_topology {
            let shown = self.node_topology.as_ref().map_or("null".into(), json_selector);
            errors.invalid(&Path::new("nodeTopology"), Json(shown), IMMUTABLE);
        }
        let path = Path::new("storageClassName");
        immutable(
            &mut errors,
            &path,
            &self.storage_class_name,
            &old.storage_class_name,
        );
        errors
    }

    const UNCONDITIONAL_UPDATE: bool = false;

    fn warnings(&self) -> Vec<String> {
        let Some(selector) = &self.node_topology else {
            return Vec::new();
        };
        let path = Path::new("nodeTopology");
        let expressions = selector.match_expressions.iter().flatten().enumerate();
        let expressions = expressions.filter_map(|(i, expression)| {
            let deprecation = deprecated_label(&expression.key)?;
            let at = path.child("matchExpressions").index(i).child("key");
            Some(format!("{at}: {} is {deprecation}", expression.key))
        });
        let labels = selector.match_labels.iter().flatten().filter_map(|(key, _)| {
            let deprecation = deprecated_label(key)?;
            Some(format!("{}: {deprecation}", path.child("matchLabels").child(key)))
        });
        expressions.chain(labels).collect()
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
