//! The controllers that some recordings need in addition to the server.

use std::sync::Arc;

use knarr_apiserver::Server;
use knarr_client::{Caches, Component, EventRecorder, SystemClock};
use knarr_control::{Base, runner};
use knarr_controllers::Controller;
use knarr_controllers::disruption::Disruptions;
use knarr_controllers::persistentvolume::claims::ClaimBinder;
use knarr_controllers::replicationcontroller::ReplicationControllers;
use knarr_controllers::resourcequota::ResourceQuotas;
use tokio::task::JoinSet;

/// Runs them until the result is dropped.
pub fn start(server: &Arc<Server>) -> JoinSet<()> {
    let api = server.api(&Component::ControllerManager);
    let clock = Arc::new(SystemClock);
    let base = Base {
        caches: Arc::new(Caches::new(api.clone())),
        events: EventRecorder::new(api, "controller-manager", "", clock.clone()),
        identities: server.identities(),
        clock,
        metrics: Default::default(),
    };
    let all: [Box<dyn Controller>; 4] = [
        Box::new(ResourceQuotas),
        Box::new(Disruptions),
        Box::new(ReplicationControllers::default()),
        Box::new(ClaimBinder),
    ];
    let mut running = JoinSet::new();
    for controller in all {
        running.spawn(runner::run(base.clone(), controller));
    }
    running
}
