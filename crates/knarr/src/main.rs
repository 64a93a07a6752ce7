//! knarr
fn main() {}
