//! Routes and tunnels between nodes that are network namespaces. Needs root.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod encrypted;
mod lab;
mod plain;
