//! What may be thrown away: images nobody uses ([`images`]), and what is left of pods and sandboxes that are over
//! ([`remains`]). Nothing is removed here; these say what is to be.

pub mod images;
pub mod remains;
