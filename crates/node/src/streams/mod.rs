//! Streams into containers.

pub mod spdy;
