//! A request, before anything is done about it: what its URL means, which object it is about, and its context.
//!
//! Authorization, admission and the pipeline all read these; nothing here uses any of them.

mod ctx;
mod errors;
mod info;
mod target;
pub mod warnings;

pub use self::ctx::{AdmissionObject, Ctx, Origin};
pub(crate) use self::errors::with_empty_details;
pub use self::errors::{not_allowed, not_served};
pub use self::info::RequestInfo;
pub use self::target::Target;
