//! What a check finds wrong.

/// How a rule does not hold, or how the state differs from the desired one, in words: what a
/// [`Violation`](crate::Violation) says in addition to its rule, its time and its objects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Finding(pub(crate) String);
