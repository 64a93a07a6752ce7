//! The answers of cluster DNS: Kubernetes' DNS-based service discovery, version 1.1 (SPEC N5).
//!
//! [`query`] reads a question, [`zone`] finds the cluster's records, [`search`] follows a pod's search list in
//! one step, [`message`] writes the answer. Other names are forwarded by [`forward`]'s rules, and
//! [`cached`] is the form in which answers of other servers are kept and passed on.
//!
//! Every function takes bytes and values and returns bytes and values; nothing here panics, whatever the bytes are.

pub mod cached;
pub mod forward;
pub mod message;
pub mod name;
pub mod query;
pub mod resolv_conf;
pub mod reverse;
pub mod search;
pub mod zone;

#[cfg(test)]
mod tests;

/// Record types, by their number in messages.
pub mod record_type {
    pub const A: u16 = 1;
    pub const NS: u16 = 2;
    pub const CNAME: u16 = 5;
    pub const SOA: u16 = 6;
    pub const PTR: u16 = 12;
    pub const HINFO: u16 = 13;
    pub const TXT: u16 = 16;
    pub const AAAA: u16 = 28;
    pub const SRV: u16 = 33;
    pub const OPT: u16 = 41;
    pub const IXFR: u16 = 251;
    pub const AXFR: u16 = 252;
    pub const ANY: u16 = 255;
}

/// Response codes, by their number in messages; above 15 they need EDNS.
pub mod response_code {
    pub const NO_ERROR: u16 = 0;
    pub const FORMAT_ERROR: u16 = 1;
    pub const SERVER_FAILURE: u16 = 2;
    pub const NAME_ERROR: u16 = 3;
    pub const NOT_IMPLEMENTED: u16 = 4;
    pub const REFUSED: u16 = 5;
    pub const BAD_VERSION: u16 = 16;
}
