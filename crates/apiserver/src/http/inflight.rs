//! How many requests are worked on at once. Who comes when all places are taken waits a while in a queue, and is told
//! to come back later when that is full or moves too slowly: overload costs clients time and not the server memory.
//!
//! Watches and streams, members of `system:masters` and health checks take no place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use knarr_api::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places, as kube-apiserver's `--max-requests-inflight` and `--max-mutating-requests-inflight`.
pub const READ_ONLY: usize = 400;
pub const MUTATING: usize = 200;
/// Waiting requests of a kind for each place; each holds its head, and its body is not read yet.
const QUEUE_PER_PLACE: usize = 8;
/// How long one waits for a place; a quarter of what a request may take, as kube-apiserver's.
const PATIENCE: Duration = Duration::from_secs(15);
/// When to come back.
const RETRY_SECONDS: i32 = 1;

/// Places of one kind of request.
struct Places {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    queue: usize,
    patience: Duration,
}

/// See the module.
pub(crate) struct InFlight {
    read_only: Places,
    mutating: Places,
}

/// A place, until it is dropped.
pub(crate) struct Place(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl InFlight {
    pub fn new(read_only: usize, mutating: usize) -> Self {
        InFlight {
            read_only: Places::new(read_only, PATIENCE),
            mutating: Places::new(mutating, PATIENCE),
        }
    }

    pub async fn enter(&self, mutating: bool) -> Result<Place, Error> {
        let places = if mutating { &self.mutating } else { &self.read_only };
        places.enter().await
    }
}

impl Places {
    fn new(places: usize, patience: Duration) -> Self {
        Places {
            free: Arc::new(Semaphore::new(places)),
            waiting: AtomicUsize::new(0),
            queue: places.saturating_mul(QUEUE_PER_PLACE),
            patience,
        }
    }

    async fn enter(&self) -> Result<Place, Error> {
        if let Ok(place) = self.free.clone().try_acquire_owned() {
            return Ok(Place(place));
        }
        let refused = || Error::too_many_requests("too many requests, please try again later", RETRY_SECONDS);
        let waits = Waits::join(self).ok_or_else(refused)?;
        let place = tokio::time::timeout(self.patience, self.free.clone().acquire_owned()).await;
        drop(waits);
        match place {
            Ok(Ok(place)) => Ok(Place(place)),
            _ => Err(refused()),
        }
    }
}

/// One in the queue, also when its client goes away.
struct Waits<'a>(&'a Places);

impl<'a> Waits<'a> {
    fn join(places: &'a Places) -> Option<Self> {
        let before = places.waiting.fetch_add(1, Ordering::Relaxed);
        let waits = Waits(places);
        (before < places.queue).then_some(waits)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_place_waits_and_then_is_sent_away() {
        let places = Arc::new(Places::new(1, PATIENCE));
        let first = places.enter().await.unwrap();
        let waiting: Vec<_> = (0..QUEUE_PER_PLACE)
            .map(|_| {
                tokio::spawn({
                    let places = places.clone();
                    async move { places.enter().await.map(drop) }
                })
            })
            .collect();
        while places.waiting.load(Ordering::Relaxed) < QUEUE_PER_PLACE {
            tokio::task::yield_now().await;
        }
        // The queue is full.
        let refused = places.enter().await.err().unwrap();
        assert_eq!(refused.code(), 429);
        let details = refused.status().details.as_ref().unwrap();
        assert_eq!(details.retry_after_seconds, Some(RETRY_SECONDS));
        drop(first);
        for entered in waiting {
            assert!(entered.await.unwrap().is_ok());
        }
        let _first = places.enter().await.unwrap();
        assert_eq!(places.enter().await.err().unwrap().code(), 429, "patience ends");
        assert_eq!(places.waiting.load(Ordering::Relaxed), 0);
    }
}
