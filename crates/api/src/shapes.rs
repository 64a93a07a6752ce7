//! The shapes of kinds, each built when it is first needed.

use std::sync::{LazyLock, OnceLock};

use crate::kind::Kind;
use crate::registry;
use crate::scale::SCALE;
use crate::shape::Shape;

/// The shape of a registered kind; `None` for others.
pub(crate) fn shape_of(kind: &Kind) -> Option<&'static Shape> {
    static SHAPES: LazyLock<Vec<OnceLock<Shape>>> =
        LazyLock::new(|| registry::ALL.iter().map(|_| OnceLock::new()).collect());
    if *kind == SCALE {
        return Some(Shape::of_scale());
    }
    let at = registry::ALL.iter().position(|k| *k == kind)?;
    Some(SHAPES[at].get_or_init(|| Shape::build(|generator| kind.ops.schema(generator))))
}
