//! The decisions against a direct reading of the API's documentation, by way of a simulated kernel.

mod cases;
mod changes;
mod random;
mod reference;
mod simulation;
mod world;
