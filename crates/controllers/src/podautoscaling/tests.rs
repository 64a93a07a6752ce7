//! Tables with the facts of Kubernetes v1.36's own cases for this controller.

mod behavior;
mod reconciliation;
mod replicas;
