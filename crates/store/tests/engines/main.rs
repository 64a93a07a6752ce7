//! All engines against one suite, and each against what only it can suffer.

mod crash;
mod embedded;
mod etcd;
mod memory;
mod suite;
