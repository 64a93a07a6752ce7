//! containerd's own event stream: reports an exit at once, where CRI of containerd 1.6 can only be polled.
//!
//! One server-streaming call of `containerd.services.events.v1.Events`, declared by hand: only a few fields are used.
//! An event only triggers a check: the state is then read over CRI. Only where CRI has lost an exit code, because
//! containerd was killed before it stored it, the event's code is used.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_kubelet::runtime::Exit;
use parking_lot::Mutex;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::{Result, RuntimeError, RuntimeEvent};

/// CRI's record of an exit that it missed.
const UNSEEN: (i32, &str) = (255, "Unknown");
/// So many exits are remembered: containerd is away for seconds, and a node has a few hundred containers.
const EXITS_MAX: usize = 1024;

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
    #[prost(uint32, tag = "4")]
    exit_status: u32,
    #[prost(message, optional, tag = "5")]
    exited_at: Option<ExitedAt>,
}

/// google.protobuf.Timestamp.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ExitedAt {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// The last exit events.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentExits(Arc<Mutex<VecDeque<RecentExit>>>);

#[derive(Debug)]
struct RecentExit {
    id: String,
    code: i32,
    at: Option<Timestamp>,
}

impl RecentExits {
    fn remember(&self, exit: &TaskExit) {
        let at = exit
            .exited_at
            .and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
        let Ok(code) = i32::try_from(exit.exit_status) else {
            return;
        };
        let mut exits = self.0.lock();
        if exits.len() == EXITS_MAX {
            exits.pop_front();
        }
        let id = exit.container_id.clone();
        exits.push_back(RecentExit { id, code, at });
    }

    /// CRI's record of this container's exit, completed from the events if CRI missed it.
    pub(super) fn complete(&self, id: &str, reported: Exit) -> Exit {
        if (reported.code, reported.reason.as_str()) != UNSEEN {
            return reported;
        }
        let exits = self.0.lock();
        let Some(exit) = exits.iter().rev().find(|exit| exit.id == id) else {
            return reported;
        };
        Exit {
            code: exit.code,
            // As containerd names them.
            reason: if exit.code == 0 { "Completed" } else { "Error" }.into(),
            finished_at: exit.at.or(reported.finished_at),
            ..reported
        }
    }
}

/// CRI's containers live in this namespace of containerd.
const NAMESPACE: &str = "k8s.io";

/// Exits of CRI's containers, as they happen; ends when containerd disconnects.
///
/// containerd answers the call only with its first event: the stream is there at once, and waits for both.
pub(super) fn subscribe(channel: Channel, exits: RecentExits) -> BoxStream<'static, RuntimeEvent> {
    let events = futures::stream::once(call(channel)).filter_map(|called| std::future::ready(called.ok()));
    let events = events
        .flatten()
        .take_while(|envelope| std::future::ready(envelope.is_ok()))
        .filter_map(move |envelope| std::future::ready(envelope.ok().and_then(|e| exit(e, &exits))));
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
        .map_err(super::grpc::runtime_error)
}

fn exit(envelope: Envelope, exits: &RecentExits) -> Option<RuntimeEvent> {
    let event = envelope.event?;
    // An event that does not parse is skipped: the next relist finds its exit.
    let exit: TaskExit = prost::Message::decode(event.value.as_slice()).ok()?;
    let first_process = exit.id.is_empty() || exit.id == exit.container_id;
    if envelope.namespace != NAMESPACE || !first_process {
        return None;
    }
    exits.remember(&exit);
    Some(RuntimeEvent::Exited {
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
                    exit_status: 3,
                    exited_at: Some(ExitedAt { seconds: 5, nanos: 6 }),
                }
                .encode_to_vec(),
            }),
        };
        let c1 = Some(RuntimeEvent::Exited { id: "c1".into() });
        let exits = RecentExits::default();
        assert_eq!(exit(envelope("k8s.io", "exec-7"), &exits), None);
        assert_eq!(exit(envelope("moby", "c1"), &exits), None);
        let reported = |code, reason: &str| Exit {
            code,
            reason: reason.into(),
            ..Exit::default()
        };
        let unseen = reported(255, "Unknown");
        assert_eq!(
            exits.complete("c1", unseen.clone()),
            unseen,
            "no event has arrived yet"
        );
        assert_eq!(exit(envelope("k8s.io", "c1"), &exits), c1);
        let completed = exits.complete("c1", unseen.clone());
        assert_eq!(completed.finished_at, Timestamp::new(5, 6).ok());
        assert_eq!((completed.code, completed.reason.as_str()), (3, "Error"));
        assert_eq!(exits.complete("c2", unseen.clone()), unseen);
        for seen in [
            reported(0, "Completed"),
            reported(255, "Error"),
            reported(137, "OOMKilled"),
        ] {
            assert_eq!(exits.complete("c1", seen.clone()), seen, "CRI saw it");
        }
    }
}
