//! The value of a pod's condition.

/// Whether a condition is true, and its reason and message.
pub(super) type ConditionValue = (bool, Option<String>, Option<String>);
