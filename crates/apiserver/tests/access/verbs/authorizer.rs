//! An authorizer that records the requests of one user, and allows those that a test allows.

use std::sync::Arc;

use knarr_apiserver::User;
use knarr_apiserver::authz::{Attributes, Authorizer};
use parking_lot::Mutex;

use crate::cluster::{Cluster, Credentials};

/// The user whose requests are recorded. All other users may do everything.
pub const USER: &str = "bob";

/// The requests that are allowed, as [`text`] formats them.
#[derive(Clone, Debug, Default)]
pub enum Allowed {
    #[default]
    Everything,
    AllBut(String),
    Only(Vec<String>),
}

/// Records the requests. See the module.
#[derive(Default)]
pub struct Recorder {
    allowed: Mutex<Allowed>,
    asked: Mutex<Vec<String>>,
}

impl Recorder {
    /// A cluster with a new recorder.
    pub async fn cluster() -> (Cluster, Arc<Self>) {
        let recorder = Arc::<Recorder>::default();
        let own = recorder.clone();
        let cluster = Cluster::with(|options, _| options.authorizer = Some(own)).await;
        (cluster, recorder)
    }

    pub fn allow(&self, allowed: Allowed) {
        *self.allowed.lock() = allowed;
        self.asked.lock().clear();
    }

    /// The requests since the last call, each once, in order.
    pub fn asked(&self) -> Vec<String> {
        let mut asked: Vec<String> = Vec::new();
        for one in self.asked.lock().iter() {
            if !asked.contains(one) {
                asked.push(one.clone());
            }
        }
        asked
    }
}

pub fn user() -> Credentials {
    Credentials::token("bob-token")
}

/// `verb group/resource/subresource namespace/name`, or `verb path`.
pub fn text(asked: &Attributes<'_>) -> String {
    let Attributes {
        verb,
        group,
        resource,
        subresource,
        namespace,
        name,
        ..
    } = asked;
    match asked.path {
        Some(path) => format!("{verb} {path}"),
        None => format!("{verb} {group}/{resource}/{subresource} {namespace}/{name}"),
    }
}

impl Authorizer for Recorder {
    fn allows(&self, user: &User, request: &Attributes<'_>) -> bool {
        if user.name != USER {
            return true;
        }
        let asked = text(request);
        let allowed = match &*self.allowed.lock() {
            Allowed::Everything => true,
            Allowed::AllBut(denied) => *denied != asked,
            Allowed::Only(allowed) => allowed.contains(&asked),
        };
        self.asked.lock().push(asked);
        allowed
    }
}
