//! Kinds that are stored as another one (`events.k8s.io/v1` Events, `autoscaling/v1` autoscalers): there and back.

use std::any::Any;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::events::v1 as events;
use knarr_apimachinery::error::Error;

use crate::any_object::AnyObject;
use crate::kind::Kind;
use crate::object::Object;
use crate::registry::{EVENT, EVENTS_EVENT, HORIZONTAL_POD_AUTOSCALER, HORIZONTAL_POD_AUTOSCALER_V1};

pub mod autoscaler;

/// Converts an object of `from` to `to`. The same object where the two are one kind.
pub fn typed(from: &Kind, to: &Kind, object: Box<dyn AnyObject>) -> Result<Box<dyn AnyObject>, Error> {
    if from == to {
        return Ok(object);
    }
    if to.is_converted_by_webhook() {
        // Only the API server can convert by webhook.
        return Err(Error::internal(format!(
            "only a webhook can convert {from:?} to {to:?}"
        )));
    }
    if let Some(custom) = to.ops.custom() {
        return Ok(Box::new(custom.adopt(take(object)?)));
    }
    let (new, old) = (&EVENTS_EVENT, &EVENT);
    let (v1, v2) = (&HORIZONTAL_POD_AUTOSCALER_V1, &HORIZONTAL_POD_AUTOSCALER);
    Ok(if from == new && to == old {
        Box::new(event_to_core(take(object)?))
    } else if from == old && to == new {
        Box::new(event_from_core(take(object)?))
    } else if from == v1 && to == v2 {
        Box::new(autoscaler::to_v2(take(object)?))
    } else if from == v2 && to == v1 {
        Box::new(autoscaler::to_v1(take(object)?))
    } else {
        return Err(Error::internal(format!("{from:?} is not {to:?}")));
    })
}

/// Converts the JSON of a `from` to a `to`; `None` where it does not parse.
pub fn json(from: &Kind, to: &Kind, value: &serde_json::Value) -> Option<serde_json::Value> {
    if from == to {
        return Some(value.clone());
    }
    let text = serde_json::to_vec(value).ok()?;
    let object = from.ops.decode(&text).ok()?.object;
    let mut out = Vec::new();
    typed(from, to, object).ok()?.encode_into(&mut out);
    serde_json::from_slice(&out).ok()
}

fn take<T: 'static>(object: Box<dyn AnyObject>) -> Result<T, Error> {
    let any: Box<dyn Any> = object.into_any();
    any.downcast()
        .map(|object| *object)
        .map_err(|_| Error::internal(format!("expected a {}", std::any::type_name::<T>())))
}

/// A stored object as `to` shows it; shares the encoding where the two are one kind.
pub fn object(object: &Arc<Object>, to: &Kind) -> Result<Arc<Object>, Error> {
    if object.kind() == to {
        return Ok(object.clone());
    }
    Ok(Arc::new(Object::from_typed(
        to,
        typed(object.kind(), to, object.typed().clone_box())?,
    )))
}

/// The older form of an event.
pub fn event_to_core(event: events::Event) -> core::Event {
    core::Event {
        action: event.action,
        count: event.deprecated_count,
        event_time: event.event_time,
        first_timestamp: event.deprecated_first_timestamp,
        involved_object: event.regarding.unwrap_or_default(),
        last_timestamp: event.deprecated_last_timestamp,
        message: event.note,
        metadata: event.metadata,
        reason: event.reason,
        related: event.related,
        reporting_component: Some(event.reporting_controller.unwrap_or_default()),
        reporting_instance: Some(event.reporting_instance.unwrap_or_default()),
        series: event.series.map(|s| core::EventSeries {
            count: Some(s.count),
            last_observed_time: Some(s.last_observed_time),
        }),
        source: event.deprecated_source,
        type_: event.type_,
    }
}

/// The newer form of an event.
pub fn event_from_core(event: core::Event) -> events::Event {
    events::Event {
        action: event.action,
        deprecated_count: event.count,
        deprecated_first_timestamp: event.first_timestamp,
        deprecated_last_timestamp: event.last_timestamp,
        deprecated_source: event.source,
        event_time: event.event_time,
        metadata: event.metadata,
        note: event.message,
        reason: event.reason,
        regarding: Some(event.involved_object),
        related: event.related,
        // Always present in the older form, even empty; here only if it is set.
        reporting_controller: event.reporting_component.filter(|name| !name.is_empty()),
        reporting_instance: event.reporting_instance.filter(|name| !name.is_empty()),
        series: event.series.and_then(|s| {
            Some(events::EventSeries {
                count: s.count.unwrap_or(0),
                // Required in this form; a series without it is dropped.
                last_observed_time: s.last_observed_time?,
            })
        }),
        type_: event.type_,
    }
}

#[cfg(test)]
mod tests;
