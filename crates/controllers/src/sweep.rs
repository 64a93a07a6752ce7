//! Controllers that cannot reconcile key by key: they evaluate all objects periodically, and remember when they first observed
//! something (as the loops of kube-controller-manager's node lifecycle controller and PodGC).

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use knarr_api::Kind;
use knarr_api::k8s_openapi;

use crate::action::Action;
use crate::controller::View;

/// A controller that evaluates all objects periodically.
pub trait Sweep: Send + 'static {
    /// Its name in events.
    fn name(&self) -> &'static str;

    /// As [`Controller::account`](crate::Controller::account).
    fn account(&self) -> &'static str;

    fn watches(&self) -> Vec<&'static Kind>;

    /// The time until the next sweep.
    fn period(&self) -> Duration;

    /// Evaluates all objects. Returns lists of actions, each carried out in order; a list that fails does not stop the others.
    fn sweep(&mut self, view: &dyn View, now: Timestamp) -> Vec<Vec<Action>>;
}
