//! The controllers of the API server itself: one task each, which ends when the server, its connections and its in-process clients are
//! dropped.

use std::sync::Arc;
use std::time::Duration;

use knarr_client::Clock;

use crate::aggregation::{ApiServiceController, run_api_service_controller};
use crate::bootstrap::{BootstrapController, run_bootstrap_controller};
use crate::cache::event_ttl::delete_old_events;
use crate::cache::maintenance::{CacheMaintenance, compact, forget_changes, slim};
use crate::custom::{DefinitionController, run_definition_controller};
use crate::flow_control::{FlowControlController, adjust_seats, run_flow_control};

/// The controllers. They run while this exists.
pub(crate) struct Controllers {
    pub clock: Arc<dyn Clock>,
    pub maintenance: Arc<CacheMaintenance>,
    /// See [`crate::Options::event_ttl`].
    pub event_ttl: Option<Duration>,
    pub bootstrap: Arc<BootstrapController>,
    pub definitions: Arc<DefinitionController>,
    pub api_services: Arc<ApiServiceController>,
    pub flow_control: Arc<FlowControlController>,
}

impl Controllers {
    pub fn start(&self) {
        tokio::spawn(compact(Arc::downgrade(&self.maintenance)));
        tokio::spawn(slim(Arc::downgrade(&self.maintenance)));
        tokio::spawn(forget_changes(Arc::downgrade(&self.maintenance)));
        if let Some(ttl) = self.event_ttl {
            let maintenance = Arc::downgrade(&self.maintenance);
            tokio::spawn(delete_old_events(maintenance, self.clock.clone(), ttl));
        }
        tokio::spawn(run_bootstrap_controller(Arc::downgrade(&self.bootstrap)));
        tokio::spawn(run_definition_controller(Arc::downgrade(&self.definitions)));
        tokio::spawn(run_api_service_controller(Arc::downgrade(&self.api_services)));
        tokio::spawn(run_flow_control(Arc::downgrade(&self.flow_control)));
        tokio::spawn(adjust_seats(Arc::downgrade(&self.flow_control)));
    }
}
