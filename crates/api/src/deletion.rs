//! What a deletion does to dependents.

/// The propagationPolicy of a delete: what happens to the dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}
