//! Load generators: each workload in its own module, called by `./dev bench` and by nothing else.

pub mod store;
