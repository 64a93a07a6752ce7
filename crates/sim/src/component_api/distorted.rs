//! Lists and watches as a mutant reads them.

use futures::StreamExt;
use knarr_api::registry;
use knarr_client::{Kind, List, Object, Result, WatchEvent, WatchStream};

use super::ComponentApi;
use crate::Mutation;
use crate::distortion;

impl ComponentApi {
    /// A list as a mutant reads it.
    pub(super) fn distort_list(&self, kind: &Kind, namespace: &str, mut list: List) -> List {
        if self.mutation.is_none() {
            return list;
        }
        if kind == &registry::ENDPOINT_SLICE && self.is_kubelet() {
            let read = |slice| distortion::read_slice(self.mutation, slice);
            list.items = list.items.into_iter().map(read).collect();
        }
        if kind != &registry::POD {
            return list;
        }
        let (mutation, is_kubelet) = (self.mutation, self.is_kubelet());
        list.items
            .retain(|pod| !distortion::hides(mutation, is_kubelet, pod));
        list.items = list
            .items
            .into_iter()
            .map(|pod| distortion::read(mutation, is_kubelet, pod))
            .collect();
        match self.mutation {
            Some(Mutation::KeepReleased) if self.is_kubelet() => {
                let mut kept = self.kept.lock();
                for pod in list.items.iter().filter(|pod| !is_forced(pod)) {
                    kept.insert((pod.namespace().to_string(), pod.name().to_string()), pod.clone());
                }
                let all = kept
                    .values()
                    .filter(|p| namespace.is_empty() || p.namespace() == namespace);
                list.items = all.cloned().collect();
            }
            _ => {}
        }
        list
    }

    /// As [`ComponentApi::distort_list`], for the events of a watch.
    pub(super) fn distort_watch(&self, kind: &Kind, stream: WatchStream) -> WatchStream {
        if kind == &registry::ENDPOINT_SLICE && self.is_kubelet() && self.mutation.is_some() {
            let mutation = self.mutation;
            let read = move |event| match event {
                Ok(WatchEvent::Added(slice)) => {
                    Ok(WatchEvent::Added(distortion::read_slice(mutation, slice)))
                }
                Ok(WatchEvent::Modified(slice)) => {
                    Ok(WatchEvent::Modified(distortion::read_slice(mutation, slice)))
                }
                other => other,
            };
            return stream.map(read).boxed();
        }
        if kind != &registry::POD {
            return stream;
        }
        let (mutation, is_kubelet) = (self.mutation, self.is_kubelet());
        if mutation.is_none() {
            return stream;
        }
        let stream = stream
            .map(move |event| match event {
                Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))
                    if distortion::hides(mutation, is_kubelet, &pod) =>
                {
                    Ok(WatchEvent::Deleted(pod))
                }
                Ok(WatchEvent::Added(pod)) => {
                    Ok(WatchEvent::Added(distortion::read(mutation, is_kubelet, pod)))
                }
                Ok(WatchEvent::Modified(pod)) => {
                    Ok(WatchEvent::Modified(distortion::read(mutation, is_kubelet, pod)))
                }
                other => other,
            })
            .boxed();
        match mutation {
            Some(Mutation::KeepReleased) if self.is_kubelet() => {
                let kept = self.kept.clone();
                let keep = move |event: &Result<WatchEvent>| {
                    let delivers_answers = match event {
                        Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) if !is_forced(pod) => {
                            let key = (pod.namespace().to_string(), pod.name().to_string());
                            kept.lock().insert(key, pod.clone());
                            true
                        }
                        Ok(WatchEvent::Bookmark(_)) | Err(_) => true,
                        Ok(_) => false,
                    };
                    std::future::ready(delivers_answers)
                };
                stream.filter(keep).boxed()
            }
            _ => stream,
        }
    }
}

/// Whether this pod was released: its node is not waited for.
fn is_forced(pod: &Object) -> bool {
    pod.metadata().deletion_grace_period_seconds == Some(0)
}
