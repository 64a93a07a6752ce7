//! WebSocket as Kubernetes' streams use it, in two forms: numbered channels in one connection ([`channels`]), and
//! a plain tunnel of bytes ([`tunnel`]).

pub mod channels;
pub mod tunnel;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

/// The largest message accepted, which is held in memory. kubectl and client-go send messages of 32 KiB, JavaScript's
/// streams 64 KiB. Kubernetes accepts 32 MiB, which is 96 MiB for a client whose messages wait for a container.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// The server's side, after the handshake.
async fn server<T: AsyncRead + AsyncWrite + Unpin>(io: T) -> WebSocketStream<T> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// The normal close: without the code, client-go reports an abnormal closure.
fn normal_closure() -> CloseFrame {
    CloseFrame {
        code: CloseCode::Normal,
        reason: "".into(),
    }
}
