//! Clients that only read: one at each API server, which lists all pods, in one response or by pages, and watches
//! them. What it is shown is compared with what the store committed, at each step (`rules::s9_watches`).

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use knarr_api::registry;
use knarr_client::{Api, Error, List, ListOptions, WatchOptions};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::finding::Finding;
use crate::observer::Observer;
use crate::random::Stream;
use crate::rules::s9_watches;
use crate::servers::ApiServer;

/// The pause before a failed request is repeated.
const RETRY: Duration = Duration::from_millis(500);
/// The timeout of a request: longer than the slowest connection to the store.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest duration of a watch …
const WATCHES_MILLIS: u64 = 60_000;
/// … and of the pause after it.
const PAUSES_MILLIS: u64 = 20_000;
/// Lists by pages, per mille, of so many pods each …
const PAGED_PER_MILLE: u32 = 500;
const PAGE: usize = 3;
/// … with the longest pause between two pages.
const PAGE_MILLIS: u64 = 2_000;
/// Watches that are resumed where the last one ended, without a new list, per mille.
const RESUMED_PER_MILLE: u32 = 700;

/// See the module.
pub(crate) struct Reader {
    server: Arc<ApiServer>,
    observer: Arc<Observer>,
    /// It has been shown everything up to this revision.
    position: Mutex<u64>,
}

impl Reader {
    /// Starts one at each server.
    pub fn start_all(
        servers: &[Arc<ApiServer>],
        observer: &Arc<Observer>,
        chance: impl Fn(&str) -> Stream,
    ) -> Vec<Arc<Self>> {
        let started = servers.iter().map(|server| {
            let reader = Arc::new(Reader {
                server: server.clone(),
                observer: observer.clone(),
                position: Mutex::default(),
            });
            tokio::spawn(reader.clone().read(chance(&server.name)));
            reader
        });
        started.collect()
    }

    /// What was committed up to a revision and has not been shown to it.
    pub fn is_behind(&self, revision: u64) -> Result<(), Finding> {
        let position = *self.position.lock();
        match position < revision {
            true => Err(Finding(format!(
                "a reader of {} has been shown all up to {position}, expected up to {revision}",
                self.server.name
            ))),
            false => Ok(()),
        }
    }

    async fn read(self: Arc<Self>, mut chance: Stream) {
        let mut resumes = false;
        loop {
            let done = self.read_once(&mut chance, &mut resumes).await;
            match done {
                Ok(()) => sleep(chance.millis(0, PAUSES_MILLIS)).await,
                Err(error) => {
                    resumes &= !error.is_expired();
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Lists, unless it resumes, and watches for some time.
    async fn read_once(&self, chance: &mut Stream, resumes: &mut bool) -> Result<(), Error> {
        let Some((stopped, server)) = self.server.running() else {
            return Err(Error::unavailable("the server does not run"));
        };
        let api = server.api_as("reader", ["system:masters"]);
        if !*resumes {
            let pages = with_retries(self.list(&*api, chance)).await?;
            let revision = pages.first().map_or(0, |page| page.resource_version);
            self.check(
                self.observer
                    .world(|world| s9_watches::lists(&pages, &world.commits)),
            );
            *self.position.lock() = revision;
        }
        let options = WatchOptions {
            after: Some(*self.position.lock()),
            ..WatchOptions::default()
        };
        *resumes = true;
        let mut events = with_retries(api.watch(&registry::POD, options)).await?;
        let until = Instant::now() + chance.millis(0, WATCHES_MILLIS);
        loop {
            let event = tokio::select! {
                biased;
                () = stopped.cancelled() => None,
                () = tokio::time::sleep_until(until) => None,
                event = events.next() => event,
            };
            let Some(event) = event else { break };
            let (event, position) = (event?, *self.position.lock());
            let next = self
                .observer
                .world(|world| s9_watches::follows(position, &event, &world.commits));
            let Some(next) = self.check(next) else { break };
            *self.position.lock() = next;
        }
        *resumes = chance.per_mille(RESUMED_PER_MILLE);
        Ok(())
    }

    async fn list(&self, api: &dyn Api, chance: &mut Stream) -> Result<Vec<List>, Error> {
        let limit = match chance.per_mille(PAGED_PER_MILLE) {
            true => PAGE,
            false => 0,
        };
        let mut pages: Vec<List> = Vec::new();
        loop {
            let continue_token = pages.last().map(|page| page.continue_token.clone());
            let options = ListOptions {
                limit,
                continue_token: continue_token.unwrap_or_default(),
                ..ListOptions::default()
            };
            let page = api.list(&registry::POD, options).await?;
            let is_last = page.continue_token.is_empty();
            pages.push(page);
            if is_last {
                return Ok(pages);
            }
            sleep(chance.millis(0, PAGE_MILLIS)).await;
        }
    }

    fn check<T>(&self, found: Result<T, Finding>) -> Option<T> {
        match found {
            Ok(found) => Some(found),
            Err(what) => {
                self.observer
                    .violate("S9", format!("{}: {what}", self.server.name));
                None
            }
        }
    }
}

async fn with_retries<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let answer = timeout(REQUEST_TIMEOUT, request).await;
    answer.unwrap_or_else(|_| Err(Error::timeout("the request timed out")))
}
