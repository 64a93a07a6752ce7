//! The type that a kind's objects have for merging.

use super::typed::Type;
use crate::kind::Kind;
use crate::shapes::shape_of;

/// `None` where the kind has no schema.
pub(super) fn type_of_kind(kind: &Kind) -> Option<Type<'_>> {
    match kind.ops.custom() {
        Some(custom) => Some(Type::custom(&custom.rules().schema)),
        None => shape_of(kind).map(Type::root),
    }
}
