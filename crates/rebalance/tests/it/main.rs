//! Plans and steps on clusters in JSON. One program, because each is linked with all that it uses.

mod controller;
mod controller_kinds;
mod descheduler_cases;
mod limits;
mod oracle;
mod policies;
mod properties;
mod protections;
mod spread;
mod strategies;
mod world;
