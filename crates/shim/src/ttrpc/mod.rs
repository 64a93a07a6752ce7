//! ttrpc, containerd's lightweight gRPC, without threads: [`frame`] is the wire format, [`connection`] the server's side
//! (containerd asks), [`publisher`] the client's side (events for containerd).

pub mod connection;
pub mod frame;
pub mod publisher;
