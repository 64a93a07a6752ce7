//! Field management (KEP-555): the managers of an object's fields, recorded with every write, and server-side apply.
//!
//! Pure: values in, values out. The pipeline passes the object before and after a write, and the field manager
//! ([`Managed::update`]; [`Managed::create`] for a creation), or the live object and a configuration that
//! a client applies ([`Managed::apply`]).

mod blank;
mod check;
mod conversions;
mod creation;
mod differing;
mod kind_type;
mod manager_id;
mod managers;
mod reset;
mod scale;
mod set;
mod text;
mod typed;
mod unchanged;
mod values;

pub use blank::blank;
pub use conversions::{Conversions, Missing};
pub use manager_id::{ManagerId, Operation};
pub use managers::{
    Applied, ApplyError, Conflicts, LAST_APPLIED, Managed, is_reset, last_applied_fields, merged,
};
pub use set::FieldSet;
