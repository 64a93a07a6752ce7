//! Containers' logs: the files the runtime writes, read for users ([`mod@read`]) and kept from filling the disk
//! ([`rotate`]).
//!
//! A file holds lines of the form `2016-10-06T00:17:09.669794202Z stdout F text` (CRI's log format); the file that
//! is written now has the name the runtime was given, rotated ones have a time behind it.

pub mod line;
pub mod links;
pub mod options;
pub mod read;
pub mod rotate;
pub mod tail;

pub use options::Options;
pub use read::{LogError, read};
