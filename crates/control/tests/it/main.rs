//! The components on an in-memory API, in paused time. One program, because each is linked with all that it uses.

mod cluster;
mod deletion;
mod devices;
mod live_checks;
mod podautoscaling;
mod rebalancing;
mod replicaset;
mod scheduler;
mod topology_domains;
mod workloads;
