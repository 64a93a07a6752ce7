//! The force-deletion of one pod, as an action.

use knarr_api::ObjectKey;
use knarr_apimachinery::ids::PodUid;

/// The permission to force-delete one pod. Its fields are private to [`podgc`](crate::podgc), so only that module can create one:
///
/// ```compile_fail
/// use knarr_controllers::action::Release;
/// let forged = Release { key: knarr_api::ObjectKey::new("a", "p"), uid: "u".into() };
/// ```
#[derive(Debug)]
pub struct Release {
    pub(super) key: ObjectKey,
    pub(super) uid: PodUid,
}

impl Release {
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// The uid of the pod that was decided on.
    pub fn uid(&self) -> &PodUid {
        &self.uid
    }
}
