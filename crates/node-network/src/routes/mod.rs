//! Routes, tunnels and encryption to the pods of other nodes (SPEC N7).
