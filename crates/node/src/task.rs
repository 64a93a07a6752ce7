//! Tasks, whose code is compiled once for each type of result.

use futures::future::BoxFuture;
use tokio::task::JoinHandle;

/// As [`tokio::spawn`], which is compiled for each type of future: some 7 KiB for each of forty tasks.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let future: BoxFuture<'static, T> = Box::pin(future);
    tokio::spawn(future)
}
