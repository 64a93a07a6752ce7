//! The service proxy against the kernel, each test in a network namespace of its own.

#![allow(clippy::unwrap_used)] // a test may panic anywhere; clippy knows that only inside test functions

mod compare;
mod driver;
mod table;
mod world;

use world::in_namespace;
