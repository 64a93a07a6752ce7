//! Who set which field (KEP-555): kept with every write, and what server-side apply decides by.
//!
//! Pure: values in, values out. The pipeline hands in the object before and after a write and who wrote it
//! ([`Managed::update`]; [`Managed::create`] where there was none), or the object there is and a configuration that
//! a client applies ([`Managed::apply`]).

mod blank;
mod check;
mod conversions;
mod creation;
mod custom;
mod differing;
mod held;
mod managers;
mod reset;
mod scale;
mod set;
mod text;
mod typed;

pub use blank::blank;
pub use conversions::{Conversions, Missing};
pub use creation::{Found, Walk};
pub use managers::{
    Applied, Conflicts, LAST_APPLIED, Managed, ManagerId, Operation, Refused, is_reset, last_applied_fields,
    merged,
};
pub use set::FieldSet;
