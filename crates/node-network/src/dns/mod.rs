//! The cluster DNS server of a node: UDP and TCP, upstream forwarding, metrics (SPEC N5).
