//! The connection of a request, as far as the request needs it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Response;
use tokio_util::sync::CancellationToken;

use super::body::Body;
use super::connections::Permit;
use super::timeouts::{Timeouts, close_when_stalled};
use crate::authn::certificate::PeerCertificate;
use crate::request::RequestInfo;

/// The protocol of a connection, as negotiated in the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// The connection of a request.
pub(crate) struct Connection {
    /// The client, as far as its certificate identifies it.
    pub client: Arc<PeerCertificate>,
    pub address: Option<SocketAddr>,
    pub protocol: Protocol,
    /// Whether the client may read as slowly as it likes.
    pub no_write_timeout: Arc<AtomicBool>,
    /// Closes the connection at once.
    pub close: CancellationToken,
    /// The connection's permit of the port; none for a connection that came by no port.
    pub permit: Option<Arc<Permit>>,
}

impl Connection {
    /// The client has authenticated.
    pub fn authenticated(&self) {
        if let Some(permit) = &self.permit {
            permit.authenticate();
        }
    }

    /// The connection carries a stream, which may be read as slowly as the client likes. Over HTTP/2 this is for its
    /// own stream only.
    pub fn disable_write_timeout(&self) {
        if self.protocol == Protocol::Http1 {
            self.no_write_timeout.store(true, Ordering::Relaxed);
        }
    }

    /// Closes the connection when the client does not read the response. Over HTTP/1.1 the connection itself detects that.
    pub fn guard_response(
        &self,
        response: Response<Body>,
        info: &RequestInfo,
        timeouts: &Timeouts,
    ) -> Response<Body> {
        let stream = info.is_long_running() && info.verb != "watch";
        if self.protocol == Protocol::Http1 || stream {
            return response;
        }
        response.map(|body| close_when_stalled(body, timeouts.response, &self.close))
    }
}
