//! The store alone: how many small durable writes from many writers at once, how long each takes, and how long a
//! store with a million keys takes to open.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use knarr_store::{Config, Error, KeyRange, Op, Range, Store, Txn, TxnResult, open};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

/// What to measure. The default is what the project promises something about.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory for the store's files. It should be on the disk that is to be measured.
    pub dir: PathBuf,
    /// Writers at once, each waiting for its write before the next.
    pub writers: usize,
    pub value_bytes: usize,
    /// Different keys each writer writes to.
    pub keys_per_writer: usize,
    pub seconds: u64,
    /// Stop earlier after so many writes.
    pub max_writes: u64,
    /// Keys of the store that is opened; 0 leaves this out.
    pub open_keys: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            dir: PathBuf::new(),
            writers: 64,
            value_bytes: 1024,
            keys_per_writer: 1000,
            seconds: 5,
            max_writes: 5_000_000,
            open_keys: 1_000_000,
        }
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Report {
    pub writes_per_second: f64,
    pub p50_micros: u64,
    pub p99_micros: u64,
    pub open: Option<OpenReport>,
}

#[derive(Clone, Debug)]
pub struct OpenReport {
    pub fill_seconds: f64,
    pub open_seconds: f64,
    /// From asking for all keys with their values to having them.
    pub list_seconds: f64,
}

/// Why it could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the store rejected a request")]
    Store(#[from] Error),
    #[error("a write without conditions was not committed: {0:?}")]
    NotCommitted(TxnResult),
    #[error("a writer stopped early")]
    Writer(#[from] tokio::task::JoinError),
    #[error("after opening there are {found} keys, {written} were written")]
    Lost { found: usize, written: u64 },
}

/// Transactions in flight while the store is filled for opening.
const FILLERS: u64 = 64;

/// Keys in one transaction of the filling.
const FILL_KEYS: u64 = 100;

pub async fn run(options: Options) -> Result<Report, Failure> {
    let store = open(Config::Embedded {
        dir: options.dir.join("writes"),
    })
    .await?;
    let begin = Instant::now();
    let writers = (0..options.writers).map(|w| tokio::spawn(write(store.clone(), options.clone(), w)));
    let mut micros: Vec<u64> = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        micros.extend(writer.await??);
    }
    let seconds = begin.elapsed().as_secs_f64();
    drop(store);
    micros.sort_unstable();
    let quantile = |per_cent: usize| micros.get(micros.len() * per_cent / 100).copied().unwrap_or(0);
    let open = if options.open_keys == 0 {
        None
    } else {
        Some(fill_and_open(&options).await?)
    };
    Ok(Report {
        writes_per_second: micros.len() as f64 / seconds,
        p50_micros: quantile(50),
        p99_micros: quantile(99),
        open,
    })
}

/// Values that do not compress and differ.
fn value(random: &mut StdRng, bytes: usize) -> Bytes {
    let mut value = vec![0; bytes];
    random.fill_bytes(&mut value);
    value.into()
}

async fn commit(store: &dyn Store, ops: Vec<Op>) -> Result<(), Failure> {
    match store
        .txn(Txn {
            compares: Vec::new(),
            ops,
        })
        .await?
    {
        TxnResult::Committed { .. } => Ok(()),
        failed => Err(Failure::NotCommitted(failed)),
    }
}

/// How long each write of one writer took, in microseconds.
async fn write(store: Arc<dyn Store>, options: Options, writer: usize) -> Result<Vec<u64>, Failure> {
    let mut random = StdRng::seed_from_u64(writer as u64);
    let deadline = Instant::now() + Duration::from_secs(options.seconds);
    let most = options.max_writes / options.writers.max(1) as u64;
    let mut micros = Vec::new();
    while (micros.len() as u64) < most && Instant::now() < deadline {
        let n = micros.len() % options.keys_per_writer.max(1);
        let key = format!("/registry/leases/bench-{writer}/{n:06}").into();
        let put = Op::Put {
            key,
            value: value(&mut random, options.value_bytes),
        };
        let begin = Instant::now();
        commit(&*store, vec![put]).await?;
        micros.push(begin.elapsed().as_micros() as u64);
    }
    Ok(micros)
}

async fn fill_and_open(options: &Options) -> Result<OpenReport, Failure> {
    let config = Config::Embedded {
        dir: options.dir.join("open"),
    };
    let (keys, bytes) = (options.open_keys, options.value_bytes);
    let begin = Instant::now();
    let store = open(config.clone()).await?;
    let fill = |filler: u64, store: Arc<dyn Store>| async move {
        let mut random = StdRng::seed_from_u64(filler);
        for first in (filler * FILL_KEYS..keys).step_by((FILLERS * FILL_KEYS) as usize) {
            let put = |n| Op::Put {
                key: format!("/registry/pods/bench-{:04}/pod-{n:09}", n % 1000).into(),
                value: value(&mut random, bytes),
            };
            commit(&*store, (first..keys.min(first + FILL_KEYS)).map(put).collect()).await?;
        }
        Ok::<(), Failure>(())
    };
    let fillers = (0..FILLERS).map(|filler| tokio::spawn(fill(filler, store.clone())));
    for filler in fillers.collect::<Vec<_>>() {
        filler.await??;
    }
    drop(store);
    let fill_seconds = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let store = open(config).await?;
    let open_seconds = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let found = store
        .range(Range {
            keys: KeyRange::prefix(""),
            ..Range::default()
        })
        .await?
        .kvs
        .len();
    let list_seconds = begin.elapsed().as_secs_f64();
    if found as u64 != keys {
        return Err(Failure::Lost { found, written: keys });
    }
    Ok(OpenReport {
        fill_seconds,
        open_seconds,
        list_seconds,
    })
}
