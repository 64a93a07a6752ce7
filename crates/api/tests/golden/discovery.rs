//! Discovery documents.
