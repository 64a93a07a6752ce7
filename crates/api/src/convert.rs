//! Kinds that are stored as another one (`events.k8s.io/v1` Events, `autoscaling/v1` autoscalers): there and back.

use std::sync::Arc;

use crate::error::Error;
use crate::kind::Kind;
use crate::object::{AnyObject, Object};

/// A value of `from` as `to` has it. The same value where the two are one kind.
pub fn typed(from: &Kind, to: &Kind, object: Box<dyn AnyObject>) -> Result<Box<dyn AnyObject>, Error> {
    if from == to {
        Ok(object)
    } else {
        Err(Error::internal(format!("{from:?} is not {to:?}")))
    }
}

/// A stored object as `to` shows it; shares the encoding where the two are one kind.
pub fn object(object: &Arc<Object>, to: &'static Kind) -> Result<Arc<Object>, Error> {
    if object.kind() == to {
        return Ok(object.clone());
    }
    Ok(Arc::new(Object::from_typed(
        to,
        typed(object.kind(), to, object.typed().clone_box())?,
    )))
}
