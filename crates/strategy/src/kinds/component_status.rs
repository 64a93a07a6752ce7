//! ComponentStatus: the deprecated health report of the control plane's components. Never stored.

use k8s_openapi::api::core::v1::ComponentStatus;
use k8s_openapi::jiff::Timestamp;

use super::checks::text;
use crate::Strategy;
use crate::table::{self, Cell, Column};

impl Strategy for ComponentStatus {
    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Status"),
            Column::string("Message"),
            Column::string("Error"),
        ];
        COLUMNS
    }

    fn row(&self, _now: Timestamp) -> Vec<Cell> {
        let healthy = self.conditions.iter().flatten().find(|c| c.type_ == "Healthy");
        let status = match healthy.map(|c| c.status.as_str()) {
            None => "Unknown",
            Some("True") => "Healthy",
            Some(_) => "Unhealthy",
        };
        vec![
            table::name(&self.metadata),
            status.into(),
            healthy.map_or("", |c| text(&c.message)).into(),
            healthy.map_or("", |c| text(&c.error)).into(),
        ]
    }
}
