//! What cannot be decided key by key: looking at everything now and then, with a memory of when what was first seen.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use knarr_api::Kind;
use knarr_api::k8s_openapi;

use crate::action::Action;
use crate::controller::View;

/// A controller that looks at everything in turns.
pub trait Sweep: Send + 'static {
    /// As it stands in events.
    fn name(&self) -> &'static str;

    /// As [`Controller::account`](crate::Controller::account).
    fn account(&self) -> &'static str;

    fn watches(&self) -> Vec<&'static Kind>;

    /// From one look to the next.
    fn period(&self) -> Duration;

    /// Lists of actions, each in order; one list that fails does not keep the others.
    fn sweep(&mut self, view: &dyn View, now: Timestamp) -> Vec<Vec<Action>>;
}
