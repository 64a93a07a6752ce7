//! CSINode: the CSI drivers of one node.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver};
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{IMMUTABLE, Json, qualified_name};
use super::pod::internal;
use super::pod::validation::volume_plugins::csi_driver;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy, facts};

/// Maximum length of `nodeID`, the driver's own name of the node, in bytes.
const NODE_ID_MAX: usize = 256;

impl Strategy for CSINode {
    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let mut names = BTreeSet::new();
        for (i, driver) in self.spec.drivers.iter().enumerate() {
            let path = Path::new("spec").child("drivers").index(i);
            csi_driver(&driver.name, &path.child("name"), &mut errors);
            let at = path.child("nodeID");
            if driver.node_id.is_empty() {
                errors.required(&at, "");
            }
            if driver.node_id.len() > NODE_ID_MAX {
                let detail = format!("must be {NODE_ID_MAX} characters or less");
                errors.invalid(&at, &driver.node_id, detail);
            }
            facts::check(&mut errors, &path, driver, &["allocatable"]);
            if !names.insert(&driver.name) {
                errors.duplicate(&path.child("name"), &driver.name);
            }
            let mut keys = BTreeSet::new();
            for key in driver.topology_keys.iter().flatten() {
                if key.is_empty() {
                    errors.required(&path, "");
                }
                if !keys.insert(key) {
                    errors.duplicate(&path, key);
                }
                qualified_name(&mut errors, &path, key);
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = self.validate();
        // Drivers may be added and removed and their `allocatable` may change; `nodeID` and `topologyKeys` of a driver may not.
        let pairs = old.spec.drivers.iter().flat_map(|before| {
            let after = self.spec.drivers.iter();
            after.filter(|d| d.name == before.name).map(move |d| (before, d))
        });
        for (before, driver) in pairs {
            if driver.node_id != before.node_id || driver.topology_keys != before.topology_keys {
                let identity = CSINodeDriver {
                    allocatable: None,
                    ..driver.clone()
                };
                let shown = Json(internal::json("CSINodeDriver", &identity));
                errors.invalid(&Path::new("spec").child("drivers"), shown, IMMUTABLE);
            }
        }
        errors
    }

    const UNCONDITIONAL_UPDATE: bool = false;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::integer("Drivers"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            table::name(&self.metadata),
            self.spec.drivers.len().into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::FULL
    }
}
