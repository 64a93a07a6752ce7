//! containerd's own event stream: tells of an exit at once, where CRI of containerd 1.6 can only be polled.
//!
//! One server-streaming call of `containerd.services.events.v1.Events`, declared by hand: four fields of it
//! are of interest. An event only says "look again": what is so is then asked over CRI.

use futures::stream::{BoxStream, StreamExt};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::{Result, RuntimeError, RuntimeEvent};

#[derive(Clone, PartialEq, prost::Message)]
struct SubscribeRequest {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    topic: String,
    #[prost(message, optional, tag = "4")]
    event: Option<Any>,
}

/// The fields shared by `TaskExit` and `TaskOOM` that matter here.
#[derive(Clone, PartialEq, prost::Message)]
struct TaskExit {
    #[prost(string, tag = "1")]
    container_id: String,
    /// The exec's id, where it was not the container's first process.
    #[prost(string, tag = "2")]
    id: String,
}

/// CRI's containers live in this namespace of containerd.
const NAMESPACE: &str = "k8s.io";

/// Exits of CRI's containers, as they happen; ends when containerd cannot be asked or goes.
///
/// containerd answers the call only with its first event: the stream is there at once, and waits for both.
pub fn subscribe(channel: Channel) -> BoxStream<'static, RuntimeEvent> {
    let events = futures::stream::once(call(channel)).filter_map(|called| std::future::ready(called.ok()));
    let events = events
        .flatten()
        .take_while(|envelope| std::future::ready(envelope.is_ok()))
        .filter_map(|envelope| std::future::ready(envelope.ok().and_then(exit)));
    events.boxed()
}

async fn call(channel: Channel) -> Result<tonic::Streaming<Envelope>> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready()
        .await
        .map_err(|e| RuntimeError::new("Unavailable", e.to_string()))?;
    let codec = tonic_prost::ProstCodec::<SubscribeRequest, Envelope>::default();
    let path = PathAndQuery::from_static("/containerd.services.events.v1.Events/Subscribe");
    let request = SubscribeRequest {
        filters: vec![format!("namespace=={NAMESPACE},topic==\"/tasks/exit\"")],
    };
    let answer = grpc
        .server_streaming(tonic::Request::new(request), path, codec)
        .await;
    answer
        .map(tonic::Response::into_inner)
        .map_err(super::cri::refusal)
}

fn exit(envelope: Envelope) -> Option<RuntimeEvent> {
    let event = envelope.event?;
    // An event that does not parse is passed over: the next look at the list finds what it told of.
    let exit: TaskExit = prost::Message::decode(event.value.as_slice()).ok()?;
    let first_process = exit.id.is_empty() || exit.id == exit.container_id;
    (envelope.namespace == NAMESPACE && first_process).then_some(RuntimeEvent::Exited {
        id: exit.container_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn only_a_first_process_counts_as_the_containers_exit() {
        let envelope = |namespace: &str, id: &str| Envelope {
            namespace: namespace.into(),
            topic: "/tasks/exit".into(),
            event: Some(Any {
                type_url: "containerd.events.TaskExit".into(),
                value: TaskExit {
                    container_id: "c1".into(),
                    id: id.into(),
                }
                .encode_to_vec(),
            }),
        };
        let c1 = Some(RuntimeEvent::Exited { id: "c1".into() });
        assert_eq!(exit(envelope("k8s.io", "c1")), c1);
        assert_eq!(exit(envelope("k8s.io", "exec-7")), None);
        assert_eq!(exit(envelope("moby", "c1")), None);
    }
}
