//! How the process's file descriptors are divided.
//!
//! Of those it may open (`RLIMIT_NOFILE`), half are for connections to the API, an eighth for the kubelet's port. The rest
//! is for the store, containerd, connections that are dialled for clients, logs and pods' files, so that none of them fails
//! because clients open many connections.

use knarr_apiserver::http::connections::Limits;
use nix::sys::resource::{Resource, getrlimit};

use super::Failure;

/// The limits of the API's port.
pub fn api_port() -> Result<Limits, Failure> {
    Ok(Limits::of_descriptors(available()? / 2))
}

/// The limits of the kubelet's port.
pub fn kubelet_port() -> Result<Limits, Failure> {
    Ok(Limits::of_descriptors(available()? / 8))
}

fn available() -> Result<usize, Failure> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)
        .map_err(|e| Failure::new("cannot read the limit of open files (RLIMIT_NOFILE)").because(e))?;
    // Without a finite limit the ports' own maxima hold.
    Ok(usize::try_from(soft).unwrap_or(usize::MAX))
}
