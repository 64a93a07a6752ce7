//! The metrics of controllers, under the names of kube-controller-manager, client-go and controller-runtime.

mod controllers;
mod workloads;

pub use self::controllers::ControllerMetrics;
pub(crate) use self::controllers::{Reconciled, queue_name};
pub(crate) use self::workloads::{SyncAction, job_of};
