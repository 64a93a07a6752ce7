//! Tests of what only the inside can see: failing disks, damaged files, reclaimed space.
